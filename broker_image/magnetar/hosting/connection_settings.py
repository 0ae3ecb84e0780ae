"""Settings of connections: what one peer may take, and what all of them together.

Owns: `ConnectionSettings`, that part of a broker's settings. Imports: bounded, metrics_settings.
Invariant: a frame of the largest message fits into half of `receive_bytes_max`, the share of one
address.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.hosting.bounded import bounded
from magnetar.hosting.metrics_settings import MetricsSettings

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class ConnectionSettings(MetricsSettings):
    """Base of a broker's settings."""

    max_message_bytes: int = bounded(
        5 * _MIB, 1 * _KIB, 15 * _MIB, "largest message a client may send; announced in CONNECTED"
    )
    keep_alive_s: float = bounded(
        30.0, 1, 3600, "interval of PING; a peer silent for longer than this after a PING is closed"
    )
    liveness_check_s: float = bounded(
        5.0, 0.05, 600, "time the holder of a wanted name or exclusive access has to answer a PING"
    )
    connections_max: int = bounded(
        20_000, 1, 1_000_000, "open client connections; fewer if the process may open fewer files"
    )
    connections_per_address_max: int = bounded(
        10_000,
        1,
        1_000_000,
        "client connections from one IPv4 address or one /64 of IPv6 addresses",
    )
    connections_unauthenticated_max: int = bounded(
        1_000, 1, 1_000_000, "connections before their CONNECT; for one more the oldest is dropped"
    )
    connect_timeout_s: float = bounded(5.0, 0.05, 60, "time a new connection has to send CONNECT")
    receive_bytes_max: int = bounded(
        256 * _MIB,
        32 * _MIB,
        1 << 40,
        "bytes reserved for frames that have begun, over all connections, half of it for one "
        "address; beyond it they wait; without it 1/8 of the memory limit, if there is one",
        share=8,
    )
    producers_per_connection_max: int = bounded(10_000, 1, 1_000_000, "producers of one connection")
    consumers_per_connection_max: int = bounded(10_000, 1, 1_000_000, "consumers of one connection")
    non_persistent_in_flight_max: int = bounded(
        1000, 1, 1_000_000, "non-persistent messages of a connection in progress; more are dropped"
    )
    topic_watchers_per_connection_max: int = bounded(
        100, 1, 100_000, "watchers of topic lists of one connection"
    )
    requests_per_connection_max: int = bounded(
        5_000, 1, 1_000_000, "requests of one connection that wait for an answer"
    )
    write_buffer_bytes_max: int = bounded(
        4 * _MIB, 64 * _KIB, 256 * _MIB, "queued bytes above which a connection gets no messages"
    )
    slow_peer_s: float = bounded(
        60.0, 0.1, 3600, "time after which a connection whose peer does not read is dropped"
    )

"""Gauges of what a broker works with.

Owns: the metrics of storage damage, space, watermarks, certificates and security documents. Imports: the table
of damage, log writer, bundles, security, TLS. Invariant: a gauge reads memory only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.corruption import DamageTable
from magnetar.broker.metrics import BrokerMetrics
from magnetar.clock import Clock
from magnetar.storage.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from magnetar.broker.bundles.bundle import OwnedBundle
    from magnetar.broker.watermarks.followed import Followed
    from magnetar.broker.watermarks.topic_watermarks import ServedWatermarks
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.hosting.tls import TlsPort


def damage_table(clock: Clock, metrics: BrokerMetrics, writer: LogWriter) -> DamageTable:
    """The table of what is wrong with storage, with its metrics and those of space."""
    table, gauge, space = DamageTable(clock), metrics.gauge, writer.space
    gauge(
        "magnetar_storage_damage",
        "Named damage of storage that is there now: GET /magnetar/v1/damage",
        lambda: len(table),
    )
    gauge("magnetar_storage_damage_met", "Operations that met damage", lambda: table.met)
    gauge(
        "magnetar_storage_short",
        "1 while nothing is published for want of space on the volume",
        lambda: space.short is not None,
    )
    gauge(
        "magnetar_log_stalled",
        "1 while not even the reserve has space for the log",
        lambda: space.stalled is not None,
    )
    gauge(
        "magnetar_log_files_abandoned",
        "Log files left after a failed write or flush",
        lambda: writer.files_abandoned,
    )
    return table


def expose_access(
    metrics: BrokerMetrics, security: Authenticator | None, tls: TlsPort | None
) -> None:
    """Metrics of security documents and certificates, where there are any."""
    gauge = metrics.gauge
    if security is not None:
        gauge(
            "magnetar_security_reloads_failed",
            "Security documents that were not used",
            lambda: security.source.reloads_failed,
        )
    if tls is not None:
        certificates = tls.certificates
        gauge(
            "magnetar_tls_certificate_expires_seconds",
            "End of the certificate, unix time",
            lambda: certificates.expires_s,
        )
        gauge(
            "magnetar_tls_reloads_failed",
            "Certificates that were not used",
            lambda: certificates.reloads_failed,
        )
        gauge(
            "magnetar_tls_handshakes_failed",
            "TLS handshakes that failed or took too long",
            lambda: tls.failed,
        )
        gauge(
            "magnetar_tls_handshakes_dropped",
            "Connections dropped because too many shook hands",
            lambda: tls.dropped,
        )


def expose_watermarks(
    metrics: BrokerMetrics, clock: Clock, owned: Mapping[str, OwnedBundle]
) -> None:
    """Metrics of the event-time watermarks of topics served here."""

    def marked() -> Iterator[ServedWatermarks]:
        for bundle in owned.values():
            for topic in bundle.topics.values():
                if topic.watermarks is not None:
                    yield topic.watermarks

    def followed() -> Iterator[Followed]:
        for marks in marked():
            yield from marks.followed

    def lag_s() -> float:
        known = [found.watermark_ms for found in followed()]
        least = min((value for value in known if value is not None), default=None)
        return 0.0 if least is None else (clock.wall_ms() - least) / 1000

    gauge = metrics.gauge
    gauge(
        "magnetar_watermarks_active_producers",
        "Producers that hold the watermarks of topics served here",
        lambda: sum(marks.timeline.head.active_count for marks in marked()),
    )
    gauge(
        "magnetar_watermarks_lag_seconds",
        "By how much the oldest watermark of a subscription served here is behind the clock, 0 if "
        "there is none",
        lag_s,
    )
    gauge(
        "magnetar_watermarks_stalled_seconds",
        "The longest that a subscription served here has acknowledged messages without its "
        "watermark moving",
        lambda: max((found.stalled_s for found in followed()), default=0.0),
    )
    gauge(
        "magnetar_watermarks_clamped",
        "Assertions below a watermark that was delivered, of topics served here",
        lambda: sum(found.generator.clamped for found in followed()),
    )
    gauge(
        "magnetar_watermarks_late",
        "Messages below a watermark that was delivered, of topics served here",
        lambda: sum(marks.late for marks in marked()),
    )

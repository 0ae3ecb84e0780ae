"""Gauges of what a broker works with.

Owns: the metrics of storage damage, space, certificates and security documents. Imports: the table
of damage, log writer, security, TLS. Invariant: a gauge reads memory only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.corruption import DamageTable
from magnetar.broker.metrics import BrokerMetrics
from magnetar.clock import Clock
from magnetar.storage.log.writer import LogWriter

if TYPE_CHECKING:
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

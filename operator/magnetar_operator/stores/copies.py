"""Whether the copies of a cluster's metadata store keep up.

Owns: that judgement, and what the status says of the newest copy. Imports: conditions, resources.
Pure. Invariants: brokers that do not serve, or have not served for long, are not blamed; the same
report gives the same status and, while it stays, the same message, so that a steady state writes
nothing.
"""

from __future__ import annotations

from magnetar.metadata.records import BackupReportRecord
from magnetar.resources.broker_cluster import BrokerCluster, MetadataCopyStatus
from magnetar_operator.conditions import Problem, Reason, Type, timestamp, wall_ms_of

INTERVALS_MISSED = 3


def copies_problem(
    cluster: BrokerCluster, report: BackupReportRecord | None, now_ms: int
) -> Problem | None:
    """What is wrong when no copy was made, and none found current, for three intervals; None if
    all is well, or no broker could have made or reported one (brokers of earlier versions do not).
    `now_ms`: milliseconds since the epoch."""
    serving_ms = _serving_since_ms(cluster)
    if serving_ms is None or report is None:
        return None
    late_ms = INTERVALS_MISSED * cluster.spec.config.value("metadata_backup_interval_s") * 1000
    if now_ms - max(report.current_ms, serving_ms) < late_ms:
        return None
    since = f"since {timestamp(report.current_ms)}" if report.current_ms else "yet"
    if report.problem:
        return Problem(
            Reason.BACKUP_FAILED, f"no copy of the metadata store {since}: {report.problem}"
        )
    return Problem(
        Reason.BACKUP_OVERDUE, f"no copy of the metadata store {since}, and no broker says why"
    )


def _serving_since_ms(cluster: BrokerCluster) -> int | None:
    """Since when brokers take traffic; None = they do not."""
    available = next(
        (found for found in cluster.status.conditions if found.type == Type.AVAILABLE.value), None
    )
    if available is None or available.status != "True":
        return None
    return wall_ms_of(available.last_transition_time)


def copy_status(cluster: BrokerCluster, report: BackupReportRecord | None) -> MetadataCopyStatus:
    """status.metadataCopy. What is not known now, or not of this leader's making, stays as it
    was."""
    before = cluster.status.metadata_copy
    if report is None:
        return before
    if not report.object:
        return before.model_copy(update={"problem": report.problem})
    return MetadataCopyStatus(
        object=report.object,
        revision=report.revision,
        time=timestamp(report.created_ms),
        problem=report.problem,
    )

"""Whether copies of the metadata store keep up, and what the status says of the newest."""

from __future__ import annotations

import pytest

from magnetar.metadata.records import BackupReportRecord
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator.brokers.scaling import ScalePlan
from magnetar_operator.brokers.state import ClusterState
from magnetar_operator.brokers.status import Observed, derive, findings_of
from magnetar_operator.conditions import Finding, Reason, Type, merged
from magnetar_operator.pods.rolling import RollPlan
from magnetar_operator.stores.copies import copies_problem
from tests.support.samples import cluster

NOON_MS = 1_800_000_000_000
MINUTE_MS = 60_000
LATE_MS = 30 * MINUTE_MS
"""Three intervals of ten minutes."""
COPY = BackupReportRecord("backups/00000001-00000000000000000007", 7, NOON_MS, NOON_MS)


def serving(since_ms: int = 0, available: bool = True, **config: float) -> BrokerCluster:
    """A cluster whose condition Available has been as it is since `since_ms`."""
    made = cluster(config=config)
    conditions = merged((), [Finding(Type.AVAILABLE, available, Reason.AS_DESIRED)], 1, since_ms)
    return made.model_copy(
        update={"status": made.status.model_copy(update={"conditions": conditions})}
    )


def test_three_intervals_without_a_copy_or_a_look_are_reported_with_the_reason() -> None:
    failing = BackupReportRecord(COPY.object, 7, NOON_MS, NOON_MS, "no space left on the volume")
    assert copies_problem(serving(), COPY, NOON_MS + LATE_MS - 1) is None
    assert copies_problem(serving(), failing, NOON_MS + LATE_MS - 1) is None
    silent = copies_problem(serving(), COPY, NOON_MS + LATE_MS)
    assert silent is not None
    assert (silent.reason, "since 2027-01-15T08:00:00Z" in silent.message) == (
        Reason.BACKUP_OVERDUE,
        True,
    )
    failed = copies_problem(serving(), failing, NOON_MS + LATE_MS)
    assert failed is not None
    assert (failed.reason, "no space left" in failed.message) == (Reason.BACKUP_FAILED, True)
    assert copies_problem(serving(), failing, NOON_MS + 9 * LATE_MS) == failed, (
        "the message stays while nothing changes"
    )


def test_the_interval_is_that_of_the_brokers_settings() -> None:
    often = serving(metadata_backup_interval_s=60)
    assert copies_problem(often, COPY, NOON_MS + 3 * MINUTE_MS) is not None
    assert copies_problem(often, COPY, NOON_MS + 2 * MINUTE_MS) is None


@pytest.mark.parametrize(
    ("resource", "report"),
    [
        (serving(available=False), COPY),
        (cluster(), COPY),
        (serving(NOON_MS + LATE_MS), COPY),
        (serving(), None),
    ],
    ids=[
        "no broker serves",
        "nothing is known of brokers",
        "brokers have just begun to serve",
        "brokers of an earlier version",
    ],
)
def test_nobody_is_blamed_who_could_not_have_reported_a_copy(
    resource: BrokerCluster, report: BackupReportRecord | None
) -> None:
    assert copies_problem(resource, report, NOON_MS + LATE_MS) is None


def test_the_status_shows_the_newest_copy_and_changes_only_with_it() -> None:
    """A later look that finds the copy current writes nothing; a new leader that has made none
    keeps what was known."""

    def updated(before: BrokerCluster, report: BackupReportRecord | None) -> BrokerCluster:
        state = ClusterState("5e" * 16, {}, {}, {}, copies=report)
        return before.model_copy(
            update={"status": derive(before, Observed({}, (), state), RollPlan(), ())}
        )

    first = updated(cluster(), COPY)
    shown = first.status.metadata_copy
    assert (shown.object, shown.revision, shown.time, shown.problem) == (
        COPY.object,
        7,
        "2027-01-15T08:00:00Z",
        "",
    )
    looked = updated(first, BackupReportRecord(COPY.object, 7, NOON_MS, NOON_MS + LATE_MS))
    assert looked.status == first.status
    assert updated(first, None).status == first.status
    failing = updated(first, BackupReportRecord(problem="no space"))
    assert (failing.status.metadata_copy.object, failing.status.metadata_copy.problem) == (
        COPY.object,
        "no space",
    )


def test_a_missing_copy_degrades_the_cluster() -> None:
    resource = serving()
    problem = copies_problem(resource, COPY, NOON_MS + LATE_MS)
    observed = Observed(
        {}, (), ClusterState("5e" * 16, {}, {}, {}, copies=COPY), copies_problem=problem
    )
    found = {
        finding.type: finding
        for finding in findings_of(resource, observed, ScalePlan(1), RollPlan(), ())
    }
    assert (found[Type.DEGRADED].holds, found[Type.DEGRADED].reason) == (
        True,
        Reason.BACKUP_OVERDUE,
    )

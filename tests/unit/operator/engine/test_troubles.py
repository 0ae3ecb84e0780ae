"""Everything that is wrong, in one list and in the conditions."""

from __future__ import annotations

import pytest

from magnetar.resources.base import TROUBLES_DESCRIPTION
from magnetar_operator.brokers.scaling import ScalePlan
from magnetar_operator.brokers.status import Observed, findings_of, troubles_of
from magnetar_operator.conditions import MESSAGE_LENGTH_MAX, Finding, Problem, Reason, Type
from magnetar_operator.engine.troubles import (
    PER_REASON_MAX,
    TROUBLE_LENGTH_MAX,
    TROUBLES_MAX,
    listed,
    obstructed,
    ranked,
    standing,
)
from magnetar_operator.pods.rolling import RollPlan
from tests.support.pod_states import UNSCHEDULABLE, container, ended, pod, waiting
from tests.support.samples import cluster

AVAILABLE = Finding(Type.AVAILABLE, True, Reason.AS_DESIRED)
CRASH = Problem(Reason.POD_CRASHING, "main-broker-0: exit code 1", "main-broker-0")
CRASH_TOO = Problem(Reason.POD_CRASHING, "main-broker-1: exit code 1", "main-broker-1")
NO_QUORUM = Problem(Reason.ETCD_NO_QUORUM, "one of three")
VOLUME = Problem(Reason.STORAGE_NOT_EXPANDABLE, "claim main-storage stays at 10Gi", "main-storage")


def by_type(findings: list[Finding]) -> dict[Type, Finding]:
    return {finding.type: finding for finding in findings}


def test_the_gravest_is_named_and_the_others_are_counted() -> None:
    """A store without quorum comes before a pod that crashes, and that before a volume that does
    not grow, however they were found."""
    troubles = ranked([VOLUME, CRASH, CRASH_TOO, NO_QUORUM, CRASH])
    assert troubles == (NO_QUORUM, CRASH, CRASH_TOO, VOLUME)
    found = by_type(standing(AVAILABLE, None, troubles, "2 brokers are ready"))
    said = "one of three [and 3 more in status.troubles: 2 x PodCrashing, StorageNotExpandable]"
    for kind in (Type.DEGRADED, Type.READY):
        assert (found[kind].reason, found[kind].message) == (Reason.ETCD_NO_QUORUM, said)
    alone = by_type(standing(AVAILABLE, None, (CRASH,), ""))
    assert alone[Type.DEGRADED].message == CRASH.message
    assert not by_type(standing(AVAILABLE, None, (), ""))[Type.DEGRADED].holds
    assert by_type(obstructed(VOLUME))[Type.DEGRADED].message == VOLUME.message


def test_the_count_survives_a_long_message() -> None:
    long = Problem(Reason.REFUSED, "x" * 5000)
    found = by_type(standing(AVAILABLE, None, ranked([long, CRASH]), ""))
    assert len(found[Type.DEGRADED].message) == MESSAGE_LENGTH_MAX
    assert found[Type.DEGRADED].message.endswith("[and 1 more in status.troubles: PodCrashing]")


def test_a_trouble_keeps_the_time_at_which_it_was_first_seen() -> None:
    """Whatever its words become, and whatever comes and goes beside it; one that was gone begins
    again."""
    first = listed((), (CRASH,), 1_000)
    changed = Problem(CRASH.reason, "main-broker-0: exit code 2", CRASH.about)
    second = listed(first, (NO_QUORUM, changed, CRASH_TOO), 9_000)
    assert [(one.reason, one.about, one.since) for one in second] == [
        ("EtcdNoQuorum", "", "1970-01-01T00:00:09Z"),
        ("PodCrashing", "main-broker-0", "1970-01-01T00:00:01Z"),
        ("PodCrashing", "main-broker-1", "1970-01-01T00:00:09Z"),
    ]
    assert second[1].message == "main-broker-0: exit code 2"
    healed = listed(listed(second, (), 10_000), (CRASH,), 20_000)
    assert healed[0].since == "1970-01-01T00:00:20Z"


def test_the_list_is_bounded_and_one_reason_does_not_hide_the_others() -> None:
    many = [
        Problem(Reason.POD_CRASHING, "x" * 900, f"main-broker-{number}") for number in range(200)
    ]
    found = listed((), ranked([*many, VOLUME]), 0)
    assert [one.reason for one in found] == ["PodCrashing"] * PER_REASON_MAX + [
        "StorageNotExpandable"
    ]
    assert {len(one.message) for one in found[:PER_REASON_MAX]} == {TROUBLE_LENGTH_MAX}
    assert len(listed((), [Problem(reason, "") for reason in Reason], 0)) == TROUBLES_MAX
    assert f"at most {TROUBLES_MAX}, and {PER_REASON_MAX} of one reason" in TROUBLES_DESCRIPTION


@pytest.mark.parametrize("problems", [(), (VOLUME,)])
def test_every_pod_and_problem_of_a_pass_is_in_the_list(problems: tuple[Problem, ...]) -> None:
    crashing = pod("main-broker-0", **container(waiting("CrashLoopBackOff"), **ended(1)))
    observed = Observed({}, (crashing, pod("main-broker-1", **UNSCHEDULABLE)), None)
    found = troubles_of(cluster(replicas=2), observed, problems)
    assert [(one.reason, one.about) for one in found] == [
        (Reason.POD_CRASHING, "main-broker-0"),
        (Reason.POD_UNSCHEDULABLE, "main-broker-1"),
        *((one.reason, one.about) for one in problems),
    ]
    said = by_type(findings_of(cluster(replicas=2), observed, ScalePlan(2), RollPlan(), problems))[
        Type.DEGRADED
    ].message
    assert f"[and {1 + len(problems)} more in status.troubles: " in said

"""Conditions and the cluster's status."""

from __future__ import annotations

import re

from magnetar.metadata.records import BundleRecord, BundleState, IncarnationRecord
from magnetar_operator.brokers.scaling import Cordon, ScalePlan
from magnetar_operator.brokers.state import ClusterState, broker_of, bundle_counts
from magnetar_operator.brokers.status import Observed, derive, findings_of
from magnetar_operator.conditions import Finding, Problem, Reason, Type, merged
from magnetar_operator.pods.rolling import RollPlan
from tests.support.samples import cluster


def ready_pod(ordinal: int, ready: bool = True) -> dict[str, object]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": f"main-broker-{ordinal}", "labels": {}},
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": conditions},
    }


STATE = ClusterState("5e" * 16, {"main-broker-0": "main-broker-0.01"}, {"main-broker-0": 4}, {})


def test_transition_times_change_with_the_status_only() -> None:
    first = merged((), [Finding(Type.READY, False, Reason.STARTING, "a")], 1, 1_000)
    same = merged(first, [Finding(Type.READY, False, Reason.NO_BROKER, "b")], 2, 9_000)
    other = merged(same, [Finding(Type.READY, True, Reason.AS_DESIRED)], 3, 20_000)
    assert [found[0].last_transition_time for found in (first, same, other)] == [
        "1970-01-01T00:00:01Z", "1970-01-01T00:00:01Z", "1970-01-01T00:00:20Z",
    ]  # fmt: skip
    assert other[0].observed_generation == 3
    assert other[0].message == Reason.AS_DESIRED.meaning


def test_a_cluster_that_is_well_says_so_of_each_aspect_and_counts_as_people_do() -> None:
    """No condition speaks for another one, such as of a spec that is met while the cluster is
    degraded."""
    for replicas, ready in ((1, "1 broker is ready"), (2, "2 brokers are ready")):
        pods = tuple(ready_pod(ordinal) for ordinal in range(replicas))
        found = findings(Observed({}, pods, STATE), replicas=replicas)
        assert {kind: (finding.holds, finding.message) for kind, finding in found.items()} == {
            "Available": (True, f"{replicas} of {replicas} brokers take traffic"),
            "Progressing": (False, "Nothing is under way."),
            "Degraded": (False, "Nothing needs repair."),
            "Ready": (True, ready),
        }


def test_every_reason_is_a_word_with_meaning_and_remedy() -> None:
    words = [reason.value for reason in Reason]
    assert len(set(words)) == len(words)
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][A-Za-z]+", reason.value)
        assert reason.meaning.endswith(".")
        assert reason.remedy.endswith(".")


def findings(
    observed: Observed, *problems: Problem, replicas: int = 1, scale: ScalePlan | None = None
) -> dict[str, Finding]:
    found = findings_of(
        cluster(replicas=replicas), observed, scale or ScalePlan(replicas), RollPlan(), problems
    )
    return {finding.type.value: finding for finding in found}


def test_a_complete_cluster_is_ready() -> None:
    found = findings(Observed({}, (ready_pod(0),), STATE))
    assert [found[kind].holds for kind in ("Available", "Progressing", "Degraded", "Ready")] == [
        True,
        False,
        False,
        True,
    ]


def test_ready_names_what_is_missing() -> None:
    """A problem outranks progress; progress outranks silence."""
    draining = ScalePlan(
        2, reason=Reason.DRAINING, message="main-broker-1 has 3 bundles left to transfer"
    )
    found = findings(Observed({}, (ready_pod(0), ready_pod(1)), STATE), scale=draining)
    assert (found["Ready"].reason, found["Available"].holds) == (Reason.DRAINING, True)
    refused = findings(Observed({}, (ready_pod(0),), STATE), Problem(Reason.REFUSED, "quota"))
    assert (refused["Ready"].reason, refused["Ready"].message) == (Reason.REFUSED, "quota")
    starting = findings(Observed({}, (ready_pod(0, ready=False),), STATE))
    assert (starting["Ready"].reason, starting["Available"].reason) == (
        Reason.STARTING,
        Reason.NO_BROKER,
    )


def test_a_silent_store_degrades_only_a_cluster_that_has_worked() -> None:
    observed = Observed({}, (ready_pod(0),), None, "etcd is unavailable")
    assert findings(observed)["Progressing"].reason is Reason.STORE_STARTING
    worked = cluster(replicas=1).model_copy(
        update={"status": derive(cluster(), Observed({}, (), STATE), RollPlan(), ())}
    )
    found = {one.type: one for one in findings_of(worked, observed, ScalePlan(1), RollPlan(), ())}
    assert found[Type.DEGRADED].reason is Reason.STORE_UNAVAILABLE
    assert found[Type.AVAILABLE].holds


def test_status_shows_brokers_in_order_with_their_bundles() -> None:
    pods = (ready_pod(10), ready_pod(0), ready_pod(2, ready=False))
    state = ClusterState(
        "id",
        {"main-broker-10": "main-broker-10.ff"},
        {"main-broker-10": 7},
        {"main-broker-10": Cordon(True, "x")},
    )
    status = derive(
        cluster(), Observed({}, pods, state), RollPlan(pending=(("main-broker-0", "Image"),)), ()
    )
    assert [(broker.name, broker.bundles, broker.phase) for broker in status.brokers] == [
        ("main-broker-0", 0, "Ready"), ("main-broker-2", 0, "Starting"), ("main-broker-10", 7, "Draining"),
    ]  # fmt: skip
    assert (status.replicas, status.ready_replicas, status.observed_generation) == (3, 2, 3)
    assert status.selector == "app.kubernetes.io/component=broker,magnetar.io/cluster=main"
    assert status.pending_restarts[0].reason == "Image"


def test_a_bundle_counts_for_its_owner_and_its_destination_dead_or_alive() -> None:
    """A broker is not drained while any record names it."""
    live = {"a.01": IncarnationRecord("a", "", "", 0, "")}
    bundles = [
        BundleRecord(BundleState.OWNED, 1, "a.01"),
        BundleRecord(BundleState.ASSIGNING, 1, "dead-broker-3.0123456789abcdef", source="a.01"),
        BundleRecord(BundleState.RELEASING, 1, "a.01", destination="b.02"),
        BundleRecord(BundleState.FREE, 1, "a.01"),
    ]
    assert bundle_counts(bundles, live) == {"a": 2, "dead-broker-3": 1, "b": 1}
    assert broker_of("main-broker-0.0123456789abcdef", {}) == "main-broker-0"

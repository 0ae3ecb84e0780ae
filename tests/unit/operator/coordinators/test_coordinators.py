"""Transaction coordinators: the plan, the children, the status, the settings."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from magnetar.coordinator.identity import tcid_of
from magnetar.errors import InvalidRequest
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata.records import (
    CoordinatorClaimRecord,
    CoordinatorRecord,
    CoordinatorSetRecord,
    CoordinatorState,
)
from magnetar.resources.broker_config import COORDINATOR_SETTINGS, SETTINGS
from magnetar_operator import names
from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.builders.coordinator_set import coordinator_settings, desired_coordinators
from magnetar_operator.builders.magnetar_pod import GRACE_BEYOND_DRAIN_S
from magnetar_operator.conditions import Finding, Problem, Reason
from magnetar_operator.coordinators.scaling import (
    CoordinatorFleet,
    CoordinatorPlan,
    plan_coordinators,
)
from magnetar_operator.coordinators.state import CoordinatorsState
from magnetar_operator.coordinators.status import ObservedCoordinators, derive, findings_of
from magnetar_operator.engine.planning import plan, sealed
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.kube.cache import owner_of, shown
from magnetar_operator.pods.rolling import RollPlan
from tests.support.samples import DEFAULTS, cluster, coordinators

SERVING, RETIRING, RELEASED, RECOVERING = (
    CoordinatorState.SERVING,
    CoordinatorState.RETIRING,
    CoordinatorState.RELEASED,
    CoordinatorState.RECOVERING,
)


def record(state: CoordinatorState, open_transactions: int = 0) -> CoordinatorRecord:
    return CoordinatorRecord("tx-coordinator-0.00", 1, state, open_transactions)


def state(
    limit: int, announced: int, *records: CoordinatorRecord, owner: str = "shop/tx"
) -> CoordinatorsState:
    return CoordinatorsState(
        CoordinatorSetRecord(limit, announced, owner), 5, dict(enumerate(records)), {}
    )


def fleet(
    replicas: int | None, found: CoordinatorsState | None, pods: int | None = None
) -> CoordinatorFleet:
    existing = range(pods if pods is not None else replicas or 0)
    return CoordinatorFleet(
        "tx",
        "shop/tx",
        replicas,
        frozenset(names.coordinator_pod("tx", tcid) for tcid in existing),
        found,
    )


def test_more_coordinators_are_made_at_once_and_the_limit_follows() -> None:
    first = plan_coordinators(3, fleet(None, CoordinatorsState(None, 0, {}, {})))
    assert (first.replicas, first.record) == (3, CoordinatorSetRecord(3, 0, "shop/tx"))
    more = plan_coordinators(3, fleet(1, state(1, 1, record(SERVING))))
    assert (more.replicas, more.record) == (3, CoordinatorSetRecord(3, 1, "shop/tx"))
    assert plan_coordinators(3, fleet(3, state(3, 3, *[record(SERVING)] * 3))) == CoordinatorPlan(3)
    assert plan_coordinators(2, fleet(None, None)).replicas == 2, (
        "children are made while the store is unavailable, too"
    )


def test_a_removal_takes_three_steps_and_is_reported() -> None:
    """The limit is lowered; the coordinator confirms; then, without open transactions, its pod
    goes."""
    serving = state(2, 2, record(SERVING), record(SERVING))
    lowered = plan_coordinators(1, fleet(2, serving))
    assert (lowered.replicas, lowered.record) == (2, CoordinatorSetRecord(1, 1, "shop/tx"))
    assert lowered.reason is Reason.COORDINATOR_RETIRING

    unconfirmed = plan_coordinators(1, fleet(2, state(1, 1, record(SERVING), record(SERVING))))
    assert (unconfirmed.replicas, unconfirmed.reason, unconfirmed.record) == (
        2,
        Reason.COORDINATOR_RETIRING,
        None,
    )

    busy = plan_coordinators(1, fleet(2, state(1, 1, record(SERVING), record(RETIRING, 7))))
    assert (busy.replicas, busy.reason) == (2, Reason.TRANSACTIONS_OPEN)
    assert "tx-coordinator-1 has 7 open transactions" in busy.message

    free = plan_coordinators(1, fleet(2, state(1, 1, record(SERVING), record(RETIRING))))
    assert (free.replicas, free.reason) == (1, Reason.REMOVING_COORDINATOR)
    leaving = plan_coordinators(
        0, fleet(1, state(0, 0, record(RETIRING), record(RELEASED)), pods=2)
    )
    assert (leaving.replicas, leaving.reason) == (1, Reason.REMOVING_COORDINATOR)


def test_who_never_held_its_number_may_go_and_an_unread_store_keeps_everybody() -> None:
    """Three pods of a broken image can be given up; nothing is concluded from silence."""
    assert plan_coordinators(0, fleet(3, state(0, 0))).replicas == 2
    away = plan_coordinators(0, fleet(3, None))
    assert (away.replicas, away.reason) == (3, Reason.STORE_UNAVAILABLE)


records = st.one_of(
    st.none(), st.builds(record, st.sampled_from(list(CoordinatorState)), st.integers(0, 2))
)


@given(
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.lists(records, min_size=5, max_size=5),
)
def test_no_plan_removes_a_coordinator_that_may_have_open_transactions(
    wanted: int, replicas: int, limit: int, announced: int, known: list[CoordinatorRecord | None]
) -> None:
    """At most one goes per step, the highest, and only by its own word given after the limit was
    lowered."""
    held = {tcid: one for tcid, one in enumerate(known) if one is not None}
    found = CoordinatorsState(CoordinatorSetRecord(limit, announced, "shop/tx"), 5, held, {})
    step = plan_coordinators(wanted, fleet(replicas, found))
    assert step.replicas >= min(wanted, replicas)
    if step.replicas < replicas:
        gone = replicas - 1
        assert step.replicas == gone
        assert limit <= gone
        last = held.get(gone)
        assert last is None or (last.state in (RETIRING, RELEASED) and last.open_transactions == 0)
    after = step.record or found.known
    assert after is not None
    assert after.limit == wanted
    assert after.announced <= wanted


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_any_size_is_reached_from_any_other(start: int, middle: int, end: int) -> None:
    """Coordinators that obey the limit: the fleet gets where it should, also when the goal
    changes on the way."""
    replicas, known = start, CoordinatorSetRecord(start, start, "shop/tx")
    for goal, steps in ((middle, 2), (end, 30)):
        for _ in range(steps):
            held = {
                tcid: record(SERVING if tcid < known.limit else RETIRING)
                for tcid in range(replicas)
            }
            step = plan_coordinators(goal, fleet(replicas, CoordinatorsState(known, 1, held, {})))
            replicas, known = step.replicas, step.record or known
    assert (replicas, known.limit) == (end, end)
    assert plan_coordinators(end, fleet(replicas, state(end, end))).record is None


# --- children -------------------------------------------------------------------------------------


def children(replicas: int = 2, **spec: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        identity_of(made): made
        for made in desired_coordinators(coordinators(**spec), cluster(), DEFAULTS, replicas, {})
    }


def test_planning_against_what_was_just_applied_yields_nothing() -> None:
    """Also after the API server has added its own fields to every object."""
    observed = {}
    for identity, manifest in children().items():
        stored = copy.deepcopy(sealed(manifest))
        stored["metadata"] |= {"uid": "x", "resourceVersion": "7", "generation": 1}
        stored.setdefault("spec", {})["addedByTheServer"] = True
        observed[identity] = stored
    assert plan(children().values(), observed, "tc-1") == []


def test_coordinators_run_on_the_clusters_store_volume_and_image() -> None:
    made = children(drainTimeoutSeconds=9, config={"lease_ttl_s": 5})[
        "StatefulSet", "tx-coordinator"
    ]["spec"]
    assert (made["podManagementPolicy"], made["updateStrategy"], made["replicas"]) == (
        "Parallel",
        {"type": "OnDelete"},
        2,
    )
    template = made["template"]
    pod, container = template["spec"], template["spec"]["containers"][0]
    assert container["args"][:6] == [
        "magnetar", "coordinator", "--name", "$(POD_NAME)", "--store", "etcd://main-etcd.shop.svc:2379",
    ]  # fmt: skip
    assert any(
        volume.get("secret", {}).get("secretName") == "main-etcd-coordinator"
        for volume in pod["volumes"]
    ), "a user of its own"
    assert pod["volumes"][0] == {
        "name": "storage",
        "persistentVolumeClaim": {"claimName": "main-storage"},
    }
    assert pod["terminationGracePeriodSeconds"] == 9 + GRACE_BEYOND_DRAIN_S
    data = children(drainTimeoutSeconds=9, config={"lease_ttl_s": 5})[
        "ConfigMap", "tx-coordinator"
    ]["data"]
    assert data == {"MAGNETAR_LEASE_TTL_S": "5", "MAGNETAR_DRAIN_TIMEOUT_S": "9"}
    assert made["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["labels"][names.CLUSTER] == "main", (
        "the etcd's network policy lets the cluster's pods in"
    )


def test_pods_pass_the_restricted_security_standard() -> None:
    pod = children()["StatefulSet", "tx-coordinator"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_everything_is_owned_by_the_resource_and_wakes_it() -> None:
    """Deleting the resource removes all of it; a change of any of it is the resource's, not the
    cluster's business."""
    for manifest in children().values():
        assert manifest["metadata"]["ownerReferences"][0]["kind"] == "TransactionCoordinator"
        assert owner_of(shown(manifest)) == Key("TransactionCoordinator", "shop", "tx")


def test_coordinators_and_brokers_of_one_name_share_no_object() -> None:
    """A TransactionCoordinator is usually called like its cluster; their services choose
    different pods."""
    theirs = {identity_of(made): made for made in desired(cluster(), DEFAULTS, 1, {})}
    mine = {
        identity_of(made): made
        for made in desired_coordinators(coordinators("main"), cluster(), DEFAULTS, 1, {})
    }
    assert not theirs.keys() & mine.keys()
    pod = mine["StatefulSet", "main-coordinator"]["spec"]["template"]["metadata"]["labels"]
    for (kind, _), manifest in theirs.items():
        if kind == "Service":
            assert not manifest["spec"]["selector"].items() <= pod.items()


# --- status ---------------------------------------------------------------------------------------


def pod(tcid: int, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": f"tx-coordinator-{tcid}", "labels": {}},
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": conditions},
    }


def findings(
    observed: ObservedCoordinators,
    scale: CoordinatorPlan,
    *problems: Problem,
    replicas: int = 1,
    announced: int = 1,
) -> dict[str, Finding]:
    resource = coordinators(replicas=replicas)
    known = resource.model_copy(
        update={"status": resource.status.model_copy(update={"announced": announced})}
    )
    found = findings_of(known, cluster(), observed, scale, RollPlan(), problems)
    return {finding.type.value: finding for finding in found}


def test_ready_says_what_is_missing() -> None:
    quiet = CoordinatorPlan(1)
    good = findings(ObservedCoordinators({}, (pod(0),), state(1, 1)), quiet)
    assert good["Ready"].holds
    assert good["Available"].holds
    unannounced = findings(ObservedCoordinators({}, (pod(0),), state(1, 0)), quiet)
    assert (unannounced["Ready"].holds, unannounced["Progressing"].reason) == (
        False,
        Reason.COORDINATORS_STARTING,
    )
    unready = findings(ObservedCoordinators({}, (pod(0, ready=False),), state(1, 1)), quiet)
    assert unready["Available"].reason is Reason.NO_COORDINATOR
    away = findings(ObservedCoordinators({}, (pod(0),), None, "no answer"), quiet)
    assert (away["Degraded"].reason, away["Ready"].message) == (
        Reason.STORE_UNAVAILABLE,
        "no answer",
    )
    new = findings(ObservedCoordinators({}, (), None, "no answer"), quiet, announced=0)
    assert (new["Degraded"].holds, new["Ready"].reason) == (False, Reason.STORE_STARTING), (
        "etcd of a new cluster is not up yet"
    )
    busy = CoordinatorPlan(
        2, reason=Reason.TRANSACTIONS_OPEN, message="tx-coordinator-1 has 7 open transactions"
    )
    waiting = findings(ObservedCoordinators({}, (pod(0), pod(1)), state(1, 1)), busy)
    assert (waiting["Ready"].reason, waiting["Available"].holds) == (Reason.TRANSACTIONS_OPEN, True)
    assert findings(ObservedCoordinators({}, (), state(0, 0)), CoordinatorPlan(0), replicas=0)[
        "Ready"
    ].holds


def test_the_status_names_number_life_and_open_transactions() -> None:
    """A number whose holder is another pod's life is not this pod's; what was known stays while
    the store is unavailable."""
    claim = CoordinatorClaimRecord(
        "tx-coordinator-1.00", 4, "tx-coordinator-1", "pulsar://x:1", "http://x:2", 1, "v"
    )
    found = CoordinatorsState(
        CoordinatorSetRecord(1, 1),
        5,
        {1: record(RETIRING, 3)},
        {1: claim, 0: dataclasses.replace(claim, name="other-coordinator-0")},
    )
    observed = ObservedCoordinators({}, (pod(1), pod(0)), found)
    status = derive(coordinators(), cluster(), observed, RollPlan(), ())
    rows = [
        (row.name, row.tcid, row.incarnation, row.open_transactions, row.phase)
        for row in status.coordinators
    ]
    assert rows == [
        ("tx-coordinator-0", 0, "", 0, "Ready"),
        ("tx-coordinator-1", 1, "tx-coordinator-1.00", 3, "Retiring"),
    ]
    assert (status.replicas, status.ready_replicas, status.announced) == (2, 2, 1)
    assert (
        status.selector
        == "app.kubernetes.io/component=coordinator,magnetar.io/cluster=main,magnetar.io/coordinators=tx"
    )
    later = coordinators().model_copy(update={"status": status})
    away = derive(later, cluster(), dataclasses.replace(observed, state=None), RollPlan(), ())
    assert [row.incarnation for row in away.coordinators] == ["", "tx-coordinator-1.00"]
    assert away.announced == 1


# --- settings and names ---------------------------------------------------------------------------


def test_every_setting_that_is_admitted_is_one_that_processes_know() -> None:
    """Others are refused by name, with the remedy."""
    given = {
        setting["name"]: setting["maximum"]
        for setting in SETTINGS
        if setting["name"] in COORDINATOR_SETTINGS
    }
    assert set(given) == set(COORDINATOR_SETTINGS)
    settings = BrokerSettings.from_environment(coordinator_settings(coordinators(config=given)))
    assert {name: getattr(settings, name) for name in given} == given
    with pytest.raises(
        ValidationError, match="log_file_bytes is not a setting of a transaction coordinator"
    ):
        coordinators(config={"log_file_bytes": 1 << 30})
    with pytest.raises(ValidationError, match="did you mean lease_ttl_s"):
        coordinators(config={"lease_ttl": 5})


def test_a_pods_ordinal_is_its_number() -> None:
    assert [tcid_of(names.coordinator_pod("tx", tcid)) for tcid in (0, 9, 15)] == [0, 9, 15]
    with pytest.raises(InvalidRequest, match="has no ordinal"):
        tcid_of("coordinator")
    with pytest.raises(InvalidRequest, match="at most 16"):
        tcid_of("tx-coordinator-16")

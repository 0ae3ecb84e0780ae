"""Restarts: one at a time, the sick first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar_operator.pods.rolling import BrokerPod, plan_roll

NEW, OLD = "new", "old"


def pod(
    ordinal: int, revision: str = OLD, ready: bool = True, terminating: bool = False
) -> BrokerPod:
    return BrokerPod(f"main-broker-{ordinal}", revision, ready, terminating, "Config")


def test_the_highest_ordinal_goes_first() -> None:
    plan = plan_roll([pod(9), pod(10), pod(2)], NEW, 3, scaling=False)
    assert plan.restart == "main-broker-10"
    assert plan.pending == (
        ("main-broker-2", "Config"),
        ("main-broker-9", "Config"),
        ("main-broker-10", "Config"),
    )


def test_a_sick_outdated_pod_goes_before_healthy_ones_although_another_is_unready() -> None:
    """Otherwise a bad template could never be replaced by a good one."""
    assert (
        plan_roll(
            [pod(0), pod(1, ready=False), pod(2, NEW, ready=False)], NEW, 3, scaling=False
        ).restart
        == "main-broker-1"
    )


def test_a_healthy_one_waits_while_any_other_is_not_ready() -> None:
    plan = plan_roll([pod(0), pod(1, NEW, ready=False)], NEW, 2, scaling=False)
    assert (plan.restart, plan.waits_for) == ("", "main-broker-1")


def test_a_healthy_one_waits_for_the_metadata_store_and_a_sick_one_does_not() -> None:
    plan = plan_roll([pod(0), pod(1)], NEW, 2, scaling=False, awaits="etcd")
    assert (plan.restart, plan.waits_for, len(plan.pending)) == ("", "etcd", 2)
    assert (
        plan_roll([pod(0), pod(1, ready=False)], NEW, 2, scaling=False, awaits="etcd").restart
        == "main-broker-1"
    )


def test_nothing_is_restarted_before_the_controller_has_seen_the_template() -> None:
    assert plan_roll([pod(0)], "", 1, scaling=False).restart == ""


pods = st.lists(
    st.tuples(st.sampled_from([NEW, OLD]), st.booleans(), st.booleans()), max_size=6
).map(lambda rows: [pod(ordinal, *row) for ordinal, row in enumerate(rows)])


@given(pods, st.integers(0, 6), st.booleans(), st.sampled_from(["", "the metadata store"]))
def test_a_restart_never_takes_the_second_broker(
    found: list[BrokerPod], replicas: int, scaling: bool, awaits: str
) -> None:
    """The restarted broker is outdated; if it was ready, every other broker is, none is on its
    way, and nothing is waited for."""
    plan = plan_roll(found, NEW, replicas, scaling, awaits=awaits)
    if not plan.restart:
        return
    (chosen,) = (one for one in found if one.name == plan.restart)
    assert not scaling
    assert chosen.revision == OLD
    assert not any(one.terminating for one in found)
    if chosen.ready:
        assert all(one.ready for one in found)
        assert len(found) >= replicas
        assert not awaits

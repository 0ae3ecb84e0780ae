"""What `magnetar plan` says that a changed BrokerCluster would do."""

from __future__ import annotations

from typing import Any

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.etcd import RestoreStatus
from magnetar_operator.brokers.previewing import Leaving, field_changes, preview
from magnetar_operator.engine.planning import Change
from tests.support.samples import cluster


def running(replicas: int, **spec: Any) -> BrokerCluster:
    """A cluster whose brokers are ready, each with twice its number of bundles."""
    found = cluster(replicas=replicas, **spec)
    brokers = [
        {"name": f"main-broker-{at}", "bundles": 2 * at, "phase": "Ready"} for at in range(replicas)
    ]
    return found.model_copy(update={"status": found.status.model_validate({"brokers": brokers})})


def test_nothing_changes_nothing() -> None:
    shown = preview(running(3), running(3))
    assert (shown.objects, shown.restarts, shown.leaving, shown.joining, shown.notes) == (
        (),
        (),
        (),
        (),
        (),
    )


def test_a_new_cluster_makes_its_objects_and_brokers() -> None:
    shown = preview(None, cluster(replicas=2))
    assert {(item.action, item.kind, item.name) for item in shown.objects} >= {
        ("create", "StatefulSet", "main-broker"), ("create", "Service", "main"), ("create", "StatefulSet", "main-etcd"),
    }  # fmt: skip
    assert shown.joining == ("main-broker-0", "main-broker-1")
    assert shown.restarts == ()


def test_a_setting_restarts_every_broker_the_highest_number_first() -> None:
    """The ConfigMap's change is shown field by field; brokers that leave anyway are not
    restarted."""
    shown = preview(running(12), running(11, config={"moves_parallel_max": 11}))
    assert shown.restarts[:2] == (("main-broker-10", "Config"), ("main-broker-9", "Config"))
    assert len(shown.restarts) == 11
    (settings,) = [item for item in shown.objects if item.kind == "ConfigMap"]
    assert any(change.new == "11" for change in settings.changes)
    assert shown.leaving == (Leaving("main-broker-11", 22),)


def test_settings_of_load_balancing_restart_nothing() -> None:
    old = running(2, config={"plannerMovesMax": 7})
    shown = preview(old, running(2, loadBalancing={"strategy": "ThresholdShedder"}))
    assert (shown.objects, shown.restarts) == ((), ())
    assert shown.notes == (
        "brokers follow without a restart: loadBalancerLoadSheddingStrategy=ThresholdShedder, "
        "plannerMovesMax as by default",
    )


def test_a_sick_broker_is_restarted_first() -> None:
    old = running(3)
    sick = [
        broker.model_copy(update={"phase": "Failed"}) if broker.name == "main-broker-0" else broker
        for broker in old.status.brokers
    ]
    old = old.model_copy(update={"status": old.status.model_copy(update={"brokers": tuple(sick)})})
    shown = preview(old, running(3, image={"repository": "example/m", "tag": "2"}))
    assert [broker for broker, _ in shown.restarts] == [
        "main-broker-0",
        "main-broker-2",
        "main-broker-1",
    ]
    assert {reason for _, reason in shown.restarts} == {"Image"}


def test_scaling_down_shows_the_order_and_what_moves() -> None:
    shown = preview(running(12), running(9))
    assert shown.leaving == (
        Leaving("main-broker-11", 22),
        Leaving("main-broker-10", 20),
        Leaving("main-broker-9", 18),
    )
    assert shown.objects == ()
    assert "no broker is left" in preview(running(1), running(0)).notes[0]


def test_fields_that_went_are_changes_too() -> None:
    assert field_changes({"config": {"a": "1"}, "replicas": 2}, {"config": {}, "replicas": 3}) == [
        Change("spec.replicas", 2, 3), Change("spec.config.a", "1", None),
    ]  # fmt: skip


def test_the_pause_of_a_restore_is_shown_before_it_is_asked_for() -> None:
    asked = running(2, etcd={"managed": {"restore": {"request": "monday"}}})
    (note,) = preview(running(2), asked).notes
    assert (
        "restored for request monday if it is lost: brokers serve until it is filled, then no "
        "topic is served for about" in note
    )
    forced = running(2, etcd={"managed": {"restore": {"request": "monday", "force": True}}})
    assert "whatever it holds" in preview(running(2), forced).notes[0]
    done = asked.status.model_copy(
        update={"restore": RestoreStatus(request="monday", phase="Restored")}
    )
    assert preview(asked, asked.model_copy(update={"status": done})).notes == ()


def test_another_number_of_etcd_members_restarts_brokers_in_the_end() -> None:
    """Also where the status still has the addresses of before, which are what pods have now."""
    status = {
        "etcd": {"endpoints": ["main-etcd.shop.svc:2379"]},
        "brokers": [{"name": "main-broker-0", "phase": "Ready"}],
    }
    one, three = (
        found.model_copy(update={"status": found.status.model_validate(status)})
        for found in (
            cluster(replicas=1, etcd={"managed": {"replicas": members}}) for members in (1, 3)
        )
    )
    shown = preview(one, three)
    assert shown.restarts == (("main-broker-0", "Template"),)
    assert shown.notes == (
        "brokers and coordinators are restarted when etcd has 3 healthy voting members, not before",
    )

"""The operator against a real API server and a real etcd; kubelet and brokers are played by
hand."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.metadata import keys
from magnetar.metadata.records import CordonRecord, NamespaceRecord
from magnetar.names import NamespaceName
from magnetar_operator.brokers.scaling import CORDON_REASON
from magnetar_operator.engine.controller import RECONCILERS
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import World
from tests.apiserver.stage import (
    TIMEOUT_S,
    Kubelet,
    Scene,
    bind,
    brokers_of,
    external,
    look_at_all,
    make_lost_node,
    quiet,
    replaced,
    running_operator,
    settled,
    until,
    writes,
)

pytestmark = pytest.mark.slow


async def test_an_empty_spec_becomes_a_cluster_with_its_own_etcd(scene: Scene) -> None:
    """Children exist, are owned by the cluster (the claim is not), and the status says what is
    awaited."""

    async with running_operator(scene.namespace) as operator:
        scene.create(
            "BrokerCluster",
            "main",
            {"podTemplate": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
        )
        brokers = await until("the brokers' StatefulSet", scene.stateful_set)
        assert brokers["metadata"]["ownerReferences"][0]["kind"] == "BrokerCluster"
        assert await until("etcd", lambda: scene.stateful_set("main-etcd"))
        claim = scene.get(scene.core("persistentvolumeclaims", "main-storage"))
        assert claim is not None
        assert "ownerReferences" not in claim["metadata"]
        for service in ("main", "main-brokers", "main-etcd"):
            assert scene.get(scene.core("services", service)) is not None
        path = scene.path("brokerclusters", "main")
        ready = await until("a condition", lambda: scene.condition(path))
        assert (ready["status"], ready["reason"]) == ("False", "MetadataStoreStarting")
        await settled(operator)
        before = writes(operator)
        await look_at_all(operator)
        await quiet(operator)
        assert writes(operator) == before
        metadata = scene.cluster()["metadata"]
        assert "finalizers" not in metadata
        assert not [name for name in metadata.get("annotations", {}) if "kopf" in name]


async def test_a_steady_state_makes_no_write(scene: Scene, cluster_etcd: EtcdProcess) -> None:
    """Ready, then several passes over every object: not one request that could change something,
    nor a transaction in etcd."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
        Kubelet(scene).at_work(),
    ):
        scene.create(
            "BrokerCluster",
            "main",
            external(cluster_etcd, replicas=2, config={"moves_parallel_max": 20}),
        )
        scene.create(
            "TopicNamespace",
            "demo",
            {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "demo"},
        )
        await brokers.register("main-broker-0")
        await brokers.register("main-broker-1")
        ready = lambda: (  # noqa: E731
            scene.condition(scene.path("brokerclusters", "main")).get("status") == "True"
        )
        await until("the cluster is Ready", ready)
        await until(
            "the namespace is Ready",
            lambda: scene.condition(scene.path("topicnamespaces", "demo")).get("status") == "True",
        )
        await settled(operator)
        before = writes(operator)
        for _ in range(3):
            await look_at_all(operator)
            await quiet(operator)
        assert writes(operator) == before


async def test_drift_is_corrected_and_reported(scene: Scene, cluster_etcd: EtcdProcess) -> None:
    """A field of ours that another manager takes is taken back; fields that we do not own stay
    theirs."""

    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        await until("the StatefulSet", scene.stateful_set)
        service = scene.core("services", "main")
        await until("the service", lambda: scene.get(service))
        manifest = {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "main", "annotations": {"theirs": "kept"}},
            "spec": {"publishNotReadyAddresses": True, "selector": {"magnetar.io/cluster": "other"}},
        }  # fmt: skip
        scene.plane.must(
            "PATCH",
            f"{service}?fieldManager=another&force=true",
            manifest,
            "application/apply-patch+yaml",
        )
        await until(
            "the selector is ours again",
            lambda: (scene.get(service) or {})["spec"]["selector"]["magnetar.io/cluster"] == "main",
        )
        found = scene.get(service)
        assert found is not None
        assert found["metadata"]["annotations"]["theirs"] == "kept"
        assert found["spec"]["publishNotReadyAddresses"] is True
        (event,) = await until("an event", lambda: scene.events("DriftCorrected"))
        assert "spec.selector.magnetar.io/cluster: 'other' -> 'main'" in event


async def test_kubectl_scale_drains_the_highest_broker_before_it_goes(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Up at once; down one by one, only after the last bundle has left; raising the number
    concurrently lifts the cordon."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace),
        Kubelet(scene).at_work(),
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd, replicas=1))
        await until(
            "one broker", lambda: scene.cluster().get("status", {}).get("readyReplicas") == 1
        )
        scaled = await asyncio.to_thread(
            scene.plane.kubectl,
            "scale",
            "-n",
            scene.namespace,
            "brokercluster/main",
            "--replicas=3",
        )
        assert scaled.returncode == 0, scaled.stderr
        await until(
            "three brokers", lambda: scene.cluster().get("status", {}).get("readyReplicas") == 3
        )
        lives = [await brokers.register(f"main-broker-{ordinal}") for ordinal in range(3)]
        for number, life in enumerate(lives):
            await brokers.own(f"public/default/0x{number}0000000_0x{number + 1}0000000", life)

        scene.merge(f"{scene.path('brokerclusters', 'main', 'scale')}", {"spec": {"replicas": 1}})
        cordon = None
        while cordon is None:
            cordon = await brokers.cordon("main-broker-2")
            await asyncio.sleep(0.02)
        assert (cordon.drain, cordon.reason) == (True, CORDON_REASON)
        path = scene.path("brokerclusters", "main")
        draining = await until(
            "Draining with a count",
            lambda: (
                (found := scene.condition(path)).get("reason") == "Draining"
                and "1 bundles" in found["message"]
                and found
            ),
        )
        assert "main-broker-2" in draining["message"]
        assert scene.replicas() == 3
        assert await brokers.cordon("main-broker-1") == CordonRecord(False, CORDON_REASON)

        scene.merge(f"{scene.path('brokerclusters', 'main', 'scale')}", {"spec": {"replicas": 3}})
        while await brokers.cordon("main-broker-2") is not None:
            await asyncio.sleep(0.02)
        assert scene.replicas() == 3

        scene.merge(f"{scene.path('brokerclusters', 'main', 'scale')}", {"spec": {"replicas": 2}})
        while await brokers.cordon("main-broker-2") is None:
            await asyncio.sleep(0.02)
        await brokers.own("public/default/0x20000000_0x30000000", lives[0])
        await until("two replicas", lambda: scene.replicas() == 2)
        while await brokers.cordon("main-broker-2") is not None:  # lifted once its pod is gone
            await asyncio.sleep(0.02)
        await until("Ready again", lambda: scene.condition(path).get("status") == "True")
        status = scene.cluster()["status"]
        assert (status["replicas"], status["selector"]) == (
            2,
            "app.kubernetes.io/component=broker,magnetar.io/cluster=main",
        )
        bundles = lambda: [broker["bundles"] for broker in scene.cluster()["status"]["brokers"]]  # noqa: E731
        await until("the status counts bundles where they are", lambda: bundles() == [2, 1])
        assert status["storageId"] == "5e" * 16


async def test_a_change_of_settings_rolls_one_broker_at_a_time(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Never fewer than all but one are ready; at the end every pod has the new template."""

    kubelet = Kubelet(scene)
    async with (
        brokers_of(cluster_etcd.endpoint),
        running_operator(scene.namespace),
        kubelet.at_work(),
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd, replicas=3))
        await until(
            "three brokers", lambda: scene.cluster().get("status", {}).get("readyReplicas") == 3
        )
        before = {pod["metadata"]["uid"] for pod in scene.pods()}
        scene.merge(
            scene.path("brokerclusters", "main"), {"spec": {"config": {"moves_parallel_max": 11}}}
        )
        assert await replaced(scene, before, 3) >= 2
        await until("an Event for each", lambda: len(scene.events("Restarting")) == 3)
        await until(
            "Ready",
            lambda: scene.condition(scene.path("brokerclusters", "main")).get("status") == "True",
        )


async def test_healthy_brokers_are_not_restarted_while_the_metadata_store_is_unavailable(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A broker could transfer nothing, and its successor could not begin. A sick one is
    restarted, or a bad template would stay."""
    path = scene.path("brokerclusters", "main")

    def uids() -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scene.pods()}

    kubelet = Kubelet(scene)
    async with (
        brokers_of(cluster_etcd.endpoint),
        running_operator(scene.namespace),
        kubelet.at_work(),
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd, replicas=3))
        await until("Ready", lambda: scene.condition(path).get("status") == "True")
        before = uids()
        waits = lambda: scene.condition(path, "Progressing").get("reason") == "RollWaits"  # noqa: E731
        with cluster_etcd.frozen():
            scene.merge(path, {"spec": {"config": {"moves_parallel_max": 11}}})
            await until("the roll waits, or begins", lambda: waits() or uids() != before)
            assert uids() == before
            assert cluster_etcd.endpoint in scene.condition(path, "Progressing")["message"]
            assert scene.condition(path)["reason"] == "MetadataStoreUnavailable"
            kubelet.sick.add("main-broker-1")
            await until(
                "the sick one is restarted",
                lambda: uids().get("main-broker-1") not in (None, before["main-broker-1"]),
            )
            kubelet.sick.clear()
            await until(
                "the other two wait",
                lambda: "2 pods" in scene.condition(path, "Progressing")["message"] and waits(),
            )
            assert {name for name, uid in uids().items() if uid == before[name]} == {
                "main-broker-0",
                "main-broker-2",
            }
        assert await replaced(scene, set(before.values()), 3) >= 2
        await until("Ready", lambda: scene.condition(path).get("status") == "True")


async def test_a_record_that_this_operator_cannot_read_holds_no_restart(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """The store answers, so that brokers transfer and begin: during an upgrade, one side may
    write what the other does not know yet."""
    path = scene.path("brokerclusters", "main")

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace),
        Kubelet(scene).at_work(),
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd, replicas=3))
        await until("Ready", lambda: scene.condition(path).get("status") == "True")
        before = {pod["metadata"]["uid"] for pod in scene.pods()}
        await brokers.store.put(keys.incarnation(f"main-broker-0.{'0' * 16}"), b'{"schema": 1000}')
        scene.merge(path, {"spec": {"config": {"moves_parallel_max": 11}}})
        assert await replaced(scene, before, 3) >= 2
        assert "IncarnationRecord" in scene.condition(path, "Degraded")["message"]


async def test_what_belongs_to_others_is_left_alone_and_bad_specs_are_reported(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A service of that name stays its owner's; a paused cluster is not touched."""

    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace):
        theirs = {
            "metadata": {"name": "main"},
            "spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}},
        }
        scene.plane.must("POST", scene.core("services"), theirs)
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        path = scene.path("brokerclusters", "main")
        degraded = await until(
            "Degraded",
            lambda: (found := scene.condition(path, "Degraded")).get("status") == "True" and found,
        )
        assert degraded["reason"] == "NameTaken"
        found = scene.get(scene.core("services", "main"))
        assert found is not None
        assert found["spec"]["selector"] == {"app": "theirs"}

        paused = {
            "apiVersion": "magnetar.io/v1alpha1", "kind": "BrokerCluster",
            "metadata": {"name": "second", "annotations": {"magnetar.io/paused": "true"}}, "spec": external(cluster_etcd),
        }  # fmt: skip
        scene.plane.must("POST", scene.path("brokerclusters"), paused)
        await until(
            "Paused",
            lambda: (
                scene.condition(scene.path("brokerclusters", "second"), "Progressing").get("reason")
                == "Paused"
            ),
        )
        assert scene.stateful_set("second-broker") is None
        await until("an Event", lambda: scene.events("Paused"))


async def test_a_standby_takes_over_after_a_planned_stop(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """While two run only the leader writes; its stop releases the Lease, and the successor
    works."""

    async with brokers_of(cluster_etcd.endpoint), AsyncExitStack() as first_life:
        first = await first_life.enter_async_context(running_operator(scene.namespace, "first"))
        await until("the first leads", lambda: first.leadership.leading)
        async with running_operator(scene.namespace, "second") as second:
            await until("the second's watches are open", lambda: second.health.watching)
            scene.create("BrokerCluster", "main", external(cluster_etcd))
            await until("the StatefulSet", scene.stateful_set)
            assert writes(second) == 0
            await first_life.aclose()
            await until("the second leads", lambda: second.leadership.leading)
            scene.create("BrokerCluster", "other", external(cluster_etcd))
            await until("the second works", lambda: scene.stateful_set("other-broker"))


async def test_a_broker_on_a_lost_node_is_deleted_by_force(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Its pod waits for a kubelet that will never answer; without force its name, and so its
    successor, would wait too."""

    kubelet = Kubelet(scene)
    node = f"node-{scene.namespace}"
    async with (
        brokers_of(cluster_etcd.endpoint),
        running_operator(scene.namespace),
        kubelet.at_work(),
    ):
        make_lost_node(scene, node)
        scene.create("BrokerCluster", "main", external(cluster_etcd, replicas=1))
        await until(
            "one broker", lambda: scene.cluster().get("status", {}).get("readyReplicas") == 1
        )
        before = scene.get(scene.core("pods", "main-broker-0"))
        assert before is not None
        bind(scene, "main-broker-0", node)
        kubelet.sick.add("main-broker-0")
        await until(
            "a successor",
            lambda: (
                (found := scene.get(scene.core("pods", "main-broker-0")))
                and found["metadata"]["uid"] != before["metadata"]["uid"]
            ),
        )
        (event,) = await until("an event", lambda: scene.events("NodeLost"))
        assert node in event


async def test_the_store_of_a_deleted_cluster_is_let_go_at_once(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Long before the next resync: its connection, its views, and what names it; another cluster
    keeps its own, and made again it is served again."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
    ):
        address, _, port = cluster_etcd.endpoint.rpartition(":")
        kept = f"localhost:{port}" if address == "127.0.0.1" else f"127.0.0.1:{port}"
        scene.create("BrokerCluster", "kept", {"etcd": {"external": {"endpoints": [kept]}}})
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        spec = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "demo"}
        scene.create("TopicNamespace", "demo", spec)
        demo = scene.path("topicnamespaces", "demo")
        await until("the namespace is Ready", lambda: scene.condition(demo).get("status") == "True")
        await until("both stores are open", lambda: len(operator.stores.opened()) == 2)
        views = lambda: [  # noqa: E731
            task for task in asyncio.all_tasks() if task.get_name().startswith("view of")
        ]
        assert views()
        scene.delete(scene.path("brokerclusters", "main"))
        await until("one store is left", lambda: len(operator.stores.opened()) == 1)
        async with asyncio.timeout(TIMEOUT_S):
            while views():
                await asyncio.sleep(0.05)
        scene.merge(demo, {"spec": {"properties": {"team": "blue"}}})
        await until(
            "its namespaces say so",
            lambda: scene.condition(demo).get("reason") == "ClusterNotFound",
        )
        assert len(operator.stores.opened()) == 1
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        await until(
            "the namespace is Ready again",
            lambda: scene.condition(demo).get("status") == "True",
        )
        item = await brokers.store.get(keys.namespace(NamespaceName("acme", "demo")))
        assert item is not None
        assert NamespaceRecord.decode(item.value).policies["properties"] == {"team": "blue"}


async def test_what_a_library_cancels_costs_one_pass_and_no_worker(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many passes end by a library's cancellation as there are workers, and more: each is
    tried again, and the object becomes Ready."""
    real, left = RECONCILERS["TopicNamespace"], [0]

    async def cancelled(world: World, key: Key) -> float | None:
        if left[0] > 0:
            left[0] -= 1
            raise asyncio.CancelledError
        return await real(world, key)

    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace) as operator:
        left[0] = operator.settings.workers + 1
        monkeypatch.setitem(RECONCILERS, "TopicNamespace", cancelled)
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        for number in range(left[0]):
            spec = {
                "clusterRef": {"name": "main"},
                "tenant": "acme",
                "namespace": f"n-{number}",
            }
            scene.create("TopicNamespace", f"n-{number}", spec)
        paths = [
            scene.path("topicnamespaces", f"n-{number}")
            for number in range(operator.settings.workers + 1)
        ]
        ready = lambda: all(scene.condition(path).get("status") == "True" for path in paths)  # noqa: E731
        await until("all are Ready", ready)
        assert left == [0]


async def test_what_the_api_server_refuses_is_reported_and_stops_nobody_else(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """The condition carries the API server's own sentence; the cluster's other objects and other
    clusters are made all the same."""

    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace):
        scene.create(
            "BrokerCluster",
            "bad",
            external(cluster_etcd, podTemplate={"nodeSelector": {"not a label!": "x"}}),
        )
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        path = scene.path("brokerclusters", "bad")
        degraded = await until(
            "Degraded",
            lambda: (found := scene.condition(path, "Degraded")).get("status") == "True" and found,
        )
        assert degraded["reason"] == "RefusedByKubernetes"
        assert "not a label!" in degraded["message"]
        await until("its service", lambda: scene.get(scene.core("services", "bad")))
        await until("the other cluster", scene.stateful_set)
        scene.merge(path, {"spec": {"podTemplate": {"nodeSelector": {"not a label!": None}}}})
        await until("it is mended", lambda: scene.stateful_set("bad-broker"))

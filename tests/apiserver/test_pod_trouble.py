"""Trouble that Kubernetes reports: each is a condition with what to do, nothing is made worse
concurrently, and it heals without anybody's help."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.clock import SystemClock
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.kube.kinds import CHILDREN
from magnetar_operator.main import Operator
from tests.apiserver.stage import (
    TIMEOUT_S,
    Kubelet,
    Scene,
    brokers_of,
    running_operator,
    settled,
    until,
    writes,
)
from tests.support.pod_states import container_status

pytestmark = pytest.mark.slow

BROKER, COORDINATOR = "main-broker-0", "tx-coordinator-0"


TROUBLE: dict[str, tuple[dict[str, Any], str]] = {
    "ImageUnavailable": (
        {
            "phase": "Pending",
            "containerStatuses": [
                container_status(
                    "c", {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
                )
            ],
        },
        "ImagePullBackOff: not found",
    ),
    "PodCrashing": (
        {
            "containerStatuses": [
                container_status(
                    "c",
                    {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
                    {
                        "exitCode": 3,
                        "reason": "Error",
                        "message": "Traceback\nOSError: the volume is read-only",
                    },
                )
            ]
        },
        "it ended with exit code 3 (Error), saying: OSError: the volume is read-only",
    ),
    "PodUnschedulable": (
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes have the cpu",
                }
            ],
        },
        "not scheduled: Unschedulable: 0/3 nodes have the cpu",
    ),
}


def external(etcd: EtcdProcess, **spec: Any) -> dict[str, Any]:
    return {"etcd": {"external": {"endpoints": [etcd.endpoint]}}, **spec}


def bind_claims(scene: Scene) -> None:
    """What the controller of volumes does."""
    for claim in scene.plane.must("GET", scene.core("persistentvolumeclaims"))["items"]:
        path = f"{scene.core('persistentvolumeclaims', claim['metadata']['name'])}/status"
        scene.merge(
            path,
            {
                "status": {
                    "phase": "Bound",
                    "accessModes": ["ReadWriteMany"],
                    "capacity": {"storage": "1Gi"},
                }
            },
        )


async def test_pods_that_do_not_come_up_say_why_and_what_to_do_until_they_do(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Brokers and coordinators; a claim that is not bound comes before what follows from it;
    trouble that lasts costs no write."""

    kubelets = [Kubelet(scene), Kubelet(scene, "tx-coordinator")]
    for kubelet, name in zip(kubelets, (BROKER, COORDINATOR), strict=True):
        kubelet.sick.add(name)
        kubelet.says[name] = TROUBLE["PodUnschedulable"][0]
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
        kubelets[0].at_work(),
        kubelets[1].at_work(),
    ):
        await brokers.register(BROKER)
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}})
        paths = (
            scene.path("brokerclusters", "main"),
            scene.path("transactioncoordinators", "tx"),
        )
        await says(
            scene,
            paths[0],
            "StorageNotBound",
            "claim main-storage is not bound; main-broker-0: not scheduled",
        )
        bind_claims(scene)
        for reason, (reported, words) in TROUBLE.items():
            for kubelet, path, name in zip(kubelets, paths, (BROKER, COORDINATOR), strict=True):
                kubelet.says[name] = reported
                condition = await says(scene, path, reason, f"{name}: {words}. ")
                assert scene.condition(path, "Degraded")["reason"] == reason
                assert len(condition["message"]) > len(f"{name}: {words}. "), "the remedy follows"
        await settled(operator)
        for kubelet in kubelets:
            kubelet.sick.clear()
        await until(
            "the cluster is Ready", lambda: scene.condition(paths[0]).get("status") == "True"
        )
        healed = lambda: scene.condition(paths[1], "Degraded").get("status") == "False"  # noqa: E731
        await until("the coordinator is not degraded", healed)


async def says(scene: Scene, path: str, reason: str, start: str) -> dict[str, Any]:
    """Wait for a reason of not being Ready; its condition."""

    def found() -> dict[str, Any] | None:
        condition = scene.condition(path)
        return (
            condition
            if condition.get("reason") == reason and condition["message"].startswith(start)
            else None
        )

    condition: dict[str, Any] = await until(f"{reason}: {start}", found)
    assert condition["status"] == "False"
    return condition


async def test_a_lost_node_frees_the_names_of_brokers_and_coordinators(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Both kinds of pods on one node that has not answered for long; one that answers again
    keeps its pods."""
    node = f"node-{scene.namespace}"

    def node_is(status: str, since: str) -> None:
        ready = {
            "type": "Ready",
            "status": status,
            "lastTransitionTime": since,
            "lastHeartbeatTime": since,
            "reason": "KubeletStopped",
        }
        scene.merge(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [ready]}})

    kubelets = [Kubelet(scene), Kubelet(scene, "tx-coordinator")]
    async with (
        brokers_of(cluster_etcd.endpoint),
        running_operator(scene.namespace),
        kubelets[0].at_work(),
        kubelets[1].at_work(),
    ):
        scene.plane.must("POST", "/api/v1/nodes", {"metadata": {"name": node}})
        node_is("True", "2020-01-01T00:00:00Z")
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}})
        pods = lambda: {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scene.pods()}  # noqa: E731
        before = await until("both pods", lambda: len(found := pods()) == 2 and found)
        for name in before:
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"kind": "Node", "name": node},
            }
            scene.plane.must("POST", f"{scene.core('pods', name)}/binding", binding)
        for kubelet, name in zip(kubelets, (BROKER, COORDINATOR), strict=True):
            kubelet.sick.add(name)
        degraded = lambda: (  # noqa: E731
            scene.condition(scene.path("brokerclusters", "main"), "Ready").get("status") == "False"
        )
        await until("the sick pod is seen", degraded)
        assert pods() == before, "a sick pod on a node that answers is its kubelet's business"
        node_is("Unknown", "2020-01-01T00:00:00Z")
        look = {"metadata": {"annotations": {"look": "again"}}}
        for path in (
            scene.path("brokerclusters", "main"),
            scene.path("transactioncoordinators", "tx"),
        ):
            scene.merge(path, look)
        await until(
            "both have successors",
            lambda: len(found := pods()) == 2 and not set(found.values()) & set(before.values()),
        )
        reported = lambda: {  # noqa: E731
            name
            for name in before
            if any(name in text and node in text for text in scene.events("NodeLost"))
        }
        await until("an Event for each", lambda: reported() == set(before))


async def test_in_a_namespace_that_is_being_deleted_nothing_is_made_and_nothing_spins(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Half of what belongs to a cluster is gone already: the operator says so, writes nothing
    more, and its other namespaces' work goes on."""

    async with (
        brokers_of(cluster_etcd.endpoint),
        running_operator(scene.namespace) as operator,
        Kubelet(scene).at_work(),
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd, replicas=0))
        path = scene.path("brokerclusters", "main")
        await until("it is worked on", scene.stateful_set)
        await settled(operator)
        scene.plane.must("DELETE", f"/api/v1/namespaces/{scene.namespace}")
        for kind in CHILDREN:
            for child in scene.plane.must("GET", kind.path(scene.namespace))["items"]:
                if (
                    child["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by")
                    == "magnetar-operator"
                ):
                    scene.delete(kind.path(scene.namespace, child["metadata"]["name"]))
        await says(
            scene, path, "NamespaceTerminating", f"namespace {scene.namespace} is being deleted"
        )
        await until(
            "it is left alone for a while",
            lambda: rests(operator, Key("BrokerCluster", scene.namespace, "main")),
        )
        async with asyncio.timeout(TIMEOUT_S):
            before = -1.0
            while before != writes(operator):  # what was deleted may still be reported
                before = writes(operator)
                await asyncio.sleep(2.0)
        assert scene.stateful_set() is None
        assert operator.leadership.leading


def rests(operator: Operator, key: Key) -> bool:
    """Whether the next look is far away; after so few failures a back-off would be short."""
    due, _ = operator.queue._timers.get(key, (0.0, None))
    return operator.queue.idle and due - SystemClock().monotonic() > 30

"""Listeners on a real API server: services come and go with brokers, a load balancer's address
reaches brokers without a restart."""

from __future__ import annotations

import pytest

from dev.testbed.control_plane import EtcdProcess
from tests.apiserver.stage import (
    Kubelet,
    Scene,
    brokers_of,
    look_at_all,
    quiet,
    running_operator,
    settled,
    until,
    writes,
)

pytestmark = pytest.mark.slow

LISTENERS = [{"name": "public", "port": 7650}, {"name": "nodes", "type": "NodePort"}]


async def test_addresses_reach_brokers_and_services_follow_the_fleet(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Pending names the service; the address comes and the cluster is Ready with the template it
    had; scaling down takes the services along."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
        Kubelet(scene).at_work(),
    ):
        scene.create(
            "BrokerCluster",
            "main",
            {
                "replicas": 2,
                "etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}},
                "listeners": LISTENERS,
            },
        )
        await brokers.register("main-broker-0")
        await brokers.register("main-broker-1")
        path = scene.path("brokerclusters", "main")
        await until(
            "the cluster waits",
            lambda: scene.condition(path).get("reason") == "ListenerPending",
        )
        assert "main-broker-public" in scene.condition(path)["message"]
        generation = (scene.stateful_set() or {})["metadata"]["generation"]

        services = {f"main-broker-{end}public" for end in ("", "0-", "1-")}
        for number, name in enumerate(sorted(services)):
            ingress = {
                "status": {"loadBalancer": {"ingress": [{"ip": f"198.51.100.{number + 1}"}]}}
            }
            scene.merge(f"{scene.core('services', name)}/status", ingress)
        await until("the cluster is Ready", lambda: scene.condition(path).get("status") == "True")
        assert (scene.stateful_set() or {})["metadata"]["generation"] == generation, (
            "no broker is restarted"
        )
        config = scene.get(scene.core("configmaps", "main-broker-listeners"))
        assert config is not None
        node_port = node_port_of(scene, "main-broker-1-nodes")
        assert config["data"]["main-broker-1"].splitlines() == [
            "public:pulsar://198.51.100.2:7650",
            f"nodes:pulsar://{{host}}:{node_port}",
        ]
        status = {item["name"]: item for item in scene.cluster()["status"]["listeners"]}
        assert status["public"]["serviceUrl"] == "pulsar://198.51.100.3:7650"
        assert [broker["address"] for broker in status["public"]["brokers"]] == [
            "198.51.100.1:7650",
            "198.51.100.2:7650",
        ]

        await settled(operator)
        before = writes(operator)
        await look_at_all(operator)
        await quiet(operator)
        assert writes(operator) == before, "a steady state with listeners makes no write either"

        updates = len(_updates_of_addresses(scene))
        scene.merge(path, {"spec": {"replicas": 3}})
        await until(
            "another broker is wanted",
            lambda: (scene.stateful_set() or {})["spec"]["replicas"] == 3,
        )
        await quiet(operator)
        config = scene.get(scene.core("configmaps", "main-broker-listeners")) or {}
        assert (
            config["data"]["main-broker-2"]
            == f"nodes:pulsar://{{host}}:{node_port_of(scene, 'main-broker-2-nodes')}\n"
        )
        assert len(_updates_of_addresses(scene)) == updates + 1, (
            "written once, before the broker was made, with what it is reached at"
        )

        scene.merge(path, {"spec": {"replicas": 1}})
        await until(
            "its services are gone",
            lambda: not scene.get(scene.core("services", "main-broker-1-public")),
        )
        await until(
            "all of them", lambda: not scene.get(scene.core("services", "main-broker-1-nodes"))
        )
        assert scene.get(scene.core("services", "main-broker-0-public"))
        scene.merge(path, {"spec": {"listeners": []}})
        await until(
            "and the others",
            lambda: not scene.get(scene.core("services", "main-broker-public")),
        )
        await until(
            "and the addresses",
            lambda: not scene.get(scene.core("configmaps", "main-broker-listeners")),
        )


async def test_coordinators_have_addresses_by_the_clusters_listeners(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A name that the cluster does not have is said; a load balancer's address reaches the pod
    without a restart; a listener that goes takes all."""

    kubelet = Kubelet(scene, "tx-coordinator")
    async with (
        brokers_of(cluster_etcd.endpoint),
        running_operator(scene.namespace) as operator,
        kubelet.at_work(),
    ):
        external = {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}}
        scene.create("BrokerCluster", "main", {"replicas": 0, "listeners": LISTENERS, **external})
        ways = [{"name": "public", "port": 7700}, {"name": "privat"}]
        scene.create(
            "TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}, "listeners": ways}
        )
        path = scene.path("transactioncoordinators", "tx")

        def reason(kind: str) -> str:
            conditions = (scene.get(path) or {}).get("status", {}).get("conditions", [])
            return next((str(one["reason"]) for one in conditions if one["type"] == kind), "")

        await until("the unknown name is reported", lambda: reason("Degraded") == "ListenerUnknown")
        assert scene.get(scene.core("services", "tx-coordinator-0-privat")) is None
        scene.merge(path, {"spec": {"listeners": ways[:1]}})
        await until("an address is waited for", lambda: reason("Progressing") == "ListenerPending")
        generation = (scene.stateful_set("tx-coordinator") or {})["metadata"]["generation"]
        ingress = {"status": {"loadBalancer": {"ingress": [{"hostname": "tx-0.example"}]}}}
        scene.merge(f"{scene.core('services', 'tx-coordinator-0-public')}/status", ingress)
        addresses = scene.core("configmaps", "tx-coordinator-listeners")
        expected = {"tx-coordinator-0": "public:pulsar://tx-0.example:7700\n"}
        await until(
            "the pod is reported", lambda: (scene.get(addresses) or {}).get("data") == expected
        )
        assert (scene.stateful_set("tx-coordinator") or {})["metadata"][
            "generation"
        ] == generation, "nobody is restarted"
        await until(
            "it is in the status",
            lambda: "pulsar://tx-0.example:7700" in str((scene.get(path) or {}).get("status")),
        )
        await settled(operator)
        before = writes(operator)
        await look_at_all(operator)
        await quiet(operator)
        assert writes(operator) == before
        scene.merge(path, {"spec": {"listeners": []}})
        await until(
            "its service is gone",
            lambda: not scene.get(scene.core("services", "tx-coordinator-0-public")),
        )
        await until("and the addresses", lambda: not scene.get(addresses))


def _updates_of_addresses(scene: Scene) -> list[str]:
    return [
        message
        for message in scene.events("Updated")
        if message.startswith("ConfigMap main-broker-listeners")
    ]


def node_port_of(scene: Scene, name: str) -> int:
    service = scene.get(scene.core("services", name))
    assert service is not None
    return int(service["spec"]["ports"][0]["nodePort"])

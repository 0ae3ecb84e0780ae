"""Clusters on S3 on a real API server: credentials that are missing are named, and their coming or changing is noticed."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from magnetar_operator import names
from tests.apiserver.control_plane import EtcdProcess
from tests.apiserver.stage import Kubelet, Scene, brokers_of, running_operator, until

pytestmark = pytest.mark.slow


def secret(**entries: str) -> dict[str, Any]:
    data = {name: b64encode(value.encode()).decode() for name, value in entries.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}


def digest(scene: Scene, stateful_set: str = "main-broker") -> str:
    found = scene.stateful_set(stateful_set) or {}
    return str(found.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {}).get(names.CREDENTIALS_HASH, ""))


def test_credentials_of_s3_are_looked_at_and_followed(scene: Scene, cluster_etcd: EtcdProcess) -> None:
    """Missing: a condition with the remedy. There: Ready. Changed: brokers and coordinators roll. Away again: a
    condition, and no pod is touched."""

    async def scenario() -> None:
        async with (
            brokers_of(cluster_etcd.endpoint) as brokers,
            running_operator(scene.namespace),
            Kubelet(scene).at_work(),
        ):
            storage = {"s3": {"bucket": "messages", "credentials": {"secretRef": {"name": "keys"}}}}
            scene.create(
                "BrokerCluster", "main", {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}, "storage": storage}
            )
            await brokers.register("main-broker-0")
            path = scene.path("brokerclusters", "main")
            await until("it is named", lambda: scene.condition(path, "Degraded").get("reason") == "StorageCredentialsMissing")
            assert "secret keys does not exist" in scene.condition(path)["message"]
            scene.plane.must("POST", scene.core("secrets"), secret(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b"))
            await until("it is Ready", lambda: scene.condition(path).get("status") == "True")
            first = digest(scene)
            assert first
            assert not scene.plane.must("GET", scene.core("persistentvolumeclaims"))["items"]

            scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}})
            await until("coordinators have the same", lambda: digest(scene, "tx-coordinator") == first)

            job = {"clusterRef": {"name": "main"}, "compaction": {"topic": "persistent://public/default/prices"}}
            scene.create("DataJob", "prices", job)
            said = scene.path("datajobs", "prices")
            await until("the job says so", lambda: scene.condition(said).get("reason") == "StorageNotSupported")
            assert not scene.get(said)["status"].get("driverPod")  # type: ignore[index]

            scene.merge(scene.core("secrets", "keys"), {"data": secret(AWS_SECRET_ACCESS_KEY="c")["data"]})
            scene.merge(path, {"metadata": {"annotations": {"look": "now"}}})
            changed = await until("the new ones reach the template", lambda: digest(scene) not in ("", first) and digest(scene))
            scene.merge(scene.path("transactioncoordinators", "tx"), {"metadata": {"annotations": {"look": "now"}}})
            await until("and the coordinators'", lambda: digest(scene, "tx-coordinator") == changed)
            scene.delete(scene.core("secrets", "keys"))
            scene.merge(path, {"metadata": {"annotations": {"look": "again"}}})
            await until("it is named again", lambda: scene.condition(path, "Degraded").get("reason") == "StorageCredentialsMissing")
            assert digest(scene) == changed, "brokers that run are left alone"

    asyncio.run(scenario())

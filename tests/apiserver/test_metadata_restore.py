"""A lost metadata store is restored by request: real operator, API server and etcd; the pod that
fills the store is the real command."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dev.testbed.control_plane import ControlPlane
from magnetar.clock import SystemClock
from magnetar.hosting.joining import join_cluster
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.backends.etcd_tls import TlsFiles
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.backup import read_backup
from magnetar.metadata.records import ClusterRecord, TenantRecord
from magnetar.names import NamespaceName
from magnetar.storage.restore.backups import keep_backup
from magnetar.storage.volumes.opening import open_volume
from magnetar_operator import names
from tests.apiserver.etcd_stage import EtcdKubelet
from tests.apiserver.stage import Kubelet, Scene, running_operator, until

pytestmark = pytest.mark.slow
TIMEOUT_S = 240.0
CLOCK = SystemClock()
TENANT = "tenants/shop"
LISTENERS = [{"name": "nodes", "type": "NodePort"}]
ENTRANCES = ("main-broker-nodes", "main-broker-0-nodes", "tx-coordinator-0-nodes")
"""Services by which clients outside come: one that is made again has other ports, or another
load balancer's address."""


@pytest.fixture
def scene(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.operator_kubeconfig))
    return Scene(control_plane, namespace)


async def storage_with_a_copy(directory: Path) -> str:
    """What brokers leave in storage: its id, and a copy of a store with one tenant; the id."""
    directory.mkdir()
    volume, store = await open_volume(str(directory), CLOCK), MemoryStore(CLOCK)
    try:
        await join_cluster(store, volume, CLOCK)
        await store.put(TENANT, TenantRecord().encode())
        await keep_backup(store, volume, await read_backup(store, CLOCK.wall_ms()), kept=3)
        item = await store.get(keys.CLUSTER)
        assert item is not None
        return ClusterRecord.decode(item.value).storage_id
    finally:
        await store.close()
        await volume.close()


def mounted(scene: Scene, directory: Path) -> Path:
    """The operator's certificate, as a pod would find it."""
    found = scene.get(scene.core("secrets", names.etcd_secret("main", names.OPERATOR_USER)))
    assert found is not None
    directory.mkdir(exist_ok=True)
    for file, content in found["data"].items():
        (directory / file).write_bytes(base64.b64decode(content))
    return directory


def run_pod(scene: Scene, pod: dict[str, Any], storage: Path, certificates: Path) -> None:
    """What the kubelet would do: run the command, and report how it ended."""
    (container,) = pod["spec"]["containers"]
    places = {
        names.VOLUME_PATH: str(storage),
        names.ETCD_TLS_PATH: str(mounted(scene, certificates)),
    }
    command = [sys.executable, "-m", *(places.get(part, part) for part in container["args"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    ended = {"exitCode": done.returncode, "message": done.stderr[-500:]}
    status = {
        "phase": "Succeeded" if done.returncode == 0 else "Failed",
        "containerStatuses": [
            {
                "name": container["name"],
                "image": "i",
                "imageID": "i",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": ended},
            }
        ],
    }
    scene.merge(f"{scene.core('pods', pod['metadata']['name'])}/status", {"status": status})


async def test_a_lost_store_is_filled_from_the_newest_copy_and_an_intact_one_is_left_alone(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods of brokers and coordinators stay what they are, but one that the empty store has
    refused; the pause is said before the pod is made that brings it; nothing else is written
    into the empty store; another operator takes over in between."""
    etcd = EtcdKubelet(scene, tmp_path)
    etcd.play_dns(monkeypatch)
    path, storage, certificates = (
        scene.path("brokerclusters", "main"),
        tmp_path / "storage",
        tmp_path / "operator-tls",
    )

    def restore(request: str) -> None:
        scene.merge(path, {"spec": {"etcd": {"managed": {"restore": {"request": request}}}}})

    def phase() -> str:
        return str(scene.cluster().get("status", {}).get("restore", {}).get("phase", ""))

    def restorers() -> list[dict[str, Any]]:
        return [pod for pod in scene.pods() if pod["metadata"]["name"].startswith("main-restore-")]

    def coordinators() -> int | None:
        found = scene.stateful_set("tx-coordinator")
        return found["spec"]["replicas"] if found is not None else None

    def clients() -> dict[str, str]:
        found = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scene.pods()}
        return {
            name: uid
            for name, uid in found.items()
            if name.startswith(("main-broker-", "tx-coordinator-"))
        }

    def refuse(kubelet: Kubelet, name: str) -> None:
        """What is reported of a process that has ended again and again."""
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
        said = {
            "name": "coordinator",
            "image": "i",
            "imageID": "i",
            "ready": False,
            "restartCount": 4,
            "state": state,
        }
        kubelet.says[name] = {"containerStatuses": [said]}
        kubelet.sick.add(name)

    def entrances() -> list[str]:
        found = [scene.get(scene.core("services", name)) for name in ENTRANCES]
        return [service["metadata"]["uid"] for service in found if service is not None]

    async def in_store(key: str) -> bytes | None:
        tls = TlsFiles.in_directory(await asyncio.to_thread(mounted, scene, certificates))
        store = EtcdStore([names.etcd_endpoint("main", scene.namespace)], tls, clock=CLOCK)
        try:
            item = await store.get(key)
            return item.value if item is not None else None
        finally:
            await store.close()

    async def lose_an_intact_store() -> None:
        scene.create("BrokerCluster", "main", {"listeners": LISTENERS})
        scene.create(
            "TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}, "listeners": LISTENERS}
        )
        await until("pods of both kinds", lambda: len(clients()) == 2, TIMEOUT_S)
        await until(
            "etcd",
            lambda: scene.cluster().get("status", {}).get("etcd", {}).get("clusterId"),
            TIMEOUT_S,
        )
        tls = TlsFiles.in_directory(await asyncio.to_thread(mounted, scene, certificates))
        store = EtcdStore([names.etcd_endpoint("main", scene.namespace)], tls, clock=CLOCK)
        await store.put(
            keys.CLUSTER, ClusterRecord(await storage_with_a_copy(storage), 0, 1).encode()
        )
        await store.close()
        await until(
            "the store is known", lambda: scene.cluster()["status"].get("storageId"), TIMEOUT_S
        )
        restore("monday")
        await until(
            "the refusal",
            lambda: scene.condition(path, "Degraded").get("reason") == "MetadataRestoreRefused",
            TIMEOUT_S,
        )
        assert phase() == "Refused"
        assert (scene.replicas(), coordinators(), restorers()) == (1, 1, [])
        await asyncio.to_thread(etcd.lose, 0)
        await until(
            "the loss",
            lambda: scene.condition(path, "Degraded").get("reason") == "EtcdDataLost",
            TIMEOUT_S,
        )
        assert phase() == "Refused", "an old request does not come alive"

    async def scenario() -> None:
        async with AsyncExitStack() as hands:
            await hands.enter_async_context(etcd.at_work())
            brokers, coordinator = Kubelet(scene, "main-broker"), Kubelet(scene, "tx-coordinator")
            for kubelet in (brokers, coordinator):
                await hands.enter_async_context(kubelet.at_work())
            async with running_operator(scene.namespace, "one"):
                await lose_an_intact_store()
                before = entrances()
                assert len(before) == len(ENTRANCES)
                pods = clients()
                scene.create(
                    "TopicNamespace",
                    "late",
                    {"clusterRef": {"name": "main"}, "tenant": "shop", "namespace": "late"},
                )
                restore("tuesday")
                (pod,) = await until("a pod that fills the store", restorers, TIMEOUT_S)
                said = [
                    message
                    for message in scene.events("MetadataRestoring")
                    if "is served for about 5 s" in message
                ]
                assert {message.partition(":")[0] for message in said} == {"Beginning", "Filling"}
                assert scene.cluster()["status"]["restore"]["pauseSeconds"] == 5
                assert (clients(), scene.replicas(), coordinators()) == (pods, 1, 1)
                scene.merge(path, {"spec": {"replicas": 3}})
            async with running_operator(scene.namespace, "two"):
                assert phase() == "Filling"
                waits = lambda: scene.condition(scene.path("topicnamespaces", "late"), "Ready").get(  # noqa: E731
                    "message", ""
                )
                await until("the namespace waits", lambda: "being restored" in waits(), TIMEOUT_S)
                assert await in_store(keys.namespace(NamespaceName("shop", "late"))) is None
                assert (clients(), scene.replicas()) == (pods, 1), (
                    "nobody joins a store that is being filled"
                )
                refuse(coordinator, "tx-coordinator-0")
                await asyncio.to_thread(run_pod, scene, pod, storage, certificates)
                await until("the end", lambda: phase() == "Restored", TIMEOUT_S)
                await until(
                    "what was asked for concurrently", lambda: scene.replicas() == 3, TIMEOUT_S
                )
                another = lambda: (  # noqa: E731
                    clients().get("tx-coordinator-0") not in (None, pods["tx-coordinator-0"])
                )
                await until(
                    "another pod in the place of the one that was refused", another, TIMEOUT_S
                )
                assert clients()["main-broker-0"] == pods["main-broker-0"]
                assert entrances() == before
                assert await in_store(TENANT) == TenantRecord().encode()
                assert await in_store(keys.RESTORE_REQUEST) is not None
                assert len(restorers()) == 1
                assert scene.cluster()["status"]["restore"]["replaces"]

    await scenario()

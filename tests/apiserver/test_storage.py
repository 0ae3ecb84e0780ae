"""Storage on a real API server: credentials of S3 that are missing are named, and volumes that
cannot grow stay as they are, with the remedy."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar_operator import names
from tests.apiserver.job_stage import Jobs
from tests.apiserver.stage import (
    Kubelet,
    Scene,
    brokers_of,
    external,
    running_operator,
    settled,
    until,
)
from tests.support.pod_states import container_status

pytestmark = pytest.mark.slow


def secret(**entries: str) -> dict[str, Any]:
    data = {name: b64encode(value.encode()).decode() for name, value in entries.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}


def make_class(scene: Scene, name: str, *, expands: bool) -> None:
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
    manifest = {
        **kind,
        "metadata": {"name": name},
        "provisioner": "example.com/disks",
        "allowVolumeExpansion": expands,
    }
    scene.plane.must("POST", "/apis/storage.k8s.io/v1/storageclasses", manifest)


def digest(scene: Scene, stateful_set: str = "main-broker") -> str:
    found = scene.stateful_set(stateful_set) or {}
    return str(
        found.get("spec", {})
        .get("template", {})
        .get("metadata", {})
        .get("annotations", {})
        .get(names.CREDENTIALS_HASH, "")
    )


async def test_credentials_of_s3_are_looked_at_and_followed(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Missing: a condition with the remedy. There: Ready. Changed: brokers and coordinators
    roll. Away again: a condition, and no pod is touched."""

    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace),
        Kubelet(scene).at_work(),
    ):
        storage = {"s3": {"bucket": "messages", "credentials": {"secretRef": {"name": "keys"}}}}
        scene.create(
            "BrokerCluster",
            "main",
            {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}, "storage": storage},
        )
        await brokers.register("main-broker-0")
        path = scene.path("brokerclusters", "main")
        await until(
            "it is named",
            lambda: scene.condition(path, "Degraded").get("reason") == "StorageCredentialsMissing",
        )
        assert "secret keys does not exist" in scene.condition(path)["message"]
        scene.plane.must(
            "POST",
            scene.core("secrets"),
            secret(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b"),
        )
        await until("it is Ready", lambda: scene.condition(path).get("status") == "True")
        first = digest(scene)
        assert first
        assert not scene.plane.must("GET", scene.core("persistentvolumeclaims"))["items"]

        scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}})
        await until("coordinators have the same", lambda: digest(scene, "tx-coordinator") == first)

        scene.merge(
            scene.core("secrets", "keys"), {"data": secret(AWS_SECRET_ACCESS_KEY="c")["data"]}
        )
        scene.merge(path, {"metadata": {"annotations": {"look": "now"}}})
        changed = await until(
            "the new ones reach the template",
            lambda: digest(scene) not in ("", first) and digest(scene),
        )
        scene.merge(
            scene.path("transactioncoordinators", "tx"),
            {"metadata": {"annotations": {"look": "now"}}},
        )
        await until("and the coordinators'", lambda: digest(scene, "tx-coordinator") == changed)
        scene.delete(scene.core("secrets", "keys"))
        scene.merge(path, {"metadata": {"annotations": {"look": "again"}}})
        await until(
            "it is named again",
            lambda: scene.condition(path, "Degraded").get("reason") == "StorageCredentialsMissing",
        )
        assert digest(scene) == changed, "brokers that run are left alone"


async def test_a_job_on_s3_waits_for_the_credentials_and_gets_them(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """No attempt is used up by a secret that is missing; driver and executors open the bucket as
    brokers do."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        storage = {"s3": {"bucket": "messages", "credentials": {"secretRef": {"name": "keys"}}}}
        scene.create("BrokerCluster", "main", external(cluster_etcd, storage=storage))
        jobs = Jobs(scene, brokers)
        await jobs.make()
        assert "secret keys does not exist" in await jobs.says("StorageCredentialsMissing")
        assert jobs.driver() is None
        assert jobs.status()["attempt"] == 0
        scene.plane.must(
            "POST",
            scene.core("secrets"),
            secret(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b"),
        )
        driver = await until("the first driver", jobs.driver)
        jobs.report(driver["metadata"]["name"], "Running", podIP="10.1.2.3")
        executors = await until("its executors", jobs.executors)
        for pod in (driver, *executors.values()):
            variables = {
                item["name"]: item["valueFrom"].get("secretKeyRef", {}).get("name")
                for item in pod["spec"]["containers"][0]["env"]
            }
            assert variables["AWS_SECRET_ACCESS_KEY"] == "keys"


async def test_a_volume_that_cannot_grow_stays_as_it_is_and_the_size_may_be_taken_back(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Not by a smaller size than it has. A crashing broker is shown concurrently; once the class
    allows expansion, the claim grows."""

    kubelet, plane = Kubelet(scene), scene.plane
    fixed = f"fixed-{scene.namespace}"
    make_class(scene, fixed, expands=False)
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
        kubelet.at_work(),
    ):
        storage = {"volumeClaim": {"storageClassName": fixed}}
        scene.create("BrokerCluster", "main", external(cluster_etcd, storage=storage))
        await brokers.register("main-broker-0")
        path, claim = (
            scene.path("brokerclusters", "main"),
            scene.core("persistentvolumeclaims", "main-storage"),
        )
        await until("the claim", lambda: scene.get(claim))
        bound = {
            "phase": "Bound",
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "10Gi"},
        }
        scene.merge(f"{claim}/status", {"status": bound})
        expected = {
            "claim": "main-storage",
            "storageClassName": fixed,
            "size": "10Gi",
            "capacity": "10Gi",
        }
        await until(
            "it is shown", lambda: (scene.cluster().get("status") or {}).get("storage") == expected
        )
        await until("it is Ready", lambda: scene.condition(path).get("status") == "True")

        scene.merge(path, resized("60Gi"))
        await until(
            "it is refused",
            lambda: scene.condition(path, "Degraded").get("reason") == "StorageNotExpandable",
        )
        said = scene.condition(path)["message"]
        assert said.startswith(
            f"claim main-storage stays at 10Gi instead of 60Gi: its StorageClass {fixed} has "
            "no allowVolumeExpansion: true. "
        )
        assert scene.get(claim)["spec"]["resources"]["requests"] == {"storage": "10Gi"}  # type: ignore[index]
        assert said in scene.events("StorageNotExpandable")
        await settled(operator)

        kubelet.sick.add("main-broker-0")
        crash = container_status(
            "c", {"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 3, "reason": "Error"}
        )
        kubelet.says["main-broker-0"] = {"containerStatuses": [crash]}
        await until(
            "the crash comes first",
            lambda: scene.condition(path, "Degraded").get("reason") == "PodCrashing",
        )
        assert scene.condition(path)["message"].endswith(
            "[and 1 more in status.troubles: StorageNotExpandable]"
        )
        troubles = scene.cluster()["status"]["troubles"]
        assert [(one["reason"], one["about"]) for one in troubles] == [
            ("PodCrashing", "main-broker-0"),
            ("StorageNotExpandable", "main-storage"),
        ]
        await settled(operator)
        kubelet.sick.clear()

        status, answer = plane.request(
            "PATCH", path, resized("9Gi"), "application/merge-patch+json"
        )
        assert status == 422
        assert "a claim cannot shrink" in answer["message"]
        scene.merge(path, resized("10Gi"))
        await until("it is Ready again", lambda: scene.condition(path).get("status") == "True")
        assert (
            "troubles" not in scene.cluster()["status"]
            or scene.cluster()["status"]["troubles"] == []
        )

        scene.merge(path, resized("20Gi"))
        await until(
            "it is refused again",
            lambda: scene.condition(path).get("reason") == "StorageNotExpandable",
        )
        scene.merge(
            f"/apis/storage.k8s.io/v1/storageclasses/{fixed}", {"allowVolumeExpansion": True}
        )
        scene.merge(path, {"metadata": {"annotations": {"look": "now"}}})
        await until(
            "it grows",
            lambda: scene.get(claim)["spec"]["resources"]["requests"] == {"storage": "20Gi"},
        )  # type: ignore[index]
        await until("it is Ready at last", lambda: scene.condition(path).get("status") == "True")


def resized(size: str) -> dict[str, Any]:
    return {"spec": {"storage": {"volumeClaim": {"size": size}}}}


async def test_a_class_that_does_not_exist_is_named_before_any_pod_complains(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """And no longer once an administrator has made it; until its volume is there, the claim does
    not grow."""

    late = f"late-{scene.namespace}"
    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace):
        scene.create(
            "BrokerCluster",
            "main",
            external(cluster_etcd, storage={"volumeClaim": {"storageClassName": late}}),
        )
        path = scene.path("brokerclusters", "main")
        await until(
            "it is named",
            lambda: scene.condition(path, "Degraded").get("reason") == "StorageClassNotFound",
        )
        assert scene.condition(path)["message"].startswith(
            f"StorageClass {late} of claim main-storage does not exist. "
        )
        make_class(scene, late, expands=True)
        scene.merge(path, resized("20Gi"))
        await until(
            "the size waits",
            lambda: scene.condition(path, "Degraded").get("reason") == "StorageNotBound",
        )
        assert (
            "stays at 10Gi instead of 20Gi: it is not bound yet" in scene.condition(path)["message"]
        )

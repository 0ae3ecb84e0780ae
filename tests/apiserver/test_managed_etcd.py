"""The incarnation of a managed etcd through its resource: the real operator and API server, real
members with the operator's own certificates."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StoreError
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.backends.etcd_tls import TlsBytes
from magnetar_operator import names
from magnetar_operator.brokers import reconciler as broker_cluster
from magnetar_operator.etcd import rotation as etcd_rotation
from magnetar_operator.etcd import start as etcd_start
from tests.apiserver.etcd_stage import SET, EtcdKubelet
from tests.apiserver.stage import Kubelet, Scene, look_at_all, running_operator, until, writes

pytestmark = pytest.mark.slow
TIMEOUT_S = 240.0


def etcd_of(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = scene.cluster().get("status", {}).get("etcd", {})
    return found


def roles(scene: Scene) -> dict[str, str]:
    return {member["name"]: member.get("role", "") for member in etcd_of(scene).get("members", [])}


def ids(scene: Scene) -> dict[str, str]:
    return {member["name"]: member.get("id", "") for member in etcd_of(scene).get("members", [])}


def settled(scene: Scene, members: int) -> bool:
    """As many voters as wanted, and nothing of etcd's is under way or amiss."""
    reasons = {
        condition["reason"] for condition in scene.cluster().get("status", {}).get("conditions", [])
    }
    found = sorted(roles(scene).values())
    return (
        bool(reasons)
        and found == ["Follower"] * (members - 1) + ["Leader"]
        and not any("Etcd" in reason for reason in reasons)
    )


async def test_a_managed_etcd_grows_replaces_a_member_and_shrinks_as_its_resource_says(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members come as learners and go before their pods; at rest nothing is written; an empty
    etcd takes a lost one's place only by permission."""
    kubelet = EtcdKubelet(scene, tmp_path)
    kubelet.play_dns(monkeypatch)
    path = scene.path("brokerclusters", "main")

    async with kubelet.at_work(), running_operator(scene.namespace) as operator:
        scene.create("BrokerCluster", "main", {"replicas": 0})
        await until("one member", lambda: settled(scene, 1), TIMEOUT_S)
        identity = etcd_of(scene)["clusterId"]
        assert scene.get(scene.core("poddisruptionbudgets", "main-etcd", "/apis/policy/v1")) is None
        assert (
            scene.plane.request(
                "PATCH", path, {"spec": {"etcd": {"managed": {"replicas": 2}}}}, MERGE
            )[0]
            == 422
        )

        scene.merge(path, {"spec": {"etcd": {"managed": {"replicas": 3}}}})
        await until("three members", lambda: settled(scene, 3), TIMEOUT_S)
        assert etcd_of(scene)["clusterId"] == identity
        budget = scene.get(scene.core("poddisruptionbudgets", "main-etcd", "/apis/policy/v1"))
        assert budget is not None
        assert budget["spec"]["maxUnavailable"] == 1
        config = lambda: (scene.get(scene.core("configmaps", "main-etcd")) or {})["data"]  # noqa: E731
        await until("nobody else may join", lambda: config()[etcd_start.OPEN] == "")

        before = ids(scene)
        await asyncio.to_thread(kubelet.lose, 1)
        await until(
            "another member in the place of the lost one",
            lambda: (
                ids(scene).get("main-etcd-1") not in (None, before["main-etcd-1"])
                and settled(scene, 3)
            ),
            TIMEOUT_S,
        )
        reported = lambda: any(  # noqa: E731
            "lost its data" in message for message in scene.events("EtcdReplacingMember")
        )
        await until("it is reported", reported)

        calm = await _writes_of_passes(operator)
        for _ in range(10):
            if calm == 0:
                break
            calm = await _writes_of_passes(operator)
        assert calm == 0

        scene.merge(path, {"spec": {"etcd": {"managed": {"replicas": 1}}}})
        await until(
            "one member again", lambda: settled(scene, 1) and len(roles(scene)) == 1, TIMEOUT_S
        )
        assert etcd_of(scene)["clusterId"] == identity

        # Its only volume is lost: an empty etcd instead is a person's decision.
        await asyncio.to_thread(kubelet.lose, 0)
        lost = lambda: scene.condition(path, "Degraded").get("reason") == "EtcdDataLost"  # noqa: E731
        await until("the loss is reported", lost, TIMEOUT_S)
        assert etcd_of(scene)["clusterId"] == identity
        scene.merge(path, {"metadata": {"annotations": {"magnetar.io/begin-etcd": identity}}})
        await until(
            "another etcd",
            lambda: settled(scene, 1) and etcd_of(scene)["clusterId"] != identity,
            TIMEOUT_S,
        )


async def test_brokers_are_restarted_once_when_new_members_work_and_once_when_they_are_gone(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while a member that they would be given is still pending: a restart then would come
    again, and might come up without the store."""
    kubelet, brokers = EtcdKubelet(scene, tmp_path), Kubelet(scene)
    kubelet.play_dns(monkeypatch)
    kubelet.pending.add("main-etcd-2")
    path = scene.path("brokerclusters", "main")
    pods: list[str] = []

    def store() -> str:
        """Where the set's next pod looks for etcd; pods so far into `pods`."""
        pods.extend(
            pod["metadata"]["uid"]
            for pod in scene.pods()
            if pod["metadata"]["name"] == "main-broker-0"
        )
        arguments = (scene.stateful_set() or {})["spec"]["template"]["spec"]["containers"][0][
            "args"
        ]
        return str(arguments[arguments.index("--store") + 1])

    def restarted(count: int) -> bool:
        """So many pods have followed the first, and the last has the newest template."""
        wanted, found = (
            store(),
            [pod for pod in scene.pods() if pod["metadata"]["name"] == "main-broker-0"],
        )
        return (
            len(set(pods)) == count + 1
            and len(found) == 1
            and wanted in found[0]["spec"]["containers"][0]["args"]
        )

    def scale(members: int) -> None:
        scene.merge(path, {"spec": {"etcd": {"managed": {"replicas": members}}}})

    async with kubelet.at_work(), brokers.at_work(), running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", {"replicas": 1})
        await until(
            "one member and a broker", lambda: settled(scene, 1) and restarted(0), TIMEOUT_S
        )
        alone = store()
        scale(3)
        voter = lambda: (  # noqa: E731
            roles(scene).get("main-etcd-1") == "Follower" and "main-etcd-2" in roles(scene)
        )
        await until("the second votes, the third is awaited", voter, TIMEOUT_S)
        for _ in range(5):
            assert (store(), len(set(pods))) == (alone, 1)
            await asyncio.sleep(0.5)
        kubelet.pending.clear()
        await until("other addresses", lambda: store() != alone, TIMEOUT_S)
        assert sorted(roles(scene).values()) == ["Follower", "Follower", "Leader"], (
            "all of them vote"
        )
        await until("one restart", lambda: restarted(1) and settled(scene, 3), TIMEOUT_S)
        assert store().count(",") == 2
        scale(1)
        await until(
            "one member again", lambda: settled(scene, 1) and len(roles(scene)) == 1, TIMEOUT_S
        )
        await until("another restart", lambda: restarted(2), TIMEOUT_S)
        assert store() == alone


def claim(scene: Scene, ordinal: int, labels: dict[str, str]) -> None:
    """A member's claim, as a StatefulSet's controller makes it."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": f"data-{SET}-{ordinal}", "labels": labels}, "spec": spec}
    scene.plane.must("POST", scene.core("persistentvolumeclaims"), body)


async def test_a_set_that_was_deleted_while_no_operator_ran_comes_back_with_all_its_members(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pod of three would never be a quorum, so that nobody could say that there are to be
    three."""
    kubelet = EtcdKubelet(scene, tmp_path)
    kubelet.play_dns(monkeypatch)

    async with kubelet.at_work():
        async with running_operator(scene.namespace, "one"):
            scene.create(
                "BrokerCluster", "main", {"replicas": 0, "etcd": {"managed": {"replicas": 3}}}
            )
            await until("three members", lambda: settled(scene, 3), TIMEOUT_S)
            identity, before = etcd_of(scene)["clusterId"], ids(scene)
        found = scene.stateful_set(SET)
        assert found is not None
        for ordinal in range(3):
            claim(scene, ordinal, found["spec"]["selector"]["matchLabels"])
        scene.delete(scene.core("statefulsets", SET, "/apis/apps/v1"))
        await until("no pod is left", lambda: not scene.pods(), TIMEOUT_S)
        async with running_operator(scene.namespace, "two"):
            again = await until("another set", lambda: scene.stateful_set(SET), TIMEOUT_S)
            assert again["spec"]["replicas"] == 3
            whole = lambda: ids(scene) == before and settled(scene, 3)  # noqa: E731
            await until("the same three members", whole, TIMEOUT_S)
            assert etcd_of(scene)["clusterId"] == identity


def leader(scene: Scene) -> str:
    return next(name for name, role in roles(scene).items() if role == "Leader")


def material(scene: Scene, part: str) -> TlsBytes:
    found = scene.get(scene.core("secrets", f"main-etcd-{part}"))
    assert found is not None
    return TlsBytes(
        *(base64.b64decode(found["data"][file]) for file in ("ca.crt", "tls.crt", "tls.key"))
    )


async def reads(kubelet: EtcdKubelet, shown: TlsBytes) -> bool:
    """Whether etcd lets a client that shows this certificate read."""
    endpoints = [f"{kubelet.address(ordinal)}:{names.ETCD_CLIENT_PORT}" for ordinal in range(3)]
    store = EtcdStore(endpoints, shown, clock=SystemClock())
    try:
        await store.get("cluster")
    except StoreError:
        return False
    finally:
        await store.close()
    return True


async def test_three_members_take_another_patch_version_and_another_authority_one_by_one(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader last and after a transfer; a downgrade is refused with a sentence; a client
    with a certificate of the former authority is refused in the end. (One binary under two
    names: the second version is a tag.)"""
    monkeypatch.setattr(etcd_rotation, "SETTLE_MS", 500)
    monkeypatch.setattr(broker_cluster, "ROTATING_S", 0.5)
    kubelet = EtcdKubelet(scene, tmp_path)
    kubelet.play_dns(monkeypatch)
    path = scene.path("brokerclusters", "main")

    def image(wanted: str) -> dict[str, Any]:
        return {"spec": {"etcd": {"managed": {"image": f"registry.example/etcd:v{wanted}"}}}}

    def images() -> set[str]:
        etcd = [pod for pod in scene.pods() if pod["metadata"]["name"].startswith(SET)]
        return {
            container["image"].rpartition(":")[2]
            for pod in etcd
            for container in pod["spec"]["containers"]
        }

    def authority() -> dict[str, str]:
        found: dict[str, str] = scene.cluster().get("status", {}).get("etcdAuthority", {})
        return found

    def is_over() -> bool:
        trusts = {
            pod["metadata"].get("annotations", {}).get(names.ETCD_TRUST) for pod in scene.pods()
        }
        return (
            not authority().get("rotation")
            and trusts == {authority().get("trust")}
            and settled(scene, 3)
        )

    async with kubelet.at_work(), running_operator(scene.namespace):
        scene.create("BrokerCluster", "main", {"replicas": 0, "etcd": {"managed": {"replicas": 3}}})
        await until("three members", lambda: settled(scene, 3), TIMEOUT_S)
        identity, members = etcd_of(scene)["clusterId"], ids(scene)

        former, old, last = authority(), material(scene, "broker"), leader(scene)
        assert await reads(kubelet, old)
        kubelet.ended.clear()
        scene.merge(
            path,
            {"metadata": {"annotations": {names.ROTATE_ETCD: former["id"]}}} | image("3.6.99"),
        )
        await until(
            "another authority is trusted",
            lambda: authority().get("rotation") == "Trusting",
            TIMEOUT_S,
        )
        await until(
            "another version and authority",
            lambda: authority()["id"] != former["id"] and is_over(),
            TIMEOUT_S,
        )
        assert images() == {"v3.6.99"}
        first, second = kubelet.ended[:3], kubelet.ended[3:]
        assert (sorted(first), sorted(second)) == (sorted(members), sorted(members)), (
            "once for both, once for the new authority alone"
        )
        assert first[-1] == last
        assert (etcd_of(scene)["clusterId"], ids(scene)) == (identity, members)
        assert await reads(kubelet, material(scene, "broker"))
        assert not await reads(kubelet, old)

        scene.merge(path, image("3.5.21"))
        await until(
            "the refusal",
            lambda: scene.condition(path, "Degraded").get("reason") == "EtcdVersionRefused",
            TIMEOUT_S,
        )
        assert "would be a downgrade" in scene.condition(path, "Degraded")["message"]
        assert images() == {"v3.6.99"}


MERGE = "application/merge-patch+json"


async def _writes_of_passes(operator: Any) -> float:
    """Requests that could change something, in two whole passes."""
    before = writes(operator)
    for _ in range(2):
        await look_at_all(operator)
        calm = 0
        while calm < 10:
            calm = calm + 1 if operator.queue.idle else 0
            await asyncio.sleep(0.05)
    return writes(operator) - before

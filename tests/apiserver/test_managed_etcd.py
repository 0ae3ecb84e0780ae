"""The life of a managed etcd through its resource: the real operator and API server, real members with the operator's own certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar_operator import etcd_start
from tests.apiserver.etcd_stage import EtcdKubelet
from tests.apiserver.stage import Scene, running_operator, until, writes

pytestmark = pytest.mark.slow
TIMEOUT_S = 90.0


def etcd_of(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = scene.cluster().get("status", {}).get("etcd", {})
    return found


def roles(scene: Scene) -> dict[str, str]:
    return {member["name"]: member["role"] for member in etcd_of(scene).get("members", [])}


def ids(scene: Scene) -> dict[str, str]:
    return {member["name"]: member["id"] for member in etcd_of(scene).get("members", [])}


def settled(scene: Scene, members: int) -> bool:
    """As many voters as wanted, and nothing of etcd's is under way or amiss."""
    reasons = {condition["reason"] for condition in scene.cluster().get("status", {}).get("conditions", [])}
    found = sorted(roles(scene).values())
    return bool(reasons) and found == ["Follower"] * (members - 1) + ["Leader"] and not any("Etcd" in reason for reason in reasons)


def test_a_managed_etcd_grows_replaces_a_member_and_shrinks_as_its_resource_says(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members come as learners and go before their pods; at rest nothing is written; an empty etcd takes a lost one's place only by permission."""
    kubelet = EtcdKubelet(scene, tmp_path)
    kubelet.play_dns(monkeypatch)
    path = scene.path("brokerclusters", "main")

    async def scenario() -> None:
        async with kubelet.at_work(), running_operator(scene.namespace) as operator:
            scene.create("BrokerCluster", "main", {"replicas": 0})
            await until("one member", lambda: settled(scene, 1), TIMEOUT_S)
            identity = etcd_of(scene)["clusterId"]
            assert scene.get(scene.core("poddisruptionbudgets", "main-etcd", "/apis/policy/v1")) is None
            assert scene.plane.request("PATCH", path, {"spec": {"etcd": {"managed": {"replicas": 2}}}}, MERGE)[0] == 422

            scene.merge(path, {"spec": {"etcd": {"managed": {"replicas": 3}}}})
            await until("three members", lambda: settled(scene, 3), TIMEOUT_S)
            assert etcd_of(scene)["clusterId"] == identity
            budget = scene.get(scene.core("poddisruptionbudgets", "main-etcd", "/apis/policy/v1"))
            assert budget is not None
            assert budget["spec"]["maxUnavailable"] == 1
            config = scene.get(scene.core("configmaps", "main-etcd"))
            assert config is not None
            assert config["data"][etcd_start.OPEN] == ""

            before = ids(scene)
            await asyncio.to_thread(kubelet.lose, 1)
            await until(
                "another member in the place of the lost one",
                lambda: ids(scene).get("main-etcd-1") not in (None, before["main-etcd-1"]) and settled(scene, 3),
                TIMEOUT_S,
            )
            assert any("lost its data" in message for message in scene.events("EtcdReplacingMember"))

            calm = await _writes_of_passes(operator)
            for _ in range(10):
                if calm == 0:
                    break
                calm = await _writes_of_passes(operator)
            assert calm == 0

            scene.merge(path, {"spec": {"etcd": {"managed": {"replicas": 1}}}})
            await until("one member again", lambda: settled(scene, 1) and len(roles(scene)) == 1, TIMEOUT_S)
            assert etcd_of(scene)["clusterId"] == identity

            # Its only volume is lost: an empty etcd in its place is a person's decision.
            await asyncio.to_thread(kubelet.lose, 0)
            lost = lambda: scene.condition(path, "Degraded").get("reason") == "EtcdDataLost"  # noqa: E731
            await until("the loss is told", lost, TIMEOUT_S)
            assert etcd_of(scene)["clusterId"] == identity
            scene.merge(path, {"metadata": {"annotations": {"magnetar.io/begin-etcd": identity}}})
            await until("another etcd", lambda: settled(scene, 1) and etcd_of(scene)["clusterId"] != identity, TIMEOUT_S)

    asyncio.run(scenario())


MERGE = "application/merge-patch+json"


async def _writes_of_passes(operator: Any) -> float:
    """Requests that could change something, in two whole passes."""
    before = writes(operator)
    for _ in range(2):
        await operator.controller.enqueue_all()
        calm = 0
        while calm < 10:
            calm = calm + 1 if operator.queue.idle else 0
            await asyncio.sleep(0.05)
    return writes(operator) - before

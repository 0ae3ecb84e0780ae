"""Deleting TopicNamespaces against a real API server and a real etcd: nothing that holds data
goes, and every resource is let go in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.names import TopicName
from magnetar.resources.topic_namespace import FINALIZER
from magnetar_operator.conditions import timestamp, wall_ms_of
from magnetar_operator.namespaces import deletion as namespace_deletion
from tests.apiserver.definitions import changed_spec
from tests.apiserver.namespace_stage import KEY, NAME, SPEC, TIMEOUT_S, Stage, stage_of
from tests.apiserver.stage import Scene, running_operator, until

pytestmark = pytest.mark.slow


async def test_an_empty_namespace_is_deleted_and_one_with_topics_is_not(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deletionPolicy Delete counts the topics and waits for them to go, not permanently; bundles
    that brokers serve do not stand in the way."""

    async with stage_of(scene, cluster_etcd) as stage, running_operator(scene.namespace):
        path = stage.make("orders", deletionPolicy="Delete")
        await stage.ready(path)
        topic = keys.partitioned_topic(TopicName.parse(f"persistent://{NAME}/t-partition-3"))
        bundle = keys.bundles_in(NAME) + "0x00000000_0x80000000"
        unserved = BundleRecord(BundleState.ASSIGNING, 2, "main-broker-0.1")
        await stage.brokers.store.put(topic, b"{}")
        await stage.brokers.store.put(bundle, unserved.encode())
        scene.delete(path)
        said = await stage.reason(path, "NotEmpty")
        assert "acme/orders has 1 topic; delete them first" in said
        gone = scene.get(path)["metadata"]["deletionTimestamp"]  # type: ignore[index]
        assert (
            f"waits until {timestamp(wall_ms_of(gone) + 120_000)} (120 s), then this resource "
            "goes" in said
        )
        await stage.event("NotEmpty", "magnetar.io/skip-finalizer=true ends that now")
        await stage.brokers.store.delete(topic)
        await until(
            "another reason",
            lambda: "not served" in scene.condition(path).get("message", ""),
            TIMEOUT_S,
        )
        served = replace(unserved, state=BundleState.OWNED)
        await stage.brokers.store.put(bundle, served.encode())
        await until("the resource is gone", lambda: scene.get(path) is None, TIMEOUT_S)
        assert await stage.brokers.store.get(KEY) is None

        kept = stage.make("kept", deletionPolicy="Delete")
        await stage.ready(kept)
        await stage.brokers.store.put(topic, b"{}")
        scene.delete(kept)
        await stage.reason(kept, "NotEmpty")
        scene.merge(kept, {"metadata": {"annotations": {"magnetar.io/skip-finalizer": "true"}}})
        await until("the resource is gone", lambda: scene.get(kept) is None, TIMEOUT_S)
        await stage.event("Retained", "acme/orders stays as it is")
        await stage.becomes("released", stage.is_nobodys)

        bounded = stage.make("bounded", deletionPolicy="Delete")
        await stage.ready(bounded)
        with monkeypatch.context() as patched:  # the operator still needs its KUBECONFIG
            patched.setattr(namespace_deletion, "DELETION_TIMEOUT_S", 0.0)
            scene.delete(bounded)
            await until("the resource is gone", lambda: scene.get(bounded) is None, TIMEOUT_S)
            await stage.event("Retained", "acme/orders has 1 topic;")
        assert await stage.brokers.store.get(KEY) is not None

        cluster_gone = stage.make("late", deletionPolicy="Delete")
        await stage.ready(cluster_gone)
        scene.delete(scene.path("brokerclusters", "main"))
        await until(
            "the cluster is gone",
            lambda: scene.get(scene.path("brokerclusters", "main")) is None,
            TIMEOUT_S,
        )
        scene.delete(cluster_gone)
        await until("the resource is gone", lambda: scene.get(cluster_gone) is None, TIMEOUT_S)


async def test_what_cannot_be_read_is_let_go_all_the_same(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The annotation and the bound hold where the resource does not fit the model, or its
    cluster does not; Retain never waits. All data stays."""
    skip = {"metadata": {"annotations": {"magnetar.io/skip-finalizer": "true"}}}
    stored = lambda answer: "spec" in answer  # noqa: E731

    async def gone(path: str) -> None:
        await until("the resource is gone", lambda: scene.get(path) is None, TIMEOUT_S)

    async def unreadable(stage: Stage) -> str:
        path = stage.make("odd", namespace="odd", bundles=5000, deletionPolicy="Delete")
        await stage.reason(path, "InvalidSpec")
        scene.merge(path, {"metadata": {"finalizers": [FINALIZER]}})
        scene.delete(path)
        return path

    async def scenario() -> None:
        monkeypatch.setattr(namespace_deletion, "DELETION_TIMEOUT_S", 1e6)
        many = changed_spec(
            scene,
            "TopicNamespace",
            "bundles",
            {"type": "integer"},
            {**SPEC, "bundles": 5000},
            stored,
        )
        zero = changed_spec(
            scene,
            "BrokerCluster",
            "drainTimeoutSeconds",
            {"type": "integer"},
            {"drainTimeoutSeconds": 0},
            stored,
        )
        async with (
            stage_of(scene, cluster_etcd) as stage,
            many,
            zero,
            running_operator(scene.namespace),
        ):
            path = stage.make("orders", deletionPolicy="Delete")
            await stage.ready(path)
            scene.merge(path, {"metadata": {"annotations": {"magnetar.io/paused": "true"}}})
            await stage.reason(path, "Paused")
            scene.merge(path, {"spec": {"deletionPolicy": "Retain"}})
            scene.delete(path)
            await gone(path)
            await stage.event(
                "Retained", "acme/orders stays as it is: spec.deletionPolicy is Retain"
            )
            await stage.becomes("released", stage.is_nobodys)

            path = await unreadable(stage)
            await until(
                "it says for how long",
                lambda: "the deletion waits until" in scene.condition(path)["message"],
                TIMEOUT_S,
            )
            scene.merge(path, skip)
            await gone(path)
            await stage.event("Retained", "stays as it is: magnetar.io/skip-finalizer is set")

            first, second = (
                stage.make(name, namespace=name, deletionPolicy="Delete")
                for name in ("first", "second")
            )
            await stage.ready(first)
            await stage.ready(second)
            cluster = scene.path("brokerclusters", "main")
            scene.merge(cluster, {"spec": {"drainTimeoutSeconds": 0}})
            await stage.reason(cluster, "InvalidSpec")
            scene.delete(first)
            assert f"BrokerCluster {scene.namespace}/main cannot be read" in await stage.reason(
                first, "InvalidSpec"
            )
            scene.merge(first, skip)
            await gone(first)

            monkeypatch.setattr(namespace_deletion, "DELETION_TIMEOUT_S", 0.0)
            scene.delete(second)
            await gone(second)
            await gone(await unreadable(stage))
            for name in ("first", "second"):
                assert await stage.brokers.store.get(f"namespaces/acme/{name}") is not None
            scene.merge(cluster, {"spec": {"drainTimeoutSeconds": 300}})

    await scenario()

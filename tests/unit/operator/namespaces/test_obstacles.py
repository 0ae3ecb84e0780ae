"""What keeps a TopicNamespace from being Ready is reported when it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnetar.clock import SystemClock
from magnetar.resources.base import API_VERSION
from magnetar_operator.builders.object import Manifest
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.cache import shown
from magnetar_operator.kube.events import Events
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.namespaces import reconciler as topic_namespace
from tests.support.operator_world import FORBIDDEN, OPEN, Secrets, world_of


class Taking(KubernetesApi):
    """Takes everything; keeps the reasons of Events."""

    def __init__(self) -> None:
        self.reasons, self.written = list[str](), list[tuple[Manifest, str]]()

    async def apply(self, manifest: Manifest, subresource: str = "") -> Manifest:
        self.written.append((manifest, subresource))
        return manifest

    async def post_event(self, manifest: Manifest) -> None:
        self.reasons.append(manifest["reason"])


async def test_an_obstacle_that_comes_back_is_reported_again_and_one_that_lasts_is_not() -> None:
    """In the same words as before: the report of an outage last week is not that of today's."""
    api = Taking()
    events = Events(api, SystemClock(), OperatorMetrics(), "operator")
    world = replace(await world_of(Secrets(FORBIDDEN)), api=api, events=events)
    cluster = world.cache.get("BrokerCluster", OPEN, "main")
    assert cluster is not None
    spec = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "invoices"}
    metadata: dict[str, Any] = {
        "name": "invoices",
        "namespace": OPEN,
        "uid": "i",
        "resourceVersion": "2",
    }
    world.cache.put(
        shown(
            {
                "apiVersion": API_VERSION,
                "kind": "TopicNamespace",
                "metadata": metadata,
                "spec": spec,
            }
        )
    )
    for number in range(2):
        world.cache.put(replace(cluster, version=10 * number + 5))
        await _look_twice(world)
        world.cache.remove(replace(cluster, version=10 * number + 6))
        await _look_twice(world)
    assert [reason for reason in api.reasons if reason == "ClusterNotFound"] == 2 * [
        "ClusterNotFound"
    ]
    for store in world.stores.opened():
        await store.close()


async def _look_twice(world: Any) -> None:
    for _ in range(2):
        await topic_namespace.reconcile(world, Key("TopicNamespace", OPEN, "invoices"))

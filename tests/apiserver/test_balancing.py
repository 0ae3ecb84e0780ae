"""Load balancing against a real API server and a real etcd: settings that brokers follow, the
figures in the status, zones of nodes, and brokers that are about to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates, Resource
from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BROKER_CONFIGURATION,
    NODE_ZONES,
    OPERATOR_CONFIGURATION,
    CordonRecord,
    DocumentsRecord,
)
from magnetar_operator.brokers.scaling import CORDON_REASON
from tests.apiserver.stage import (
    TIMEOUT_S,
    Brokers,
    Kubelet,
    Scene,
    bind,
    brokers_of,
    external,
    look_at_all,
    quiet,
    running_operator,
    settled,
    until,
    writes,
)

pytestmark = pytest.mark.slow

SHEDDER = "loadBalancerLoadSheddingStrategy"


async def documents(brokers: Brokers, group: str) -> dict[str, Any]:
    item = await brokers.store.get(keys.documents(group))
    return dict(DocumentsRecord.decode(item.value).documents) if item is not None else {}


async def store(brokers: Brokers, group: str, found: dict[str, Any]) -> None:
    """What an administrator does through a broker."""
    await brokers.store.put(keys.documents(group), DocumentsRecord(found).encode())


async def stored(what: str, look: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something in the metadata store."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await look():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {TIMEOUT_S} s: {what}") from None


class Stage:
    """A cluster of brokers that serve, played by hand."""

    def __init__(self, scene: Scene, brokers: Brokers, operator: Any) -> None:
        self.scene, self.brokers, self.operator = scene, brokers, operator
        self.path = scene.path("brokerclusters", "main")

    @staticmethod
    async def enter(
        stack: AsyncExitStack, scene: Scene, etcd: EtcdProcess, count: int, **spec: Any
    ) -> Stage:
        brokers = await stack.enter_async_context(brokers_of(etcd.endpoint))
        operator = await stack.enter_async_context(running_operator(scene.namespace))
        await stack.enter_async_context(Kubelet(scene).at_work())
        stage = Stage(scene, brokers, operator)
        for ordinal in range(count):
            await brokers.register(f"main-broker-{ordinal}")
        scene.create("BrokerCluster", "main", external(etcd, replicas=count, **spec))
        await until("Ready", lambda: scene.condition(stage.path).get("status") == "True")
        return stage

    def set(self, **spec: Any) -> None:
        self.scene.merge(self.path, {"spec": spec})

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.scene.pods()}

    def balance(self) -> dict[str, Any]:
        found: dict[str, Any] = self.scene.cluster().get("status", {}).get("balance", {})
        return found

    async def follows(self, wanted: dict[str, Any]) -> None:
        async def same() -> bool:
            return await documents(self.brokers, BROKER_CONFIGURATION) == wanted

        await stored(f"brokers follow {wanted}", same)

    async def look(self) -> None:
        """One more pass over everything."""
        await look_at_all(self.operator)
        await quiet(self.operator)

    async def report(self, **rates: float) -> None:
        """One bundle each, of so many messages/s."""
        for at, (name, rate) in enumerate(rates.items()):
            broker = f"main-broker-{name.strip('b_')}"
            bundle = f"public/default/0x{at}0000000_0x{at + 1}0000000"
            await self.brokers.own(bundle, f"{broker}.{'0' * 16}")
            found = LoadReport(
                broker,
                SystemClock().wall_ms(),
                Resource(10, 100),
                rates=Rates(rate),
                bundles=1,
                top=(BundleLoad(bundle, History.steady(Rates(rate))),),
            )
            await self.brokers.store.put(keys.load(f"{broker}.{'0' * 16}"), found.encode())


async def test_settings_are_followed_without_a_restart_and_what_others_set_stays(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """From spec.loadBalancing and from spec.config; a name that leaves the resource leaves the
    store, one that was set by hand does not; a steady state writes nothing."""
    async with AsyncExitStack() as stack:
        stage = await Stage.enter(
            stack, scene, cluster_etcd, 2, loadBalancing={"strategy": "ThresholdShedder"}
        )
        await stage.follows({SHEDDER: "ThresholdShedder"})
        pods = stage.uids()
        await store(
            stage.brokers,
            BROKER_CONFIGURATION,
            {SHEDDER: "ThresholdShedder", "plannerMovesMax": "7"},
        )
        stage.set(loadBalancing={"strategy": "AvgShedder"}, config={"plannerBundleCost": 5})
        both = dict.fromkeys((SHEDDER, "loadBalancerLoadPlacementStrategy"), "AvgShedder")
        ours = {**both, "plannerBundleCost": "5.0"}
        await stage.follows({**ours, "plannerMovesMax": "7"})
        assert await documents(stage.brokers, OPERATOR_CONFIGURATION) == ours
        await until("an Event", lambda: "AvgShedder" in "".join(scene.events("SettingsFollowed")))
        await until("the status", lambda: stage.balance().get("strategy") == "AvgShedder")
        await settled(stage.operator)
        done = writes(stage.operator)
        await stage.look()
        assert writes(stage.operator) == done
        stage.set(loadBalancing=None, config=None)
        await stage.follows({"plannerMovesMax": "7"})
        assert await documents(stage.brokers, OPERATOR_CONFIGURATION) == {}
        assert stage.uids() == pods
        assert scene.events("Restarting") == []


async def test_a_store_that_is_silent_is_a_condition_and_settings_follow_later(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Concurrently the other work of the resource goes on."""
    async with AsyncExitStack() as stack:
        stage = await Stage.enter(stack, scene, cluster_etcd, 1)
        with cluster_etcd.frozen():
            stage.set(
                loadBalancing={"bandPercent": 4}, podTemplate={"labels": {"team": "messaging"}}
            )
            await until(
                "the condition",
                lambda: scene.condition(stage.path).get("reason") == "MetadataStoreUnavailable",
            )

            def template() -> dict[str, Any]:
                found = scene.stateful_set()
                assert found is not None
                labels: dict[str, Any] = found["spec"]["template"]["metadata"]["labels"]
                return labels

            await until("the template", lambda: template().get("team") == "messaging")
        await stage.follows({"plannerBand": "0.04", "plannerTriggerBand": "0.1"})
        await until("Ready", lambda: scene.condition(stage.path).get("status") == "True")


async def test_the_status_and_a_column_say_how_even_the_load_is(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Load that changes by little is no write."""
    async with AsyncExitStack() as stack:
        stage = await Stage.enter(stack, scene, cluster_etcd, 3)
        await stage.report(b0=2990, b1=990, b2=1990)
        await stage.look()
        await until("the figure", lambda: stage.balance().get("imbalance") == "1.50")
        assert stage.balance()["strategy"] == "Planner"
        shown = await asyncio.to_thread(
            scene.plane.kubectl, "get", "-n", scene.namespace, "brokerclusters"
        )
        header, row = shown.stdout.splitlines()
        assert "BALANCE" in header
        assert "1.50" in row.split()
        await settled(stage.operator)
        done = writes(stage.operator)
        for rate in (2970, 3010, 2980):
            await stage.report(b0=rate, b1=1000, b2=2000)
            await stage.look()
        assert writes(stage.operator) == done


async def test_brokers_learn_the_zones_of_their_nodes(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """By one look at each node; a node without a zone is looked at once as well, and a broker that
    is scaled away is forgotten."""
    group = f"{NODE_ZONES}/standalone"
    for name, labels in (("a", {"topology.kubernetes.io/zone": "west-1"}), ("b", {})):
        node = {"metadata": {"name": f"{scene.namespace}-{name}", "labels": labels}}
        scene.plane.must("POST", "/api/v1/nodes", node)
    async with AsyncExitStack() as stack:
        stage = await Stage.enter(stack, scene, cluster_etcd, 2)
        for ordinal, name in enumerate("ab"):
            bind(scene, f"main-broker-{ordinal}", f"{scene.namespace}-{name}")

        async def zones() -> dict[str, str]:
            found = await documents(stage.brokers, group)
            return {broker: entry["zone"] for broker, entry in found.items()}

        async def known() -> bool:
            return await zones() == {"main-broker-0": "west-1", "main-broker-1": ""}

        await stored("both zones", known)
        await settled(stage.operator)
        done = writes(stage.operator)
        await stage.look()
        assert writes(stage.operator) == done
        stage.set(replicas=1)

        async def left() -> bool:
            return await zones() == {"main-broker-0": "west-1"}

        await stored("the broker that stays", left)


async def test_brokers_that_leave_next_get_no_bundle_before_they_drain(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Two go: both are cordoned before the first is drained; one that stays after all is not."""
    closed = CordonRecord(drain=False, reason=CORDON_REASON)
    draining = CordonRecord(drain=True, reason=CORDON_REASON)
    async with AsyncExitStack() as stack:
        stage = await Stage.enter(stack, scene, cluster_etcd, 4)
        await stage.report(b0=10, b1=10, b2=10, b3=10)
        stage.set(replicas=2)

        async def cordons(*wanted: CordonRecord | None) -> bool:
            found = [await stage.brokers.cordon(f"main-broker-{at}") for at in range(4)]
            return found == list(wanted)

        await stored("cordons", lambda: cordons(None, None, closed, draining))
        assert scene.replicas() == 4
        stage.set(replicas=3)
        await stored("one that stays", lambda: cordons(None, None, None, draining))
        stage.set(replicas=2)
        await stage.report(b0=10, b1=10, b2=10, b0_=10)
        await stored("the next one", lambda: cordons(None, None, draining, None))
        await stage.report(b0=10, b1=10, b1_=10, b0_=10)
        await until("two brokers", lambda: scene.replicas() == 2)
        await until("no cordon is left", lambda: scene.condition(stage.path)["status"] == "True")
        await stored("no cordon is left", lambda: cordons(None, None, None, None))

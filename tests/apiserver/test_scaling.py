"""Scaling, autoscaling and replacement against a real API server and a real etcd; kubelet and
brokers are played by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.balance.advice import CPU, DOCUMENT, LoadAdvice, LoadForecast
from magnetar.balance.load import LoadReport, Rates, Resource
from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.records import CordonRecord, DocumentsRecord
from magnetar_operator.main import Operator
from tests.apiserver.stage import (
    Brokers,
    Kubelet,
    Scene,
    brokers_of,
    look_at_all,
    quiet,
    repeating,
    running_operator,
    settled,
    until,
    writes,
)

pytestmark = pytest.mark.slow


class Theatre:
    """A cluster with brokers that serve."""

    def __init__(self, scene: Scene, brokers: Brokers, operator: Any) -> None:
        self.scene, self.brokers, self.operator = scene, brokers, operator
        self.path = scene.path("brokerclusters", "main")

    async def serve(self, etcd: EtcdProcess, count: int, **spec: Any) -> None:
        external = {"external": {"endpoints": [etcd.endpoint]}}
        self.scene.create("BrokerCluster", "main", {"etcd": external, "replicas": count, **spec})
        await self.ready(count)

    async def ready(self, count: int) -> None:
        await until(
            f"{count} ready brokers",
            lambda: (
                self.status().get("readyReplicas") == count
                and self.status().get("replicas") == count
                and self.scene.condition(self.path).get("status") == "True"
            ),
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.scene.cluster().get("status", {})
        return found

    async def bundle(self, number: int, broker: int) -> None:
        """Bundle `number` belongs to `broker`."""
        await self.bundles({number: broker})

    async def bundles(self, owners: dict[int, int]) -> None:
        """Bundles by number belong to brokers, from one moment on."""
        await self.brokers.own_all(
            {
                f"public/default/0x{number}0000000_0x{number + 1}0000000": f"main-broker-{broker}.{'0' * 16}"
                for number, broker in owners.items()
            }
        )

    async def register(self, count: int) -> None:
        for ordinal in range(count):
            await self.brokers.register(f"main-broker-{ordinal}")

    @asynccontextmanager
    async def reporting(self, count: int, cpu: float) -> AsyncIterator[None]:
        """Load reports of `count` brokers, again and again as brokers write them; the first are
        there at once."""

        async def report() -> None:
            for ordinal in range(count):
                name, now_ms = f"main-broker-{ordinal}", SystemClock().wall_ms()
                record = LoadReport(
                    name,
                    now_ms,
                    cpu=Resource(100 * cpu, 100),
                    memory=Resource(10, 100),
                    rates=Rates(5.0, 5.0, 100.0, 100.0),
                    bundles=8,
                    topics=10,
                    producers=1,
                    consumers=1,
                )
                await self.brokers.store.put(keys.load(f"{name}.{'0' * 16}"), record.encode())

        await report()
        async with repeating(report, period_s=0.5):
            yield

    def look_again(self, word: str) -> None:
        """Make the operator look at once: time passes faster in a test than the operator's
        periods."""
        self.scene.merge(self.path, {"metadata": {"annotations": {"look": word}}})

    def uid(self, ordinal: int) -> str:
        found = self.scene.get(self.scene.core("pods", f"main-broker-{ordinal}"))
        return str(found["metadata"]["uid"]) if found is not None else ""


async def theatre(stack: AsyncExitStack, scene: Scene, etcd: EtcdProcess) -> Theatre:
    brokers = await stack.enter_async_context(brokers_of(etcd.endpoint))
    operator = await stack.enter_async_context(running_operator(scene.namespace))
    await stack.enter_async_context(Kubelet(scene).at_work())
    return Theatre(scene, brokers, operator)


async def test_describe_shows_the_whole_story_of_a_scale_down(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """`kubectl describe` shows every chapter in order with its numbers; while it lasts the
    condition and `kubectl get` say how far it is."""

    async with AsyncExitStack() as stack:
        play = await theatre(stack, scene, cluster_etcd)
        await play.serve(cluster_etcd, 3)
        await play.register(3)
        for number in range(4):
            await play.bundle(number, 2)
        scene.merge(f"{play.path}/scale", {"spec": {"replicas": 2}})
        await until("the drain is reported", lambda: scene.events("Draining"))
        progress = await until(
            "a condition with the number",
            lambda: (
                (found := scene.condition(play.path, "Progressing"))
                .get("message", "")
                .startswith("main-broker-2 has 4")
                and found
            ),
        )
        assert (
            progress["message"]
            == "main-broker-2 has 4 bundles left to transfer; 3 brokers now, 2 are wanted"
        )
        assert play.status()["scaling"]["action"] == "ScaleDown"
        await play.bundles({0: 0, 1: 1, 2: 0})
        await until("a drain that has halved", lambda: len(scene.events("Draining")) == 2)
        await play.bundle(3, 1)
        await until("the end", lambda: scene.events("Settled"))
        await play.ready(2)
        shown = await asyncio.to_thread(
            scene.plane.kubectl, "describe", "-n", scene.namespace, "brokercluster/main"
        )
        assert shown.returncode == 0, shown.stderr
        chapters = [
            line.split()[1]
            for line in shown.stdout.partition("Events:")[2].splitlines()[3:]
            if line.strip()
        ]
        story = [
            "ScalingDown",
            "Cordoned",
            "Draining",
            "Draining",
            "Drained",
            "Removing",
            "Removed",
            "Settled",
        ]
        assert [word for word in chapters if word in story] == story
        assert "transferred 4 bundles in" in shown.stdout
        await until(
            "nothing is under way", lambda: "action" not in play.status().get("scaling", {})
        )


async def test_a_drain_that_nobody_can_take_over_is_degraded_and_removes_nothing(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """The condition names the bundles and the remedy; the person's cordons stay, and the wish
    can be taken back."""

    async with AsyncExitStack() as stack:
        play = await theatre(stack, scene, cluster_etcd)
        await play.serve(cluster_etcd, 2, drainTimeoutSeconds=1)
        await play.register(2)
        await play.bundle(5, 1)
        persons = CordonRecord(drain=False, reason="rack 4 is noisy")
        for ordinal in (0, 1):
            await play.brokers.store.put(keys.cordon(f"main-broker-{ordinal}"), persons.encode())
        scene.merge(f"{play.path}/scale", {"spec": {"replicas": 1}})
        stuck = await until(
            "DrainStuck",
            lambda: (
                (found := scene.condition(play.path, "Degraded")).get("reason") == "DrainStuck"
                and found
            ),
        )
        assert (
            "public/default/0x50000000_0x60000000 (Owned); no other broker takes bundles"
            in stuck["message"]
        )
        assert scene.replicas() == 2
        scene.merge(f"{play.path}/scale", {"spec": {"replicas": 2}})
        await until("it is called off", lambda: scene.events("ScaleDownCalledOff"))
        while await play.brokers.cordon("main-broker-1") != persons:
            await asyncio.sleep(0.02)
        assert await play.brokers.cordon("main-broker-0") == persons


async def test_a_pod_is_replaced_on_request_and_never_its_successor(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Cordoned, drained, deleted, back, uncordoned; the same annotation does nothing to the new
    pod, and the others stay."""

    async with AsyncExitStack() as stack:
        play = await theatre(stack, scene, cluster_etcd)
        await play.serve(cluster_etcd, 2)
        await play.register(2)
        await play.bundle(0, 0)
        before = [play.uid(0), play.uid(1)]
        annotation = f"main-broker-0@{before[0]}"
        scene.merge(play.path, {"metadata": {"annotations": {"magnetar.io/replace": annotation}}})
        await until("the drain is reported", lambda: scene.events("Draining"))
        assert play.uid(0) == before[0]
        assert await play.brokers.cordon("main-broker-0") is not None
        await play.bundle(0, 1)
        await until("it is back", lambda: scene.events("Replaced"))
        after = [play.uid(0), play.uid(1)]
        assert after[0] != before[0]
        assert after[1] == before[1]
        while await play.brokers.cordon("main-broker-0") is not None:
            await asyncio.sleep(0.02)
        await play.ready(2)
        await settled(play.operator)
        done = writes(play.operator)
        await look_at_all(play.operator)
        await quiet(play.operator)
        assert writes(play.operator) == done
        assert [play.uid(0), play.uid(1)] == after


def metric(operator: Operator, name: str, **labels: str) -> float | None:
    """One of the autoscaler's series of `main`."""
    namespace = operator.settings.namespaces[0]
    cluster = f"{namespace}/main"
    return operator.metrics.registry.get_sample_value(
        f"magnetar_operator_autoscaling_{name}", {"cluster": cluster, **labels}
    )


async def test_brokers_follow_their_load_until_another_one_writes_the_number(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A dry run only says it; then replicas are written through /scale; then an HPA's write
    makes the operator step back, with a condition."""

    async with AsyncExitStack() as stack:
        play = await theatre(stack, scene, cluster_etcd)
        autoscaling = {
            "enabled": True,
            "dryRun": True,
            "maxReplicas": 3,
            "scaleUp": {"stabilizationWindowSeconds": 0},
        }
        await play.serve(cluster_etcd, 1, autoscaling=autoscaling)
        await play.register(1)
        waits = lambda: (  # noqa: E731
            scene.condition(play.path, "Autoscaling").get("reason") == "LoadReportsMissing"
        )
        await until("reports are missed", waits)
        await stack.enter_async_context(play.reporting(1, 1.0))
        play.look_again("with reports")
        await until(
            "the decision is shown",
            lambda: play.status().get("autoscaling", {}).get("decision") == "ScaleUp",
        )
        shown = play.status()["autoscaling"]
        assert shown["message"].startswith(
            "would go from 1 to 2 brokers: cpu: mean 100 %, hottest main-broker-0 100 %"
        )
        assert scene.replicas() == 1
        await until("an Event", lambda: scene.events("AutoscalingDecision"))
        await until("a metric", lambda: metric(play.operator, "decision", decision="ScaleUp") == 1)
        await settled(play.operator)
        assert len(scene.events("AutoscalingDecision")) == 1
        assert metric(play.operator, "wanted_replicas") == 2
        assert metric(play.operator, "load", input="cpu", measure="weighed") == 1.0
        done = writes(play.operator)
        await look_at_all(play.operator)
        await quiet(play.operator)
        assert writes(play.operator) == done

        scene.merge(play.path, {"spec": {"autoscaling": {"dryRun": False}}})
        await until("two brokers are wanted", lambda: scene.cluster()["spec"]["replicas"] == 2)
        assert play.status()["autoscaling"].get("lastScale", "1 -> 2") == "1 -> 2"
        managed = scene.cluster()["metadata"]["managedFields"]
        ours = [
            entry
            for entry in managed
            if entry["manager"] == "magnetar-operator" and entry.get("subresource") == "scale"
        ]
        assert ours
        await play.register(2)
        await play.ready(2)

        scale = {"spec": {"replicas": 1}}
        path = f"{play.path}/scale?fieldManager=kube-controller-manager"
        scene.plane.must("PATCH", path, scale, "application/merge-patch+json")
        await until(
            "it steps back",
            lambda: (
                scene.condition(play.path, "Autoscaling").get("reason") == "ReplicasOwnedElsewhere"
            ),
        )
        message = scene.condition(play.path, "Autoscaling")["message"]
        assert "kube-controller-manager (scale) writes spec.replicas" in message
        await until("the other one's wish comes true", lambda: scene.replicas() == 1)
        scene.delete(play.path)
        await until(
            "nothing is reported of a cluster that is gone",
            lambda: metric(play.operator, "replicas") is None,
        )


async def test_brokers_come_ahead_of_the_load_by_a_forecast_that_is_sound(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A document that is not is ignored, and both are said in status and condition."""

    async with AsyncExitStack() as stack:
        play = await theatre(stack, scene, cluster_etcd)
        pace = {"stabilizationWindowSeconds": 0}
        autoscaling = {"enabled": True, "maxReplicas": 3, "scaleUp": pace}
        await play.serve(cluster_etcd, 1, autoscaling=autoscaling)
        await play.register(1)
        await stack.enter_async_context(play.reporting(1, 0.4))
        key = keys.documents(DOCUMENT)
        await play.brokers.store.put(key, DocumentsRecord({DOCUMENT: {"made_ms": -1}}).encode())
        play.look_again("with nonsense")
        shown = await until(
            "it is ignored",
            lambda: (
                found if (found := play.status().get("autoscaling", {})).get("forecast") else None
            ),
        )
        assert shown["forecast"].startswith("Ignored: ")
        assert shown["decision"] == "Steady"
        now_ms = SystemClock().wall_ms()
        rising = LoadForecast(CPU, now_ms, 600_000, (0.5, 0.95), ((0.5, 0.8), (0.6, 1.1)))
        advice = LoadAdvice(now_ms, now_ms + 3_600_000, job="team/hourly", forecasts=(rising,))
        record = DocumentsRecord({DOCUMENT: json.loads(advice.encode())})
        await play.brokers.store.put(key, record.encode())
        play.look_again("with a forecast")
        await until("two brokers are wanted", lambda: scene.cluster()["spec"]["replicas"] == 2)
        shown = await until(
            "it is shown",
            lambda: (
                found
                if (found := play.status()["autoscaling"]).get("forecast", "").startswith("Used: ")
                else None
            ),
        )
        assert shown["forecast"].startswith("Used: by job team/hourly, made ")
        assert shown["lastScale"] == "1 -> 2"
        events = " ".join(scene.events("AutoscalingDecision"))
        assert "forecast of load analytics for the next 900 s: cpu 110 % in all" in events

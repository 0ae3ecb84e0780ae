"""`TransactionCoordinator` against a real API server and a real etcd; the kubelet is played by
hand, the claims are the processes' own code."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.clock import SystemClock
from magnetar.coordinator.claim import CoordinatorClaim
from magnetar.coordinator.identity import CoordinatorIdentity, tcid_of
from magnetar.errors import Fenced
from magnetar.metadata import keys
from magnetar.metadata.records import CoordinatorRecord, CoordinatorSetRecord
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.kube.kinds import CHILDREN
from tests.apiserver.stage import (
    POLL_S,
    TIMEOUT_S,
    Brokers,
    Kubelet,
    Scene,
    brokers_of,
    look_at_all,
    quiet,
    repeating,
    replaced,
    running_operator,
    settled,
    until,
    writes,
)

pytestmark = pytest.mark.slow

SPEC = {"clusterRef": {"name": "main"}}
PATH = "transactioncoordinators"
LEASE_S = 1200.0
"""Nobody renews it: it outlasts the test."""


def external(etcd: EtcdProcess) -> dict[str, Any]:
    return {"etcd": {"external": {"endpoints": [etcd.endpoint]}}, "replicas": 0}


class Claims:
    """For every pod of the set one claim, taken and settled as the process in it would."""

    def __init__(self, scene: Scene, brokers: Brokers, stateful_set: str) -> None:
        self._scene, self._brokers, self._prefix = scene, brokers, f"{stateful_set}-"
        self._claims: dict[str, CoordinatorClaim] = {}
        self.open_transactions: dict[int, int] = {}

    async def step(self) -> None:
        pods = await asyncio.to_thread(self._scene.pods)
        mine = {
            pod["metadata"]["uid"]: pod["metadata"]["name"]
            for pod in pods
            if pod["metadata"]["name"].startswith(self._prefix)
        }
        for uid in set(self._claims) - set(mine):
            claim = self._claims.pop(uid)
            with suppress(Fenced):
                await claim.release(self.open_transactions.get(claim.tcid, 0))
        for uid, name in mine.items():
            if uid not in self._claims:
                identity = CoordinatorIdentity(
                    tcid_of(name), name, f"{name}.{uid[:8]}", "pulsar://x:6650", "http://x:8080"
                )
                claim = CoordinatorClaim(self._brokers.store, SystemClock(), identity, 0)
                await claim.acquire(await self._brokers.store.grant_lease(LEASE_S))
                self._claims[uid] = claim
            claim = self._claims[uid]
            with suppress(Fenced):
                await claim.settle(partial(self.open_transactions.get, claim.tcid, 0))

    def at_work(self) -> AbstractAsyncContextManager[None]:
        """Step again and again in the background."""
        return repeating(self.step)


def ready(scene: Scene, name: str = "tx") -> bool:
    return scene.condition(scene.path(PATH, name)).get("status") == "True"


def replicas(scene: Scene, name: str = "tx-coordinator") -> int | None:
    found = scene.stateful_set(name)
    return found["spec"]["replicas"] if found is not None else None


def announced(scene: Scene, count: int) -> dict[str, Any] | None:
    """The resource, once one and the same status says that so many are announced and that it is
    Ready."""
    found = scene.get(scene.path(PATH, "tx"))
    status = found["status"] if found is not None else {}
    is_ready = any(
        (one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions", [])
    )
    return found if is_ready and status.get("announced") == count else None


def phases(scene: Scene) -> list[str]:
    return [
        row["phase"] for row in (scene.get(scene.path(PATH, "tx")) or {})["status"]["coordinators"]
    ]


async def set_of(brokers: Brokers) -> CoordinatorSetRecord | None:
    item = await brokers.store.get(keys.COORDINATOR_SET)
    return CoordinatorSetRecord.decode(item.value) if item is not None else None


async def test_it_becomes_pods_that_are_announced_and_a_steady_state_costs_no_write(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Children by name and owner, the status by number, `kubectl scale` up at once."""

    kubelet = Kubelet(scene, "tx-coordinator")
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
        kubelet.at_work(),
    ):
        claims = Claims(scene, brokers, "tx-coordinator")
        async with claims.at_work():
            scene.create("BrokerCluster", "main", external(cluster_etcd))
            scene.create("TransactionCoordinator", "tx", SPEC)
            await until("Ready", lambda: ready(scene))
            found = scene.stateful_set("tx-coordinator")
            assert found is not None
            assert found["metadata"]["ownerReferences"][0]["kind"] == "TransactionCoordinator"
            assert scene.get(scene.core("services", "tx-coordinators")) is not None
            assert await set_of(brokers) == CoordinatorSetRecord(1, 1, f"{scene.namespace}/tx")
            scaled = scene.plane.kubectl("scale", "-n", scene.namespace, "tc/tx", "--replicas=3")
            assert scaled.returncode == 0, scaled.stderr
            resource = await until("three are announced", lambda: announced(scene, 3))
            status = resource["status"]
            assert (status["replicas"], status["readyReplicas"]) == (3, 3)
            assert [(row["name"], row["tcid"], row["phase"]) for row in status["coordinators"]] == [
                (f"tx-coordinator-{tcid}", tcid, "Ready") for tcid in range(3)
            ]
            assert all(row["incarnation"].startswith(row["name"]) for row in status["coordinators"])
            labels = "app.kubernetes.io/component=coordinator,magnetar.io/cluster=main,magnetar.io/coordinators=tx"
            assert status["selector"] == labels
        await settled(operator)
        before = writes(operator)
        for _ in range(3):
            await look_at_all(operator)
            await quiet(operator)
        assert writes(operator) == before


async def test_scaling_down_waits_for_open_transactions_and_takes_the_highest_one_at_a_time(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """The condition and an Event say what is waited for; the pod goes when its last transaction
    has ended; raising the number keeps it."""

    kubelet = Kubelet(scene, "tx-coordinator")
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace),
        kubelet.at_work(),
    ):
        claims = Claims(scene, brokers, "tx-coordinator")
        claims.open_transactions[2] = 7
        async with claims.at_work():
            scene.create("BrokerCluster", "main", external(cluster_etcd))
            scene.create("TransactionCoordinator", "tx", {**SPEC, "replicas": 3})
            path = scene.path(PATH, "tx")
            await until("Ready", lambda: ready(scene))
            scene.merge(path, {"spec": {"replicas": 1}})
            waiting = await until(
                "it waits",
                lambda: (one := scene.condition(path)).get("reason") == "TransactionsOpen" and one,
            )
            assert "tx-coordinator-2 has 7 open transactions" in waiting["message"]
            assert replicas(scene) == 3
            assert await set_of(brokers) == CoordinatorSetRecord(1, 1, f"{scene.namespace}/tx")
            await until(
                "both are retiring", lambda: phases(scene) == ["Ready", "Retiring", "Retiring"]
            )
            await until("an Event", lambda: scene.events("TransactionsOpen"))

            scene.merge(path, {"spec": {"replicas": 3}})
            await until("Ready again", lambda: ready(scene))
            assert await set_of(brokers) == CoordinatorSetRecord(3, 3, f"{scene.namespace}/tx")

            scene.merge(path, {"spec": {"replicas": 1}})
            await until(
                "it waits again",
                lambda: scene.condition(path).get("reason") == "TransactionsOpen",
            )
            claims.open_transactions[2] = 0
            await until("one is left", lambda: replicas(scene) == 1 and ready(scene))
            texts = lambda: [  # noqa: E731
                text for text in scene.events("Updated") if "spec.replicas: " in text
            ]
            await until("Events of both steps", lambda: len(texts()) >= 2)
            assert sorted(text.rpartition("spec.replicas: ")[2] for text in texts()) == [
                "2 -> 1",
                "3 -> 2",
            ]


async def test_the_oldest_of_two_serves_and_the_other_takes_over_when_it_is_deleted(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A missing cluster and a conflict are conditions with a remedy; deleting the resource keeps
    what the store knows."""

    async with brokers_of(cluster_etcd.endpoint) as brokers, running_operator(scene.namespace):
        scene.create("TransactionCoordinator", "tx", SPEC)
        path, later = scene.path(PATH, "tx"), scene.path(PATH, "later")
        missing = await until("it says what is missing", lambda: scene.condition(path))
        assert (missing["status"], missing["reason"]) == ("False", "ClusterNotFound")
        assert replicas(scene) is None
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        await until("the StatefulSet", lambda: replicas(scene) == 1)

        await asyncio.sleep(1.1)  # creation times have whole seconds
        scene.create("TransactionCoordinator", "later", {**SPEC, "replicas": 2})
        conflict = await until(
            "Conflict",
            lambda: (one := scene.condition(later)).get("reason") == "Conflict" and one,
        )
        assert f"{scene.namespace}/tx is older" in conflict["message"]
        assert replicas(scene, "later-coordinator") is None
        assert (
            await set_of(brokers) or CoordinatorSetRecord(0, 0)
        ).owner == f"{scene.namespace}/tx"

        scene.delete(path)
        await until("the other one serves", lambda: replicas(scene, "later-coordinator") == 2)
        known = await set_of(brokers)
        assert known is not None, "the record is written before the StatefulSet follows it"
        assert (known.limit, known.owner) == (2, f"{scene.namespace}/later")


async def test_clients_learn_of_no_coordinators_once_the_resource_and_the_last_one_have_gone(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Not while one holds its number; also when all of it went without an operator; made again,
    numbers go on and are announced again."""

    kubelet, path = Kubelet(scene, "tx-coordinator"), scene.path(PATH, "tx")

    def collect() -> None:
        """What Kubernetes does with the children of what was deleted."""
        for kind in CHILDREN:
            for child in scene.plane.must("GET", kind.path(scene.namespace))["items"]:
                if any(
                    owner["kind"] == "TransactionCoordinator"
                    for owner in child["metadata"].get("ownerReferences", [])
                ):
                    scene.delete(kind.path(scene.namespace, child["metadata"]["name"]))
        for pod in scene.plane.must("GET", scene.core("pods"))["items"]:
            scene.plane.request(
                "DELETE", scene.core("pods", pod["metadata"]["name"]), {"gracePeriodSeconds": 0}
            )

    async def withdrawn() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while await set_of(brokers) is not None:
                await asyncio.sleep(POLL_S)

    async def epochs() -> list[int]:
        found = (await brokers.store.range(keys.COORDINATORS)).items
        return [CoordinatorRecord.decode(item.value).epoch for item in found]

    # No pod is made while the others are collected: the kubelet works in between only.
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        Claims(scene, brokers, "tx-coordinator").at_work(),
    ):
        async with running_operator(scene.namespace) as operator:
            async with kubelet.at_work():
                scene.create("BrokerCluster", "main", external(cluster_etcd))
                scene.create("TransactionCoordinator", "tx", {**SPEC, "replicas": 2})
                await until("Ready", lambda: ready(scene))
            scene.delete(path)
            await until(
                "it is forgotten", lambda: not operator.cache.count("TransactionCoordinator")
            )
            await quiet(operator)
            assert await set_of(brokers) == CoordinatorSetRecord(2, 2, f"{scene.namespace}/tx"), (
                "two still serve"
            )
            collect()
            await withdrawn()
            assert await epochs() == [1, 1]
            async with kubelet.at_work():
                scene.create("TransactionCoordinator", "tx", {**SPEC, "replicas": 2})
                await until("Ready again", lambda: ready(scene))
            assert await set_of(brokers) == CoordinatorSetRecord(2, 2, f"{scene.namespace}/tx")
            assert await epochs() == [2, 2]
        scene.delete(path)
        collect()
        async with asyncio.timeout(TIMEOUT_S):
            while (await brokers.store.range(keys.COORDINATOR_CLAIMS)).items:
                await asyncio.sleep(POLL_S)
        assert await set_of(brokers) is not None
        async with running_operator(scene.namespace):
            await withdrawn()


async def test_made_again_for_another_cluster_it_is_announced_by_that_one_only(
    scene: Scene, cluster_etcd: EtcdProcess, tmp_path: Path
) -> None:
    """Also where no operator saw it gone, and where the other cluster announces it only after it
    was served, or its store was unavailable then."""

    async def known_by(brokers: Brokers, owner: str | None) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while (found.owner if (found := await set_of(brokers)) is not None else None) != owner:
                await asyncio.sleep(POLL_S)

    async def scenario() -> None:
        elsewhere, owner, path = (
            EtcdProcess(tmp_path / "elsewhere"),
            f"{scene.namespace}/tx",
            scene.path(PATH, "tx"),
        )
        try:
            elsewhere.start()
            async with (
                brokers_of(cluster_etcd.endpoint) as brokers,
                brokers_of(elsewhere.endpoint) as others,
            ):
                scene.create("BrokerCluster", "main", external(cluster_etcd))
                scene.create("BrokerCluster", "other", external(elsewhere))
                scene.create("TransactionCoordinator", "tx", SPEC)
                async with running_operator(scene.namespace) as operator:
                    await known_by(brokers, owner)
                    await settled(operator)
                scene.delete(path)
                scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "other"}})
                async with running_operator(scene.namespace) as operator:
                    await known_by(brokers, None)
                    await known_by(others, owner)
                    # nobody collects what the former one owned here: each object is reported once
                    await settled(operator)
                await brokers.store.put(
                    keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, owner).encode()
                )
                async with running_operator(scene.namespace):
                    await known_by(brokers, None)
                    await known_by(others, owner)
                await brokers.store.put(
                    keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, owner).encode()
                )
                scene.delete(path)
                scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "other"}})
                async with running_operator(scene.namespace, resync_s=3600.0) as operator:
                    key = Key("TransactionCoordinator", scene.namespace, "tx")
                    with cluster_etcd.frozen():
                        await until(
                            "it was asked in vain",
                            lambda: operator.world.leftovers.get(key, 0.0) > 0,
                        )
                    await known_by(brokers, None)
                    await until("nothing is left", lambda: not operator.world.leftovers)
        finally:
            elsewhere.stop()

    await scenario()


async def test_a_change_of_settings_rolls_one_coordinator_at_a_time_and_a_pause_stops_it(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """At the end every pod has the new template; a paused resource is not touched."""

    kubelet = Kubelet(scene, "tx-coordinator")
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace),
        kubelet.at_work(),
        Claims(scene, brokers, "tx-coordinator").at_work(),
    ):
        scene.create("BrokerCluster", "main", external(cluster_etcd))
        scene.create("TransactionCoordinator", "tx", {**SPEC, "replicas": 2})
        path = scene.path(PATH, "tx")
        await until("Ready", lambda: ready(scene))
        before = {pod["metadata"]["uid"] for pod in scene.pods()}
        scene.merge(
            path,
            {
                "metadata": {"annotations": {"magnetar.io/paused": "true"}},
                "spec": {"config": {"lease_ttl_s": 5}},
            },
        )
        await until(
            "Paused", lambda: scene.condition(path, "Progressing").get("reason") == "Paused"
        )
        config = scene.get(scene.core("configmaps", "tx-coordinator"))
        assert config is not None
        assert "MAGNETAR_LEASE_TTL_S" not in config["data"]
        scene.merge(path, {"metadata": {"annotations": {"magnetar.io/paused": None}}})
        assert await replaced(scene, before, 2) >= 1
        await until("Ready", lambda: ready(scene))
        await until("an Event for each", lambda: len(scene.events("Restarting")) == 2)


async def test_healthy_coordinators_are_not_restarted_while_the_metadata_store_is_unavailable(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A successor could not take its number, and clients that look for the number's transactions
    would find nobody."""
    path = scene.path(PATH, "tx")

    def uids() -> set[str]:
        return {pod["metadata"]["uid"] for pod in scene.pods()}

    kubelet = Kubelet(scene, "tx-coordinator")
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace),
        kubelet.at_work(),
    ):
        claims = Claims(scene, brokers, "tx-coordinator")
        async with claims.at_work():
            scene.create("BrokerCluster", "main", external(cluster_etcd))
            scene.create("TransactionCoordinator", "tx", {**SPEC, "replicas": 2})
            await until("Ready", lambda: ready(scene))
        before = uids()
        waits = lambda: scene.condition(path, "Progressing").get("reason") == "RollWaits"  # noqa: E731
        with cluster_etcd.frozen():
            scene.merge(path, {"spec": {"config": {"lease_ttl_s": 5}}})
            await until("the roll waits, or begins", lambda: waits() or uids() != before)
            assert uids() == before
            assert "the metadata store" in scene.condition(path, "Progressing")["message"]
            assert scene.condition(path)["reason"] == "MetadataStoreUnavailable"
        async with claims.at_work():
            assert await replaced(scene, before, 2) >= 1
            await until("Ready", lambda: ready(scene))


async def test_a_record_that_this_operator_cannot_read_holds_no_restart_of_coordinators(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """The store answers, so that a successor takes its number: the record may be one of a
    version that the operator does not know yet."""
    path = scene.path(PATH, "tx")

    kubelet = Kubelet(scene, "tx-coordinator")
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace),
        kubelet.at_work(),
    ):
        async with Claims(scene, brokers, "tx-coordinator").at_work():
            scene.create("BrokerCluster", "main", external(cluster_etcd))
            scene.create("TransactionCoordinator", "tx", {**SPEC, "replicas": 2})
            await until("Ready", lambda: ready(scene))
        before = {pod["metadata"]["uid"] for pod in scene.pods()}
        await brokers.store.put(f"{keys.COORDINATORS}9", b'{"schema": 1000}')
        scene.merge(path, {"spec": {"config": {"lease_ttl_s": 5}}})
        assert await replaced(scene, before, 2) >= 1
        assert "CoordinatorRecord" in scene.condition(path, "Degraded")["message"]

"""The operator while the API server makes trouble: it converges afterwards, whatever was
refused, lost, late or old; and it never hammers."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.testbed.control_plane import ROOT, ControlPlane, EtcdProcess
from magnetar.metadata import keys
from magnetar_operator.conditions import Reason
from magnetar_operator.main import Operator
from tests.apiserver.fault_proxy import FaultProxy
from tests.apiserver.stage import (
    Brokers,
    Scene,
    brokers_of,
    look_at_all,
    running_operator,
    until,
    writes,
)

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("MAGNETAR_TROUBLE_SEEDS", "10"))
PATIENCE_S = 180.0
UNREACHABLE = 400
"""Three seconds each, eight at a time, would be more than `until` waits."""
NAMES = [f"n{number}" for number in range(8)]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@asynccontextmanager
async def trouble_for(
    plane: ControlPlane,
    scene: Scene,
    etcd: EtcdProcess,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    resync_s: float = 2.0,
) -> AsyncIterator[tuple[FaultProxy, Brokers, Operator]]:
    """An operator behind a proxy, with one cluster."""
    async with (
        brokers_of(etcd.endpoint) as brokers,
        FaultProxy(plane, directory / "kubeconfig").running() as proxy,
    ):
        monkeypatch.setenv("KUBECONFIG", str(proxy.kubeconfig))
        async with running_operator(scene.namespace, resync_s=resync_s) as operator:
            scene.create(
                "BrokerCluster", "main", {"etcd": {"external": {"endpoints": [etcd.endpoint]}}}
            )
            await until("the cluster is worked on", scene.stateful_set, PATIENCE_S)
            yield proxy, brokers, operator


def topic_namespaces(scene: Scene) -> dict[str, dict[str, Any]]:
    return {
        item["metadata"]["name"]: item
        for item in scene.plane.must("GET", scene.path("topicnamespaces"))["items"]
    }


def is_converged(item: dict[str, Any]) -> bool:
    status = item.get("status", {})
    ready = any(
        found["type"] == "Ready" and found["status"] == "True"
        for found in status.get("conditions", [])
    )
    return ready and status["observedGeneration"] == item["metadata"]["generation"]


def act(scene: Scene, dice: random.Random) -> None:
    """What a user does, straight at the API server."""
    name = dice.choice(NAMES)
    found = scene.get(scene.path("topicnamespaces", name))
    if found is None:
        spec = {
            "clusterRef": {"name": "main"},
            "tenant": "acme",
            "namespace": name,
            "deletionPolicy": dice.choice(["Delete", "Retain"]),
        }
        scene.create("TopicNamespace", name, spec)
    elif "deletionTimestamp" in found["metadata"]:
        return
    elif dice.random() < 0.3:
        scene.plane.request("DELETE", scene.path("topicnamespaces", name))
    else:
        body = {"spec": {"policies": {"message_ttl_in_seconds": dice.randrange(1, 10_000)}}}
        scene.plane.request(
            "PATCH", scene.path("topicnamespaces", name), body, "application/merge-patch+json"
        )


async def wave(
    scene: Scene, proxy: FaultProxy, operator: Operator, brokers: Brokers, seed: int
) -> None:
    """Faults while a user works; then none, and everything comes to rest as it should be."""
    dice = random.Random(seed)
    proxy.trouble(seed, dice.uniform(0.1, 0.6))
    for _ in range(12):
        await asyncio.to_thread(act, scene, dice)
        await asyncio.sleep(dice.uniform(0.0, 0.1))
    proxy.heal()

    def at_rest() -> bool:
        found = topic_namespaces(scene)
        return all(is_converged(item) for item in found.values()) and not any(
            "deletionTimestamp" in item["metadata"] for item in found.values()
        )

    await until(f"seed {seed}: everything converges", at_rest, PATIENCE_S)
    found = topic_namespaces(scene)
    await until(
        f"seed {seed}: the cache is what exists", lambda: versions_of(operator) == {
            name: int(item["metadata"]["resourceVersion"]) for name, item in topic_namespaces(scene).items()
        }, PATIENCE_S,
    )  # fmt: skip
    for name, item in found.items():
        record = await brokers.store.get(f"{keys.NAMESPACES}acme/{name}")
        assert record is not None, f"seed {seed}: {name} has no record"
        ttl = item["spec"].get("policies", {}).get("message_ttl_in_seconds")
        assert ttl is None or f'"message_ttl_in_seconds":{ttl}' in record.value.decode().replace(
            " ", ""
        ), f"seed {seed}: {name}"


def versions_of(operator: Operator) -> dict[str, int]:
    return {item.name[1]: item.version for item in operator.cache.all("TopicNamespace")}


async def test_it_converges_after_any_trouble_with_the_api_server(
    control_plane: ControlPlane,
    namespace: str,
    cluster_etcd: EtcdProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seeds of conflicts, throttling, errors, lost answers, silent or cut watches and old lists;
    at the end a steady state that writes nothing."""
    scene = Scene(control_plane, namespace)

    async with trouble_for(control_plane, scene, cluster_etcd, tmp_path, monkeypatch) as (
        proxy,
        brokers,
        operator,
    ):
        for seed in range(SEEDS):
            await wave(scene, proxy, operator, brokers, seed)
        for fault in (
            "409",
            "429",
            "500",
            "503",
            "dropped",
            "done, then dropped",
            "late",
            "stale",
            "watch cut",
            "watch silent",
        ):
            assert proxy.faults[fault] or SEEDS < 10, f"the plans never made this trouble: {fault}"
        await calm(operator)
        before = writes(operator)
        await look_at_all(operator)
        await calm(operator)
        assert writes(operator) == before


async def calm(operator: Operator) -> None:
    """Wait until two passes over everything wrote nothing."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            before = writes(operator)
            for _ in range(2):
                await look_at_all(operator)
                quiet = 0
                while quiet < 10:
                    quiet = quiet + 1 if operator.queue.idle else 0
                    await asyncio.sleep(0.05)
            if writes(operator) == before:
                return


async def test_while_everything_is_refused_requests_become_few(
    control_plane: ControlPlane,
    namespace: str,
    cluster_etcd: EtcdProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty objects that want a write, and every request answered by an error: pauses grow, and
    afterwards all is done."""
    scene = Scene(control_plane, namespace)

    async with trouble_for(control_plane, scene, cluster_etcd, tmp_path, monkeypatch, 300.0) as (
        proxy,
        _,
        _operator,
    ):
        spec = {"clusterRef": {"name": "main"}, "tenant": "acme"}
        for number in range(30):
            scene.create(
                "TopicNamespace", f"many-{number}", {**spec, "namespace": f"many-{number}"}
            )
        ready = lambda: all(map(is_converged, topic_namespaces(scene).values()))  # noqa: E731
        await until("all are Ready", ready, PATIENCE_S)
        for status in (500, 429):
            proxy.refuse_all(status)
            for number in range(30):
                body = {"spec": {"policies": {"message_ttl_in_seconds": status + number}}}
                scene.merge(scene.path("topicnamespaces", f"many-{number}"), body)
            before = proxy.requests
            await asyncio.sleep(4.0)
            sent = proxy.requests - before
            # The Lease's 5 a second included; without pauses it would be several thousand.
            assert sent < 1000, f"{sent} requests in 4 s while all were answered with {status}"
            proxy.heal()
            await until("all are Ready again", ready, PATIENCE_S)


def of_two_clusters(scene: Scene, away: EtcdProcess, there: EtcdProcess) -> list[str]:
    """Makes AWAY namespaces of a cluster "away", whose names these are, and "served" of "main"."""
    many = [f"away-{number:03}" for number in range(UNREACHABLE)]
    for name, etcd in (("away", away), ("main", there)):
        scene.create("BrokerCluster", name, {"etcd": {"external": {"endpoints": [etcd.endpoint]}}})
    for name, cluster in (*((name, "away") for name in many), ("served", "main")):
        scene.create(
            "TopicNamespace",
            name,
            {"clusterRef": {"name": cluster}, "tenant": "acme", "namespace": name},
        )
    return many


def is_ready(scene: Scene, name: str) -> bool:
    found = scene.get(scene.path("topicnamespaces", name))
    return found is not None and is_converged(found)


async def test_an_unavailable_store_holds_up_nobody_but_its_own_resources(
    scene: Scene, cluster_etcd: EtcdProcess, tmp_path: Path
) -> None:
    """A new leader meets hundreds of namespaces of a cluster whose etcd is unavailable before one
    of another cluster; when etcd is back, all are served.

    If each of them waited for its own timeout, the other one would have its turn after minutes.
    """
    away = EtcdProcess(tmp_path / "away")
    many = of_two_clusters(scene, away, cluster_etcd)

    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace) as operator:
        await until("the other cluster's namespace is served", lambda: is_ready(scene, "served"))
        assert not is_ready(scene, many[0])
        try:
            await asyncio.to_thread(away.start)
            all_ready = ("TopicNamespace", "True", Reason.AS_DESIRED.value)
            await until(
                "all are served",
                lambda: operator.cache.standings()[all_ready] == UNREACHABLE + 1,
                PATIENCE_S,
            )
            assert is_ready(scene, many[-1])
        finally:
            away.stop()


async def test_a_store_that_stops_answering_holds_up_nobody_but_its_own_resources(
    scene: Scene, cluster_etcd: EtcdProcess, tmp_path: Path
) -> None:
    """Hundreds of its namespaces are edited, a moment later one of another cluster; the records
    are known, so that only their writes are in vain."""
    away = EtcdProcess(tmp_path / "away")
    away.start()
    many = of_two_clusters(scene, away, cluster_etcd)

    def edit_all() -> None:
        for name in (*many, "served"):
            scene.merge(
                scene.path("topicnamespaces", name),
                {"spec": {"policies": {"message_ttl_in_seconds": 60}}},
            )

    async def scenario() -> None:
        async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace):
            all_ready = lambda: all(map(is_converged, topic_namespaces(scene).values()))  # noqa: E731
            await until("all are Ready", all_ready, PATIENCE_S)
            with away.frozen():
                await asyncio.to_thread(edit_all)
                await until(
                    "the other cluster's namespace follows", lambda: is_ready(scene, "served")
                )
                assert not is_ready(scene, many[0])
            await until("all follow", all_ready, PATIENCE_S)

    try:
        await scenario()
    finally:
        away.stop()


async def test_definitions_that_are_deleted_and_made_again_are_served_again(
    control_plane: ControlPlane,
    namespace: str,
    cluster_etcd: EtcdProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator goes on with its other kinds concurrently, forgets what went with the
    definition, and needs no restart."""
    scene = Scene(control_plane, namespace)
    # no object of this kind has a finalizer, which would keep the definition
    name = "datajobs.magnetar.io"
    manifest = yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text())
    topic = "persistent://public/default/prices"
    spec = {"clusterRef": {"name": "main"}, "compaction": {"topic": topic}, "suspend": True}

    def exists() -> bool:
        return control_plane.request("GET", f"{DEFINITIONS}/{name}")[0] == 200

    def is_worked_on() -> bool:
        found = scene.get(scene.path("datajobs", "prices"))
        return found is not None and found.get("status", {}).get("state") == "Suspended"

    async def scenario() -> None:
        async with trouble_for(control_plane, scene, cluster_etcd, tmp_path, monkeypatch) as (
            _,
            _brokers,
            operator,
        ):
            scene.create("DataJob", "prices", spec)
            await until("the job is worked on", is_worked_on, PATIENCE_S)
            control_plane.must("DELETE", f"{DEFINITIONS}/{name}")
            await until("the definition is gone", lambda: not exists(), PATIENCE_S)
            await until(
                "its objects are forgotten", lambda: not operator.cache.count("DataJob"), PATIENCE_S
            )
            scene.create(
                "BrokerCluster",
                "other",
                {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}},
            )
            await until(
                "the other cluster is worked on",
                lambda: scene.stateful_set("other-broker"),
                PATIENCE_S,
            )
            control_plane.must("POST", DEFINITIONS, manifest)
            established = control_plane.kubectl(
                "wait", "--for=condition=Established", f"crd/{name}", "--timeout=120s"
            )
            assert established.returncode == 0, established.stderr
            await until(
                "jobs can be made",
                lambda: control_plane.request("GET", scene.path("datajobs"))[0] == 200,
                PATIENCE_S,
            )
            scene.create("DataJob", "prices", spec)
            await until("the job is worked on again", is_worked_on, PATIENCE_S)

    try:
        await scenario()
    finally:
        if not exists():
            control_plane.request("POST", DEFINITIONS, manifest)
            control_plane.kubectl(
                "wait", "--for=condition=Established", f"crd/{name}", "--timeout=120s"
            )

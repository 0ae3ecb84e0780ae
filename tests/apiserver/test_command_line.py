"""The commands that ask Kubernetes, against a real API server, etcd and operator."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.testbed.control_plane import ControlPlane, EtcdProcess
from magnetar.cli.commands import application
from magnetar.cli.conditions import look, problems_of
from magnetar.cli.kubernetes import Kubernetes
from magnetar.cli.planning import run_plan
from magnetar.cli.replacing import run_replace
from magnetar.cli.screen import OutputFormat, Screen
from tests.apiserver.stage import Kubelet, Scene, brokers_of, running_operator, until
from tests.support.cli_guide import commands

pytestmark = pytest.mark.slow
PATIENCE_S = 240.0
USER = "user"


@pytest.fixture
def scene(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Scene:
    """The operator has the current context of the kubeconfig, the user at the command line
    another."""
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "operator"}
    for name, source in (
        ("operator", control_plane.operator_kubeconfig),
        (USER, control_plane.kubeconfig),
    ):
        found = yaml.safe_load(source.read_text())
        found["users"][0]["name"] = name
        found["contexts"][0]["name"] = found["contexts"][0]["context"]["user"] = name
        for part in ("users", "contexts"):
            merged.setdefault(part, []).extend(found[part])
        merged["clusters"] = found["clusters"]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(merged))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return Scene(control_plane, namespace)


def screen() -> tuple[Screen, io.StringIO]:
    shown = io.StringIO()
    return Screen(OutputFormat.JSON, file=shown), shown


def test_plan_says_what_would_happen_and_changes_nothing(scene: Scene, tmp_path: Path) -> None:
    """A new cluster, the same one, one with fewer brokers and other settings, and one that the
    API server would refuse."""
    path = tmp_path / "cluster.yaml"
    external = {"external": {"endpoints": ["etcd.example:2379"]}}

    def planned(code: int = 0, **spec: Any) -> dict[str, Any]:
        document = {
            "apiVersion": "magnetar.io/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": {"name": "main"},
        }
        path.write_text(
            yaml.safe_dump(document | {"spec": {"etcd": external, "replicas": 2, **spec}})
        )
        result, shown = screen()
        assert run_plan(Kubernetes(scene.namespace, USER), result, path) == code
        (plan,) = json.loads(shown.getvalue())
        found: dict[str, Any] = plan
        return found

    new = planned()
    assert (new["action"], new["joining"]) == ("create", ["main-broker-0", "main-broker-1"])
    assert scene.get(scene.path("brokerclusters", "main")) is None
    scene.create("BrokerCluster", "main", {"etcd": external, "replicas": 2})
    brokers = [
        {"name": f"main-broker-{at}", "bundles": 3 + at, "phase": "Ready"} for at in range(2)
    ]
    scene.merge(scene.path("brokerclusters", "main", "status"), {"status": {"brokers": brokers}})
    same = planned()
    assert (same["action"], same["objects"], same["restarts"]) == ("none", [], [])
    changed = planned(replicas=1, config={"moves_parallel_max": 11})
    assert {"field": "spec.replicas", "old": 2, "new": 1} in changed["changes"]
    assert changed["leaving"] == [{"broker": "main-broker-1", "bundles": 4}]
    assert changed["restarts"] == [{"broker": "main-broker-0", "reason": "Config"}]
    assert "drainTimeoutSeconds" in planned(1, drainTimeoutSeconds=0)["reason"]
    assert "a claim cannot shrink" in planned(1, storage={"volumeClaim": {"size": "1Gi"}})["reason"]
    assert scene.cluster()["spec"]["replicas"] == 2


async def test_the_guides_commands_for_kubernetes_succeed(
    scene: Scene, cluster_etcd: EtcdProcess, tmp_path: Path
) -> None:
    """drain --replace drains the pod first, ends when its successor is ready, and repeats
    nothing; --undo takes the request away."""

    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(brokers_of(cluster_etcd.endpoint))
        lives = [await brokers.register(f"main-broker-{at}") for at in range(2)]
        await brokers.own("public/default/0x00000000_0x80000000", lives[0])
        await stack.enter_async_context(running_operator(scene.namespace))
        await stack.enter_async_context(Kubelet(scene).at_work())
        external = {"external": {"endpoints": [cluster_etcd.endpoint]}}
        scene.create("BrokerCluster", "main", {"etcd": external, "replicas": 2})
        path = scene.path("brokerclusters", "main")
        await until("Ready", lambda: scene.condition(path).get("status") == "True", PATIENCE_S)
        before = _uid(scene)
        guide = asyncio.create_task(asyncio.to_thread(_run_guide, scene, tmp_path))
        await until("the drain", lambda: scene.events("Draining") or guide.done(), PATIENCE_S)
        assert _uid(scene) == before
        await brokers.own("public/default/0x00000000_0x80000000", lives[1])
        await guide
        assert _uid(scene) not in ("", before)
        assert (
            scene.cluster()["metadata"]["annotations"]["magnetar.io/replace"]
            == f"main-broker-0@{before}"
        )
        assert (tmp_path / "magnetar-report.tar.gz").stat().st_size > 1000
        # so that it cannot be over before it is taken back
        await brokers.own("public/default/0x00000000_0x80000000", lives[0])
        await asyncio.to_thread(_undo, scene, before)


async def test_status_finds_the_resources_of_the_brokers_it_asks(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """By the storage that both name, with what the operator says of them; a namespace without it
    has nothing to show."""

    async with brokers_of(cluster_etcd.endpoint), running_operator(scene.namespace):
        storage_id = "5e" * 16  # what the played brokers registered
        scene.create(
            "BrokerCluster",
            "main",
            {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}, "replicas": 0},
        )
        spec = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "orders"}
        scene.create("TopicNamespace", "orders", spec)
        scene.create("TopicNamespace", "rival", spec)

        def both() -> list[dict[str, Any]] | None:
            found, _ = look(scene.namespace, USER, storage_id)
            reasons = {
                one["name"]: {said["type"]: said["reason"] for said in one["conditions"]}.get(
                    "Ready"
                )
                for one in found
            }
            return (
                found
                if reasons == {"main": "AsDesired", "orders": "AsDesired", "rival": "Conflict"}
                else None
            )

        found = await until("all three with their reasons", both, PATIENCE_S)
        (problem,) = problems_of(found)
        assert problem.startswith(
            f"TopicNamespace {scene.namespace}/rival: Conflict: TopicNamespace "
            f"{scene.namespace}/orders is older"
        )
        assert await asyncio.to_thread(look, "default", USER, storage_id) == (
            [],
            "no BrokerCluster of this namespace has this storage",
        )


def _uid(scene: Scene) -> str:
    found = scene.get(scene.core("pods", "main-broker-0"))
    return str(found["metadata"]["uid"]) if found is not None else ""


def _run_guide(scene: Scene, files: Path) -> None:
    listed = commands("kubernetes")
    assert len(listed) >= 4
    for line in listed:
        words = [word.replace("/tmp/", f"{files}/") for word in shlex.split(line)[1:]]
        # The examples' cluster would be a new one: the one here has an etcd of another kind, which
        # it could not change into.
        namespace = "default" if words[0] == "plan" else scene.namespace
        code = application(
            [*words, "--namespace", namespace, "--context", USER], standalone_mode=False
        )
        assert not code, line


def _undo(scene: Scene, before: str) -> None:
    """Ask for the successor, then take the request back; the one whose pod is gone goes with it."""
    kubernetes, options = (
        Kubernetes(scene.namespace, USER),
        {"dry_run": False, "force": False, "timeout_s": 1.0},
    )
    assert (
        run_replace(kubernetes, screen()[0], "main-broker-0", undo=False, wait=False, **options)
        == 0
    )  # type: ignore[arg-type]
    asked = scene.cluster()["metadata"]["annotations"]["magnetar.io/replace"]
    assert before not in asked
    assert (
        run_replace(kubernetes, screen()[0], "main-broker-0", undo=True, wait=False, **options) == 0
    )  # type: ignore[arg-type]
    assert "magnetar.io/replace" not in scene.cluster()["metadata"].get("annotations", {})

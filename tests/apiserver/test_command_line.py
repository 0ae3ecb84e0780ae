"""The commands that work through kubectl, against a real API server, etcd and operator."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.control_plane import ControlPlane, EtcdProcess, binary
from tests.apiserver.stage import Kubelet, Scene, brokers_of, running_operator, until
from tests.clients.test_cli_guide import commands

pytestmark = pytest.mark.slow
TIMEOUT_S = 120


@pytest.fixture
def scene(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.operator_kubeconfig))
    return Scene(control_plane, namespace)


def run(scene: Scene, *arguments: str, code: int = 0, namespace: str = "") -> str:
    """Run a command as a user with a kubeconfig of their own; its output."""
    environment = {**os.environ, "KUBECONFIG": str(scene.plane.kubeconfig), "MAGNETAR_KUBECTL": binary("kubectl")}
    command = [sys.executable, "-m", "magnetar", *arguments, "--namespace", namespace or scene.namespace]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT_S)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def parsed(scene: Scene, *arguments: str, code: int = 0) -> Any:
    return json.loads(run(scene, *arguments, "--output", "json", code=code))


def test_plan_and_replace(scene: Scene, cluster_etcd: EtcdProcess, tmp_path: Path) -> None:
    """plan says what would happen and changes nothing; drain --replace does what it says, shows the progress and ends when it is done.

    The guide's commands for Kubernetes succeed here too.
    """
    external = {"external": {"endpoints": [cluster_etcd.endpoint]}}

    def manifest(**spec: Any) -> str:
        document = {"apiVersion": "magnetar.io/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "main"}}
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump(document | {"spec": {"etcd": external, "replicas": 2, **spec}}))
        return str(path)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            brokers = await stack.enter_async_context(brokers_of(cluster_etcd.endpoint))
            await stack.enter_async_context(running_operator(scene.namespace))
            await stack.enter_async_context(Kubelet(scene).at_work())
            (new,) = await asyncio.to_thread(parsed, scene, "plan", "-f", manifest())
            assert (new["action"], new["joining"]) == ("create", ["main-broker-0", "main-broker-1"])
            assert scene.get(scene.path("brokerclusters", "main")) is None
            scene.create("BrokerCluster", "main", {"etcd": external, "replicas": 2})
            path = scene.path("brokerclusters", "main")
            await until("Ready", lambda: scene.condition(path).get("status") == "True")
            first = await brokers.register("main-broker-0")
            second = await brokers.register("main-broker-1")
            await brokers.own("public/default/0x00000000_0x80000000", first)
            scene.merge(path, {"metadata": {"annotations": {"look": "at the bundle"}}})
            await until("its bundle is seen", lambda: scene.cluster()["status"]["brokers"][0]["bundles"] == 1, 60)

            await _plans(scene, manifest)
            await _replacement(scene, brokers, second, tmp_path)

    asyncio.run(scenario())


async def _plans(scene: Scene, manifest: Any) -> None:
    (same,) = await asyncio.to_thread(parsed, scene, "plan", "-f", manifest())
    assert (same["action"], same["objects"], same["restarts"]) == ("none", [], [])
    text = await asyncio.to_thread(run, scene, "plan", "-f", manifest(replicas=1, config={"keep_alive_s": 11}))
    assert "spec.replicas: 2 -> 1" in text
    assert "1. main-broker-1 hands 0 bundles over, then goes" in text
    assert "1 brokers restart, one at a time (Config differs): main-broker-0" in text
    (refused,) = await asyncio.to_thread(parsed, scene, "plan", "-f", manifest(drainTimeoutSeconds=0), code=1)
    assert (refused["action"], "drainTimeoutSeconds" in refused["reason"]) == ("refused", True)
    claim = {"volumeClaim": {"size": "1Gi"}}
    (refused,) = await asyncio.to_thread(parsed, scene, "plan", "-f", manifest(storage=claim), code=1)
    assert "a claim cannot shrink" in refused["reason"]
    assert scene.cluster()["spec"]["replicas"] == 2


async def _replacement(scene: Scene, brokers: Any, second: str, files: Path) -> None:
    def uid() -> str:
        found = scene.get(scene.core("pods", "main-broker-0"))
        return str(found["metadata"]["uid"]) if found is not None else ""

    before = uid()
    planned = await asyncio.to_thread(run, scene, "drain", "main-broker-0", "--replace", "--dry-run")
    assert "main-broker-0 would hand 1 bundles over to main-broker-1" in planned
    replacing = asyncio.create_task(asyncio.to_thread(run, scene, "drain", "--replace", "main-broker-0"))
    await until("the drain", lambda: scene.events("Draining"), 60)
    assert uid() == before
    await brokers.own("public/default/0x00000000_0x80000000", second)
    told = await replacing
    assert "main-broker-0 was drained, has been replaced and is ready again" in told
    assert uid() not in ("", before)
    annotations = scene.cluster()["metadata"]["annotations"]
    assert annotations["magnetar.io/replace"] == f"main-broker-0@{before}"
    await asyncio.to_thread(run, scene, "drain", "--replace", "main-broker-0", "--undo")
    assert "magnetar.io/replace" not in scene.cluster()["metadata"].get("annotations", {})
    for line in commands("kubernetes"):
        words = [word.replace("/tmp/", f"{files}/") for word in shlex.split(line)[1:]]
        # The examples' cluster is made anew: the one here has an etcd of another kind, which it could not change into.
        await asyncio.to_thread(run, scene, *words, namespace="default" if words[0] == "plan" else "")
    assert (files / "magnetar-report.tar.gz").stat().st_size > 1000
    assert "there is no pod main-broker-9" in await asyncio.to_thread(run, scene, "drain", "--replace", "main-broker-9", code=1)

"""Hands that play StatefulSet controller, kubelet and DNS for a managed etcd.

Owns: `EtcdKubelet`: one real etcd process per pod, started by the pod's own command, environment
and secrets, after the pod's own start decision. DNS is played by loopback addresses: every ordinal
has one of its own, where all ports are the pods' real ones.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dev.testbed.control_plane import binary
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders import etcd_set, etcd_tls
from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.certificates import Subject
from tests.apiserver.stage import Scene, repeating

SET = "main-etcd"
STOP_TIMEOUT_S = 120.0


class EtcdKubelet:
    """Volumes are directories; `lose` empties one."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        self._scene, self._directory = scene, directory
        block = random.SystemRandom().randrange(256 * 250)
        self._network = f"127.{1 + block // 256}.{block % 256}"
        self._binary = binary("etcd")
        self._refusal = ""
        self._turn = threading.Lock()
        self.pending: set[str] = set()
        """Pods that are not started, as if no node had room for them."""
        self.ended: list[str] = []
        """Pods in the order of their ends."""
        self._processes: dict[str, tuple[str, subprocess.Popen[bytes] | None]] = {}

    def address(self, ordinal: int) -> str:
        return f"{self._network}.{ordinal + 1}"

    def play_dns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Members are reached by their addresses, and their certificates are for these too."""
        monkeypatch.setattr(
            names, "etcd_member_host", lambda _cluster, _namespace, ordinal: self.address(ordinal)
        )
        monkeypatch.setattr(
            names,
            "etcd_endpoint",
            lambda _cluster, _namespace: f"{self.address(0)}:{names.ETCD_CLIENT_PORT}",
        )
        original = etcd_tls.subjects

        def subjects(cluster: BrokerCluster) -> dict[str, Subject]:
            found = original(cluster)
            members = found[names.ETCD_MEMBERS]
            more = tuple(self.address(ordinal) for ordinal in range(etcd_tls.MEMBERS_MAX))
            return found | {names.ETCD_MEMBERS: replace(members, names=(*members.names, *more))}

        monkeypatch.setattr("magnetar_operator.etcd.secrets.subjects", subjects)

    def volume(self, name: str) -> Path:
        return self._directory / f"data-{name}"

    def lose(self, ordinal: int) -> None:
        """The pod dies, and its volume comes back empty."""
        name = f"{SET}-{ordinal}"
        with self._turn:  # or a round would start the container again in between
            _, process = self._processes[name]
            if process is not None:
                process.kill()
                process.wait(STOP_TIMEOUT_S)
            shutil.rmtree(self.volume(name))
            self._scene.plane.request(
                "DELETE", self._scene.core("pods", name), {"gracePeriodSeconds": 0}
            )

    def step(self) -> None:
        """One round of the StatefulSet's controller and of the kubelet."""
        with self._turn:
            self._round()

    def _round(self) -> None:
        found = self._scene.stateful_set(SET)
        if found is None:
            self._collect()
            return
        revision = hashlib.sha256(
            json.dumps(found["spec"]["template"], sort_keys=True).encode()
        ).hexdigest()[:10]
        wanted = [f"{SET}-{ordinal}" for ordinal in range(found["spec"]["replicas"])]
        pods = {
            pod["metadata"]["name"]: pod
            for pod in self._scene.pods()
            if pod["metadata"]["name"].startswith(f"{SET}-")
        }
        for name in set(pods) - set(wanted):
            self._scene.plane.request(
                "DELETE", self._scene.core("pods", name), {"gracePeriodSeconds": 0}
            )
            del pods[name]
        for name, (uid, _) in list(self._processes.items()):
            if name not in pods or pods[name]["metadata"]["uid"] != uid:
                self._end(name)
        self._sync_secrets()
        for name in wanted:
            pod = pods.get(name) or self._make(name, found, revision)
            if name not in self.pending:
                self._run(name, pod)
        ready = sum(self._is_ready(name) for name in wanted)
        status = {
            "replicas": len(wanted), "readyReplicas": ready, "updateRevision": revision, "currentRevision": revision,
            "observedGeneration": found["metadata"]["generation"],
        }  # fmt: skip
        if {key: found.get("status", {}).get(key, 0) for key in status} != status:
            # it may have been deleted since it was read
            self._scene.plane.request(
                "PATCH",
                f"{self._scene.core('statefulsets', SET, '/apis/apps/v1')}/status",
                {"status": status},
                "application/merge-patch+json",
            )

    def _collect(self) -> None:
        """What the garbage collector does when the set is gone: its pods go, their volumes stay."""
        for pod in self._scene.pods():
            if pod["metadata"]["name"].startswith(f"{SET}-"):
                self._scene.plane.request(
                    "DELETE",
                    self._scene.core("pods", pod["metadata"]["name"]),
                    {"gracePeriodSeconds": 0},
                )
        for name in list(self._processes):
            self._end(name)

    def _make(self, name: str, owner: dict[str, Any], revision: str) -> dict[str, Any]:
        template = owner["spec"]["template"]
        given = template["metadata"]
        metadata = {
            "name": name,
            "labels": {**given["labels"], names.REVISION: revision},
            "annotations": given.get("annotations", {}),
        }
        volumes = [*template["spec"]["volumes"], {"name": "data", "emptyDir": {}}]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {**template["spec"], "volumes": volumes},
        }
        made: dict[str, Any] = self._scene.plane.must("POST", self._scene.core("pods"), pod)
        return made

    def _run(self, name: str, pod: dict[str, Any]) -> None:
        _, process = self._processes.get(name, ("", None))
        if process is None or process.poll() is not None:
            process = self._start(name, pod)
            self._processes[name] = pod["metadata"]["uid"], process
        state: dict[str, Any] = {"phase": "Running", "podIP": self.address(names.ordinal_of(name))}
        ready = process is not None and self._is_ready(name)
        state["conditions"] = [{"type": "Ready", "status": "True" if ready else "False"}]
        if process is None:
            ended = {"exitCode": 1, "message": self._refusal}
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            start = {
                "name": etcd_set.START,
                "image": "i",
                "imageID": "i",
                "ready": False,
                "restartCount": 1,
            }
            state["initContainerStatuses"] = [
                {**start, "state": waiting, "lastState": {"terminated": ended}}
            ]
        known = pod.get("status", {})
        if [item["status"] for item in known.get("conditions", [])] != [
            state["conditions"][0]["status"]
        ] or ("initContainerStatuses" in known) != ("initContainerStatuses" in state):
            path = f"{self._scene.core('pods', name)}/status"
            self._scene.plane.request(
                "PATCH",
                path,
                {"status": {"initContainerStatuses": None, **state}},
                "application/merge-patch+json",
            )

    def _start(self, name: str, pod: dict[str, Any]) -> subprocess.Popen[bytes] | None:
        """The start container, then etcd; None if the former refuses."""
        config = self._scene.get(self._scene.core("configmaps", SET))
        assert config is not None, "the ConfigMap is there before the pod"
        volume = self.volume(name)
        volume.mkdir(parents=True, exist_ok=True)
        try:
            etcd_start.prepare(volume, {**config["data"], etcd_start.POD_NAME: name})
        except etcd_start.StartRefused as refusal:
            self._refusal = str(refusal)
            return None
        container = pod["spec"]["containers"][0]
        address = self.address(names.ordinal_of(name))
        secrets = self._directory / f"tls-{name}"
        self._write_secret(secrets, self._member_secret())
        replaced = {
            f"$(POD_NAME).{SET}.{self._scene.namespace}.svc": address,
            "$(POD_NAME)": name,
            "$(POD_IP)": address,
            etcd_set.DATA_PATH: str(volume),
            etcd_set.TLS_PATH: str(secrets),
            f",https://127.0.0.1:{names.ETCD_CLIENT_PORT}": "",
        }
        # or a busy machine would elect other leaders
        unhurried = ("--heartbeat-interval=500", "--election-timeout=5000")
        command = [
            self._binary,
            *container["command"][1:],
            "--unsafe-no-fsync",
            "--log-level=error",
            *unhurried,
        ]
        for text, value in replaced.items():
            command = [part.replace(text, value) for part in command]
        given = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        with (self._directory / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                command, stdout=output, stderr=output, env={**config["data"], **given}
            )

    def _member_secret(self) -> dict[str, bytes]:
        found = self._scene.get(
            self._scene.core("secrets", names.etcd_secret("main", names.ETCD_MEMBERS))
        )
        assert found is not None, "the certificate is there before the pod"
        return {file: base64.b64decode(content) for file, content in found["data"].items()}

    def _sync_secrets(self) -> None:
        """Running pods see what their secret holds now, as a kubelet brings it to them."""
        if self._processes:
            held = self._member_secret()
            for name in self._processes:
                self._write_secret(self._directory / f"tls-{name}", held)

    @staticmethod
    def _write_secret(directory: Path, files: dict[str, bytes]) -> None:
        directory.mkdir(exist_ok=True)
        for file, content in files.items():
            path = directory / file
            if not path.exists() or path.read_bytes() != content:
                draft = directory / f".{file}"
                draft.write_bytes(content)
                draft.replace(path)

    def _is_ready(self, name: str) -> bool:
        url = f"http://{self.address(names.ordinal_of(name))}:{names.ETCD_HEALTH_PORT}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _end(self, name: str) -> None:
        self.ended.append(name)
        _, process = self._processes.pop(name)
        if process is not None:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Step again and again in the background; at the end every process is stopped."""
        try:
            async with repeating(lambda: asyncio.to_thread(self.step)):
                yield
        finally:
            for name in list(self._processes):
                self._end(name)

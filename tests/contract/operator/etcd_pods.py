"""A managed etcd without Kubernetes: its pods are processes, its volumes directories.

Owns: `EtcdPods`, which does what a StatefulSet's controller and a kubelet would do with the real
etcd, the real start decision and the real environment; `Operator`, which looks, plans and acts as
the reconciler does.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dev.ports import free_port
from dev.testbed.etcd_server import etcd_binary
from magnetar.errors import StoreError
from magnetar_operator.builders.etcd_config import start_variables
from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.admin import EtcdAdmin
from magnetar_operator.etcd.figures import Sighting
from magnetar_operator.etcd.members import plan_members
from magnetar_operator.etcd.membership import (
    MEMBERS_MAX,
    EtcdPlan,
    EtcdPod,
    EtcdView,
    MoveLeader,
    Restart,
)
from magnetar_operator.etcd.steps import change_members, keep_up
from magnetar_operator.etcd.upkeep import Upkeep, plan_upkeep

SET = "main-etcd"
STOP_TIMEOUT_S = 120.0


@dataclass
class Pod:
    """One incarnation of a pod: its container may end, and is started again."""

    template: int
    process: subprocess.Popen[bytes] | None = None
    empty: bool = False
    ends: int = 0


@dataclass
class EtcdPods:
    """The StatefulSet, its pods and volumes. `flags` are part of the template: with another
    `template` pods are outdated."""

    directory: Path
    flags: tuple[str, ...] = ()
    replicas: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    template: int = 1
    pods: dict[int, Pod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._binary = etcd_binary()
        ports = {ordinal: (free_port(), free_port()) for ordinal in range(MEMBERS_MAX)}
        self.clients = {ordinal: f"127.0.0.1:{client}" for ordinal, (client, _) in ports.items()}
        self.peers = {ordinal: f"http://127.0.0.1:{peer}" for ordinal, (_, peer) in ports.items()}

    def volume(self, ordinal: int) -> Path:
        return self.directory / f"data-{SET}-{ordinal}"

    @property
    def admission(self) -> int | None:
        opened = self.config.get(etcd_start.OPEN, "")
        return int(opened.rpartition("-")[2]) if opened else None

    def step(self) -> None:
        """One round of the StatefulSet's controller and of the kubelet."""
        for ordinal in [ordinal for ordinal in self.pods if ordinal >= (self.replicas or 0)]:
            self.delete(ordinal)
        for ordinal in range(self.replicas or 0):
            self.volume(ordinal).mkdir(parents=True, exist_ok=True)
            pod = self.pods.get(ordinal)
            if pod is None:
                self.pods[ordinal] = pod = Pod(self.template)
                self._start(ordinal, pod, prepare=True)
            elif pod.process is None or pod.process.poll() is not None:
                pod.ends += pod.process is not None
                self._start(ordinal, pod, prepare=pod.process is None)

    def _start(self, ordinal: int, pod: Pod, *, prepare: bool) -> None:
        environment = {**self.config, etcd_start.POD_NAME: f"{SET}-{ordinal}"}
        if prepare:  # init containers run once in a pod's life, again only while they fail
            try:
                etcd_start.prepare(self.volume(ordinal), environment)
            except etcd_start.StartRefused as refusal:
                pod.empty = str(refusal).startswith(etcd_start.EMPTY)
                return
        pod.empty = False
        client, peer = f"http://{self.clients[ordinal]}", self.peers[ordinal]
        arguments = [
            str(self._binary), f"--name={SET}-{ordinal}", f"--data-dir={self.volume(ordinal) / etcd_start.DATA}", "--log-level=error",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", "--heartbeat-interval=200", "--election-timeout=2500", "--unsafe-no-fsync", *self.flags,
        ]  # fmt: skip
        variables = {name: value for name, value in self.config.items() if name.startswith("ETCD_")}
        with (self.directory / f"{SET}-{ordinal}.log").open("ab") as output:
            pod.process = subprocess.Popen(arguments, stdout=output, stderr=output, env=variables)

    def delete(self, ordinal: int) -> None:
        """SIGTERM, and wait for the end; the volume stays."""
        pod = self.pods.pop(ordinal, None)
        if pod is not None and pod.process is not None:
            pod.process.terminate()
            pod.process.wait(STOP_TIMEOUT_S)

    def lose(self, ordinal: int) -> None:
        """The pod dies without warning, and its volume comes back without anything."""
        pod = self.pods.pop(ordinal)
        if pod.process is not None:
            pod.process.kill()
            pod.process.wait(STOP_TIMEOUT_S)
        shutil.rmtree(self.volume(ordinal))

    def stop(self) -> None:
        for pod in self.pods.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait(STOP_TIMEOUT_S)
        self.pods.clear()

    def seen(self, answering: set[int]) -> dict[int, EtcdPod]:
        """The pods as their manifests would show them; a pod is ready when its member answers."""
        return {
            ordinal: EtcdPod(
                ready=ordinal in answering,
                outdated="" if pod.template == self.template else "Image",
                empty=pod.empty,
                failing=pod.ends > 0 and ordinal not in answering,
            )
            for ordinal, pod in self.pods.items()
        }

    def claims(self) -> frozenset[int]:
        return frozenset(ordinal for ordinal in range(MEMBERS_MAX) if self.volume(ordinal).is_dir())


class Operator:
    """Looks, plans and acts."""

    def __init__(self, pods: EtcdPods, quota_bytes: int = 1 << 30) -> None:
        self.pods, self.quota_bytes = pods, quota_bytes
        self.admin = EtcdAdmin(pods.clients, pods.peers)
        self.known = False
        self.steps: list[object] = []
        """What was asked of etcd or done to pods. Repetitions count once: etcd may find a step too
        early, or give no answer to one that it takes."""
        self.restarts: list[tuple[int, int | None]] = []
        """Ordinals of the pods that were restarted, and of the leader that was seen before."""
        self.moves: list[int] = []
        """How many pods were outdated when leadership was moved."""
        self.seen = Sighting(None, {})

    @property
    def leader(self) -> int | None:
        """The ordinal of the leader at the last look; None if none said that it leads."""
        return next(
            (
                ordinal
                for ordinal, figures in self.seen.figures.items()
                if figures.voice.leader == figures.voice.member
            ),
            None,
        )

    async def once(self, wanted: int) -> tuple[EtcdPlan, Upkeep]:
        """One pass."""
        self.seen = seen = await self.admin.look()
        self.known = self.known or seen.members is not None
        pods = self.pods
        view = EtcdView(
            wanted,
            pods.replicas,
            pods.seen(set(seen.figures)),
            pods.claims(),
            self.known,
            seen.members,
            seen.voices,
            pods.admission,
        )
        plan = plan_members(view)
        pods.config = start_variables(SET, pods.peers, wanted, plan.admission, "token")
        pods.replicas = plan.replicas
        upkeep = plan_upkeep(seen, self.quota_bytes, at_rest=plan == EtcdPlan(wanted))
        if plan.step is not None and self.steps[-1:] != [plan.step]:
            self.steps.append(plan.step)
        # too early for etcd, or no answer: the next look decides again
        with suppress(StoreError):
            if isinstance(plan.step, Restart):
                self.restarts.append((plan.step.ordinal, self.leader))
                pods.delete(plan.step.ordinal)
            elif plan.step is not None:
                if isinstance(plan.step, MoveLeader):
                    self.moves.append(len(plan.pending))
                await change_members(self.admin, seen, plan.step)
            elif not upkeep.is_idle:
                await keep_up(self.admin, seen, upkeep)
        return plan, upkeep

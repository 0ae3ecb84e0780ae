"""Two operators as processes: the leader stops, dies or is paused, and the other one goes on."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dev.testbed.control_plane import ControlPlane, EtcdProcess
from dev.testbed.operator_process import LEASE, OperatorProcess
from magnetar.metadata import keys
from tests.apiserver.stage import Scene, brokers_of, until

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0


class Stage:
    """One cluster, and TopicNamespaces that show who works."""

    def __init__(self, plane: ControlPlane, scene: Scene, etcd: EtcdProcess) -> None:
        self.plane, self.scene = plane, scene
        scene.create(
            "BrokerCluster", "main", {"etcd": {"external": {"endpoints": [etcd.endpoint]}}}
        )

    def transitions(self) -> int:
        return int(self.plane.must("GET", LEASE)["spec"]["leaseTransitions"])

    async def works(self, name: str) -> None:
        """A namespace made now becomes Ready."""
        self.scene.create(
            "TopicNamespace",
            name,
            {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": name},
        )
        path = self.scene.path("topicnamespaces", name)
        await until(
            f"{name} is Ready",
            lambda: self.scene.condition(path).get("status") == "True",
            PATIENCE_S,
        )

    async def fail_over(
        self, leader: OperatorProcess, number: signal.Signals, standby: OperatorProcess
    ) -> float:
        """Send the leader a signal; seconds until the standby leads. The Lease changes hands
        once, and work goes on."""
        await until(f"{standby.identity} is warm", standby.is_ready, PATIENCE_S)
        assert leader.leads()
        before, began = self.transitions(), time.monotonic()
        leader.send(number)
        await until(f"{standby.identity} leads", standby.leads, PATIENCE_S)
        took_s = time.monotonic() - began
        await self.works(f"after-{number.name.lower()}")
        assert self.transitions() == before + 1
        return took_s


async def test_a_standby_takes_over_whether_the_leader_stops_is_paused_or_dies(
    control_plane: ControlPlane,
    namespace: str,
    cluster_etcd: EtcdProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that was paused wakes with its Lease in another's hands and gives way: neither Lease
    nor the store's term is its own any more."""
    scene = Scene(control_plane, namespace)

    async with brokers_of(cluster_etcd.endpoint) as brokers:
        with ExitStack() as lives:

            def started(name: str) -> OperatorProcess:
                life = lives.enter_context(
                    OperatorProcess(control_plane, tmp_path / f"{name}.log", name, namespace)
                )
                life.start()
                return life

            first = started("first")
            await until("the first leads", first.leads, PATIENCE_S)
            stage = Stage(control_plane, scene, cluster_etcd)
            await stage.works("orders")
            second = started("second")
            planned_s = await stage.fail_over(first, signal.SIGTERM, second)
            third = started("third")
            paused_s = await stage.fail_over(second, signal.SIGSTOP, third)

            second.send(signal.SIGCONT)
            await until("the second knows", lambda: "lease.lost" in second.log(), PATIENCE_S)
            await stage.works("still-the-third")
            assert third.leads()
            term = await brokers.store.get(keys.OPERATOR_TERM)
            assert term is not None
            assert b"third_" in term.value

            crashed_s = await stage.fail_over(third, signal.SIGKILL, second)
            with capsys.disabled():
                print(
                    f" [planned {planned_s:.2f} s, paused {paused_s:.2f} s, crashed "
                    f"{crashed_s:.2f} s] ",
                    end="",
                )

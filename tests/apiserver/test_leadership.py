"""Leadership over a real Lease, with clocks that the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dev.testbed.control_plane import ControlPlane
from magnetar.clock import SystemClock
from magnetar_operator.builders.object import Manifest
from magnetar_operator.kube import api, leadership
from magnetar_operator.kube.api import KubernetesApi, connect
from magnetar_operator.kube.connection import Connection
from magnetar_operator.kube.errors import NotLeading
from magnetar_operator.kube.leadership import LEASE_S, WRITABLE_S, Leadership
from magnetar_operator.metrics import OperatorMetrics

pytestmark = pytest.mark.slow


class MovedClock(SystemClock):
    """The machine's clock, but time since boot stands still unless a test moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now


class Candidate:
    """A candidate with a clock and an API connection of its own."""

    def __init__(self, name: str, namespace: str, client: Connection) -> None:
        self.clock, metrics = MovedClock(), OperatorMetrics()
        self.leadership = Leadership(self.clock, metrics, namespace, "lease", name, lambda _: None)
        self._lease_api = KubernetesApi(client, self.clock, metrics, lambda: True)
        self.api = KubernetesApi(client, self.clock, metrics, self.leadership.may_write)

    async def attempt(self) -> bool:
        return await self.leadership.attempt(self._lease_api)


@asynccontextmanager
async def two_candidates(namespace: str) -> AsyncIterator[tuple[Candidate, Candidate]]:
    client = await connect()
    try:
        yield Candidate("first", namespace, client), Candidate("second", namespace, client)
    finally:
        await client.close()


@pytest.fixture(autouse=True)
def _kubeconfig(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests move the clocks that decide; how long a busy API server takes decides nothing."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    monkeypatch.setattr(leadership, "ATTEMPT_TIMEOUT_S", 120.0)
    monkeypatch.setattr(api, "WRITE_TIMEOUT_S", 30.0)


def config_map(namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "effect", "namespace": namespace},
        "data": {"a": "b"},
    }


async def test_a_holder_that_cannot_renew_stops_writing_before_another_may_begin(
    namespace: str,
) -> None:
    """Between its last write and the other's first there is a gap, whatever the wall clocks say."""

    async with two_candidates(namespace) as (first, second):
        assert await first.attempt()
        assert not await second.attempt()
        await first.api.apply(config_map(namespace))
        with pytest.raises(NotLeading):
            await second.api.apply(config_map(namespace))

        first.clock.now += WRITABLE_S
        second.clock.now += WRITABLE_S
        with pytest.raises(NotLeading):
            await first.api.apply(config_map(namespace))
        assert not await second.attempt(), "the first is silent, but its Lease lasts"

        second.clock.now += LEASE_S - WRITABLE_S + 0.1
        assert await second.attempt()
        await second.api.apply(config_map(namespace))
        assert not await first.attempt(), "it finds another holder and gives way"


async def test_a_renewed_lease_is_never_taken(namespace: str) -> None:
    """The other one's patience begins again with each renewal it sees."""

    async with two_candidates(namespace) as (first, second):
        assert await first.attempt()
        for _ in range(4):
            assert not await second.attempt()
            second.clock.now += LEASE_S - 1
            assert await first.attempt()
        assert not await second.attempt()


async def test_of_two_that_reach_for_a_free_lease_one_gets_it(namespace: str) -> None:
    async with two_candidates(namespace) as (first, second):
        held = await asyncio.gather(first.attempt(), second.attempt())
        assert sorted(held) == [False, True]

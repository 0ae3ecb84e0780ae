"""An owner merges neighbours of its own that have been cold for long."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from magnetar.balance.load import BundleLoad, History, LoadReport, Rates
from magnetar.balance.settings import Settings
from magnetar.broker.bundles.balancing.decisions import DecisionLog
from magnetar.broker.bundles.balancing.merging import LoadMerger
from magnetar.broker.bundles.balancing.picture import Sight
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import BrokerMetrics
from magnetar.clock import SystemClock
from magnetar.errors import ServiceNotReady
from magnetar.hosting.computing import inline
from magnetar.hosting.views import Viewed
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    IncarnationRecord,
    NamespaceRecord,
)
from magnetar.names import BundleName, NamespaceName, bundles_of, initial_boundaries
from tests.support.balance import KeptDecisions

NAMESPACE = NamespaceName("public", "default")
BUNDLES = [str(name) for name in bundles_of(NAMESPACE, initial_boundaries(8))]
OURS, THEIRS = BUNDLES[:4], BUNDLES[4:]


def sight(created: int) -> Sight:
    """Two brokers with four neighbours each. No bundle is busy enough to be in a report."""
    records = {
        name: Viewed(BundleRecord(BundleState.OWNED, 2, "a.1" if name in OURS else "b.1"), 1)
        for name in BUNDLES
    }
    incarnations = {
        f"{name}.1": Viewed(IncarnationRecord(name, "", "", 1, "1"), 1) for name in ("a", "b")
    }
    namespace = NamespaceRecord(initial_boundaries(8), {}, bundles_created=created)
    return Sight(
        1000,
        frozenset(incarnations),
        incarnations,
        records,
        {str(NAMESPACE): Viewed(namespace, 1)},
        {},
        {},
        (LoadReport("a", 1000),),
    )


def load(name: str, messages: float = 0.0) -> BundleLoad:
    return BundleLoad(name, History.steady(Rates(messages)), 1)


class Host:
    """A merger over our bundles with these message rates; what it was asked to merge."""

    def __init__(self, *rates: float, created: int = 1, **settings: Any) -> None:
        self.calls: list[tuple[str, str]] = []
        self.refusing = False
        self.metrics, self.kept = BrokerMetrics(), KeptDecisions()
        self.loads = {name: load(name, rate) for name, rate in zip(OURS, rates, strict=True)}
        self.sights, self._created = 0, created
        found = replace(Settings(), merge_bundles_min=1, merge_hits=1, **settings)
        self.merger = LoadMerger(
            cast(
                BrokerContext,
                SimpleNamespace(compute=inline, metrics=self.metrics, clock=SystemClock()),
            ),
            self._sight,
            cast(Any, SimpleNamespace(loads=self.loads)),
            cast(Any, SimpleNamespace(current=found)),
            self._merge,
            cast(DecisionLog, self.kept),
        )

    def _sight(self) -> Sight:
        self.sights += 1
        return sight(self._created)

    async def _merge(self, left: BundleName, _reason: str, right: BundleName) -> BundleName:
        self.calls.append((str(left), str(right)))
        if self.refusing:
            raise ServiceNotReady("changes hands")
        return left

    async def looks(self, count: int) -> list[tuple[str, str]]:
        for _ in range(count):
            await self.merger.look()
        return self.calls


async def test_only_our_own_cold_neighbours_are_merged_after_enough_looks() -> None:
    """Idle ones too, which no report names."""
    host = Host(0.0, 0.0, 0.0, 9000.0)
    assert await host.looks(1) == []
    assert await host.looks(1) == [(OURS[0], OURS[1])]
    [decision] = host.kept.saved
    assert [found.bundles for found in decision.outcome.merges] == [(OURS[0], OURS[1])]
    assert host.metrics.balance.merges._value.get() == 1


async def test_without_neighbours_of_our_own_the_cluster_is_not_looked_at() -> None:
    host = Host(0.0, 0.0, 0.0, 0.0)
    del host.loads[OURS[1]], host.loads[OURS[3]]
    assert await host.looks(3) == []
    assert host.sights == 0
    host.loads[OURS[1]] = load(OURS[1])
    assert await host.looks(2) == [(OURS[0], OURS[1])]
    assert host.sights == 2


async def test_a_refused_merge_is_no_failure_and_waits_as_long_again() -> None:
    host = Host(0.0, 0.0, 9000.0, 9000.0)
    host.refusing = True
    assert len(await host.looks(2)) == 1
    assert len(await host.looks(1)) == 1
    assert len(await host.looks(1)) == 2
    assert host.metrics.balance.merges._value.get() == 0


async def test_a_namespace_is_not_merged_below_what_it_was_created_with() -> None:
    """Nor one of which nobody knows that."""
    assert len(await Host(0.0, 0.0, 0.0, 0.0, created=7).looks(2)) == 1
    assert await Host(0.0, 0.0, 0.0, 0.0, created=8).looks(4) == []
    assert await Host(0.0, 0.0, 0.0, 0.0, created=0).looks(4) == []


async def test_merges_can_be_switched_off() -> None:
    assert await Host(0.0, 0.0, 0.0, 0.0, merge=False).looks(4) == []
    assert await Host(0.0, 0.0, 0.0, 0.0, enabled=False).looks(4) == []

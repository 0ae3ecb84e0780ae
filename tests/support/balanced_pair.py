"""Two brokers whose loads a test reports. Owns: Stage, play."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from magnetar.balance.load import BundleLoad, History, LoadReport, Rates
from magnetar.broker.incarnation import Broker
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    NamespaceRecord,
)
from magnetar.metadata.store import Compare
from magnetar.names import BundleName, NamespaceName
from tests.support.broker_pair import Pair, pair
from tests.support.brokers import LIVELY
from tests.support.polling import until

MANY = NamespaceName("public", "many")


ALWAYS = Compare(keys.RESTORE, "version", ">", 0)


QUIET = {"load_report_s": 600.0}
"""Brokers write no reports: the test does."""


class Stage:
    """Two brokers and bundles of `MANY` with loads that the test reports."""

    def __init__(self, cluster: Pair) -> None:
        self.cluster = cluster
        self.brokers = (cluster.first, cluster.second)
        self.names: list[str] = []

    async def bundles(self, count: int, owner: Broker) -> None:
        """Bundles of the namespace, all at one broker."""
        step = (1 << 32) // count
        edges = (*range(0, step * count, step), 0xFFFFFFFF)
        record = NamespaceRecord(edges, {})
        await self.cluster.store.put(keys.namespace(MANY), record.encode())
        for low, high in itertools.pairwise(edges):
            bundle = BundleName(MANY, low, high)
            assigned = BundleRecord(BundleState.ASSIGNING, 2, owner.incarnation, reason="test")
            await self.cluster.store.put(keys.bundle(bundle), assigned.encode())
            self.names.append(str(bundle))
        await until(lambda: all(name in owner.ownership.owned for name in self.names))

    async def report(self, broker: Broker, loads: Sequence[float]) -> None:
        """A report by `broker` of the first bundles."""
        top = tuple(
            BundleLoad(name, History.steady(Rates(load)), topics=2)
            for name, load in zip(self.names, loads, strict=False)
        )
        report = LoadReport(
            broker.context.broker,
            broker.context.clock.wall_ms(),
            rates=Rates(sum(loads)),
            bundles=len(broker.ownership.owned),
            top=top,
        )
        await self.cluster.store.put(keys.load(broker.incarnation), report.encode())
        for other in self.brokers:
            await until(
                lambda other=other: other.ownership.reports.get(broker.incarnation) == report
            )

    def on(self, broker: Broker) -> list[int]:
        return [at for at, name in enumerate(self.names) if name in broker.ownership.owned]

    async def stop_leaders(self) -> None:
        for broker in self.brokers:
            await broker.leader.stop()

    async def patrol(self, broker: Broker) -> None:
        """One patrol of a leader, once nothing changes hands."""
        await asyncio.sleep(LIVELY.plan_interval_s)
        for other in self.brokers:
            await until(
                lambda other=other: all(
                    found.record.state is BundleState.OWNED
                    for found in other.views.bundles.items.values()
                )
            )
        await broker.leader.patrol(ALWAYS)


def play(directory: Path, script: Callable[[Stage], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with pair(directory, **({"balance": LIVELY} | QUIET | settings)) as cluster:
            await script(Stage(cluster))

    asyncio.run(main())

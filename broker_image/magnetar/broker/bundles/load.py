"""The load report.

Owns: publishing this broker's load under its lease, when it is due. Imports: balance.load,
metadata, siblings. Invariants: a report is one write, whatever the number of bundles; a report that
cannot be written is dropped (the next one replaces it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import structlog

from magnetar.balance.load import REPORT_BYTES_MAX, LoadReport, report_due
from magnetar.broker.bundles.balancing.decisions import DecisionLog
from magnetar.broker.bundles.balancing.history import LoadHistory
from magnetar.broker.bundles.balancing.merging import LoadMerger
from magnetar.broker.bundles.balancing.sampling import LoadSampler
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.bundles.balancing.splitting import LoadSplitter
from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.errors import StoreError
from magnetar.hosting.identity import Usage
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys

log = structlog.get_logger(__name__)


class LoadReporter:
    """Publishes a `LoadReport` when the load has changed, and when the last one is old."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        sampler: LoadSampler,
        settings: BalanceSettings,
        lease: Callable[[], int],
        history: LoadHistory,
    ) -> None:
        self._context, self._views, self._sampler = context, views, sampler
        self._settings, self._lease, self._history = settings, lease, history
        self._written: LoadReport | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        clock = self._context.clock
        while True:
            look_s = self._settings.current.look_ms / 1000
            await asyncio.sleep(look_s * clock.uniform(0.9, 1.1))
            report = await self._sampler.sample(self._settings.current)
            await self._publish(report)
            with self._context.metrics.surprises.contained("load history"):
                await self._history.observe(report, self._settings.current)

    async def _publish(self, report: LoadReport) -> None:
        incarnation = self._context.incarnation
        if self._views.load.get(incarnation) is None:
            self._written = None  # it went with a lease that we lost
        if report_due(self._written, report, self._settings.current) is None:
            return
        try:
            await self._context.store.put(keys.load(incarnation), _encoded(report), self._lease())
            self._written = report
        except StoreError as error:
            log.debug("load.report_dropped", error=str(error))


def _encoded(report: LoadReport) -> bytes:
    """The report with as many of its top bundles as fit."""
    encoded = report.encode()
    while len(encoded) > REPORT_BYTES_MAX and report.top:
        report = replace(report, top=report.top[: len(report.top) // 2])
        encoded = report.encode()
    return encoded


@dataclass(frozen=True, slots=True)
class LoadWork:
    """What a broker does about its load: `tasks` by name, for as long as it lives, and `last`, once,
    when it stops by plan."""

    tasks: tuple[tuple[str, Callable[[], Coroutine[Any, Any, None]]], ...]
    last: Callable[[], Coroutine[Any, Any, None]]


def load_work(
    context: BrokerContext,
    views: ClusterViews,
    ownership: Ownership,
    usage: Usage,
    lease: Callable[[], int],
) -> LoadWork:
    """Reports and their history, splits of what is too hot, and merges of what is cold."""
    sampler = LoadSampler(
        context, ownership.owned, ownership.reports, usage, ownership.recent_moves
    )
    settings, sight = ownership.balance, ownership.assigner.placer.sight
    history = LoadHistory(context, ownership.owned, sampler)
    reporter = LoadReporter(context, views, sampler, settings, lease, history)
    decisions = DecisionLog(context)
    merger = LoadMerger(context, sight, sampler, settings, ownership.merge, decisions)
    splitter = LoadSplitter(context, sight, sampler, settings, ownership.split, merger, decisions)
    tasks = ("load report", reporter.run), ("splits by load", splitter.run)
    return LoadWork(tasks, history.save_last)

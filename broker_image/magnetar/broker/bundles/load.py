"""The load report.

Owns: sampling this broker's rates and usage and publishing them under its lease. Imports: metadata;
the process's usage. Invariants: rates are differences of counters over the measured interval, never
instantaneous guesses; memory is resident against the cgroup's limit, CPU against what this process
can use; a report that cannot be written is dropped (the next one replaces it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import StoreError
from magnetar.hosting.identity import Usage
from magnetar.metadata import keys
from magnetar.metadata.records import LoadRecord

log = structlog.get_logger(__name__)


class Counted(Protocol):
    """What the reporter asks of the service."""

    def counts(self) -> tuple[int, int, int, int]:
        """(bundles, topics, producers, consumers) served now."""
        ...


class LoadReporter:
    """Publishes a `LoadRecord` every `load_report_s`."""

    def __init__(
        self, context: BrokerContext, counted: Counted, lease: Callable[[], int], usage: Usage
    ) -> None:
        self._context, self._counted, self._lease, self._usage = context, counted, lease, usage

    async def run(self) -> None:
        """Report until cancelled."""
        clock = self._context.clock
        before, then = self._totals(), clock.monotonic()
        while True:
            await asyncio.sleep(self._context.settings.load_report_s * clock.uniform(0.9, 1.1))
            after, now = self._totals(), clock.monotonic()
            seconds = max(now - then, 1e-3)
            await self._publish(
                [(new - old) / seconds for new, old in zip(after, before, strict=True)]
            )
            before, then = after, now

    def _totals(self) -> tuple[float, ...]:
        metrics = self._context.metrics
        return (
            metrics.messages_in,
            metrics.messages_out,
            metrics.bytes_in,
            metrics.bytes_out,
            self._usage.cpu_seconds(),
        )

    async def _publish(self, rates: list[float]) -> None:
        bundles, topics, producers, consumers = self._counted.counts()
        record = LoadRecord(
            broker=self._context.broker,
            updated_ms=self._context.clock.wall_ms(),
            bundles=bundles,
            topics=topics,
            producers=producers,
            consumers=consumers,
            message_rate_in=round(rates[0], 1),
            message_rate_out=round(rates[1], 1),
            bytes_rate_in=round(rates[2], 1),
            bytes_rate_out=round(rates[3], 1),
            cpu_usage=round(rates[4] / self._usage.cores, 4),
            memory_usage=round(self._usage.memory_share(), 4),
        )
        try:
            await self._context.store.put(
                keys.load(self._context.incarnation), record.encode(), self._lease()
            )
        except StoreError as error:
            log.debug("load.report_dropped", error=str(error))

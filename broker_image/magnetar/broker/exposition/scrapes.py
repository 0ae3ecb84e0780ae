"""Answers to scrapes.

Owns: `Scrapes`: one reading for all scrapes that come during it, sent in pieces. Imports: topics.
Invariants: a scrape holds the loop for a few milliseconds at a time; however many peers scrape, and
however slowly they read, at most `SHEETS_MAX` readings are in memory.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from magnetar.broker.exposition.topics import ServedBundle, Sheets, read_topics
from magnetar.clock import Clock
from magnetar.hosting.shared_task import SharedTasks, outcome

if TYPE_CHECKING:
    from magnetar.hosting.metrics_settings import MetricsSettings

SHEETS_MAX = 4


class Scrapes:
    """Of one process."""

    def __init__(self) -> None:
        self._reading = SharedTasks[Sheets]("read metrics")
        self._kept: weakref.WeakSet[Sheets] = weakref.WeakSet()

    async def pieces(
        self, served: Mapping[str, ServedBundle], settings: MetricsSettings, clock: Clock
    ) -> AsyncIterator[bytes]:
        """The text of all metrics of topics."""
        sheets = await self._sheets(served, settings, clock)
        for piece in sheets.pieces():
            yield piece
            await asyncio.sleep(0)

    async def _sheets(
        self, served: Mapping[str, ServedBundle], settings: MetricsSettings, clock: Clock
    ) -> Sheets:
        if len(self._kept) >= SHEETS_MAX:
            return next(iter(self._kept))  # peers that do not read hold them

        async def read() -> Sheets:
            return await read_topics(served, settings, clock)

        sheets = await outcome(self._reading.join("topics", read))
        self._kept.add(sheets)
        return sheets

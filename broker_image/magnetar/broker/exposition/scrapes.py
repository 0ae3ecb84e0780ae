"""Answers to scrapes.

Owns: `Scrapes`: one reading for all scrapes that come during it, sent in pieces. Imports: reading.
Invariants: a scrape holds the loop for a few milliseconds at a time; however many peers scrape, and
however slowly they read, at most `SHEETS_MAX` readings are in memory.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator

from magnetar.broker.exposition.reading import Reading, Scraped, Sheets
from magnetar.hosting.shared_task import SharedTasks, outcome

SHEETS_MAX = 4


class Scrapes:
    """Of one process."""

    def __init__(self) -> None:
        self._reading = SharedTasks[Sheets]("read metrics")
        self._kept: weakref.WeakSet[Sheets] = weakref.WeakSet()

    @property
    def held(self) -> int:
        """Readings in memory."""
        return len(self._kept)

    async def pieces(self, scraped: Scraped) -> AsyncGenerator[bytes, None]:
        """The text of all metrics of topics."""
        sheets = await self._sheets(scraped)
        for piece in sheets.pieces():
            yield piece
            await asyncio.sleep(0)

    async def _sheets(self, scraped: Scraped) -> Sheets:
        if self.held >= SHEETS_MAX:
            return next(iter(self._kept))  # peers that do not read hold them
        incarnation = scraped.context.incarnation
        sheets = await outcome(self._reading.join(incarnation, Reading(scraped).read))
        self._kept.add(sheets)
        return sheets

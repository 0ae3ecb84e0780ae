"""Deleting old samples of load, and old reports on it.

Owns: `LoadHistoryCollector`, for the leader. Imports: balance.settings, storage names, the volume. Invariants: objects
go oldest first, beyond an age or a number of bytes; a name that says neither time nor size is left
alone; storage is listed once per interval of writing.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from magnetar.balance.settings import MIB, Settings
from magnetar.broker.context import BrokerContext
from magnetar.storage import names
from magnetar.storage.dated import surplus

log = structlog.get_logger(__name__)

DAY_MS = 86_400_000


class LoadHistoryCollector:
    """Called in every round of a leader's maintenance."""

    def __init__(self, context: BrokerContext, settings: Callable[[], Settings]) -> None:
        """`settings`: those in force now."""
        self._context, self._settings = context, settings
        self._due = context.clock.monotonic() + settings().history_write_s

    async def collect(self) -> None:
        """Delete what is too old or too much, if it is time. Raises StorageError."""
        clock, settings = self._context.clock, self._settings()
        now = clock.monotonic()
        if now < self._due:
            return
        since_ms = clock.wall_ms() - round(settings.history_days * DAY_MS)
        bytes_max = round(settings.history_mib_max * MIB)
        for directory in (names.LOAD_HISTORY, names.LOAD_REPORTS):
            listed = await self._context.volume.list(directory)
            places = {name: place for name in listed if (place := place_of(name)) is not None}
            gone = surplus(places, since_ms, bytes_max)
            for name in gone:
                await self._context.volume.remove(name)
            if gone:
                log.info("load_history.deleted", directory=directory, objects=len(gone))
        self._due = now + settings.history_write_s


def place_of(name: str) -> tuple[int, int] | None:
    """When the newest of an object's content is from, and its size."""
    history, report = names.load_history_place(name), names.load_report_place(name)
    if history is not None:
        return history.to_ms, history.size
    return (report.at_ms, report.size) if report is not None else None

"""Both phases of a compaction that a broker runs.

Owns: `ViewWriter`, which chooses the messages that survive and writes them into segments of the
volume. Imports: compaction, storage formats, siblings. Invariants: memory is bounded by the keys,
one segment and one read; the event loop is held for some milliseconds at most: entries are looked
at in turns, large ones outside of it; a segment is durable before its reference is returned, and
counts only once a commit names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from magnetar.broker.context import BrokerContext
from magnetar.broker.upkeep.compaction_input import CompactionInput, CompactionPlan
from magnetar.compaction.newest import Newest, Survivors, by_row
from magnetar.compaction.orders import row_of
from magnetar.compaction.view_rows import view_row
from magnetar.errors import StorageError
from magnetar.storage import names
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import Row
from magnetar.storage.segments.segment import SegmentWriter
from magnetar.storage.turns import Turns

T = TypeVar("T")

SEGMENT_BYTES_MAX = 8 << 20
MESSAGES_PER_TURN = 100
LARGE_MESSAGES = 100
LARGE_BYTES = 128 << 10
"""An entry of more messages or bytes is looked at outside of the event loop."""


@dataclass(slots=True)
class WrittenView:
    """A new view as it lies in the volume, not committed yet, and what phase 1 counted."""

    segments: tuple[SegmentReference, ...] = ()
    messages_in: int = 0
    messages_out: int = 0


@dataclass(slots=True)
class ViewWriter:
    """One compaction of one topic."""

    context: BrokerContext
    plan: CompactionPlan
    source: CompactionInput
    intent: str
    _written: list[SegmentReference] = field(default_factory=list)

    async def write(self) -> WrittenView:
        """The new view. Raises Conflict, ServiceNotReady, LimitExceeded, StorageError."""
        newest = Newest(self.context.settings.compaction_keys_bytes_max)
        await self._choose(newest)
        survivors = await self.context.compute(newest.survivors)
        await self._write(survivors)
        return WrittenView(tuple(self._written), newest.messages, len(survivors))

    async def _choose(self, newest: Newest) -> None:
        turns, row = Turns(MESSAGES_PER_TURN), 0
        while row < self.source.rows:
            found = await self.source.read(row)
            for number, stored in enumerate(found, row):
                if stored is None:
                    continue
                await self._do(stored, partial(newest.add, stored, number))
                await turns.after(stored.message_count)
            row += len(found)

    async def _write(self, survivors: Survivors) -> None:
        writer: SegmentWriter | None = None
        pieces: list[bytes] = []
        turns, at = Turns(MESSAGES_PER_TURN), 0
        while at < len(survivors):
            first = row_of(survivors[at])
            found = await self.source.read(first)
            while at < len(survivors) and row_of(survivors[at]) < first + len(found):
                number, keep, at = by_row(survivors, at)
                stored = found[number - first]
                assert stored is not None, "phase 1 chose it"
                append_ms = await self.source.append_time(number, stored)
                row = await self._do(
                    stored, partial(view_row, stored._replace(append_time=append_ms), keep)
                )
                writer = writer or self._writer()
                writer.add(row)
                pieces += writer.take()
                if writer.length >= SEGMENT_BYTES_MAX:
                    await self._finish(writer, pieces)
                    writer, pieces = None, []
                await turns.after(row.message_count)
        if writer is not None:
            await self._finish(writer, pieces)

    async def _do(self, stored: Row, work: Callable[[], T]) -> T:
        if stored.message_count > LARGE_MESSAGES or len(stored.payload) > LARGE_BYTES:
            return await self.context.compute(work)
        return work()

    def _writer(self) -> SegmentWriter:
        basis = self.plan.basis
        return SegmentWriter(
            {
                "bundle": str(basis.bundle),
                "topic": str(basis.topic),
                "kind": "compacted",
                "generation": basis.generation + 1,
                "horizon": list(basis.horizon),
                "intent": self.intent,
            }
        )

    async def _finish(self, writer: SegmentWriter, pieces: list[bytes]) -> None:
        end, footer = writer.finish()
        name = names.segment(self.plan.basis.bundle, f"{self.intent}-{len(self._written):05d}")
        data = b"".join(pieces + end)
        if not await self.context.volume.put_if_absent(name, data):
            raise StorageError(
                f"{name} exists already: two writers drew the same intent; compact again"
            )
        self._written.append(SegmentReference.written(name, len(data), footer))
        self.context.metrics.compaction.bytes_written.inc(len(data))

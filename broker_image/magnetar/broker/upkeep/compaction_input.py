"""What one compaction of a topic reads.

Owns: `CompactionInput`: the view before and every entry behind its horizon, as numbered rows.
Imports: reading, topics, compaction, storage formats. Invariants: the end is fixed before the first
row is read; both phases get the same row under the same number; what is read is paced, and checked
as dispatch reads it; reading stops when the topic is not served here any more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from magnetar.broker.reading.segments import OpenSegment, SegmentCache
from magnetar.broker.topics.entry_metadata import EntryMetadata
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.clock import elapsed_ms
from magnetar.compaction.commit import Basis
from magnetar.compaction.intents import Conflict
from magnetar.errors import CorruptData, ServiceNotReady, StorageError
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import Block, Row
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.topics.ledgers import EARLIEST

ROWS_PER_READ = 100


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a compaction is made from: the `view` before, and the entries [first, end) behind it,
    whose end is the basis' horizon."""

    basis: Basis
    view: tuple[SegmentReference, ...]
    first: int
    end: int
    bytes: int

    @staticmethod
    async def of(host: TopicHost) -> CompactionPlan | None:
        """Everything that is durable by now; None if the view has all of it. Raises StoreError,
        StorageError.

        What transactions have published counts from their commits on: then it has its place.
        """
        catalog, core = host.bundle.catalog, host.core
        await catalog.refresh()
        host.bundle.check_view(host)
        manifest, ledgers = catalog.manifest, core.ledgers
        found = manifest.topic(str(host.name))
        view = found.compacted
        first = ledgers.ordinal_after(view.horizon) if view is not None else ledgers.first
        end = ledgers.end
        if first >= end:
            return None
        core.age(elapsed_ms(host.context.clock))
        segments = view.segments if view is not None else ()
        last = ledgers.position(end - 1)
        basis = Basis(
            bundle=host.bundle.name,
            topic=host.name,
            horizon=(last.ledger, last.entry),
            generation=view.generation if view is not None else 0,
            previous_horizon=view.horizon
            if view is not None
            else (EARLIEST.ledger, EARLIEST.entry),
            trimmed=found.trimmed,
            manifest_generation=manifest.generation,
            listed_segments=tuple(dict.fromkeys(segment.object for segment in segments)),
        )
        size = sum(segment.bytes for segment in segments) + core.ages.bytes_from(first, end)
        return CompactionPlan(basis, segments, first, end, size)


class CompactionInput:
    """The rows of a plan: those of the view, then the entries behind it."""

    def __init__(self, host: TopicHost, plan: CompactionPlan) -> None:
        self._host, self._plan = host, plan
        self._segments = SegmentCache(host.context.volume)
        self._starts = [0, *accumulate(segment.entries for segment in plan.view)]
        self._facts = EntryMetadata(host)
        self.rows = self._starts[-1] + plan.end - plan.first

    async def read(self, row: int) -> Sequence[Row | None]:
        """Rows from number `row` on that lie in one place, at least one; None for what the topic
        has not got (any more). Those of log files have no flags, key and times.

        Raises Conflict if the topic was trimmed in between, ServiceNotReady if it is not served
        here any more, StorageError.
        """
        self._check_served()
        tail = row - self._starts[-1]
        found = await (self._viewed(row) if tail < 0 else self._tail(self._plan.first + tail))
        size = sum(len(one.payload) for one in found if one is not None)
        await asyncio.sleep(size / self._host.context.settings.rewrite_bytes_per_s)
        self._check_served()
        return found

    async def append_time(self, row: int, stored: Row) -> int:
        """When the broker appended the row's entry, wall-clock milliseconds."""
        tail = row - self._starts[-1]
        if tail < 0:
            return stored.append_time
        return (await self._facts.append_times(self._plan.first + tail, 1))[0]

    def _check_served(self) -> None:
        host = self._host
        if host.bundle.topics.get(str(host.name)) is not host or not host.bundle.serving:
            raise ServiceNotReady(f"topic {host.name} is being unloaded or was deleted")
        if host.bundle.name != self._plan.basis.bundle:
            raise Conflict(f"{host.name}: bundle {self._plan.basis.bundle} was split or merged")

    async def _viewed(self, row: int) -> list[Row | None]:
        at = bisect_right(self._starts, row) - 1
        reference = self._plan.view[at]
        try:
            segment = await self._segments.segment(reference)
            number, first = _block_of(segment, row - self._starts[at])
            block = await segment.block(number)
        except FileNotFoundError as error:
            raise CorruptData(
                f"{reference.object}, a segment of the compacted view of {self._host.name}, is "
                "missing; restore it from a backup",
                file=reference.object,
            ) from error
        ledgers = self._host.core.ledgers
        rows: list[Row | None] = []
        for place in range(first, min(first + ROWS_PER_READ, block.count)):
            position = block.ledgers[place], block.entries[place]
            rows.append(_row(block, place) if ledgers.known(position) is not None else None)
        return rows

    async def _tail(self, ordinal: int) -> list[Row | None]:
        host = self._host
        request = ReadRequest(ordinal, min(ROWS_PER_READ, self._plan.end - ordinal))
        self._check_untrimmed(ordinal)
        try:
            entries, counts = host.reader.tail(request) or await host.reader.read(request)
        except StorageError:
            self._check_untrimmed(ordinal)
            raise
        self._check_untrimmed(ordinal)
        position = host.core.ledgers.position
        return [
            Row(*position(ordinal + number), 0, 0, 0, count, 0, None, entry)
            for number, (entry, count) in enumerate(zip(entries, counts, strict=True))
        ]

    def _check_untrimmed(self, ordinal: int) -> None:
        if ordinal < self._host.core.ledgers.first:
            raise Conflict(f"{self._host.name} was trimmed behind its compacted view")


def _block_of(segment: OpenSegment, row: int) -> tuple[int, int]:
    """Number of the block that has a row of the segment, and the row's number in it."""
    for number, block in enumerate(segment.footer.blocks):
        if row < block.rows:
            return number, row
        row -= block.rows
    raise AssertionError("a reference counts the rows of its segment")


def _row(block: Block, at: int) -> Row:
    return Row(
        block.ledgers[at],
        block.entries[at],
        block.event_times[at],
        block.publish_times[at],
        block.append_times[at],
        block.message_counts[at],
        block.flags[at],
        block.key(at),
        block.payload(at),
    )

"""Entries of one topic in service.

Owns: `TopicReader`: where an entry is read from: memory, log files, segments, the compacted view.
Imports: reading, storage formats. Invariants: an entry from storage is verified against the
checksum that the client sent; a log file that is gone is looked for in the manifest before it
counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from magnetar.broker.reading.entry_checks import PieceOfRun, checked_entries
from magnetar.broker.reading.entry_index import ELSEWHERE, Run
from magnetar.broker.reading.log_span import LogSpan, bytes_ahead
from magnetar.errors import CorruptData, NotAllowed
from magnetar.storage.names import log_file
from magnetar.topics.dispatch.base import ReadRequest

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedTopic
    from magnetar.broker.reading.catalog import CompactedRead, Sources
    from magnetar.topics.ledgers import Position


class TopicReader:
    """Reads what one topic has."""

    __slots__ = ("_context", "_index", "_topic")

    def __init__(self, topic: ServedTopic) -> None:
        self._topic, self._index, self._context = topic, topic.index, topic.context

    def tail(self, request: ReadRequest) -> tuple[list[memoryview], Sequence[int]] | None:
        """Entries of the request that are in memory and in one run, with their message counts;
        None if the first one is not."""
        index, metrics = self._index, self._context.metrics
        at = index.run_of(request.first)
        if at is not None:
            run = index.runs[at]
            low = request.first - run.first
            high = min(low + request.entries, run.count)
            entries = run.entries(low, high)
            if entries is not None:
                metrics.tail_hits += 1
                counts = run.message_counts
                return entries, counts if high - low == run.count else counts[low:high]
        metrics.tail_misses += 1
        return None

    async def read(self, request: ReadRequest) -> tuple[list[memoryview], list[int]]:
        """Entries of the request from storage, as many as one read may hold (at least one), with
        their message counts.

        Raises StorageError; CorruptData if what is there is not what the client sent.
        """
        topic = self._topic
        at = self._index.run_of(request.first)
        gone: tuple[str, int] | None = None
        if at is not None and (run := self._index.runs[at]).incarnation != ELSEWHERE:
            try:
                return await self._read_runs(request, at)
            except FileNotFoundError:
                # Compacted into segments, or deleted with all its entries: the catalog knows.
                gone = run.incarnation, run.file
        bytes_max = self._context.settings.read_batch_bytes_max
        try:
            found = await topic.bundle.catalog.read(
                topic.name, topic.core.ledgers, request, bytes_max, self.sources
            )
        except CorruptData as error:
            if gone is None or error.file:
                raise
            # No segment has the entry: it belongs to the missing file, which can be restored.
            name = log_file(*gone)
            raise CorruptData(
                f"{name} is missing, {error}; restore it",
                file=name,
                topic=error.topic,
                first=error.first,
            ) from error
        if gone is not None:
            self._index.lose_file(*gone)
        return found

    async def entry(self, ordinal: int) -> memoryview:
        """One entry, from memory or storage. Raises StorageError, CorruptData."""
        request = ReadRequest(ordinal, 1)
        found = self.tail(request)
        return (found if found is not None else await self.read(request))[0][0]

    @property
    def sources(self) -> Sources | None:
        """Where entries that transactions published lie; None for a topic without any."""
        transactions = self._topic.transactions
        return transactions.buffer.links.find if transactions is not None else None

    async def _read_runs(self, request: ReadRequest, at: int) -> tuple[list[memoryview], list[int]]:
        """As `read`, from the runs in known log files, from the `at`-th on. Raises
        FileNotFoundError if the first is gone."""
        entries: list[memoryview] = []
        message_counts: list[int] = []
        left, budget = request.entries, self._context.settings.read_batch_bytes_max
        # A copy: a concurrent reader may find files gone and drop their runs.
        runs, span = self._index.runs[at : at + request.entries], LogSpan(self._context.volume)
        for number, run in enumerate(runs):
            if left <= 0 or budget <= 0 or run.incarnation == ELSEWHERE:
                break
            low = max(0, request.first - run.first)
            try:
                found = run.entries(low, min(run.count, low + left))
                if found is None:
                    ahead = partial(
                        bytes_ahead, runs, number, left - (run.count - low), budget - run.bytes
                    )
                    found = await self._read_run(run, low, left, budget, span, ahead)
            except FileNotFoundError:
                if entries:
                    break
                raise
            entries += found
            message_counts += run.message_counts[low : low + len(found)]
            left -= len(found)
            budget -= sum(map(len, found))
            if low + len(found) < run.count:
                break
        return entries, message_counts

    async def _read_run(
        self, run: Run, low: int, count: int, budget: int, span: LogSpan, ahead: Callable[[], int]
    ) -> list[memoryview]:
        """Entries low.. of one run, at most `count` and about `budget` bytes, at least one;
        `ahead` says how much more to fetch."""
        offsets = run.offsets()
        high = low + 1
        while high < min(run.count, low + count) and offsets[high + 1] - offsets[low] <= budget:
            high += 1
        base, topic = offsets[low], self._topic
        view = await span.bytes_of(run, base, offsets[high], ahead if high == run.count else int)
        first = topic.core.ledgers.position(run.first + low)
        lengths = [offsets[at + 1] - offsets[at] for at in range(low, high)]
        file = log_file(run.incarnation, run.file)
        return checked_entries(
            view, lengths, PieceOfRun(file, run.offset + base, str(topic.name), *first)
        )

    def compacted_before(self, ordinal: int) -> bool:
        """Whether a read-compacted consumer gets `ordinal` from the compacted segments."""
        view = self._topic.bundle.catalog.compacted(str(self._topic.name))
        return view is not None and ordinal < self._topic.core.ledgers.ordinal_after(view.horizon)

    async def read_compacted(self, request: ReadRequest) -> CompactedRead:
        """The next surviving entries of the compacted view from the request on. Raises
        StorageError."""
        topic = self._topic
        return await topic.bundle.catalog.read_compacted(
            str(topic.name), topic.core.ledgers, request
        )

    async def last_message(self, read_compacted: bool) -> tuple[Position, memoryview | None]:
        """Position and bytes of the last entry that can be delivered; (EARLIEST, None) if there
        is none, or all were trimmed. Raises NotAllowed for a non-persistent topic."""
        topic, ledgers = self._topic, self._topic.core.ledgers
        if not topic.name.persistent:
            raise NotAllowed(f"topic {topic.name} is non-persistent: it has no last message")
        last = ledgers.end - 1
        if read_compacted and last >= 0 and self.compacted_before(last):
            return await topic.bundle.catalog.last_compacted(str(topic.name), ledgers)
        if last < ledgers.first:
            return topic.core.last_message_position(), None
        return ledgers.position(last), await self.entry(last)

"""Index and broker time of entries, as Pulsar's broker entry metadata shows them.

Owns: `EntryMetadata`, which says of any entry of one topic how many messages come before it and
when the broker received it. Imports: wire. Source: Pulsar's AppendIndexMetadataInterceptor and
AppendBrokerTimestampMetadataInterceptor (PIP-70): the index of an entry is that of its last
message. Invariants: none of this is stored with an entry, whose bytes stay as the client sent them:
the topic counts its messages, and storage has each entry's number of messages and append time. So
entries have an index from the topic's first one on, whenever the setting was switched on.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.reading.entry_index import UNKNOWN
from magnetar.storage.turns import Turns
from magnetar.wire.entries import entry_metadata

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedTopic
    from magnetar.broker.reading.catalog import Sources
    from magnetar.broker.reading.entry_index import Run
    from magnetar.names import TopicName
    from magnetar.topics.ledgers import LedgerTable

PLACES_HELD_MAX = 64
"""Places of one topic whose count is remembered: readers that are behind go on from there."""
STEPS_PER_TURN_MAX = 100
"""Runs or blocks that are counted in one go."""


class Facts(NamedTuple):
    """Of consecutive entries: messages before the first (UNKNOWN of entries that only a compacted
    view has), and when the broker took each (wall-clock ms)."""

    messages_before: int
    append_ms: Sequence[int]


class EntryMetadata:
    """Of one topic."""

    def __init__(self, topic: ServedTopic) -> None:
        settings = topic.context.settings
        self._topic = topic
        self._index = bool(settings.broker_entry_index)
        self._time = bool(settings.broker_entry_timestamp)
        self.for_clients = bool(settings.broker_entry_metadata_to_clients)
        self._known: list[tuple[int, int]] = []
        """(ordinal, messages before it), by ordinal."""

    @staticmethod
    def of_topic(topic: ServedTopic) -> EntryMetadata | None:
        """None where the settings want none, and for topics whose entries are nowhere."""
        settings = topic.context.settings
        wanted = settings.broker_entry_index or settings.broker_entry_timestamp
        return EntryMetadata(topic) if wanted and topic.name.persistent else None

    def of(self, facts: Facts, message_counts: Iterable[int]) -> list[bytes]:
        """The header of each of these entries."""
        index, known = facts.messages_before - 1, facts.messages_before != UNKNOWN
        heads = []
        for messages, append_ms in zip(message_counts, facts.append_ms, strict=True):
            index += messages
            heads.append(
                entry_metadata(
                    append_ms if self._time else None, index if self._index and known else None
                )
            )
        return heads

    def values(self, facts: Facts, messages: int) -> tuple[int | None, int | None]:
        """(broker time, index) of the first of these entries, which has so many messages; None
        for what is switched off."""
        return facts.append_ms[
            0
        ] if self._time else None, facts.messages_before + messages - 1 if self._index else None

    def at_tail(self, first: int, count: int) -> Facts | None:
        """Facts of entries that lie in one run in memory; None if only storage has them."""
        run = self._run(first)
        if run is None or run.messages_before == UNKNOWN or run.end < first + count:
            return None
        return Facts(
            run.messages_before + sum(run.message_counts[: first - run.first]),
            [run.append_ms] * count,
        )

    async def read(self, first: int, count: int, taken: Sequence[int] = ()) -> Facts:
        """Facts of entries, from wherever they lie; of those that only a compacted view has, what
        it says of their times. Raises StorageError, CorruptData."""
        if first < self._topic.core.ledgers.first:
            return Facts(UNKNOWN, taken)
        before = await self._messages_before(first) if self._index else 0
        append_ms: list[int] = []
        messages = before
        while len(append_ms) < count:
            counts, times = await self._stretch(first + len(append_ms), count - len(append_ms))
            append_ms += times
            messages += sum(counts)
        if self._index:
            self._remember(first + count, messages)
        return Facts(before, append_ms)

    async def append_times(self, first: int, count: int) -> list[int]:
        """When the broker took each of the entries, wherever they lie. Raises StorageError."""
        found: list[int] = []
        while len(found) < count:
            found += (await self._stretch(first + len(found), count - len(found)))[1]
        return found

    def _run(self, ordinal: int) -> Run | None:
        """The run that holds an entry, if its facts are known."""
        index = self._topic.index
        at = index.run_of(ordinal)
        return index.runs[at] if at is not None and index.runs[at].append_ms != UNKNOWN else None

    async def _messages_before(self, ordinal: int) -> int:
        """Counted from the nearest place below whose count is known, or back from the first one
        above."""
        if (facts := self.at_tail(ordinal, 1)) is not None:
            return facts.messages_before
        core, runs = self._topic.core, self._topic.index.runs
        end, total = core.ledgers.end, core.messages
        at = self._topic.index.run_of(ordinal)
        for run in runs[(at or 0) :]:
            if run.first >= ordinal and run.messages_before != UNKNOWN:
                end, total = run.first, run.messages_before
                break
        below = bisect_right(self._known, (ordinal, total)) - 1
        if below >= 0:
            start, known = self._known[below]
            if start >= core.ledgers.first and ordinal - start < end - ordinal:
                return known + await self._count(start, ordinal)
        return total - await self._count(ordinal, end)

    async def _count(self, start: int, end: int) -> int:
        turns, messages = Turns(STEPS_PER_TURN_MAX), 0
        while start < end:
            run = self._run(start)
            if run is not None:
                counts = run.message_counts[start - run.first : end - run.first]
                passed, found = len(counts), sum(counts)
            else:
                passed, found = await self._topic.bundle.catalog.count(
                    *self._place(start), end - start
                )
            start, messages = start + passed, messages + found
            await turns.after(1)
        return messages

    async def _stretch(self, ordinal: int, entries: int) -> tuple[Sequence[int], Sequence[int]]:
        """(message counts, append times) of the entries from `ordinal` on, at least one and at
        most `entries`."""
        run = self._run(ordinal)
        if run is None:
            return await self._topic.bundle.catalog.facts(*self._place(ordinal), entries)
        low = ordinal - run.first
        counts = run.message_counts[low : low + entries]
        return counts, [run.append_ms] * len(counts)

    def _place(self, ordinal: int) -> tuple[TopicName, LedgerTable, int, Sources | None]:
        topic = self._topic
        return topic.name, topic.core.ledgers, ordinal, topic.reader.sources

    def _remember(self, ordinal: int, messages: int) -> None:
        known = (ordinal, messages)
        at = bisect_right(self._known, known) - 1
        if at >= 0 and self._known[at] == known:
            return
        insort(self._known, known)
        if len(self._known) > PLACES_HELD_MAX:
            del self._known[0]

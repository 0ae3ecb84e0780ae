"""Level-0 index of a sealed log file (version 1).

Owns: the separate object that turns a log file into a multi-topic segment: which runs of which
topic lie where. Imports: errors, crc32c, arrays, log format. Pure. Layout, little-endian: header,
incarnation, directory of topics (sorted by name), runs (grouped by topic, in position order), entry
lengths, message counts, CRC-32C of all before. Invariants: an entry is found by (topic, ledger,
entry) without touching the log; runs of a topic do not overlap; equal contents, equal bytes.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from magnetar.errors import CorruptData
from magnetar.storage.arrays import U32, packed, unpacked
from magnetar.storage.log.format import EntriesRecord, decode_entries_head, entry_count
from magnetar.storage.log.framing import RECORD_HEADER_BYTES
from magnetar.storage.volumes.volume import Buffer

VERSION = 1

_MAGIC = b"MAGNIDX\0"
# magic, version, incarnation length, file number, length, topics, runs, entries
_HEADER = struct.Struct("<8sHHIQIIQ")
_TOPIC = struct.Struct("<HHIQQ")  # name length, reserved, runs, entries, bytes
_RUN = struct.Struct("<QQQQQI")  # epoch, ledger, first entry, append ms, offset, entries
_CRC = struct.Struct("<I")


class Run(NamedTuple):
    """Consecutive entries that lie back to back in the log file; `offset` is that of the first
    one's first byte."""

    epoch: int
    ledger: int
    first_entry: int
    append_ms: int
    offset: int
    lengths: array[int]
    message_counts: array[int]

    @property
    def last_entry(self) -> int:
        return self.first_entry + len(self.lengths) - 1


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """What a log file holds of one topic: (ledger, entry) of its first and last entry, sums, and
    the broker's append times."""

    topic: str
    epochs: tuple[int, ...]
    first: tuple[int, int]
    last: tuple[int, int]
    entries: int
    messages: int
    bytes: int
    first_append_ms: int
    last_append_ms: int


def index_part(head: bytes) -> bytes:
    """What an index needs of the first buffer of `encode_entries`, for `add_head`: all but the
    sequence ids, about half of it."""
    return head[: -8 * entry_count(head)]


@dataclass(slots=True)
class _Collected:
    """Runs of one topic as the index has them: rows, and entry lengths and message counts of
    all."""

    rows: bytearray = field(default_factory=bytearray)
    lengths: array[int] = field(default_factory=lambda: array(U32))
    counts: array[int] = field(default_factory=lambda: array(U32))
    bytes: int = 0
    epochs: set[int] = field(default_factory=set)
    last: tuple[int, int] = (-1, -1)
    sorted: bool = True

    def add(
        self,
        epoch: int,
        ledger: int,
        first_entry: int,
        append_ms: int,
        offset: int,
        lengths: array[int],
        counts: array[int],
    ) -> None:
        """A run: as the fields of `Run`."""
        start = ledger, first_entry
        if start < self.last:
            self.sorted = False
        self.last = start
        self.rows += _RUN.pack(epoch, ledger, first_entry, append_ms, offset, len(lengths))
        self.lengths.extend(lengths)
        self.counts.extend(counts)
        self.bytes += sum(lengths)
        self.epochs.add(epoch)

    def in_order(self) -> _Collected:
        """The same by position."""
        if self.sorted:
            return self
        found = _Collected()
        for run in sorted(_runs(self.rows, self.lengths, self.counts), key=_start):
            found.add(*run)
        return found


class IndexBuilder:
    """Collects the runs of one log file, in any order.

    Each is laid out as it comes: `encode` only puts topics together, since a file of tiny runs has
    hundreds of thousands of them.
    """

    def __init__(self, incarnation: str, number: int) -> None:
        self._incarnation, self._number = incarnation, number
        self._topics: dict[str, _Collected] = {}

    def add(self, record: EntriesRecord, payload_offset: int) -> None:
        """A record found by a scan; its payload begins at `payload_offset` of the file."""
        self._topic(record.topic).add(
            record.epoch,
            record.ledger,
            record.first_entry,
            record.append_ms,
            payload_offset + record.entries_offset,
            record.lengths,
            record.message_counts,
        )

    def add_head(self, head: Buffer, payload_offset: int) -> None:
        """A record as its writer remembers it: `index_part` of the first buffer of
        `encode_entries`."""
        epoch, ledger, first_entry, append_ms, topic, _, lengths, counts, _, entries_at = (
            decode_entries_head(head[RECORD_HEADER_BYTES:])
        )
        self._topic(topic).add(
            epoch, ledger, first_entry, append_ms, payload_offset + entries_at, lengths, counts
        )

    def _topic(self, topic: str) -> _Collected:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Collected()
        return found

    def epochs(self) -> dict[str, list[int]]:
        """The epochs in which each topic was written, rising."""
        return {topic: sorted(found.epochs) for topic, found in self._topics.items()}

    def encode(self, length: int) -> bytes:
        """The index object for the file sealed at `length`."""
        incarnation = self._incarnation.encode()
        topics = [
            (topic.encode(), found.in_order()) for topic, found in sorted(self._topics.items())
        ]
        runs = sum(len(found.rows) for _, found in topics) // _RUN.size
        entries = sum(len(found.lengths) for _, found in topics)
        header = _HEADER.pack(
            _MAGIC, VERSION, len(incarnation), self._number, length, len(topics), runs, entries
        )
        directory = [
            _TOPIC.pack(len(name), 0, len(found.rows) // _RUN.size, len(found.lengths), found.bytes)
            + name
            for name, found in topics
        ]
        lengths, counts = array(U32), array(U32)
        for _, found in topics:
            lengths.extend(found.lengths)
            counts.extend(found.counts)
        arrays = memoryview(packed(U32, lengths)), memoryview(packed(U32, counts))
        parts: list[Buffer] = [
            header,
            incarnation,
            *directory,
            *[found.rows for _, found in topics],
            *arrays,
        ]
        checksum = 0
        for part in parts:
            checksum = crc32c(part, checksum)
        return b"".join([*parts, _CRC.pack(checksum)])


class _Place(NamedTuple):
    """Where a topic lies in an index: offset of its runs and how many, number of its first entry
    in the arrays, sums."""

    at: int
    runs: int
    first: int
    entries: int
    bytes: int


def _start(run: Run) -> tuple[int, int]:
    return run.ledger, run.first_entry


def _runs(rows: Buffer, lengths: array[int], counts: array[int]) -> list[Run]:
    """Runs of one topic, from their rows and the entry lengths and message counts of all."""
    runs = []
    first = 0
    for epoch, ledger, entry, append_ms, offset, count in _RUN.iter_unpack(rows):
        span = slice(first, first + count)
        runs.append(Run(epoch, ledger, entry, append_ms, offset, lengths[span], counts[span]))
        first += count
    return runs


class LevelZeroIndex:
    """An index object, of which runs are decoded topic by topic, on demand.
    `length` is the file's sealed length."""

    def __init__(
        self,
        body: memoryview,
        incarnation: str,
        number: int,
        length: int,
        places: dict[str, _Place],
        arrays_at: int,
    ) -> None:
        self.incarnation, self.number, self.length = incarnation, number, length
        self._body, self._places = body, places
        self._lengths_at = arrays_at
        self._entries = sum(place.entries for place in places.values())
        self._runs: dict[str, list[Run]] = {}
        self._starts: dict[str, list[tuple[int, int]]] = {}
        self.runs_held = 0
        self.on_decoded: Callable[[int], object] | None = None
        """Called with the number of runs that were decoded, and are kept from then on."""

    @staticmethod
    def decode(data: bytes, name: str) -> LevelZeroIndex:
        """Parse the index object `name`. Raises CorruptData."""
        body = memoryview(data)[: -_CRC.size]
        if len(data) < _HEADER.size + _CRC.size or _CRC.unpack_from(data, len(body))[0] != crc32c(
            body
        ):
            raise CorruptData(
                f"{name}: the index fails its checksum; delete it, it will be built again"
            )
        magic, version, incarnation_length, number, length, topic_count, run_count, _ = (
            _HEADER.unpack_from(body)
        )
        if magic != _MAGIC or version != VERSION:
            raise CorruptData(
                f"{name}: index format {magic!r} version {version} is not known; upgrade this "
                "component"
            )
        at = _HEADER.size + incarnation_length
        incarnation = str(body[_HEADER.size : at], "utf-8")
        directory = []
        for _ in range(topic_count):
            name_length, _, runs, entries, size = _TOPIC.unpack_from(body, at)
            at += _TOPIC.size
            directory.append((str(body[at : at + name_length], "utf-8"), runs, entries, size))
            at += name_length
        arrays_at = at + run_count * _RUN.size
        places = {}
        first = 0
        for topic, runs, entries, size in directory:
            places[topic] = _Place(at, runs, first, entries, size)
            at += runs * _RUN.size
            first += entries
        return LevelZeroIndex(body, incarnation, number, length, places, arrays_at)

    def topics(self) -> list[str]:
        """Names of the topics in this file, sorted."""
        return list(self._places)

    def bytes_of(self, topic: str) -> int:
        """Bytes of a topic's entries in this file, without looking at its runs; 0 for a topic
        that is not in it."""
        place = self._places.get(topic)
        return place.bytes if place is not None else 0

    def runs(self, topic: str) -> Sequence[Run]:
        """Runs of a topic in position order."""
        found = self._runs.get(topic)
        if found is None:
            place = self._places.get(topic)
            if place is None:
                return ()
            found = self._runs[topic] = self._decoded(place)
            self.runs_held += len(found)
            if self.on_decoded is not None:
                self.on_decoded(len(found))
        return found

    def _decoded(self, place: _Place) -> list[Run]:
        low, high = (
            self._lengths_at + 4 * place.first,
            self._lengths_at + 4 * (place.first + place.entries),
        )
        counts_at = 4 * self._entries
        lengths = unpacked(U32, self._body[low:high])
        counts = unpacked(U32, self._body[low + counts_at : high + counts_at])
        return _runs(self._body[place.at : place.at + place.runs * _RUN.size], lengths, counts)

    def extent(self, topic: str) -> TopicExtent:
        """Sums over one topic of this file. Raises KeyError for a topic that is not in it."""
        runs = self.runs(topic)
        if not runs:
            raise KeyError(topic)
        return TopicExtent(
            topic,
            tuple(sorted({run.epoch for run in runs})),
            _start(runs[0]),
            (runs[-1].ledger, runs[-1].last_entry),
            sum(len(run.lengths) for run in runs),
            sum(sum(run.message_counts) for run in runs),
            sum(sum(run.lengths) for run in runs),
            min(run.append_ms for run in runs),
            max(run.append_ms for run in runs),
        )

    def run_of(self, topic: str, ledger: int, entry: int) -> Run | None:
        """The run that holds an entry, or None if it is not in this file."""
        starts = self._starts.get(topic)
        if starts is None:
            if not self._may_hold(topic, (ledger, entry)):
                return None
            starts = self._starts[topic] = [_start(run) for run in self.runs(topic)]
        at = bisect_right(starts, (ledger, entry)) - 1
        if at < 0:
            return None
        run = self.runs(topic)[at]
        return run if run.ledger == ledger and entry <= run.last_entry else None

    def _may_hold(self, topic: str, position: tuple[int, int]) -> bool:
        """Whether a position lies between a topic's first and last entry here, without decoding its
        runs: readers ask several files, of which one has it."""
        place = self._places.get(topic)
        if place is None or not place.runs:
            return False
        last_at = place.at + (place.runs - 1) * _RUN.size
        _, ledger, entry, _, _, _ = _RUN.unpack_from(self._body, place.at)
        _, last_ledger, last_entry, _, _, count = _RUN.unpack_from(self._body, last_at)
        return (ledger, entry) <= position < (last_ledger, last_entry + count)

    def find(self, topic: str, ledger: int, entry: int) -> tuple[int, int] | None:
        """(offset, length) of an entry's bytes in the log file, or None if it is not in this
        file."""
        run = self.run_of(topic, ledger, entry)
        if run is None:
            return None
        within = entry - run.first_entry
        return run.offset + sum(run.lengths[:within]), run.lengths[within]

"""Messages out of stored entries, as Arrow batches.

Owns: columns of the data source `magnetar`, `Selection`, which messages are wanted, and
`Unfolding`, which opens entries. Imports: numpy, pyarrow, wire, messages, rows, bounds.
Invariants: a message comes out where its last byte lies, once; markers and messages that compaction
removed never do; what is not wanted is left out before it is decompressed; a stretch of entries is
never copied as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from magnetar.compaction.messages import BATCH_MESSAGES_MAX, key_of
from magnetar.errors import CorruptData, LimitExceeded, ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import (
    BatchMessage,
    Entry,
    batch_messages,
    parse_entry,
    readable_entry,
    uncompressed,
)
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.cluster import shown
from magnetar_jobs.event_watermarks import Steps
from magnetar_jobs.inputs import Position
from magnetar_jobs.rows import Integers, Rows, payload_array
from magnetar_jobs.uniform import Opened, Opener, Unlike, schema_version_of

ROWS_MAX = 8192
BYTES_MAX = 16 << 20
"""An Arrow batch ends at the first of the two."""
UNLIKE_MAX = 4
"""After so many stretches in a row that could not be opened at once, none is tried any more."""
UNFINISHED_MAX = 64
"""Messages in chunks that may be unfinished at once; the oldest is given up then."""
TIME_MS_MAX = (1 << 63) // 1000 - 1
TIME = pa.timestamp("us", tz="UTC")
MESSAGE_COLUMNS: dict[str, str] = {
    "topic": "string",
    "partition": "int",
    "ledger": "bigint",
    "entry": "bigint",
    "batch_index": "int",
    "key": "binary",
    "value": "binary",
    "properties": "map<string,string>",
    "publish_time": "timestamp",
    "event_time": "timestamp",
    "append_time": "timestamp",
    "producer_name": "string",
    "sequence_id": "bigint",
    "schema_version": "bigint",
}
STORED_COLUMNS: dict[str, str] = {
    "topic": "string",
    "partition": "int",
    "ledger": "bigint",
    "entry": "bigint",
    "key": "binary",
    "payload": "binary",
    "message_count": "int",
    "publish_time": "timestamp",
    "event_time": "timestamp",
    "append_time": "timestamp",
}
WATERMARK = "watermark"
ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": TIME,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are wanted. `bounds` exclude; `publish_ms` is [from, to); `keys` None =
    any."""

    bounds: Bounds = field(default_factory=Bounds)
    publish_ms: tuple[int | None, int | None] = (None, None)
    keys: frozenset[bytes] | None = None

    def admits_entry(self, metadata: api.MessageMetadata) -> bool:
        low, high = self.publish_ms
        at = metadata.publish_time
        return (
            (low is None or at >= low)
            and (high is None or at < high)
            and self.bounds.admits("publish_time", at, at)
        )

    def of_many(self, publish_ms: Integers, event_ms: Integers) -> Any:
        """Which messages the times admit, if all keys are wanted; None: all of them."""
        if self.publish_ms == (None, None) and self.bounds == Bounds():
            return None
        low, high = self.bounds.of("publish_time")
        begin, end = self.publish_ms
        low = low if begin is None else max(low, begin)
        high = high if end is None else min(high, end - 1)
        first, last = self.bounds.of("event_time")
        published = (publish_ms >= low) & (publish_ms <= high)
        return published & (event_ms >= first) & (event_ms <= last)

    def admits(self, key: bytes | None, event_ms: int) -> bool:
        return (self.keys is None or key in self.keys) and self.bounds.admits(
            "event_time", event_ms, event_ms
        )


class _Columns:
    """Messages on their way into an Arrow batch."""

    __slots__ = (
        "batch_indexes",
        "events",
        "keys",
        "producers",
        "properties",
        "publishes",
        "rows",
        "schema_versions",
        "sequences",
        "size",
        "values",
    )

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.batch_indexes: list[int | None] = []
        self.keys: list[bytes | None] = []
        self.values: list[Any] = []
        self.properties: list[list[tuple[str, str]]] = []
        self.publishes: list[int] = []
        self.events: list[int | None] = []
        self.producers: list[str] = []
        self.schema_versions: list[int | None] = []
        self.sequences: list[int] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self,
        row: int,
        shared: api.MessageMetadata,
        own: api.MessageMetadata | api.SingleMessageMetadata,
        key: bytes | None,
        value: Any,
        index: int | None = None,
    ) -> None:
        """One message of the entry in `row`."""
        self.rows.append(row)
        self.batch_indexes.append(index)
        self.keys.append(key)
        self.values.append(None if own.null_value else value)
        pairs = own.properties
        self.properties.append([(pair.key, pair.value) for pair in pairs] if pairs else [])
        if pairs or key is not None:
            self.size += own.ByteSize()
        self.publishes.append(_micros(shared.publish_time))
        self.events.append(_micros(own.event_time) if own.event_time else None)
        self.producers.append(shared.producer_name)
        self.schema_versions.append(schema_version_of(shared.schema_version))
        if index is None or own.HasField("sequence_id"):
            self.sequences.append(own.sequence_id)
        else:
            self.sequences.append(shared.sequence_id + index)
        self.size += len(value)

    @property
    def full(self) -> bool:
        return len(self.rows) >= ROWS_MAX or self.size >= BYTES_MAX


class Chunks:
    """Parts of messages that are not whole yet.

    `earlier` reads what lies before an entry, only if a part is missing: once, or for each such
    message if `pruned`, since then entries between those that are read were passed over. `complete`
    says that nothing lies before what it reads.
    """

    def __init__(
        self,
        earlier: Callable[[], Iterator[Rows]] | None = None,
        *,
        complete: bool = True,
        pruned: bool = False,
    ) -> None:
        self._earlier, self._complete, self._pruned = earlier, complete, pruned
        self._parts: dict[bytes, list[bytes]] = {}
        self._dropped: set[bytes] = set()

    @property
    def unfinished(self) -> dict[bytes, list[bytes]]:
        """Parts by message."""
        return self._parts

    def add(self, entry: Entry, place: Position) -> bytes | None:
        """The payload of the message whose last chunk this is; None for another one, or if its
        producer died before it was whole. Raises LimitExceeded."""
        metadata = entry.metadata
        name = f"{metadata.producer_name}\0{metadata.uuid}".encode()
        number = metadata.chunk_id
        if number == 0:
            self._parts[name] = []
            while len(self._parts) > UNFINISHED_MAX:
                dropped = next(iter(self._parts))
                del self._parts[dropped]
                self._dropped.add(dropped)
        elif number > len(self._parts.get(name, ())):
            self._look_back(name, place)
        parts = self._parts.get(name)
        if parts is None or number != len(parts):
            return None  # without its beginning, or sent twice
        parts.append(bytes(entry.payload))
        if number + 1 < metadata.num_chunks_from_msg:
            return None
        del self._parts[name]
        return b"".join(parts)

    def _look_back(self, name: bytes, place: Position) -> None:
        if name in self._dropped:
            raise LimitExceeded(f"more than {UNFINISHED_MAX} messages in chunks are unfinished")
        if self._earlier is not None:
            before = _parts_before(self._earlier(), place)
            if self._pruned:
                before = {name: before[name]} if name in before else {}
                self._parts = self._parts | before
            else:
                self._parts, self._earlier = before | self._parts, None
        if name not in self._parts and not self._complete:
            raise LimitExceeded(
                "the beginning of a message in chunks lies further back than a task reads; raise "
                "option bytesPerTask"
            )


def _parts_before(stretches: Iterator[Rows], place: Position) -> dict[bytes, list[bytes]]:
    """Parts of messages that are not whole at an entry."""
    found = Chunks()
    for rows in stretches:
        for row in np.flatnonzero(~rows.plain).tolist():
            at = int(rows.ledgers[row]), int(rows.entries[row])
            entry = readable_entry(rows.entry_bytes(row)) if at < place else None
            if entry is not None and entry.metadata.num_chunks_from_msg > 1:
                found.add(entry, at)
    return found.unfinished


class Unfolding:
    """Opens the entries of one partition, in position order."""

    def __init__(
        self,
        topic: str,
        partition: int | None,
        columns: Sequence[str],
        selection: Selection,
        chunks: Chunks,
        steps: Steps | None = None,
        *,
        skip_undecodable: bool = False,
    ) -> None:
        self._topic, self._partition, self._columns = topic, partition, tuple(columns)
        self._selection, self._chunks, self._steps = selection, chunks, steps
        self._skip, self._with_values = skip_undecodable, "value" in columns
        self._opener, self._unlike = Opener(properties="properties" in columns), 0

    def batches(self, stretches: Iterator[Rows]) -> Iterator[pa.RecordBatch]:
        """The messages."""
        for rows in stretches:
            together = self._uniform_batches(rows)
            if together is not None:
                yield from together
                continue
            found = _Columns()
            for row in self._admitted_rows(rows):
                self._open(rows, row, found)
                if found.full:
                    yield self._batch(rows, found)
                    found = _Columns()
            if len(found):
                yield self._batch(rows, found)

    def _uniform_batches(self, rows: Rows) -> list[pa.RecordBatch] | None:
        """The messages of a stretch of alike entries; None if they must be opened one by one."""
        if self._selection.keys is not None or self._unlike >= UNLIKE_MAX or not len(rows):
            return None
        try:
            batches = [self._uniform_batch(rows, *window) for window in _windows(rows)]
        except Unlike:
            self._unlike += 1
            return None
        self._unlike = 0
        return [batch for batch in batches if batch.num_rows]

    def _uniform_batch(self, rows: Rows, low: int, high: int) -> pa.RecordBatch:
        """The entries [low, high). Raises Unlike."""
        found = self._opener.opened(rows, low, high)
        count, chosen = high - low, range(low, high)
        makers: Mapping[str, Any] = {
            "topic": lambda: pa.repeat(pa.scalar(self._topic, pa.string()), count),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            "ledger": lambda: pa.array(rows.ledgers[low:high]),
            "entry": lambda: pa.array(rows.entries[low:high]),
            "batch_index": lambda: pa.nulls(count, pa.int32()),
            "key": lambda: found.keys,
            "value": lambda: _values(rows, found),
            "properties": lambda: found.properties,
            "publish_time": lambda: _times(_clipped(found.publish_times)),
            "event_time": lambda: pa.array(
                _clipped(found.event_times), pa.int64(), mask=found.event_times == 0
            ).cast(TIME),
            "append_time": lambda: _times(rows.append_times[low:high] * 1000),
            "producer_name": lambda: found.producers,
            "sequence_id": lambda: pa.array(found.sequences, pa.int64()),
            "schema_version": lambda: found.schema_versions,
            WATERMARK: lambda: _watermarks(self._steps, rows, chosen),
        }
        batch = batch_of({column: makers[column]() for column in self._columns}, MESSAGE_COLUMNS)
        wanted = self._selection.of_many(found.publish_times, found.event_times)
        return batch if wanted is None else batch.filter(pa.array(wanted))

    def _admitted_rows(self, rows: Rows) -> list[int]:
        """Rows that the columns of a segment do not exclude."""
        keys = self._selection.keys
        if keys is None or not rows.plain.any():
            return list(range(len(rows)))
        wanted = np.array([key in keys for key in rows.keys.to_pylist()], np.bool_)
        found: list[int] = np.flatnonzero(wanted | ~rows.plain).tolist()
        return found

    # --- one entry --------------------------------------------------------------------------------

    def _open(self, rows: Rows, row: int, found: _Columns) -> None:
        place: Position = (int(rows.ledgers[row]), int(rows.entries[row]))
        try:
            self._open_entry(parse_entry(rows.entry_bytes(row)), place, row, found)
        except ProtocolError as error:
            if self._skip:
                return
            raise CorruptData(
                f"{self._topic}: entry {shown(place)} cannot be opened: {error}; read the others "
                "with option undecodable=skip, or its bytes with rows=entries"
            ) from error

    def _open_entry(self, entry: Entry, place: Position, row: int, found: _Columns) -> None:
        metadata, selection = entry.metadata, self._selection
        if metadata.HasField("marker_type"):
            return
        if metadata.num_chunks_from_msg > 1:
            whole = self._chunks.add(entry, place)
            if whole is None:
                return
            entry = Entry(metadata, memoryview(whole), entry.broker_metadata)
        if not selection.admits_entry(metadata):
            return
        if metadata.encryption_keys:
            raise ProtocolError("it is encrypted, and jobs have no keys")
        if not entry.batched:
            key = key_of(metadata)
            if selection.admits(key, metadata.event_time):
                value = bytes(uncompressed(entry)) if self._with_values else b""
                found.add(row, metadata, metadata, key, value)
            return
        if metadata.num_messages_in_batch > BATCH_MESSAGES_MAX:
            raise ProtocolError(f"it claims {metadata.num_messages_in_batch} messages")
        for index, single in enumerate(batch_messages(entry)):
            self._take(row, metadata, single, index, found)

    def _take(
        self,
        row: int,
        shared: api.MessageMetadata,
        single: BatchMessage,
        index: int,
        found: _Columns,
    ) -> None:
        own = single.metadata
        if own.compacted_out:
            return
        key = key_of(own)
        if self._selection.admits(key, own.event_time):
            found.add(row, shared, own, key, bytes(single.payload), index)

    # --- Arrow ------------------------------------------------------------------------------------

    def _batch(self, rows: Rows, found: _Columns) -> pa.RecordBatch:
        at = np.asarray(found.rows)
        makers: Mapping[str, Any] = {
            "topic": lambda: pa.repeat(pa.scalar(self._topic, pa.string()), len(found)),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), len(found)),
            "ledger": lambda: pa.array(rows.ledgers[at]),
            "entry": lambda: pa.array(rows.entries[at]),
            "batch_index": lambda: pa.array(found.batch_indexes, pa.int32()),
            "key": lambda: pa.array(found.keys, pa.binary()),
            "value": lambda: pa.array(found.values, pa.binary()),
            "properties": lambda: pa.array(found.properties, ARROW_TYPES["map<string,string>"]),
            "publish_time": lambda: _times(np.asarray(found.publishes)),
            "event_time": lambda: pa.array(found.events, pa.int64()).cast(TIME),
            "append_time": lambda: _times(rows.append_times[at] * 1000),
            "producer_name": lambda: pa.array(found.producers, pa.string()),
            "sequence_id": lambda: pa.array(found.sequences, pa.int64()),
            "schema_version": lambda: pa.array(found.schema_versions, pa.int64()),
            WATERMARK: lambda: _watermarks(self._steps, rows, found.rows),
        }
        return batch_of({column: makers[column]() for column in self._columns}, MESSAGE_COLUMNS)


def _windows(rows: Rows) -> Iterator[tuple[int, int]]:
    """Stretches [low, high) of rows, each an Arrow batch."""
    low = 0
    while low < len(rows):
        limit = int(rows.offsets[low]) + BYTES_MAX
        fitting = int(np.searchsorted(rows.offsets, limit, side="right")) - 1
        high = max(low + 1, min(low + ROWS_MAX, len(rows), fitting))
        yield low, high
        low = high


def _values(rows: Rows, found: Opened) -> pa.Array:
    """The payloads, copied together without what lies between."""
    ends, payload = found.ends.tolist(), rows.payload
    data = b"".join(
        [payload[start:end] for start, end in zip(found.starts.tolist(), ends, strict=True)]
    )
    offsets = np.zeros(len(ends) + 1, np.int32)
    np.cumsum(found.ends - found.starts, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _clipped(times_ms: Any) -> Any:
    """As `_micros`, of many."""
    return np.minimum(times_ms, TIME_MS_MAX) * 1000


def _micros(ms: int) -> int:
    """A peer may send any number."""
    return min(ms, TIME_MS_MAX) * 1000


def _watermarks(steps: Steps | None, rows: Rows, chosen: Sequence[int]) -> pa.Array:
    """The watermark behind each of the entries."""
    found = steps or Steps()
    places = zip(rows.ledgers[chosen].tolist(), rows.entries[chosen].tolist(), strict=True)
    values = [found.at(place) for place in places]
    micros = [None if value is None else _micros(value) for value in values]
    return pa.array(micros, pa.int64()).cast(TIME)


def _times(micros: Any) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(TIME)


def batch_of(arrays: Mapping[str, pa.Array], types: Mapping[str, str]) -> pa.RecordBatch:
    """Columns as Spark's schema of them has it."""
    known = {**types, WATERMARK: "timestamp"}
    schema = pa.schema([(name, ARROW_TYPES[known[name]]) for name in arrays])
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)


def stored_batch(
    rows: Rows,
    topic: str,
    partition: int | None,
    columns: Sequence[str],
    steps: Steps | None = None,
) -> pa.RecordBatch:
    """Entries as they are stored: no copy, and nothing is done by row but for watermarks."""
    events = np.minimum(rows.event_times, TIME_MS_MAX) * 1000
    makers: Mapping[str, Any] = {
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), len(rows)),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), len(rows)),
        "ledger": lambda: pa.array(rows.ledgers),
        "entry": lambda: pa.array(rows.entries),
        "key": lambda: rows.keys,
        "payload": lambda: payload_array(rows),
        "message_count": lambda: pa.array(rows.message_counts.astype(np.int32)),
        "publish_time": lambda: _times(np.minimum(rows.publish_times, TIME_MS_MAX) * 1000),
        "event_time": lambda: pa.array(events, pa.int64(), mask=events == 0).cast(TIME),
        "append_time": lambda: _times(rows.append_times * 1000),
        WATERMARK: lambda: _watermarks(steps, rows, range(len(rows))),
    }
    return batch_of({column: makers[column]() for column in columns}, STORED_COLUMNS)

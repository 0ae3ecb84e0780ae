"""Stored entries as columns.

Owns: `Rows`, a stretch of one topic's entries as numpy arrays over one payload buffer, and its
Arrow batches. Imports: numpy, pyarrow, orders, messages. Invariants: payload bytes are never copied
between the buffer that was read and the Arrow batch that leaves; no Python code runs per row unless
a column asks for what only the entry's own bytes tell (`messages` of a batch, publish time of a
level-0 entry).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from magnetar.compaction.messages import Examined, Kind, examine, examine_single
from magnetar.compaction.orders import ROW_SHIFT, ROWS_MAX, order_of

Integers = np.ndarray[Any, np.dtype[np.int64]]

ENTRY_COLUMNS: dict[str, str] = {
    "topic": "string",
    "ledger": "bigint",
    "entry": "bigint",
    "publish_time": "bigint",
    "event_time": "bigint",
    "append_time": "bigint",
    "key": "binary",
    "message_count": "int",
    "payload": "binary",
    "object": "string",
    "offset": "bigint",
    "length": "int",
}
MESSAGES_PER_BATCH_MAX = 20_000
"""Rows of an Arrow batch of messages: bounds memory where batches of messages unfold."""


_BY_ROW = (
    "ledgers",
    "entries",
    "publish_times",
    "event_times",
    "append_times",
    "message_counts",
    "flags",
    "plain",
    "empty",
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive entries of one topic, in position order.

    `offsets` has one more element than there are rows: entry i is payload[offsets[i]:offsets[i +
    1]]. `start` is the payload's place in `object`, or -1 with `places` giving each entry's (short
    runs are copied together). `flags` are those of the segment format. Times are milliseconds; an
    absent event time is 0. `keys` are those of whole entries. `plain` says of each row that key and
    `empty` decide it, so that its bytes need not be opened.
    """

    object: str
    start: int
    ledgers: Integers
    entries: Integers
    publish_times: Integers
    event_times: Integers
    append_times: Integers
    message_counts: Integers
    flags: Integers
    offsets: np.ndarray[Any, np.dtype[np.int32]]
    payload: memoryview
    keys: pa.Array
    plain: np.ndarray[Any, np.dtype[np.bool_]]
    empty: np.ndarray[Any, np.dtype[np.bool_]]
    places: Integers | None = None

    def __len__(self) -> int:
        return len(self.ledgers)

    def entry_bytes(self, row: int) -> memoryview:
        return self.payload[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def where(self, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """Those rows, their bytes copied together; the same object if all are wanted."""
        if wanted.all():
            return self
        chosen = np.flatnonzero(wanted)
        parts = [self.entry_bytes(row) for row in chosen.tolist()]
        places = self.places if self.places is not None else self.offsets[:-1] + self.start
        lengths = np.diff(self.offsets)[chosen]
        return replace(
            self,
            start=-1,
            offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
            payload=memoryview(b"".join(parts)),
            keys=self.keys.take(pa.array(chosen)),
            places=np.asarray(places, np.int64)[chosen],
            **{name: getattr(self, name)[chosen] for name in _BY_ROW},
        )

    def replaced(self, **columns: Any) -> Rows:
        """The same rows with other columns."""
        return replace(self, **columns)


def payload_array(rows: Rows) -> pa.Array:
    """The entries as an Arrow binary array over the buffer they were read into."""
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(rows.offsets), pa.py_buffer(rows.payload)]
    )


def _place(rows: Rows) -> pa.Array:
    if rows.places is not None:
        return pa.array(rows.places)
    return pa.array(rows.offsets[:-1].astype(np.int64) + rows.start)


_COLUMNS: Mapping[str, Callable[[Rows], pa.Array]] = {
    "ledger": lambda rows: pa.array(rows.ledgers),
    "entry": lambda rows: pa.array(rows.entries),
    "publish_time": lambda rows: pa.array(rows.publish_times),
    "event_time": lambda rows: pa.array(rows.event_times),
    "append_time": lambda rows: pa.array(rows.append_times),
    "key": lambda rows: rows.keys,
    "message_count": lambda rows: pa.array(rows.message_counts.astype(np.int32)),
    "payload": payload_array,
    "object": lambda rows: _repeated(rows.object, len(rows)),
    "offset": _place,
    "length": lambda rows: pa.array(np.diff(rows.offsets)),
}


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def entry_batch(rows: Rows, topic: str, columns: tuple[str, ...]) -> pa.RecordBatch:
    """`columns` of the rows, in that order."""
    arrays = [
        _repeated(topic, len(rows)) if column == "topic" else _COLUMNS[column](rows)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


# --- messages -------------------------------------------------------------------------------------

MESSAGE_ARROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("order", pa.int64()),
        ("kind", pa.int32()),
        ("chunk", pa.binary()),
        ("chunk_number", pa.int32()),
        ("chunk_count", pa.int32()),
    ]
)


class _Collector:
    """Message rows on their way into Arrow batches."""

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in MESSAGE_ARROW_SCHEMA]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(
        self, key: bytes | None, order: int, kind: Kind, chunk: tuple[bytes, int, int] | None = None
    ) -> None:
        values = (key, order, int(kind), *(chunk if chunk is not None else (None, None, None)))
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def add_entry(self, examined: Examined, group: int, row: int) -> None:
        if examined.chunk is not None:
            chunk = examined.chunk
            identity = (chunk.identity, chunk.number, chunk.count)
            self.add(chunk.key, order_of(group, row, 0, chunk.live), Kind.CHUNK, identity)
        elif examined.kind is Kind.KEYED:
            for message in examined.messages:
                # A message without a key deletes nothing, empty or not.
                self.add(
                    message.key,
                    order_of(group, row, message.index, message.live or message.key is None),
                    Kind.KEYED,
                )
        else:
            self.add(None, order_of(group, row, 0, True), examined.kind)

    def take(self) -> pa.RecordBatch:
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(self._columns, MESSAGE_ARROW_SCHEMA, strict=True)
        ]
        self._columns = [[] for _ in MESSAGE_ARROW_SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_ARROW_SCHEMA)


def message_batches(stretches: Iterator[Rows], group: int) -> Iterator[pa.RecordBatch]:
    """One row per decidable message of a group, MESSAGE_ARROW_SCHEMA. Rows are numbered through
    the group's stretches."""
    first, garbage_collector = 0, _Collector()
    base = order_of(group, 0, 0, False)
    for rows in stretches:
        assert first + len(rows) <= ROWS_MAX, (
            "groups are planned below the number of rows an order can count"
        )
        if rows.plain.any():
            yield _plain_batch(rows, group, first)
        keys: list[bytes | None] = []
        orders: list[int] = []
        offsets, payload = rows.offsets.tolist(), rows.payload
        for row in np.flatnonzero(~rows.plain).tolist():
            entry = payload[offsets[row] : offsets[row + 1]]
            single = examine_single(entry)
            if single is not None:
                key, live = single
                keys.append(key)
                orders.append(base | first + row << ROW_SHIFT | (live or key is None))
                continue
            garbage_collector.add_entry(examine(entry), group, first + row)
            if len(garbage_collector) >= MESSAGES_PER_BATCH_MAX:
                yield garbage_collector.take()
        if keys:
            yield _keyed_batch(pa.array(keys, pa.binary()), pa.array(orders, pa.int64()))
        first += len(rows)
    if len(garbage_collector):
        yield garbage_collector.take()


def _plain_batch(rows: Rows, group: int, first: int) -> pa.RecordBatch:
    """Message rows of those entries that the index decides: no byte of their payloads is looked
    at."""
    chosen = np.flatnonzero(rows.plain)
    base = order_of(group, 0, 0, False)
    unit = order_of(0, 1, 0, False)
    keys = rows.keys.take(pa.array(chosen))
    deletes = rows.empty[chosen] & keys.is_valid().to_numpy(zero_copy_only=False)
    orders = base + (first + chosen) * unit + ~deletes
    return _keyed_batch(keys, pa.array(orders))


def _keyed_batch(keys: pa.Array, orders: pa.Array) -> pa.RecordBatch:
    """Message rows of whole entries."""
    kinds = pa.array(np.full(len(keys), int(Kind.KEYED), np.int32))
    none = [pa.nulls(len(keys), field.type) for field in list(MESSAGE_ARROW_SCHEMA)[3:]]
    return pa.RecordBatch.from_arrays([keys, orders, kinds, *none], schema=MESSAGE_ARROW_SCHEMA)

"""The newest message of each key, in the memory of one process.

Owns: `Newest`, which takes the rows of an input in order and says which of their messages survive.
Imports: messages, orders, the segment format. Pure. Invariants: the rule is that of the Spark job's
`phases`: the newest message of a key survives unless it is a deletion, chunks survive or go
together, markers never take part; what it holds is counted, and bounded by `bytes_max`; no single
step of it takes longer the more keys there are.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from heapq import merge
from typing import TypeAlias

from magnetar.compaction.messages import Chunk, Examined, Kind, examine, examine_single
from magnetar.compaction.orders import INDEX_SHIFT, INDEXES_MAX, LIVE, ROWS_MAX, order_of, row_of
from magnetar.errors import LimitExceeded
from magnetar.storage.segments.format import IS_DECIDED, IS_DELETION, Row

KEY_BYTES = 200
"""What a key costs besides its bytes: two objects and their place in a table."""
ORDER_BYTES = 8
CHUNK_BYTES = 48
TABLES = 64
"""A table that grows copies itself: of several one at a time is short."""
SORTED_AT_ONCE = 4096

Survivors: TypeAlias = "array[int]"
"""Orders of the messages that stay, rising."""


@dataclass(slots=True)
class _Chunked:
    """What was met of a message in chunks."""

    key: bytes | None
    order: int
    count: int
    numbers: set[int] = field(default_factory=set)
    orders: list[int] = field(default_factory=list)


class Newest:
    """Phase 1 of a compaction: `add` every row, numbered from 0; then ask for the `survivors`."""

    def __init__(self, bytes_max: int, *, retain_keyless: bool = False) -> None:
        self._bytes_max, self._retain_keyless = bytes_max, retain_keyless
        self._tables: list[dict[bytes, int]] = [{} for _ in range(TABLES)]
        self._staying = array("q")
        self._chunked: dict[bytes, _Chunked] = {}
        self._first_commit: int | None = None
        self.messages = 0
        self.held_bytes = 0

    def add(self, stored: Row, row: int) -> None:
        """The messages of one entry. Raises LimitExceeded beyond the memory allowed."""
        if row >= ROWS_MAX:
            raise LimitExceeded(
                f"{row} entries of input; at most {ROWS_MAX} are counted here: compact the topic "
                "with a DataJob of type compaction"
            )
        if stored.flags & IS_DECIDED:
            self._add_single(stored.key, not stored.flags & IS_DELETION, row)
            return
        entry = memoryview(stored.payload)
        single = examine_single(entry)
        if single is not None:
            self._add_single(*single, row)
        else:
            self.add_examined(examine(entry), row)

    def add_examined(self, examined: Examined, row: int) -> None:
        """As `add`, of an entry that was examined elsewhere."""
        if examined.chunk is not None:
            self._add_chunk(examined.chunk, row)
        elif examined.kind is Kind.KEYED:
            for message in examined.messages:
                self._add_message(message.key, message.live, row, message.index)
        else:
            self.messages += 1
            order = order_of(0, row, 0, True)
            if examined.kind is Kind.COMMIT and self._first_commit is None:
                self._first_commit = order
            if examined.kind is not Kind.MARKER:
                self._stays(order)

    def _add_single(self, key: bytes | None, live: bool, row: int) -> None:
        self._add_message(key, live, row, 0)

    def _add_message(self, key: bytes | None, live: bool, row: int, index: int) -> None:
        self.messages += 1
        if key is not None:
            self._note(key, order_of(0, row, index, live))
        elif self._retain_keyless:
            self._stays(order_of(0, row, index, True))

    def _note(self, key: bytes, order: int) -> None:
        table = self._tables[hash(key) % TABLES]
        known = table.get(key)
        if known is None:
            self._hold(len(key) + KEY_BYTES)
            table[key] = order
        elif order > known:
            table[key] = order

    def _stays(self, order: int) -> None:
        self._hold(ORDER_BYTES)
        self._staying.append(order)

    def _add_chunk(self, chunk: Chunk, row: int) -> None:
        self.messages += 1
        order = order_of(0, row, 0, chunk.live)
        found = self._chunked.get(chunk.identity)
        if found is None:
            self._hold(len(chunk.identity) + KEY_BYTES)
            found = self._chunked[chunk.identity] = _Chunked(chunk.key, order, chunk.count)
        self._hold(CHUNK_BYTES)
        found.key, found.order, found.count = chunk.key, order, max(found.count, chunk.count)
        found.numbers.add(chunk.number)
        found.orders.append(order)

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        if self.held_bytes > self._bytes_max:
            raise LimitExceeded(
                f"its keys take more than compaction_keys_bytes_max={self._bytes_max} bytes of "
                f"memory, after {self.messages} messages; compact the topic with a DataJob of type "
                "compaction, or raise the setting"
            )

    @property
    def keys(self) -> int:
        """Distinct keys, deleted ones included."""
        return sum(map(len, self._tables))

    def survivors(self) -> Survivors:
        """What stays. Nothing can be added any more."""
        together: dict[int, list[int]] = {}
        kept = self._staying
        for found in self._chunked.values():
            if len(found.numbers) != found.count:
                # Not published yet, as far as any reader can tell: the run that sees the last chunk
                # decides.
                kept.extend(found.orders)
            elif found.key is not None:
                together[found.order] = found.orders
                self._note(found.key, found.order)
            elif self._retain_keyless:
                kept.extend(found.orders)
        for table in self._tables:
            for order in table.values():
                kept.extend(together.get(order, (order,)))
            table.clear()
        parts = [
            sorted(filter(self._is_kept, kept[at : at + SORTED_AT_ONCE]))
            for at in range(0, len(kept), SORTED_AT_ONCE)
        ]
        return array("q", merge(*parts))

    def _is_kept(self, order: int) -> bool:
        """Live messages, and deletions behind a transaction's commit marker: its messages are kept
        elsewhere and may have the same key."""
        return bool(order & LIVE) or (self._first_commit is not None and order > self._first_commit)


def by_row(survivors: Survivors, at: int) -> tuple[int, list[int], int]:
    """The row of the survivor number `at`, the indexes of its messages that stay, and the number of
    the first survivor of a later row."""
    row, keep = row_of(survivors[at]), []
    while at < len(survivors) and row_of(survivors[at]) == row:
        keep.append(survivors[at] >> INDEX_SHIFT & INDEXES_MAX - 1)
        at += 1
    return row, keep, at

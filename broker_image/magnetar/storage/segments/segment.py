"""Writing and reading level-1 segments.

Owns: `SegmentWriter`, `RunSegmentWriter` and `SegmentReader`, all without I/O of their own.
Imports: volume types, segment format. Pure. Invariants: rows are given in rising (ledger, entry)
order; a reader verifies a block once, when it loads it, and keeps a bounded number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from magnetar.storage.segments.format import (
    BLOCK_BYTES_MAX,
    BLOCK_ROWS_MAX,
    TRAILER_BYTES,
    Block,
    BlockEntry,
    Footer,
    Row,
    RunColumns,
    decode_footer,
    decode_trailer,
    encode_block,
    encode_footer,
    encode_run_block,
)
from magnetar.storage.volumes.volume import Buffer

BLOCKS_CACHED_MAX = 16
FOOTER_READ_BYTES = 16 << 10
"""The footers of 100 blocks are smaller."""

ReadRange = Callable[[int, int], Buffer]
Position = tuple[int, int]


class SegmentWriter:
    """Turns rows into a segment's bytes, piece by piece.

    `description` is kept in the footer; by convention it holds `topic`, `bundle` and what made the
    segment.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = dict(description)
        self._rows: list[Row] = []
        self._row_bytes = 0
        self._blocks: list[BlockEntry] = []
        self._index: list[bytes] = []
        self._ready: list[bytes] = []
        self._last: Position | None = None
        self.length = 0

    def add(self, row: Row) -> None:
        """Append a row; its payload must not change until the bytes were taken."""
        position = (row.ledger, row.entry)
        assert self._last is None or self._last < position, (self._last, position)
        size = len(row.payload) + (len(row.key) if row.key is not None else 0)
        if self._rows and (
            len(self._rows) == BLOCK_ROWS_MAX or self._row_bytes + size > BLOCK_BYTES_MAX
        ):
            self._end_block()
        self._rows.append(row)
        self._row_bytes += size
        self._last = position

    def take(self) -> list[bytes]:
        """Pieces that are complete and were not taken yet."""
        ready, self._ready = self._ready, []
        return ready

    def finish(self) -> tuple[list[bytes], Footer]:
        """The remaining pieces, and the footer with the statistics. The writer must not be used
        again. At least one row is needed."""
        if self._rows:
            self._end_block()
        assert self._blocks, "a segment holds at least one row"
        footer = Footer(self._description, tuple(self._blocks))
        self.length += sum(map(len, self._index))
        end = encode_footer(footer, self.length)
        self.length += len(end)
        self._ready += [*self._index, end]
        return self.take(), footer

    def _end_block(self) -> None:
        block, index, entry = encode_block(self._rows, self.length)
        self._ready.append(block)
        self._index.append(index)
        self._blocks.append(entry)
        self.length += len(block)
        self._rows, self._row_bytes = [], 0


class RunSegmentWriter:
    """As `SegmentWriter`, for runs of entries that are copied as they are, without parsing each."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = dict(description)
        self._runs: list[RunColumns] = []
        self._rows = self._bytes = 0
        self._blocks: list[BlockEntry] = []
        self._pieces: list[bytes] = []
        self._last: Position | None = None
        self.length = 0

    def add(self, run: RunColumns) -> None:
        """Append a run; its payload must not change until the segment is finished."""
        assert self._last is None or self._last < (run.ledger, run.first_entry), (
            self._last,
            run[:2],
        )
        payload = memoryview(run.payload)
        low = at = 0
        while low < len(run.lengths):
            high, end = low, at
            while high < len(run.lengths) and self._rows + high - low < BLOCK_ROWS_MAX:
                length = run.lengths[high]
                if self._rows + high - low and self._bytes + end - at + length > BLOCK_BYTES_MAX:
                    break
                end += length
                high += 1
            if high > low:
                part = RunColumns(
                    run.ledger,
                    run.first_entry + low,
                    run.append_ms,
                    run.lengths[low:high],
                    run.message_counts[low:high],
                    payload[at:end],
                )
                self._runs.append(part)
                self._rows += high - low
                self._bytes += end - at
            if high < len(run.lengths):
                self._end_block()
            low, at = high, end
        self._last = (run.ledger, run.first_entry + len(run.lengths) - 1)

    def finish(self) -> tuple[list[bytes], Footer]:
        """All pieces, and the footer with the statistics. The writer must not be used again. At
        least one row is needed."""
        if self._runs:
            self._end_block()
        footer = Footer(self._description, tuple(self._blocks))
        end = encode_footer(footer, self.length)
        self.length += len(end)
        self._pieces.append(end)
        return self._pieces, footer

    def _end_block(self) -> None:
        block, entry = encode_run_block(self._runs, self.length)
        self._pieces.append(block)
        self._blocks.append(entry)
        self.length += len(block)
        self._runs, self._rows, self._bytes = [], 0, 0


def read_footer(read_range: ReadRange, length: int, name: str) -> Footer:
    """The footer of a segment of `length` bytes, in one read or two. Raises CorruptData."""
    base = max(0, length - FOOTER_READ_BYTES)
    tail = memoryview(read_range(base, length - base))
    trailer = tail[-TRAILER_BYTES:]
    offset, size = decode_trailer(trailer, name)
    footer = tail[offset - base :][:size] if offset >= base else read_range(offset, size)
    return decode_footer(footer, trailer, name)


class SegmentReader:
    """Reads entries of one segment.

    `read_range(offset, length)` returns bytes of it; the broker gives one over a block it has
    loaded, a job one over a file.
    """

    def __init__(
        self,
        read_range: ReadRange,
        length: int,
        name: str,
        blocks_cached_max: int = BLOCKS_CACHED_MAX,
    ) -> None:
        self._read_range, self.name = read_range, name
        self._blocks_cached_max = blocks_cached_max
        self.footer = read_footer(read_range, length, name)
        self._lasts = [(block.last_ledger, block.last_entry) for block in self.footer.blocks]
        self._firsts = [(block.first_ledger, block.first_entry) for block in self.footer.blocks]
        self._cached: OrderedDict[int, Block] = OrderedDict()

    def block(self, number: int) -> Block:
        """A block by number, from memory if it was read lately. Raises CorruptData."""
        found = self._cached.get(number)
        if found is not None:
            self._cached.move_to_end(number)
            return found
        entry = self.footer.blocks[number]
        found = self._cached[number] = Block.decode(
            self._read_range(entry.offset, entry.length), self.name
        )
        if len(self._cached) > self._blocks_cached_max:
            self._cached.popitem(last=False)
        return found

    def blocks(self) -> Iterator[Block]:
        """All blocks in order; they are not kept."""
        for entry in self.footer.blocks:
            yield Block.decode(self._read_range(entry.offset, entry.length), self.name)

    def ceiling(self, ledger: int, entry: int) -> tuple[int, int] | None:
        """(block number, row) of the first entry at or after the position, or None."""
        number = bisect_left(self._lasts, (ledger, entry))
        if number == len(self._lasts):
            return None
        return number, self.block(number).row_at_or_after(ledger, entry)

    def floor(self, ledger: int, entry: int) -> tuple[int, int] | None:
        """(block number, row) of the last entry at or before the position, or None."""
        number = bisect_right(self._firsts, (ledger, entry)) - 1
        if number < 0:
            return None
        return number, self.block(number).row_at_or_after(ledger, entry + 1) - 1

    def find(self, ledger: int, entry: int) -> memoryview | None:
        """The bytes of exactly this entry, or None if the segment does not have it (a hole)."""
        number = bisect_left(self._lasts, (ledger, entry))
        if number == len(self._lasts):
            return None
        block = self.block(number)
        row = block.row_at_or_after(ledger, entry)
        if block.entries[row] != entry or block.ledgers[row] != ledger:
            return None
        return block.payload(row)

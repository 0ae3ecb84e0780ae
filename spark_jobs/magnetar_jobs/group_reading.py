"""Reading a group of pieces as `Rows`.

Owns: `read_group`, from segments and from log files. Imports: numpy, pyarrow, storage formats, inputs,
files, rows. Invariants: reading a group gives the same rows in the same order each time, because every
file that it names is immutable; what is read ahead is closed with the reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from magnetar.compaction.messages import key_of, readable_metadata
from magnetar.errors import CorruptData
from magnetar.storage.log.index import LevelZeroIndex, Run
from magnetar.storage.segments.format import (
    HAS_KEY,
    IS_DECIDED,
    IS_DELETION,
    UNPARSED,
    Block,
    BlockEntry,
    Footer,
    KeyColumns,
)
from magnetar.storage.segments.segment import read_footer
from magnetar.wire.checksum import CHECKSUM_BYTES, CHECKSUM_MAGIC, crc32c, entry_checksum_ok
from magnetar_jobs.bounds import HIGHEST, Bounds
from magnetar_jobs.files import VolumeFiles
from magnetar_jobs.inputs import BEFORE_ALL, LOG, SEGMENT, UNBOUNDED, Group, Piece, surviving_slices
from magnetar_jobs.rows import Rows

WINDOW_BYTES_MAX = 4 << 20
"""Bytes of a log file that are read at once."""
MERGED_ROWS_MIN = 1024
"""Shorter runs are copied together, so that an Arrow batch does not carry three rows."""


def read_group(
    volume: str | Path,
    topic: str,
    group: Group,
    bounds: Bounds,
    *,
    metadata: bool = True,
    deciding: bool = False,
) -> Iterator[Rows]:
    """The rows of a group. `metadata` False leaves key, event and publish time of level-0 entries
    unset, which are in their bytes only. `deciding`: of blocks that are in their segment's key index
    nothing else is read; their other columns are 0 and their payload empty.

    Raises CorruptData, StorageError, FileNotFoundError (the plan is stale: plan again).
    """
    with VolumeFiles(volume) as files:
        for piece in group.pieces:
            if not bounds.admits_span(piece.first, piece.last):
                continue
            reading = (
                _read_segment(files, piece, bounds, deciding=deciding)
                if piece.kind == SEGMENT
                else _read_log(files, topic, piece, bounds)
            )
            with closing(reading):
                for rows in reading:
                    yield (
                        with_metadata(rows)
                        if metadata and (piece.kind == LOG or is_unparsed(rows))
                        else rows
                    )


def _admitted(bounds: Bounds, entry: BlockEntry) -> bool:
    return (
        bounds.admits_span(
            (entry.first_ledger, entry.first_entry), (entry.last_ledger, entry.last_entry)
        )
        and bounds.admits("event_time", entry.event_time_min, entry.event_time_max)
        and bounds.admits("publish_time", entry.publish_time_min, entry.publish_time_max)
        and bounds.admits("append_time", entry.append_time_min, entry.append_time_max)
    )


def _read_segment(
    files: VolumeFiles, piece: Piece, bounds: Bounds, *, deciding: bool
) -> Generator[Rows, None, None]:
    footer = read_footer(
        lambda at, size: files.read(piece.object, piece.base + at, size), piece.length, piece.object
    )
    parts = list(_segment_parts(footer, piece, bounds, deciding=deciding))
    ranges = [(offset, length) for _, offset, length in parts]
    with closing(files.read_each(piece.object, ranges)) as read:
        for (entry, offset, _), data in zip(parts, read, strict=True):
            if offset != entry.offset:
                yield _deciding_rows(piece.object, KeyColumns.decode(data, piece.object))
                continue
            block = Block.decode(data, piece.object)
            first = (
                block.row_at_or_after(piece.after[0], piece.after[1] + 1)
                if piece.after > BEFORE_ALL
                else 0
            )
            end = (
                block.row_at_or_after(piece.until[0], piece.until[1] + 1)
                if piece.until < UNBOUNDED
                else block.count
            )
            yield _rows_of_block(piece.object, entry, block, first, end)


def _segment_parts(
    footer: Footer, piece: Piece, bounds: Bounds, *, deciding: bool
) -> Iterator[tuple[BlockEntry, int, int]]:
    """The blocks to read, with offset and length in the object of what is read of each: the block,
    or its part of the key index."""
    stretch = slice(piece.start, piece.stop)
    for entry, index in zip(footer.blocks[stretch], footer.index_offsets[stretch], strict=True):
        if (entry.last_ledger, entry.last_entry) <= piece.after or not _admitted(bounds, entry):
            continue
        if (entry.first_ledger, entry.first_entry) > piece.until:
            break
        entry = entry._replace(offset=piece.base + entry.offset)
        if deciding and entry.index_bytes and _is_within(piece, entry):
            yield entry, piece.base + index, entry.index_bytes
        else:
            yield entry, entry.offset, entry.length


def _is_within(piece: Piece, entry: BlockEntry) -> bool:
    """Whether every row of a block counts."""
    first, last = (entry.first_ledger, entry.first_entry), (entry.last_ledger, entry.last_entry)
    return piece.after < first and last <= piece.until


def _deciding_rows(name: str, columns: KeyColumns) -> Rows:
    flags = np.asarray(columns.flags)
    none = np.zeros(len(flags), np.int64)
    return Rows(
        object=name,
        start=-1,
        ledgers=none,
        entries=none,
        publish_times=none,
        event_times=none,
        append_times=none,
        message_counts=none,
        flags=flags,
        offsets=np.zeros(len(flags) + 1, np.int32),
        payload=memoryview(b""),
        keys=_keys_of(flags, np.asarray(columns.key_offsets), columns.keys),
        plain=np.ones(len(flags), np.bool_),
        empty=(flags & IS_DELETION).astype(np.bool_),
    )


def _keys_of(
    flags: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], keys: memoryview
) -> pa.Array:
    validity = np.packbits((flags & HAS_KEY).astype(np.bool_), bitorder="little").tobytes()
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(keys)]
    return pa.Array.from_buffers(pa.binary(), len(flags), buffers)


def _rows_of_block(name: str, entry: BlockEntry, block: Block, first: int, end: int) -> Rows:
    """The block's rows [first, end); every array is a view of the bytes that were read."""
    flags = np.asarray(block.flags)[first:end]
    return Rows(
        object=name,
        start=entry.offset + entry.length - len(block.payloads) - (-len(block.payloads) % 8),
        ledgers=np.asarray(block.ledgers)[first:end],
        entries=np.asarray(block.entries)[first:end],
        publish_times=np.asarray(block.publish_times)[first:end],
        event_times=np.asarray(block.event_times)[first:end],
        append_times=np.asarray(block.append_times)[first:end],
        message_counts=np.asarray(block.message_counts)[first:end],
        flags=flags,
        offsets=np.asarray(block.payload_offsets)[first : end + 1],
        payload=block.payloads,
        keys=_keys_of(flags, np.asarray(block.key_offsets)[first : end + 1], block.keys),
        plain=(flags & IS_DECIDED).astype(np.bool_),
        empty=(flags & IS_DELETION).astype(np.bool_),
    )


def _read_log(
    files: VolumeFiles, topic: str, piece: Piece, bounds: Bounds
) -> Generator[Rows, None, None]:
    index = LevelZeroIndex.decode(files.read(index_name(piece.object)), index_name(piece.object))
    runs = [run for run in index.runs(topic)[piece.start : piece.stop] if piece.valid(run)]
    parts = [
        (run, begin, end)
        for run in runs
        if bounds.admits("ledger", run.ledger, run.ledger)
        and bounds.admits("entry", run.first_entry, run.last_entry)
        and bounds.admits("append_time", run.append_ms, run.append_ms)
        for begin, end in surviving_slices(run, piece.after, piece.excluded)
    ]
    pending: list[Rows] = []
    windows = list(_windows(parts))
    with closing(files.read_each(piece.object, map(_span_of, windows))) as read:
        for window, data in zip(windows, read, strict=True):
            for rows in _rows_of_window(piece.object, window, data):
                pending.append(rows)
                if sum(map(len, pending)) >= MERGED_ROWS_MIN:
                    yield _merged(pending)
                    pending = []
    if pending:
        yield _merged(pending)


def index_name(log_name: str) -> str:
    """The index object beside a log file."""
    return f"{log_name.removesuffix('.log')}.index"


_Part = tuple[Run, int, int]


def _windows(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Parts whose bytes, with what lies between them, fit into one read."""
    window: list[_Part] = []
    for part in parts:
        end = part[0].offset + sum(part[0].lengths)
        if window and not (
            window[0][0].offset <= part[0].offset and end - window[0][0].offset <= WINDOW_BYTES_MAX
        ):
            yield window
            window = []
        window.append(part)
    if window:
        yield window


def _span_of(window: list[_Part]) -> tuple[int, int]:
    """Offset and length of what a window lies in."""
    start = window[0][0].offset
    return start, max(run.offset + sum(run.lengths) for run, _, _ in window) - start


def _rows_of_window(name: str, window: list[_Part], data: memoryview) -> Iterator[Rows]:
    start, length = _span_of(window)
    if len(data) < length:
        raise CorruptData(
            f"{name}: ends at {start + len(data)}, its index refers to {start + length}; restore "
            "this file"
        )
    for run, begin, end in window:
        offsets = np.concatenate(([0], np.cumsum(np.asarray(run.lengths, np.int64))))
        low, high = int(offsets[begin]), int(offsets[end])
        at = run.offset - start
        yield _rows_of_run(
            name,
            run,
            begin,
            end,
            offsets[begin : end + 1] - low,
            data[at + low : at + high],
            run.offset + low,
        )


def _first_damaged(payload: memoryview, offsets: list[int]) -> int | None:
    """The first entry that fails the checksum its client gave it: the block has not been verified
    around these entries.

    The only work per row of a scan of log files; written out, because a call per row would double
    it.
    """
    for row, (start, end) in enumerate(itertools.pairwise(offsets)):
        if payload[start : start + 2] == CHECKSUM_MAGIC:
            if crc32c(payload[start + CHECKSUM_BYTES : end]) != int.from_bytes(
                payload[start + 2 : start + CHECKSUM_BYTES], "big"
            ):
                return row
        elif not entry_checksum_ok(payload[start:end]):
            return row
    return None


def _rows_of_run(
    name: str,
    run: Run,
    begin: int,
    end: int,
    offsets: np.ndarray[Any, Any],
    payload: memoryview,
    start: int,
) -> Rows:
    count = end - begin
    damaged = _first_damaged(payload, offsets.tolist())
    if damaged is not None:
        raise CorruptData(
            f"{name}: entry ({run.ledger}, {run.first_entry + begin + damaged}) fails its "
            "checksum; restore this file"
        )
    none = np.zeros(count, np.int64)
    return Rows(
        object=name,
        start=start,
        ledgers=np.full(count, run.ledger, np.int64),
        entries=np.arange(run.first_entry + begin, run.first_entry + end, dtype=np.int64),
        publish_times=none,
        event_times=none,
        append_times=np.full(count, run.append_ms, np.int64),
        message_counts=np.asarray(run.message_counts[begin:end], np.int64),
        flags=np.zeros(count, np.int64),
        offsets=offsets.astype(np.int32),
        payload=payload,
        keys=pa.nulls(count, pa.binary()),
        plain=np.zeros(count, np.bool_),
        empty=np.zeros(count, np.bool_),
    )


def _merged(parts: list[Rows]) -> Rows:
    """Short runs as one stretch. Their bytes are copied together and no longer lie in the file
    as they are."""
    if len(parts) == 1:
        return parts[0]
    bases = np.cumsum([0, *(len(part.payload) for part in parts)])
    offsets = [part.offsets[:-1] + base for part, base in zip(parts, bases[:-1], strict=True)]

    def joined(column: str) -> Any:
        return np.concatenate([getattr(part, column) for part in parts])

    return Rows(
        object=parts[0].object,
        start=-1,
        ledgers=joined("ledgers"),
        entries=joined("entries"),
        publish_times=joined("publish_times"),
        event_times=joined("event_times"),
        append_times=joined("append_times"),
        message_counts=joined("message_counts"),
        flags=joined("flags"),
        offsets=np.concatenate([*offsets, bases[-1:]]).astype(np.int32),
        payload=memoryview(b"".join(part.payload for part in parts)),
        keys=pa.concat_arrays([part.keys for part in parts]),
        plain=joined("plain"),
        empty=joined("empty"),
        places=np.concatenate([part.offsets[:-1] + np.int64(part.start) for part in parts]),
    )


def is_unparsed(rows: Rows) -> bool:
    """Whether these are rows of a block that the broker took over from log files, without a look
    into the entries."""
    return len(rows) > 0 and bool(rows.flags[0] & UNPARSED)


def with_metadata(rows: Rows) -> Rows:
    """The rows of a log file, or of a segment made of some, with what only their entries' own
    metadata says: key, event and publish time."""
    found = [readable_metadata(rows.entry_bytes(row)) for row in range(len(rows))]
    return rows.replaced(
        publish_times=np.array(
            [min(metadata.publish_time, HIGHEST) for metadata in found], np.int64
        ),
        event_times=np.array([min(metadata.event_time, HIGHEST) for metadata in found], np.int64),
        keys=pa.array([key_of(metadata) for metadata in found], pa.binary()),
    )

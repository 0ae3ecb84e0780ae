"""Segments as rows, by which executors tell the driver what they have written.

Owns: the columns, and the way there and back. Imports: pyarrow, the manifest. Invariant: a reference
that comes back is the one that was sent.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from magnetar.storage.manifest import SegmentReference

_TEXTS = ("topic", "object")
COLUMNS = (
    *_TEXTS,
    "offset",
    "length",
    "entries",
    "bytes",
    "first_ledger",
    "first_entry",
    "last_ledger",
    "last_entry",
)
SCHEMA = ", ".join(f"{column} {'string' if column in _TEXTS else 'bigint'}" for column in COLUMNS)


def segment_row(topic: str, segment: SegmentReference) -> pa.RecordBatch:
    """One row of SCHEMA."""
    values = (
        topic,
        segment.object,
        segment.offset,
        segment.length,
        segment.entries,
        segment.bytes,
        *segment.first,
        *segment.last,
    )
    return pa.RecordBatch.from_arrays([pa.array([value]) for value in values], names=list(COLUMNS))


def reference_of(row: Any) -> SegmentReference:
    """The segment of a row."""
    return SegmentReference(
        row["object"],
        row["length"],
        row["entries"],
        row["bytes"],
        (row["first_ledger"], row["first_entry"]),
        (row["last_ledger"], row["last_entry"]),
        row["offset"],
    )

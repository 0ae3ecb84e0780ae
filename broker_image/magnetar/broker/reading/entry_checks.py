"""Entries as they come from a log file.

Owns: `checked_entries`, which cuts a piece of a run into entries and compares each with the
checksum its client computed. Imports: errors, wire. Invariant: an entry that is short, or is not
what its client sent, never leaves here; the error names file, offset, topic and positions. An entry
that has no checksum, or no room for one, leaves as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.errors import ChecksumMismatch, CorruptData, ProtocolError
from magnetar.wire.checksum import verify_entry


class PieceOfRun(NamedTuple):
    """Where consecutive entries of one ledger were read: the first of them is (ledger, entry)
    and begins at `offset` of `file`."""

    file: str
    offset: int
    topic: str
    ledger: int
    entry: int


def checked_entries(
    data: memoryview, lengths: Sequence[int], piece: PieceOfRun
) -> list[memoryview]:
    """The entries of these lengths that lie back to back in `data`. Raises CorruptData naming
    the damage."""
    if len(data) != sum(lengths):
        end = piece.offset + len(data)
        raise CorruptData(
            f"{piece.file} ends at {end}, inside acknowledged entries of {piece.topic} from "
            f"{(piece.ledger, piece.entry)} on; "
            "restore this file",
            file=piece.file,
            offset=end,
            topic=piece.topic,
            first=(piece.ledger, piece.entry),
            last=(piece.ledger, piece.entry + len(lengths) - 1),
        )
    entries: list[memoryview] = []
    at = 0
    for length in lengths:
        entry = data[at : at + length]
        try:
            verify_entry(entry)
        except ProtocolError:
            pass  # too short to hold a checksum: it is what was stored, and its readers judge it
        except ChecksumMismatch as error:
            position, offset = (piece.ledger, piece.entry + len(entries)), piece.offset + at
            raise CorruptData(
                f"{piece.file}: entry {position} of {piece.topic} at {offset} is damaged: {error}; "
                "restore this file",
                file=piece.file,
                offset=offset,
                topic=piece.topic,
                first=position,
                last=position,
            ) from error
        entries.append(entry)
        at += length
    return entries

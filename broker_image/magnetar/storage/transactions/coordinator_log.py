"""Reading a transaction coordinator's log back.

Owns: the walk over a coordinator's recovery chain, and its checkpoints as objects. Imports: errors,
metadata records, storage formats, fencing. Invariants: a former incarnation is fenced before the
length of its log is read; what is missing or damaged is named, never skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from magnetar.errors import CorruptData, StorageError
from magnetar.metadata.records import CheckpointPointer, LogPosition, LogRange
from magnetar.storage import names
from magnetar.storage.document import close_document
from magnetar.storage.log.fencing import fence, log_end, lost_file
from magnetar.storage.log.recovery import scan_blocks
from magnetar.storage.transactions.coordinator_format import (
    CoordinatorCheckpoint,
    checkpoint_pieces,
    decode_changes,
    decode_checkpoint,
)
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.records import Change, CoordinatorState


async def write_checkpoint(volume: Volume, checkpoint: CoordinatorCheckpoint, sequence: int) -> str:
    """Write the `sequence`-th checkpoint of this incarnation; its object's name. Raises
    StorageError, also if that one exists."""
    name = names.coordinator_checkpoint(checkpoint.tcid, checkpoint.epoch, sequence)
    pieces = []
    for piece in checkpoint_pieces(checkpoint):
        pieces.append(piece)
        await asyncio.sleep(0)
    if not await volume.put_if_absent(name, close_document(pieces)):
        raise StorageError(
            f"{name} exists already: epoch {checkpoint.epoch} of coordinator {checkpoint.tcid} was "
            "served twice"
        )
    return name


async def read_state(volume: Volume, pointer: CheckpointPointer) -> CoordinatorState:
    """The state that a checkpoint holds. Raises CorruptData, StorageError."""
    try:
        return decode_checkpoint(await volume.read(pointer.object), pointer.object).state
    except FileNotFoundError as error:
        raise CorruptData(
            f"{pointer.object} is missing; restore it from a backup", file=pointer.object
        ) from error


async def read_changes(
    volume: Volume, tcid: int, chain: Sequence[LogRange]
) -> AsyncIterator[Change]:
    """Every acknowledged change of a recovery chain, in order; incarnations that may still write
    are ended first. Raises CorruptData, StorageError."""
    for span in chain:
        end = span.end if span.end is not None else await _ended(volume, span)
        if (end.file, end.offset) <= (span.start.file, span.start.offset):
            continue
        async for number, body_at, body, _ in scan_blocks(
            volume, span.incarnation, span.start, end
        ):
            try:
                changes = [entry.change for entry in decode_changes(body) if entry.tcid == tcid]
            except CorruptData as error:
                name = names.log_file(span.incarnation, number)
                raise CorruptData(
                    f"{name}: block at {body_at}: {error}", file=name, offset=body_at
                ) from error
            for change in changes:
                yield change


async def _ended(volume: Volume, span: LogRange) -> LogPosition:
    """Where the log of an incarnation ends, which writes nothing more from here on."""
    first = span.start.file
    sealed = await fence(volume, span.incarnation, {first: span.start.offset})
    lost = await lost_file(volume, span.incarnation, sealed)
    missing = first if first not in {file.number for file in sealed} else lost
    if missing is not None:
        name = names.log_file(span.incarnation, missing)
        raise CorruptData(
            f"{name} is missing; the chain needs it: restore it from a backup", file=name
        )
    return log_end(sealed, span.start)


async def newest_epoch(volume: Volume, tcid: int) -> int:
    """The highest epoch that a checkpoint of this number was written under; 0 if there is none.
    Raises StorageError."""
    listed = await volume.list(names.coordinator_checkpoints(tcid))
    return max(
        (epoch for name in listed if (epoch := names.checkpoint_epoch(name)) is not None), default=0
    )

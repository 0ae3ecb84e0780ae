"""Taking over from another incarnation.

Owns: removing a claim, and sealing what its incarnation has written. Imports: errors, volume, names, seals, recovery.
Invariants: the claim is gone durably, and the log ended where that takes more, before any length is read, so whatever its owner acknowledged
was on storage before and lies below the length found; a length is published only after everything below it is durable; any number of takers and
a live former owner may do this at once, again and again, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.errors import CorruptData, StorageError
from magnetar.storage import names
from magnetar.storage.log_format import FILE_HEADER_BYTES, decode_file_header
from magnetar.storage.recovery import LogBlocks, list_log_files
from magnetar.storage.seals import is_followed, publish_seal, read_seal
from magnetar.storage.volume import Volume


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A log file with its final length in bytes; 0 if it holds nothing, 4096 if it holds only a header."""

    number: int
    length: int


async def fence(volume: Volume, incarnation: str) -> list[SealedFile]:
    """End an incarnation: nothing it has not acknowledged by now will be. All its log files, sealed, in order.

    The incarnation must have opened its log, as whatever is registered or owns a bundle has: one that creates its claim later is not fenced.
    A former owner may still create a file; nothing in it is ever acknowledged, but a later call lists it too: of several takers of one
    bundle, the one whose record is committed decides where its log ends.
    Raises StorageError, after which nothing is known and it must be called again; CorruptData.
    """
    await volume.remove(names.claim(incarnation))
    await volume.end_log(names.logs_of(incarnation))
    numbers = await list_log_files(volume, incarnation)
    try:
        return [SealedFile(number, await seal(volume, incarnation, number)) for number in numbers]
    except FileNotFoundError as error:
        # Collected between the list and the look: the next list does not show it (simulation seed 1324 of durable).
        raise StorageError(f"{incarnation}: a log file was collected while it was fenced ({error}); fence again") from error


async def lost_file(volume: Volume, incarnation: str, sealed: Sequence[SealedFile]) -> int | None:
    """The number of a file that was there and is not, behind the last that `fence` has found; None if none is known of.

    It is for whoever needs the log to its end: of a log that nobody needs the collector deletes files in any order. Raises StorageError, also if
    a former owner began that file meanwhile: fence again.
    """
    if not sealed or not await is_followed(volume, incarnation, sealed[-1].number):
        return None
    number = sealed[-1].number + 1
    if number in await list_log_files(volume, incarnation):
        raise StorageError(f"{incarnation}: log file {number} was begun while it was fenced; fence again")
    return number


async def seal(volume: Volume, incarnation: str, number: int) -> int:
    """The sealed length of a log file of a fenced incarnation, determined and published now if need be. Raises StorageError, CorruptData."""
    adopted = await read_seal(volume, incarnation, number)
    if adopted is not None:
        return adopted
    length = await publish_seal(volume, incarnation, number, await _durable_length(volume, incarnation, number))
    await volume.shrink(names.log_file(incarnation, number), max(length, FILE_HEADER_BYTES))  # what lies behind it never existed
    return length


async def _durable_length(volume: Volume, incarnation: str, number: int) -> int:
    """Where the last intact block ends, after making everything below durable."""
    name = names.log_file(incarnation, number)
    blocks = LogBlocks(volume, incarnation, number, FILE_HEADER_BYTES, None)
    async for _ in blocks:
        pass
    await blocks.check_nothing_follows()
    page = await volume.read(name, 0, FILE_HEADER_BYTES)  # after the blocks: it is there before the first of them
    try:
        decode_file_header(page)
    except CorruptData:
        if blocks.end > FILE_HEADER_BYTES:
            raise
        return 0  # its owner was stopped while it created the file
    # Only the last block can have been seen and not be durable: its writer starts none before the one before is flushed.
    if blocks.end > FILE_HEADER_BYTES:
        await volume.make_durable(name, blocks.last, await volume.read(name, blocks.last, blocks.end - blocks.last))
    else:
        await volume.make_durable(name, 0, page)
    return blocks.end

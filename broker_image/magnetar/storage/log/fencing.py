"""Taking over from another incarnation.

Owns: removing a claim, and sealing what its incarnation has written. Imports: errors, volume,
names, seals, recovery. Invariants: the claim is removed durably, and the log is ended where that
takes a further step, before any length is read, so whatever its owner acknowledged was on storage
before and lies below the length found; a length is published only after everything below it is
durable; any number of new owners and a live former owner may do this concurrently and repeatedly,
with the same outcome; a file that is shorter than its known length is neither fenced nor sealed, so
that what is missing may be brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magnetar.errors import CorruptData, StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES, decode_file_header
from magnetar.storage.log.recovery import LogBlocks, list_log_files
from magnetar.storage.log.seals import publish_seal, read_seal, read_whole_seal
from magnetar.storage.volumes.volume import Volume, WholeAppends


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A log file with its final length in bytes; 0 if it holds nothing, 4096 if it holds only a
    header.

    `accepted`: what was behind that length, and in later files, is lost, and an operator has
    accepted it.
    """

    number: int
    length: int
    accepted: bool = False


async def fence(
    volume: Volume, incarnation: str, known: Mapping[int, int] | None = None
) -> list[SealedFile]:
    """End an incarnation: nothing it has not acknowledged by now will be. All its log files,
    sealed, in order.

    The incarnation must have opened its log, as whatever is registered or owns a bundle has: one
    that creates its claim later is not fenced. A former owner may still create a file; nothing in
    it is ever acknowledged, but a later call lists it too: of several new owners of one bundle, the
    one whose record is committed decides where its log ends. `known`: lengths by number that files
    are known to have had, durably. Raises StorageError, after which nothing is known and it must be
    called again; CorruptData, also if an open file is shorter than that or has holes: then it is
    left as it is.
    """
    await volume.remove(names.claim(incarnation))
    known = known or {}
    listed = {*await volume.list(names.logs_of(incarnation))} if known else set()
    try:
        for number, least in sorted(known.items()):
            if (
                names.log_file(incarnation, number) in listed
                and names.sealed(incarnation, number) not in listed
            ):
                await _check_reaches(volume, incarnation, number, least)
        await volume.end_log(names.logs_of(incarnation))
        listed = {*await volume.list(names.logs_of(incarnation))}
        numbers = {found for name in listed if (found := names.log_number(name)) is not None}
        files = [
            await _sealed(volume, incarnation, number, known.get(number, 0))
            for number in sorted(numbers)
        ]
    except FileNotFoundError as error:
        # Collected between the list and the look: the next list does not show it (simulation seed
        # 1324 of durable).
        raise StorageError(
            f"{incarnation}: a log file was collected while it was fenced ({error}); fence again"
        ) from error
    for number in {
        found for name in listed if (found := names.sealed_number(name)) is not None
    } - numbers:
        lost = await read_whole_seal(volume, incarnation, number)
        if lost is not None and lost.accepted:
            files.append(SealedFile(number, lost.length, accepted=True))
    return sorted(files, key=lambda file: file.number)


async def _sealed(volume: Volume, incarnation: str, number: int, least: int) -> SealedFile:
    known = await read_whole_seal(volume, incarnation, number)
    if known is not None:
        return SealedFile(number, known.length, known.accepted)
    return SealedFile(number, await seal(volume, incarnation, number, least))


async def _check_reaches(volume: Volume, incarnation: str, number: int, least: int) -> None:
    """Raises CorruptData if an open file ends before `least`."""
    if least > 0 and not await volume.read(names.log_file(incarnation, number), least - 1, 1):
        raise _shorter(incarnation, number, least)


def _shorter(incarnation: str, number: int, least: int) -> CorruptData:
    name = names.log_file(incarnation, number)
    return CorruptData(
        f"{name} ends before {least}, where it is known to have reached; restore its end", file=name
    )


def log_end(sealed: Sequence[SealedFile], start: LogPosition) -> LogPosition:
    """Where a fenced log ends for a reader that needs it from `start` on: where a loss was
    accepted, else behind its last file."""
    end = next(
        (file for file in sealed if file.accepted and file.number >= start.file),
        sealed[-1] if sealed else None,
    )
    if end is None or (end.number, end.length) < (start.file, start.offset):
        return start
    return LogPosition(end.number, end.length)


async def lost_file(volume: Volume, incarnation: str, sealed: Sequence[SealedFile]) -> int | None:
    """The number of a file that was there and is not, behind the last that `fence` has found; None
    if none is known of.

    It is for readers of the whole log: of a log that no bundle needs the collector deletes files in
    any order. Raises StorageError, also if a former owner began that file after the fence: fence
    again.
    """
    last = await read_whole_seal(volume, incarnation, sealed[-1].number) if sealed else None
    if last is None or not last.followed:
        return None
    number = sealed[-1].number + 1
    if number in await list_log_files(volume, incarnation):
        raise StorageError(
            f"{incarnation}: log file {number} was begun while it was fenced; fence again"
        )
    return number


async def seal(volume: Volume, incarnation: str, number: int, least: int = 0) -> int:
    """The sealed length of a log file of a fenced incarnation, determined and published now if need
    be; not if it is below `least`.

    Raises StorageError, CorruptData.
    """
    adopted = await read_seal(volume, incarnation, number)
    if adopted is not None:
        return adopted
    found = await _durable_length(volume, incarnation, number)
    if found < least:
        raise _shorter(incarnation, number, least)
    length = await publish_seal(volume, incarnation, number, found)
    # what lies behind it never existed
    await volume.shrink(names.log_file(incarnation, number), max(length, FILE_HEADER_BYTES))
    return length


async def _durable_length(volume: Volume, incarnation: str, number: int) -> int:
    """Where the last intact block ends, after making everything below durable."""
    name = names.log_file(incarnation, number)
    if isinstance(volume, WholeAppends):
        return await volume.appended_length(name)
    blocks = LogBlocks(volume, incarnation, number, FILE_HEADER_BYTES, None)
    async for _ in blocks:
        pass
    await blocks.check_nothing_follows()
    # after the blocks: it is there before the first of them
    page = await volume.read(name, 0, FILE_HEADER_BYTES)
    try:
        decode_file_header(page)
    except CorruptData:
        if blocks.end > FILE_HEADER_BYTES:
            raise
        return 0  # its owner was stopped while it created the file
    # Only the last block can have been seen and not be durable: its writer starts none before the
    # one before is flushed.
    if blocks.end > FILE_HEADER_BYTES:
        await volume.make_durable(
            name, blocks.last, await volume.read(name, blocks.last, blocks.end - blocks.last)
        )
    else:
        await volume.make_durable(name, 0, page)
    return blocks.end

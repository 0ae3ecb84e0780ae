"""Accepting that the end of a log is lost.

Owns: `accept_loss`, for an operator who cannot bring missing or damaged parts back. Imports:
errors, volume, names, fencing's siblings. Invariants: no loss is accepted of an incarnation that
may live; what is intact before the loss is kept; the seal that records the loss comes after the
fences, so nothing is acknowledged behind it; it holds permanently, also if what was missing comes
back.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.errors import CorruptData, InvalidRequest
from magnetar.storage import names
from magnetar.storage.log import seals
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.recovery import LogBlocks, list_log_files
from magnetar.storage.log.seals import read_whole_seal
from magnetar.storage.volumes.volume import Volume


@dataclass(frozen=True, slots=True)
class Loss:
    """What is kept of a log file, in bytes, what its seal says it had (None: it has no seal),
    why, and the later files, which are lost as well for every bundle that needs this one."""

    file: str
    kept: int
    sealed: int | None
    reason: str
    later: tuple[int, ...]


async def examine_loss(volume: Volume, file: str) -> Loss:
    """What accepting the loss in log file `file` (or one of its slots) would mean.

    Raises InvalidRequest if it is not allowed or not needed, StorageError.
    """
    slot = names.slot_of(file)
    file = file if slot is None else slot[0]
    if not names.is_log(file):
        raise InvalidRequest(
            f"{file!r} is no log file; name it as the damage does: logs/<incarnation>/<number>.log"
        )
    incarnation, number = names.parse_log(file)
    if await volume.exists(names.claim(incarnation)):
        raise InvalidRequest(
            f"{incarnation} has its claim and may be alive; stop it, and let another broker try to "
            "take over first"
        )
    seal = await read_whole_seal(volume, incarnation, number)
    if seal is not None and seal.accepted:
        raise InvalidRequest(f"{file}: its loss behind {seal.length} is accepted already")
    kept, reason = await _intact(volume, incarnation, number, None if seal is None else seal.length)
    later = tuple(found for found in await list_log_files(volume, incarnation) if found > number)
    if not reason and seal is not None and kept != seal.length:
        reason = f"it is damaged at {kept}, below its sealed length {seal.length}"
    if not reason and later:
        raise InvalidRequest(
            f"{file} is whole and later files follow; name the file that is damaged"
        )
    return Loss(
        file,
        kept,
        None if seal is None else seal.length,
        reason or "no loss is visible in it",
        later,
    )


async def accept_loss(volume: Volume, loss: Loss) -> None:
    """End the log where `loss` begins. Raises StorageError, after which it is to be called
    again."""
    incarnation, number = names.parse_log(loss.file)
    await volume.end_log(names.logs_of(incarnation), (number,))
    await seals.accept_loss(volume, incarnation, number, loss.kept)


async def _intact(
    volume: Volume, incarnation: str, number: int, limit: int | None
) -> tuple[int, str]:
    """How much of a file from its beginning is intact, and what is wrong behind that ("":
    nothing)."""
    blocks = LogBlocks(volume, incarnation, number, FILE_HEADER_BYTES, limit)
    try:
        async for _ in blocks:
            pass
        if limit is None:
            await blocks.check_nothing_follows()
    except FileNotFoundError:
        return 0, "it is missing"
    except CorruptData as error:
        return max(0, error.offset), str(error)
    return blocks.end, ""

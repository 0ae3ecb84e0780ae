"""Finishing a log file.

Owns: `finish_file`: what the owner of a log does with a file that it has left: seal, space given
back, index. Imports: asyncio, errors, files, index, seals, volume. Invariants: the seal is
where the acknowledged part ends, and comes first; no receipt waits for it, so each step is tried
until there is space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from magnetar.errors import CorruptData, StorageFull
from magnetar.storage import names
from magnetar.storage.log.files import LogFile
from magnetar.storage.log.index import IndexBuilder
from magnetar.storage.log.seals import publish_seal
from magnetar.storage.log.space import FULL_RETRY_S
from magnetar.storage.volumes.volume import Volume

T = TypeVar("T")

HEADS_PER_TURN_MAX = 512


async def finish_file(
    volume: Volume,
    incarnation: str,
    file: LogFile,
    *,
    followed: bool,
    shrinks_below: int,
    gives_up: Callable[[], bool],
) -> dict[str, list[int]]:
    """Seal and index a file that is not written any more; {topic: epochs} in it. One that ends
    below `shrinks_below` gives its rest back.

    Raises StorageError; CorruptData if it was sealed elsewhere than where it ends.
    """
    name = names.log_file(incarnation, file.number)
    adopted = await _patiently(
        lambda: publish_seal(volume, incarnation, file.number, file.end, followed=followed),
        gives_up,
    )
    if adopted != file.end:
        # No write was under way when the file was left, so every honest sealer finds the same end.
        raise CorruptData(f"{name} was sealed at {adopted}, its writer ended it at {file.end}")
    if file.end < shrinks_below:
        # Reserved and hardly used: a spare, or a file that was left early. Nothing behind the seal
        # was acknowledged.
        await volume.shrink(name, file.end)
    builder = IndexBuilder(incarnation, file.number)
    at = 0
    for number, (payload_offset, size) in enumerate(
        zip(file.head_places[0::2], file.head_places[1::2], strict=True), 1
    ):
        builder.add_head(file.heads[at : at + size], payload_offset)
        at += size
        if number % HEADS_PER_TURN_MAX == 0:
            await asyncio.sleep(0)
    index = builder.encode(file.end)
    await _patiently(
        lambda: volume.put_if_absent(names.index(incarnation, file.number), index), gives_up
    )
    return builder.epochs()


async def _patiently(attempt: Callable[[], Awaitable[T]], gives_up: Callable[[], bool]) -> T:
    """Try until there is space. Raises any other StorageError."""
    while True:
        try:
            return await attempt()
        except StorageFull:
            if gives_up():
                raise
            await asyncio.sleep(FULL_RETRY_S)

"""Whether an object store can carry the fence.

Owns: the start-up probe. Imports: asyncio, clock, errors, objects. Invariant: a store passes only
if one of several concurrent conditional puts wins, and lists and look-ups are consistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.clock import Clock
from magnetar.errors import StorageError
from magnetar.storage.volumes.objects import CHECKS, MARK_BITS, ObjectStore

ROUNDS = 3
PUTS_PER_ROUND = 4
LATE_S = 2.0


async def probe_objects(objects: ObjectStore, clock: Clock) -> None:
    """Raises StorageError saying what to do."""
    await objects.check()
    keys = [f"{CHECKS}/{clock.random_bits(MARK_BITS):032x}" for _ in range(ROUNDS)]
    try:
        for key in keys:
            await _probe_conditions(objects, key)
        listed = {key for key, _ in await objects.list(CHECKS)}
    finally:
        await asyncio.gather(*map(objects.delete, keys))
    if missed := set(keys) - listed:
        raise StorageError(
            f"the store does not list {missed.pop()}, which was just put; use one that lists "
            "at once, such as S3"
        )
    if not await _are_gone(objects, keys):
        raise StorageError(
            "the store shows objects after their removal; use one that is consistent, such as S3"
        )


async def _are_gone(objects: ObjectStore, keys: Sequence[str]) -> bool:
    """Whether removed objects are not shown. A put whose answer was lost may be carried out behind
    the removal: what it put stays until it is removed, whereas what is shown in error goes."""
    shown = await _shown(objects, keys)
    if not shown:
        return True
    await asyncio.sleep(LATE_S)
    if await _shown(objects, shown) != shown:
        return False
    await asyncio.gather(*map(objects.delete, shown))
    return not await _shown(objects, shown)


async def _shown(objects: ObjectStore, keys: Sequence[str]) -> list[str]:
    found = await asyncio.gather(*map(objects.exists, keys))
    return [key for key, there in zip(keys, found, strict=True) if there]


async def _probe_conditions(objects: ObjectStore, key: str) -> None:
    """Concurrent puts of one key: a store that looks for the key and writes afterwards lets
    several win."""
    bodies = [b"%d" % number for number in range(PUTS_PER_ROUND)]
    put = await asyncio.gather(*(objects.put_if_absent(key, [body]) for body in bodies))
    won = [body for body, first in zip(bodies, put, strict=True) if first]
    if [await objects.get(key)] != won:
        raise StorageError(
            f"of {PUTS_PER_ROUND} puts of one object at the same time with If-None-Match: * "
            f"the store let {len(won)} win instead of one, so a fenced owner could not be "
            "stopped; use a store with atomic conditional writes, such as S3"
        )

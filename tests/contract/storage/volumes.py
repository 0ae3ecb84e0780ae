"""The volumes that the contract is proved on.

Owns: how each is opened, and on which loop a test against it runs. A further implementation adds a
case to `CASES`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from dev.s3.server import BUCKET, CREDENTIALS, REGION, S3Server
from magnetar.clock import SystemClock
from magnetar.storage.volumes.linked import LinkedObjects
from magnetar.storage.volumes.objects import ObjectStore, RetryingObjects
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.s3 import S3Client
from magnetar.storage.volumes.slots import SlotVolume
from magnetar.storage.volumes.volume import Volume
from tests.simulation.kernel.world import World
from tests.support.faulty_volume import FaultyVolume

Script = Callable[[Volume], Coroutine[Any, Any, None]]
SIMULATED_S_MAX = 600.0


@dataclass(frozen=True)
class VolumeCase:
    """`run(script, directory)` runs `script` to its end on a fresh volume."""

    name: str
    run: Callable[[Script, Path], None]


def _run_posix(script: Script, directory: Path) -> None:
    async def main() -> None:
        volume = PosixVolume(directory)
        try:
            await script(volume)
        finally:
            await volume.close()

    asyncio.run(main())


def _run_simulated(script: Script, _directory: Path) -> None:
    with World(seed=1) as world:
        world.complete(script(world.outsider("tester").volume), within_s=SIMULATED_S_MAX)


def _run_faulty(script: Script, directory: Path) -> None:
    """A bad disk on a good day: the wrapper itself keeps every promise."""

    async def main() -> None:
        volume = PosixVolume(directory)
        try:
            await script(FaultyVolume(volume, SystemClock()))
        finally:
            await volume.close()

    asyncio.run(main())


@cache
def s3_server() -> S3Server:
    """A server for the length of the run, started by the first test that needs it."""
    os.environ.update(CREDENTIALS)
    directory = tempfile.TemporaryDirectory()
    server = S3Server(Path(directory.name))
    server.start()
    atexit.register(directory.cleanup)
    atexit.register(server.stop)
    return server


def s3_objects(prefix: str, endpoint: str = "") -> RetryingObjects:
    """Those below `prefix` on the server, in another process at its `endpoint`."""
    client = S3Client(BUCKET, prefix, endpoint=endpoint or s3_server().endpoint, region=REGION)
    return RetryingObjects(client, SystemClock())


def fresh_s3_objects(_directory: Path) -> RetryingObjects:
    """Those below a prefix that nobody else has."""
    return s3_objects(f"test/{uuid4()}")


def _run_slots(make: Callable[[Path], ObjectStore]) -> Callable[[Script, Path], None]:
    def run(script: Script, directory: Path) -> None:
        async def main() -> None:
            volume = SlotVolume(make(directory), SystemClock())
            try:
                await script(volume)
            finally:
                await volume.close()

        asyncio.run(main())

    return run


CASES = [
    VolumeCase("posix", _run_posix),
    VolumeCase("simulated", _run_simulated),
    VolumeCase("faulty", _run_faulty),
    VolumeCase("linked", _run_slots(LinkedObjects)),
    VolumeCase("s3", _run_slots(fresh_s3_objects)),
]

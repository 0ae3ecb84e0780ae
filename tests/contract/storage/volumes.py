"""The volumes that the contract is proved on.

Owns: how each is opened, and on which loop a test against it runs. A further implementation adds a case to `CASES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magnetar.clock import SystemClock
from magnetar.storage.faulty import FaultyVolume
from magnetar.storage.posix import PosixVolume
from magnetar.storage.volume import Volume
from tests.simulation.kernel.world import World

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


CASES = [VolumeCase("posix", _run_posix), VolumeCase("simulated", _run_simulated), VolumeCase("faulty", _run_faulty)]

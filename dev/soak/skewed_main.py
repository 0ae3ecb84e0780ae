"""`python -m dev.soak.skewed_main <directory> <arguments of magnetar>`: a server whose wall clock
can be set, and whose stops are noted.

Owns: wrapping the command line's entry point, so that the server's own code knows nothing of it.
Imports: magnetar.cli, magnetar.clock. Files, by the name that `--name` gives the server, or
`standalone`: `<name>.offset` (milliseconds added to the wall clock; read several times a second)
and `<name>.stops` (one JSON line for each turn of the event loop that took long: see `LoopStop`).
Invariants: the monotonic and the boot clock stay true; nothing else of the server is changed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from magnetar.clock import SystemClock

if TYPE_CHECKING:
    from types import FrameType

OFFSET_POLL_S = 0.05
TICK_S = 0.01
STOP_S_MIN = 0.1
"""Shorter turns of the loop are not noted."""
LOOK_S = 0.05
FRAMES_MAX = 12


@dataclass(frozen=True, slots=True)
class LoopStop:
    """One turn of the event loop that kept everything else waiting."""

    began: float
    """By the monotonic clock, which all processes of the machine share."""
    seconds: float
    cpu_s: float
    """What of it the loop's thread computed; the rest is a busy machine, or blocking I/O."""
    where: list[str]
    """The stack in the middle of it, innermost last; empty if it was over before it was
    sampled."""


class Skew:
    """The offset of the wall clock, following its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset_ms = 0
        self.read()

    def read(self) -> None:
        """Take the offset that the file holds now; none if there is no whole number."""
        try:
            self.offset_ms = int(self._path.read_text())
        except (OSError, ValueError):
            self.offset_ms = 0

    def follow(self) -> None:
        while True:
            self.read()
            time.sleep(OFFSET_POLL_S)


class LoopWatch:
    """Notes long turns of one event loop, which runs in the main thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ticked = time.monotonic()
        self._seen: list[str] = []

    async def tick(self) -> None:
        """Runs on the loop that is watched."""
        threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="loop watch", daemon=True
        ).start()
        while True:
            self._ticked, cpu_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(TICK_S)
            seconds = time.monotonic() - self._ticked - TICK_S
            if seconds >= STOP_S_MIN:
                stop = LoopStop(self._ticked, seconds, time.thread_time() - cpu_s, self._seen)
                with self._path.open("a") as file:
                    file.write(json.dumps(asdict(stop)) + "\n")
            self._seen = []

    def _look(self, thread: int) -> None:
        """In a thread: what the loop's thread does while its turn is long already."""
        while True:
            time.sleep(LOOK_S)
            if (
                time.monotonic() - self._ticked > STOP_S_MIN
                and (frame := sys._current_frames().get(thread)) is not None
            ):
                self._seen = _stack(frame)


def _stack(frame: FrameType) -> list[str]:
    found = traceback.extract_stack(frame)[-FRAMES_MAX:]
    return [f"{'/'.join(Path(at.filename).parts[-2:])}:{at.lineno} {at.name}" for at in found]


def _watch(path: Path) -> None:
    """Have the event loop that the server will run on watched."""
    kept: list[asyncio.Task[None]] = []

    def watched() -> uvloop.Loop:
        loop = uvloop.new_event_loop()
        loop.call_soon(
            lambda: kept.append(loop.create_task(LoopWatch(path).tick(), name="loop watch"))
        )
        return loop

    uvloop.run = partial(uvloop.run, loop_factory=watched)


def main() -> None:
    """Run `magnetar` with a wall clock that the file moves."""
    directory, *arguments = sys.argv[1:]
    # of a standalone server
    name = arguments[arguments.index("--name") + 1] if "--name" in arguments else arguments[0]
    skew = Skew(Path(directory) / f"{name}.offset")
    true_ms = SystemClock.wall_ms

    def wall_ms(clock: SystemClock) -> int:
        return true_ms(clock) + skew.offset_ms

    setattr(SystemClock, "wall_ms", wall_ms)  # noqa: B010  # of all of them, the ones made before included
    threading.Thread(target=skew.follow, name="clock skew", daemon=True).start()
    _watch(Path(directory) / f"{name}.stops")
    sys.argv = ["magnetar", *arguments]
    from magnetar.cli import main as run_magnetar

    run_magnetar()


if __name__ == "__main__":
    main()

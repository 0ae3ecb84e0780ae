"""When the interpreter looks for cyclic garbage, and when free memory goes back to the system.

Owns: the thresholds of the collector of this process, and the full collections that it starts
itself. Imports: asyncio, ctypes, gc. Why: a full collection visits every object there is, and stops
the event loop for that time: 100 ms with a tail cache and some thousand topics, 150 ms with ten
thousand objects in an operator's caches: the whole of a publisher's p99, or of an edit's. Young
collections are short, and nothing that is done often makes cycles, so full ones wait for a quiet
moment. Invariants: no full collection begins by itself; while anything is done they are so rare
that one in hundred operations does not meet one: `QUIET_COLLECTION_S` apart, and under endless load
`BUSY_COLLECTION_S`, over what is younger than the one before.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

YOUNG_OBJECTS = 20_000
"""Objects made, less those freed, after which the youngest are looked at: about 1 ms of work."""
YOUNG_PER_MIDDLE = 5
MIDDLE_PER_FULL = 1_000_000_000
LOOK_S = 5.0
QUIET_ACTIVITY = 100
"""Activity between two looks up to which a moment counts as quiet, unless said otherwise."""
QUIET_COLLECTION_S = 60.0
BUSY_COLLECTION_S = 600.0


class GarbageSchedule:
    """Collects while nothing else is to be done. `activity` counts what is done (messages,
    passes), ever rising; up to `quiet` of it between two looks is next to nothing."""

    def __init__(self, activity: Callable[[], int], quiet: int = QUIET_ACTIVITY) -> None:
        self._activity, self._quiet = activity, quiet
        self._seen = self._young = 0
        self._since_full_s = 0.0

    def begin(self) -> None:
        """What exists now lives as long as the process: no later collection visits it. From here
        on full collections run here."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_FULL)
        self._young = _young_collections()

    async def run(self) -> None:
        """Look every `LOOK_S`, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Collect if the moment is quiet and there is anything new, or if it is high time."""
        activity = self._activity()
        done, self._seen = activity - self._seen, activity
        self._since_full_s += LOOK_S
        quiet = done == 0 or (done <= self._quiet and self._since_full_s >= QUIET_COLLECTION_S)
        if _young_collections() == self._young:
            return  # fewer new objects than one young collection is worth
        if quiet:
            gc.unfreeze()
        elif self._since_full_s < BUSY_COLLECTION_S:
            return
        gc.collect()
        gc.freeze()
        self._young = _young_collections()
        self._since_full_s = 0.0

    @staticmethod
    def end() -> None:
        """Back to the interpreter's own ways, for a process that does something else next."""
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)


def give_back() -> None:
    """Return free memory to the system, where the C library knows how (glibc): what was read and
    let go lies between what is kept."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _young_collections() -> int:
    """Young and middle collections so far; a full one counts as neither."""
    young, middle, _full = gc.get_stats()
    return int(young["collections"]) + int(middle["collections"])

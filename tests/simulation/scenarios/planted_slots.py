"""Brokers on slots that break one promise of the fence.

Owns: one small patch per promise, and `run(bug, seed)`, the tracer scenario on slots with a broker patched so (`none`: unpatched, the control).
Imports: the tracer, the patched parts of the storage.
The faults are those that the fence is about: processes that stop beyond their lease, at any moment of a request, and requests that are carried
out without an answer, or after it was given up.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from magnetar.storage.objects import RetryingObjects
from magnetar.storage.slots import SlotVolume
from tests.simulation.kernel.faults import Faults
from tests.simulation.scenarios import tracer
from tests.simulation.scenarios.planted import CONTROL

FAULTS = Faults.none().but(
    crash_every_s=6.0,
    pause_every_s=3.0,
    pause_s=(3.2, 7.0),
    store_partition_every_s=4.0,
    partition_s=(3.2, 6.0),
    down_s=(0.1, 2.0),
    object_latency_s=(0.01, 0.15),
    object_lost_request_probability=0.01,
    object_lost_reply_probability=0.02,
    object_late_probability=0.02,
    object_late_s=(0.0, 8.0),
)

Patch = pytest.MonkeyPatch


def no_fence_where_a_file_goes_on(patch: Patch) -> None:
    """A taker keeps new files from appearing and leaves the present ones open."""
    fence = SlotVolume._fence

    async def careless(volume: SlotVolume, directory: str, number: int, slot: int, slots: dict[int, int]) -> bool:
        return True if slot > 0 else await fence(volume, directory, number, slot, slots)

    patch.setattr(SlotVolume, "_fence", careless)


def whoever_took_the_slot_is_taken_for_oneself(patch: Patch) -> None:
    """A slot that is taken is taken for one's own, whose answer was lost: the mark is not compared."""

    async def trusting(_objects: RetryingObjects, _key: str, _mark: str) -> bool:
        return True

    patch.setattr(RetryingObjects, "_is_ours", trusting)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        no_fence_where_a_file_goes_on,
        whoever_took_the_slot_is_taken_for_oneself,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """The tracer on slots and on brokers with this bug; raises if it is noticed."""
    with pytest.MonkeyPatch.context() as patch:
        if bug != CONTROL:
            BUGS[bug](patch)
        return dict(tracer.run_counted(seed, FAULTS, slots=True)[1].counts)

"""Volumes of slots that break one promise of the fence.

Owns: one small patch per promise, and `run(bug, seed)`, takeovers on a volume patched so (`none`:
unpatched, the control). Imports: the scenario of takeovers, the patched parts of the storage.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from magnetar.storage.volumes import objects
from magnetar.storage.volumes.objects import RetryingObjects
from magnetar.storage.volumes.slot_format import SLOT_HEADER_BYTES
from magnetar.storage.volumes.slots import SlotVolume
from tests.simulation.scenarios import slot_takeovers
from tests.simulation.scenarios.planted import planting

Patch = pytest.MonkeyPatch


def no_fence_where_the_next_file_begins(patch: Patch) -> None:
    """A new owner ends the files that there are, not those that are about to be."""
    fence = SlotVolume._fence

    async def careless(
        volume: SlotVolume, directory: str, number: int, slot: int, slots: dict[int, int]
    ) -> bool:
        return True if slot == 0 else await fence(volume, directory, number, slot, slots)

    patch.setattr(SlotVolume, "_fence", careless)


def no_fence_where_a_file_goes_on(patch: Patch) -> None:
    """A new owner keeps new files from appearing and leaves the present ones open."""
    fence = SlotVolume._fence

    async def careless(
        volume: SlotVolume, directory: str, number: int, slot: int, slots: dict[int, int]
    ) -> bool:
        return True if slot > 0 else await fence(volume, directory, number, slot, slots)

    patch.setattr(SlotVolume, "_fence", careless)


def a_slot_of_another_is_taken_for_ones_own(patch: Patch) -> None:
    """A slot that is taken is taken for one's own, whose answer was lost: the mark is not
    compared."""

    async def trusting(_objects: RetryingObjects, _key: str, _mark: str) -> bool:
        return True

    patch.setattr(RetryingObjects, "_is_ours", trusting)


def fences_are_collected(patch: Patch) -> None:
    """The collector deletes a dead incarnation's fences with its files."""
    remove = SlotVolume.remove

    async def thorough(volume: SlotVolume, name: str) -> bool:
        removed = await remove(volume, name)
        for key, _ in await volume._objects.list(name):
            await volume._objects.delete(key)
        return removed

    patch.setattr(SlotVolume, "remove", thorough)


def holes_are_not_looked_for(patch: Patch) -> None:
    """A file ends where its slots do, whatever is missing below or above."""

    async def careless(_volume: SlotVolume, _name: str, _slots: dict[int, int], _last: int) -> None:
        return

    patch.setattr(SlotVolume, "_check_holes", careless)


def a_fence_goes_into_the_first_free_slot(patch: Patch) -> None:
    """A new owner puts its fence where the first slot is missing."""

    async def first(
        _volume: SlotVolume,
        _directory: str,
        _number: int,
        slots: dict[int, int],
        *,
        accepted: bool,  # noqa: ARG001
    ) -> int:
        return next(
            slot for slot in range(len(slots) + 1) if slots.get(slot, 0) <= SLOT_HEADER_BYTES
        )

    patch.setattr(SlotVolume, "_free_slot", first)


def an_outage_ends_the_owner_at_once(patch: Patch) -> None:
    """Requests are repeated for a few seconds only."""
    patch.setattr(objects, "OUTAGE_S_MAX", 4.0)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        no_fence_where_the_next_file_begins,
        no_fence_where_a_file_goes_on,
        a_slot_of_another_is_taken_for_ones_own,
        fences_are_collected,
        holes_are_not_looked_for,
        a_fence_goes_into_the_first_free_slot,
        an_outage_ends_the_owner_at_once,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """Takeovers on a volume with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return slot_takeovers.run(seed)

"""The collector's schedule: full collections only in quiet moments, or when it is high time; and
what goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import resource
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.hosting import garbage
from magnetar.hosting.garbage import GarbageSchedule, give_back


class _Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.me = self


class _Traffic:
    def __init__(self) -> None:
        self.messages = 0


@pytest.fixture
def traffic() -> Iterator[tuple[_Traffic, GarbageSchedule]]:
    traffic = _Traffic()
    schedule = GarbageSchedule(lambda: traffic.messages)
    schedule.begin()
    yield traffic, schedule
    schedule.end()


def _old_cycle() -> weakref.ref[_Node]:
    """Garbage that only a full collection finds: it outlived the young ones."""
    node = _Node()
    gc.collect(0)
    gc.collect(1)
    found = weakref.ref(node)
    del node
    return found


def test_a_full_collection_waits_for_a_quiet_moment(
    traffic: tuple[_Traffic, GarbageSchedule],
) -> None:
    load, schedule = traffic
    cycle = _old_cycle()
    load.messages += garbage.QUIET_ACTIVITY + 1
    schedule.look()
    assert cycle() is not None, "collected under load"
    schedule.look()
    assert cycle() is None, "a quiet moment passed unused"


def test_under_little_load_full_collections_are_rare(
    traffic: tuple[_Traffic, GarbageSchedule],
) -> None:
    """A client that sends a few messages meets one a minute: not one message in a hundred waits
    for it."""
    load, schedule = traffic
    cycle, looks = _old_cycle(), 0
    while cycle() is not None:
        load.messages += 1
        schedule.look()
        looks += 1
    assert looks == int(garbage.QUIET_COLLECTION_S / garbage.LOOK_S)


def test_under_endless_load_a_full_collection_runs_in_the_end(
    traffic: tuple[_Traffic, GarbageSchedule],
) -> None:
    load, schedule = traffic
    cycle = _old_cycle()
    for _ in range(int(garbage.BUSY_COLLECTION_S / garbage.LOOK_S)):
        load.messages += 10 * garbage.QUIET_ACTIVITY
        schedule.look()
    assert cycle() is None


def test_nothing_is_collected_where_nothing_is_new(
    traffic: tuple[_Traffic, GarbageSchedule],
) -> None:
    _, schedule = traffic
    schedule.look()
    full = gc.get_stats()[2]["collections"]
    schedule.look()
    assert gc.get_stats()[2]["collections"] == full


@pytest.mark.usefixtures("traffic")
def test_the_interpreter_starts_no_full_collection_by_itself() -> None:
    assert gc.get_threshold()[2] == garbage.MIDDLE_PER_FULL
    full = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(garbage.YOUNG_OBJECTS * garbage.YOUNG_PER_MIDDLE * 3)]
    assert gc.get_stats()[2]["collections"] == full
    assert kept


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="this C library gives back by itself, or not at all",
)
def test_what_lies_free_between_what_is_kept_goes_back_to_the_system() -> None:
    """Pages of JSON leave holes below the objects that were made of them, which the allocator
    keeps by itself."""
    pieces = [b"%d" % number * 800 for number in range(20_000)]
    kept = pieces[::50]  # each on a page of its own: none of the ends of the heap becomes free
    full = _resident_bytes()
    del pieces
    give_back()
    assert full - _resident_bytes() > 40_000_000
    assert len(kept) == 400


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

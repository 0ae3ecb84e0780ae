"""The warm copy of a store's records: as new as what was written, aware of what others
change, right again after any gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from magnetar.clock import SystemClock
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.store import Delete, Event, KeyValue, Put, RangeResult
from magnetar_operator.stores.record_view import Change, RecordView

A, B = "namespaces/acme/a", "namespaces/acme/b"


class Watched:
    """A view, and the changes that it reported."""

    def __init__(self, store: MemoryStore) -> None:
        self.reported: list[Change] = []
        self.view = RecordView(store, "namespaces/", self.reported.append, SystemClock())

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not holds():
                await asyncio.sleep(0)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[MemoryStore, Watched]]:
    store = MemoryStore(SystemClock())
    watched = Watched(store)
    await store.put(A, b"1")
    task = asyncio.create_task(watched.view.run())
    try:
        await watched.until(lambda: watched.view.knows(A))
        yield store, watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def value(view: RecordView, key: str) -> bytes | None:
    found = view.get(key)
    return found.value if found is not None else None


async def test_changes_of_others_are_known_and_reported_once() -> None:
    async with running() as (store, watched):
        assert value(watched.view, A) == b"1"
        assert not watched.reported, "the first look is no change"
        await store.put(A, b"2")
        await store.put(B, b"3")
        await store.delete(A)
        await watched.until(lambda: len(watched.reported) == 3)
        assert watched.reported == [
            Change(A, b"1", b"2"),
            Change(B, None, b"3"),
            Change(A, b"2", None),
        ]
        assert (value(watched.view, A), value(watched.view, B)) == (None, b"3")
        assert not watched.view.knows("tenants/acme")


@pytest.mark.parametrize("first", ["answer", "watch"])
async def test_own_writes_are_known_at_once_and_reported_once_as_ours(first: str) -> None:
    """Also where the watch shows a write before its answer is here, and where no answer comes."""
    async with running() as (store, watched):
        changes = (
            Change(A, b"1", b"mine", ours=True),
            Change(B, None, b"mine", ours=True),
            Change(A, b"mine", None, ours=True),
        )
        for number, change in enumerate(changes, start=1):
            operations = [Put(change.key, change.new) if change.new else Delete(change.key)]
            watched.view.writing(operations)
            revision = (await store.transact((), operations)).revision
            if first == "watch":
                await watched.until(partial(_has_reported, watched, number))
            if number < len(changes) or first == "answer":
                watched.view.wrote(operations, revision)
            if change.new is None:
                await watched.until(partial(_has_reported, watched, number))
            assert value(watched.view, change.key) == change.new
            assert len(watched.reported) == number
        last = Change("namespaces/acme/last", None, b"theirs")
        await store.put(last.key, b"theirs")
        await watched.until(partial(_has_reported, watched, len(changes) + 1))
        assert watched.reported == [*changes, last]


def _has_reported(watched: Watched, changes: int) -> bool:
    return len(watched.reported) >= changes


async def test_what_a_reader_finds_before_the_watch_shows_it_is_reported() -> None:
    """The reader is not the only one whom it concerns."""
    async with running() as (store, watched):
        await store.put(A, b"theirs")
        watched.view.read(A, await store.get(A))
        assert watched.reported == [Change(A, b"1", b"theirs")]
        await store.put(B, b"later")
        await watched.until(partial(_has_reported, watched, 2))
        assert watched.reported[1:] == [Change(B, None, b"later")]


async def test_a_refused_write_has_the_record_read_until_it_is_known_again() -> None:
    async with running() as (store, watched):
        watched.view.doubt([A, "operator/term"])
        assert not watched.view.knows(A)
        assert watched.view.knows(B)
        watched.view.read(A, await store.get(A))
        assert watched.view.knows(A)
        watched.view.doubt([A])
        await store.put(A, b"2")
        await watched.until(lambda: watched.view.knows(A))
        assert value(watched.view, A) == b"2"


def test_what_a_gap_hid_is_reported_and_a_store_from_a_backup_is_believed() -> None:
    """Reading all again after a lost watch; then once more of a store whose revisions have begun
    again."""
    reported: list[Change] = []
    view = RecordView(MemoryStore(SystemClock()), "namespaces/", reported.append, SystemClock())

    def load(revision: int, *records: tuple[str, bytes, int]) -> None:
        view._load(
            RangeResult(
                revision, tuple(KeyValue(key, content, 1, at, 1) for key, content, at in records)
            )
        )

    load(10, (A, b"1", 5), (B, b"1", 6))
    assert reported == []
    load(20, (A, b"2", 15))
    assert reported == [Change(B, b"1", None), Change(A, b"1", b"2")]
    view.wrote([Put(B, b"mine")], 25)
    load(24, (A, b"2", 15))
    assert value(view, B) == b"mine", "a write that the range did not see yet"
    reported.clear()
    load(3, (A, b"old", 2))
    assert (value(view, A), value(view, B)) == (b"old", None)
    assert reported == [Change(B, b"mine", None), Change(A, b"2", b"old")]


def test_what_was_asked_for_before_the_first_look_at_all_is_reported() -> None:
    """A caller has decided by it: the first range may show a change of it, and a write of ours may
    come before that range."""
    reported: list[Change] = []
    view = RecordView(MemoryStore(SystemClock()), "namespaces/", reported.append, SystemClock())
    for key in (A, B):
        view.read(key, KeyValue(key, b"1", 1, 5, 1))
    view.wrote([Put(B, b"mine")], 6)
    assert reported == [Change(B, b"1", b"mine", ours=True)]
    new = "namespaces/acme/new"
    found = (KeyValue(A, b"2", 1, 7, 2), KeyValue(B, b"mine", 1, 6, 2), KeyValue(new, b"", 8, 8, 1))
    view._load(RangeResult(10, found))
    assert reported[1:] == [Change(A, b"1", b"2")]


def test_a_store_that_went_back_behind_what_the_watch_has_shown_is_believed() -> None:
    """Though it is ahead of the last range: what came after is not a write of ours."""
    reported: list[Change] = []
    view = RecordView(MemoryStore(SystemClock()), "namespaces/", reported.append, SystemClock())
    view._load(RangeResult(10, (KeyValue(A, b"1", 1, 5, 1),)))
    view._take(Event(A, b"2", 40, 1))
    view._load(RangeResult(30, (KeyValue(A, b"1", 1, 5, 1),)))
    assert value(view, A) == b"1"
    assert reported == [Change(A, b"1", b"2"), Change(A, b"2", b"1")]

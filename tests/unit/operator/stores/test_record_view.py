"""The warm copy of a store's records: as new as what was written, told of what others change,
right again after any gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from magnetar.clock import SystemClock
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.store import Delete, KeyValue, Put, RangeResult
from magnetar_operator.stores.record_view import RecordView

A, B = "namespaces/acme/a", "namespaces/acme/b"


class Watched:
    """A view, and what it told."""

    def __init__(self, store: MemoryStore) -> None:
        self.told: list[tuple[str, bytes | None, bytes | None]] = []
        self.view = RecordView(
            store, "namespaces/", lambda *change: self.told.append(change), SystemClock()
        )

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


async def test_changes_of_others_are_known_and_told_once() -> None:
    async with running() as (store, watched):
        assert value(watched.view, A) == b"1"
        assert not watched.told, "the first look is no change"
        await store.put(A, b"2")
        await store.put(B, b"3")
        await store.delete(A)
        await watched.until(lambda: len(watched.told) == 3)
        assert watched.told == [(A, b"1", b"2"), (B, None, b"3"), (A, b"2", None)]
        assert (value(watched.view, A), value(watched.view, B)) == (None, b"3")
        assert not watched.view.knows("tenants/acme")


async def test_own_writes_are_known_at_once_and_not_told() -> None:
    async with running() as (store, watched):
        each: tuple[list[Put | Delete], ...] = (
            [Put(A, b"mine")],
            [Put(B, b"mine")],
            [Delete(A)],
        )
        for operations in each:
            watched.view.writing(operations)
            watched.view.wrote(operations, (await store.transact((), operations)).revision)
            assert value(watched.view, operations[0].key) == (
                None if isinstance(operations[0], Delete) else b"mine"
            )
        await store.put("namespaces/acme/last", b"theirs")
        await watched.until(lambda: value(watched.view, "namespaces/acme/last") == b"theirs")
        assert watched.told == [("namespaces/acme/last", None, b"theirs")]


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


def test_what_a_gap_hid_is_told_and_a_store_from_a_backup_is_believed() -> None:
    """Reading all again after a lost watch; then once more of a store whose revisions have begun
    again."""
    told: list[tuple[str, bytes | None, bytes | None]] = []
    view = RecordView(
        MemoryStore(SystemClock()),
        "namespaces/",
        lambda *change: told.append(change),
        SystemClock(),
    )

    def load(revision: int, *records: tuple[str, bytes, int]) -> None:
        view._load(
            RangeResult(
                revision, tuple(KeyValue(key, content, 1, at, 1) for key, content, at in records)
            )
        )

    load(10, (A, b"1", 5), (B, b"1", 6))
    assert told == []
    load(20, (A, b"2", 15))
    assert told == [(B, b"1", None), (A, b"1", b"2")]
    view.wrote([Put(B, b"mine")], 25)
    load(24, (A, b"2", 15))
    assert value(view, B) == b"mine", "a write that the range did not see yet"
    told.clear()
    load(3, (A, b"old", 2))
    assert (value(view, A), value(view, B)) == (b"old", None)
    assert told == [(B, b"mine", None), (A, b"2", b"old")]

"""What `metadata.store` promises about watches, proved on every backend."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import Compacted, StoreError, StoreUnavailable
from magnetar.metadata.store import Delete, Event, Put, WatchBatch
from tests.contract.metadata.backends import Backend, PatientStore


async def collect(
    store: PatientStore, prefix: str, from_revision: int, until: int
) -> list[WatchBatch]:
    """All batches of a watch up to revision `until`, which must have one."""
    watch = store.watch(prefix, from_revision)
    try:
        found: list[WatchBatch] = []
        while not found or found[-1].revision < until:
            found.append(await anext(watch))
        return found
    finally:
        await watch.aclose()


def test_history_is_delivered_in_order_one_batch_per_revision(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        first = await store.put("w/a", b"1")
        await store.put("elsewhere", b"x")
        both = (
            await store.transact((), (Put("w/a", b"2"), Put("elsewhere", b"y"), Put("w/b", b"3")))
        ).revision
        await store.delete("w/a")
        last = (await store.range("")).revision
        assert await collect(store, "w/", first, last) == [
            WatchBatch(first, (Event("w/a", b"1", first, first),)),
            WatchBatch(both, (Event("w/a", b"2", both, first), Event("w/b", b"3", both, both))),
            WatchBatch(last, (Event("w/a", None, last),)),
        ]
        assert await collect(store, "w/", both + 1, last) == [
            WatchBatch(last, (Event("w/a", None, last),))
        ]

    backend.run(scenario)


def test_a_watch_from_the_next_revision_sees_exactly_what_follows(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        await store.put("w/a", b"before")
        start = (await store.range("w/")).revision + 1
        watching = asyncio.create_task(collect(store, "w/", start, start + 2))
        await asyncio.sleep(0)
        for number in range(3):
            await store.put(f"w/{number}", b"%d" % number)
        batches = await watching
        assert [batch.revision for batch in batches] == [start, start + 1, start + 2]
        assert [batch.events[0].key for batch in batches] == ["w/0", "w/1", "w/2"]

    backend.run(scenario)


def test_a_revision_is_never_split_however_large(backend: Backend) -> None:
    """Four revisions of a hundred 10 KiB values: etcd splits such an answer over several
    messages."""

    async def scenario(store: PatientStore) -> None:
        start = (await store.range("")).revision + 1
        for turn in range(4):
            await store.transact(
                (), [Put(f"w/{number:03d}", bytes([turn]) * 10_000) for number in range(100)]
            )
        batches = await collect(store, "w/", start, start + 3)
        assert [batch.revision for batch in batches] == [start, start + 1, start + 2, start + 3]
        assert [len(batch.events) for batch in batches] == [100] * 4
        for turn, batch in enumerate(batches):
            assert [event.key for event in batch.events] == [
                f"w/{number:03d}" for number in range(100)
            ]
            assert {event.value for event in batch.events} == {bytes([turn]) * 10_000}

    backend.run(scenario)


def test_several_watches_see_the_same(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        start = (await store.range("")).revision + 1
        watches = [asyncio.create_task(collect(store, "w/", start, start + 9)) for _ in range(3)]
        for number in range(10):
            await store.put("w/k", b"%d" % number)
        first, *others = await asyncio.gather(*watches)
        assert [batch.events[0].value for batch in first] == [
            b"%d" % number for number in range(10)
        ]
        assert all(other == first for other in others)

    backend.run(scenario)


def test_an_acknowledged_write_is_what_a_watch_shows(backend: Backend) -> None:
    """Whatever a watch has shown can be read: nothing is shown before it is settled."""

    async def scenario(store: PatientStore) -> None:
        start = (await store.range("")).revision + 1

        async def write() -> list[int]:
            return [await store.put("w/k", b"%d" % number) for number in range(20)]

        writing = asyncio.create_task(write())
        watch = store.watch("w/", start)
        shown: list[int] = []
        while len(shown) < 20:
            batch = await anext(watch)
            shown.append(batch.revision)
            item = await store.get("w/k")
            assert item is not None
            assert item.mod_revision >= batch.revision
        await watch.aclose()
        # A put whose reply was lost and repeated may have taken two revisions.
        assert set(shown) <= set(range(start, max(await writing) + 1))

    backend.run(scenario)


@pytest.mark.slow
def test_nothing_is_lost_or_repeated_across_a_broken_connection(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        start = (await store.range("")).revision + 1

        async def write() -> int:
            for number in range(120):
                if number == 40:
                    await backend.disturb()
                await store.transact(
                    (), (Put(f"w/{number % 7}", b"%d" % number), Put("other", b"%d" % number))
                )
            return (await store.transact((), (Delete("w/0"), Put("w/end", b"end")))).revision

        async def watch() -> list[WatchBatch]:
            found = []
            async for batch in store.watch("w/", start):
                found.append(batch)
                if any(event.key == "w/end" for event in batch.events):
                    break
            return found

        watching = asyncio.create_task(watch())
        last = await write()
        found = await watching
        assert found == await collect(store, "w/", start, last), (
            "the same as an undisturbed reading of the history"
        )
        assert [batch.revision for batch in found] == list(range(start, last + 1))

    backend.run(scenario)


def test_a_compacted_revision_is_refused(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        first = await store.put("w/k", b"1")
        for number in range(5):
            await store.put("w/k", b"n%d" % number)
        last = (await store.range("")).revision
        await backend.compact(last - 1)
        with pytest.raises(Compacted):
            await anext(store.watch("w/", first))
        assert [batch.revision for batch in await collect(store, "w/", last, last)] == [last]
        assert (await store.get("w/k")).value == b"n4"  # type: ignore[union-attr]  # compaction keeps current values

    backend.run(scenario)


def test_a_watch_from_no_revision_is_refused(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        with pytest.raises(StoreError):
            await anext(store.watch("w/", 0))

    backend.run(scenario)


def test_closing_the_store_ends_its_watches(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        start = (await store.range("")).revision + 1

        async def wait_for_nothing(ready: asyncio.Event) -> None:
            watch = store.watch("w/", start)
            assert (await anext(watch)).events[0].key == "w/first"
            ready.set()
            await anext(watch)

        ready = asyncio.Event()
        waiting = asyncio.create_task(wait_for_nothing(ready))
        await store.put("w/first", b"1")
        await ready.wait()
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreUnavailable):
            await waiting

    backend.run(scenario)

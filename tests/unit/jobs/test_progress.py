"""How far a run says that it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.clock import SystemClock
from magnetar.errors import StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import JobProgressRecord
from magnetar.metadata.store import Compare, Operation, TxnResult
from magnetar_jobs import progress as module
from magnetar_jobs.progress import (
    COMMITTING,
    PLANNING,
    READING,
    STARTING,
    WRITING,
    Counts,
    RunProgress,
    estimated,
    published,
)
from magnetar_jobs.reporting import Report


class HandClock(SystemClock):
    """Moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 5_000


def test_share_rate_and_end_are_those_of_the_work_so_far() -> None:
    """Two of four topics, and the third half read: a quarter of it."""
    counts = Counts(READING, 2, 4, 1000, 400, 0.5)
    found = estimated(counts, 90.0, 7)
    assert (found.percent, found.bytes_done, found.bytes_planned) == (56, 1100, 1400)
    assert (found.bytes_per_s, found.eta_s, found.updated_ms) == (12, 70, 7)


def test_nothing_is_estimated_before_anything_is_done() -> None:
    found = estimated(Counts(STARTING, 0, 4), 50.0, 0)
    assert (found.percent, found.bytes_per_s, found.eta_s) == (0, 0, None)


def test_a_run_counts_its_topics_and_the_sessions_start_does_not_slow_it_down() -> None:
    clock = HandClock()
    run = RunProgress(clock)
    run.begin_topics(2)
    run.enter(STARTING)
    clock.now_s += 1000
    run.enter(PLANNING)
    run.planned(500)
    run.enter(READING)
    run.tasks(3, 4)
    run.tasks(0, 4)  # the next stage of the same phase
    assert run.record().percent == 18
    run.enter(WRITING)
    clock.now_s += 10
    run.tasks(0, 0)
    assert run.record().percent == 25
    run.enter(COMMITTING)
    run.topic_done()
    found = run.record()
    assert (found.phase, found.topics_done, found.percent) == (PLANNING, 1, 50)
    assert (found.bytes_done, found.bytes_per_s, found.eta_s) == (500, 50, 10)


phases = st.sampled_from([STARTING, PLANNING, READING, WRITING, COMMITTING])


@given(
    st.builds(
        Counts,
        phases,
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(0, 10**12),
        st.integers(0, 10**12),
        st.floats(0, 1),
    ),
    st.floats(0, 1e9),
)
def test_estimates_stay_within_bounds(counts: Counts, worked_s: float) -> None:
    found = estimated(counts, worked_s, 0)
    assert (found.percent is None) == (counts.topics_total == 0)
    assert 0 <= (found.percent or 0) <= 100
    assert 0 <= found.bytes_done <= found.bytes_planned
    assert found.bytes_per_s >= 0
    assert found.eta_s is None or found.eta_s >= 0
    assert JobProgressRecord.decode(found.encode()) == found


async def test_progress_is_published_by_phases_and_removed_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    store, key = MemoryStore(SystemClock()), keys.job_progress("demo", "1")

    async def phase() -> str:
        item = await store.get(key)
        return JobProgressRecord.decode(item.value).phase if item is not None else ""

    async with published(store, SystemClock(), "demo", "1", Report(False)) as publisher:
        for wanted in (STARTING, READING, WRITING):
            publisher.progress.enter(wanted)
            async with asyncio.timeout(120):
                while await phase() != wanted:
                    await asyncio.sleep(0.01)
    assert await store.get(key) is None


class Late(MemoryStore):
    """One whose first write takes effect when the test says so, whatever becomes of its caller, as
    one that has been sent does."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.under_way: list[asyncio.Future[TxnResult]] = []

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        async def take() -> TxnResult:
            await self.go_on.wait()
            return await MemoryStore.transact(self, compares, operations)

        if self.under_way:
            return await super().transact(compares, operations)
        self.under_way.append(asyncio.ensure_future(take()))
        self.begun.set()
        return await asyncio.shield(self.under_way[0])


async def turns() -> None:
    """Let everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_write_under_way_at_the_end_is_not_left_behind() -> None:
    """It is waited for, and removed: a removal that overtook it would leave it there."""
    store, key = Late(), keys.job_progress("demo", "1")
    running, end = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with published(store, SystemClock(), "demo", "1", Report(False)):
            running.set()
            await end.wait()

    job = asyncio.create_task(run())
    await store.begun.wait()
    end.set()
    await turns()
    store.go_on.set()
    await job
    await turns()
    assert store.under_way[0].done()
    assert await store.get(key) is None


async def test_an_older_write_does_not_replace_a_newer_phase() -> None:
    """While a session starts nothing else is published: what was published before it must not come
    after."""
    store, key = Late(), keys.job_progress("demo", "1")
    async with published(store, SystemClock(), "demo", "1", Report(False)) as publisher:
        await store.begun.wait()
        publisher.progress.enter(STARTING)
        publishing = asyncio.create_task(publisher.publish())
        await turns()
        store.go_on.set()
        await publishing
        await turns()
        item = await store.get(key)
        assert item is not None
        assert JobProgressRecord.decode(item.value).phase == STARTING


async def test_a_store_that_takes_no_progress_ends_no_run() -> None:
    class Unavailable(MemoryStore):
        async def transact(self, *_: object) -> object:  # type: ignore[override]
            raise StoreUnavailable("no answer")

        async def delete(self, _key: str) -> bool:  # type: ignore[override]
            raise StoreUnavailable("no answer")

    async with published(
        Unavailable(SystemClock()), SystemClock(), "demo", "1", Report(False)
    ) as publisher:
        await publisher.publish()

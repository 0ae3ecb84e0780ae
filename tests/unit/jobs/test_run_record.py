"""A run's record decides about the run, whatever its driver's pod does."""

from __future__ import annotations

from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import JobRunRecord
from magnetar_jobs.run_record import FAILED, MESSAGE_LENGTH_MAX, STARTED, SUCCEEDED, RunRecord


async def stored(store: MemoryStore) -> JobRunRecord:
    item = await store.get(keys.job_run("demo", "1"))
    assert item is not None
    return JobRunRecord.decode(item.value)


async def test_a_run_goes_from_started_to_succeeded_and_keeps_its_start_time() -> None:
    store = MemoryStore(SystemClock())
    run = RunRecord(store, SystemClock(), "compaction", "demo", "1")
    assert await run.begin() is None
    begun = await stored(store)
    await run.succeed({"keys": 3})
    done = await stored(store)
    assert (begun.state, done.state) == (STARTED, SUCCEEDED)
    assert done.started_ms == begun.started_ms
    assert done.finished_ms >= done.started_ms
    assert done.result == {"keys": 3}


async def test_a_run_that_succeeded_is_not_begun_again_nor_failed_by_a_late_driver() -> None:
    store = MemoryStore(SystemClock())
    run = RunRecord(store, SystemClock(), "compaction", "demo", "1")
    await run.begin()
    await run.succeed({"keys": 3})
    await run.fail("a second driver lost its executors")
    again = await run.begin()
    assert again is not None
    assert again.result == {"keys": 3}
    assert (await stored(store)).state == SUCCEEDED


async def test_a_failed_run_may_be_tried_again_and_its_message_is_bounded() -> None:
    store = MemoryStore(SystemClock())
    run = RunRecord(store, SystemClock(), "compaction", "demo", "1")
    await run.begin()
    await run.fail("x" * 10_000)
    failed = await stored(store)
    assert (failed.state, len(failed.message)) == (FAILED, MESSAGE_LENGTH_MAX)
    assert await run.begin() is None
    assert (await stored(store)).state == STARTED

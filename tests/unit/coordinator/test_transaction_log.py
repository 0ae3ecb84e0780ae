"""A coordinator's log on real storage: incarnations that follow each other, whatever ended them,
lose nothing that was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from magnetar.errors import CorruptData, Fenced, InvalidRequest, StorageError
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.backup import read_backup
from magnetar.metadata.records import ClusterRecord, CoordinatorRecord, CoordinatorState
from magnetar.metadata.store import MetadataStore
from magnetar.storage import names
from magnetar.storage.restore.restoring import restore_store
from magnetar.storage.storage_id import read_or_create_storage_id
from magnetar.storage.volumes.linked import LinkedObjects
from magnetar.storage.volumes.slots import SlotVolume
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.coordinator.events import (
    Caller,
    EndRequested,
    JoinRequested,
    NewRequested,
    ParticipantEnded,
)
from magnetar.transactions.records import Action, Participant
from tests.support.brokers import CLOCK, running_broker, volume_in
from tests.support.coordinators import Life, begin_life, held

A = Participant("persistent://public/default/a")
ANYBODY = Caller()


async def record_of(store: MetadataStore, tcid: int = 0) -> CoordinatorRecord:
    item = await store.get(keys.coordinator(tcid))
    assert item is not None
    return CoordinatorRecord.decode(item.value)


async def end(life: Life, least: int, action: Action = Action.COMMIT) -> None:
    """Decide, behind the flush."""
    life.handle(EndRequested("end", least, action, ANYBODY, CLOCK.wall_ms()))
    await life.settled()


@asynccontextmanager
async def slots_in(directory: Path) -> AsyncIterator[SlotVolume]:
    volume = SlotVolume(LinkedObjects(directory), CLOCK)
    try:
        yield volume
    finally:
        await volume.close()


@pytest.mark.parametrize("volume_of", [volume_in, slots_in])
async def test_an_incarnation_that_dies_loses_nothing_that_was_acknowledged(
    tmp_path: Path, volume_of: Callable[[Path], AbstractAsyncContextManager[Volume]]
) -> None:
    """The next incarnation fences it, knows every transaction and outcome, and gives new sequences
    only; where files are appended to, and on slots."""

    store = MemoryStore(CLOCK)
    async with volume_of(tmp_path) as volume:
        first = await begin_life(store, volume, "a")
        opened, ending, ended = [await first.begin() for _ in range(3)]
        first.handle(JoinRequested("join", ending, (A,), ANYBODY))
        await end(first, ending)
        await end(first, ended, Action.ABORT)
        await store.revoke_lease(first.lease)
        second = await begin_life(store, volume, "b")
        assert [second.core.status(least) for least in (opened, ending, ended)] == [
            "OPEN",
            "COMMITTING",
            "ABORTED",
        ]
        assert second.core.to_drive(ending) == (Action.COMMIT, (A,))
        assert await second.begin() == 3
        record = await record_of(store)
        assert [span.incarnation for span in record.chain] == ["tx-coordinator-0.b"]
        assert record.checkpoint is not None
        assert (await volume.list(names.CLAIMS)) == [names.claim("tx-coordinator-0.b")]
        first.answers.clear()
        first.handle(NewRequested("late", 60_000, "", 0))
        await first.settled()
        assert first.answers == []


async def test_a_former_incarnation_answers_nothing_after_a_takeover(tmp_path: Path) -> None:
    """What it appends is never acknowledged, and its checkpoint never pointed to; the successor
    does not know it."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        first = await begin_life(store, volume, "a")
        await first.begin()
        await store.revoke_lease(first.lease)
        second = await begin_life(store, volume, "b")
        first.handle(NewRequested("late", 60_000, "", 0))
        await first.settled()
        assert first.answers == []
        assert isinstance(first.failed.result(), Fenced)
        with pytest.raises(Fenced, match="another holder"):
            await first.log.checkpoint(first.core)
        assert await second.begin() == 1


async def test_a_planned_end_loses_not_even_what_nobody_waited_for(tmp_path: Path) -> None:
    """ENDED records are deferred; a log that closes writes them."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        first = await begin_life(store, volume, "a")
        least = await first.begin()
        first.handle(JoinRequested("join", least, (A,), ANYBODY))
        await end(first, least)
        first.handle(ParticipantEnded(least, A, CLOCK.wall_ms()))
        await first.log.close()
        assert not first.failed.done()
        await first.claim.release(first.core.live)
        second = await begin_life(store, volume, "b")
        assert (second.core.status(least), second.core.live) == ("COMMITTED", 0)


async def test_checkpoints_shorten_the_log_and_delete_what_they_replace(tmp_path: Path) -> None:
    """Sequences, open transactions and outcomes survive; old checkpoints and files of the own
    log are gone; a recovery reads the rest."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        life = await begin_life(store, volume, "a")
        kept = await life.begin()
        for _ in range(600):
            life.handle(NewRequested("new", 60_000, "x" * 200, CLOCK.wall_ms()))
            await life.settled()
            if life.log.checkpoint_due:
                await life.log.checkpoint(life.core)
        record = await record_of(store)
        assert record.checkpoint is not None
        assert record.checkpoint.position.file > 0, "the log was rolled"
        assert await volume.list(names.coordinator_checkpoints(0)) == [record.checkpoint.object]
        files = [
            names.log_number(name)
            for name in await volume.list(names.logs_of("tx-coordinator-0.a"))
        ]
        assert (
            min(number for number in files if number is not None)
            >= record.checkpoint.position.file - 1
        )
        await store.revoke_lease(life.lease)
        second = await begin_life(store, volume, "b")
        assert (second.core.status(kept), second.core.live) == ("OPEN", 601)
        assert await second.begin() == 601


async def test_what_cannot_be_deleted_goes_with_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that cannot be synced does not end an incarnation whose log and record are in
    order (simulation seed 11 of coordinators)."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        life = await begin_life(store, volume, "a")

        async def refuse(name: str) -> bool:
            raise StorageError(f"{name}: EIO")

        with monkeypatch.context() as patch:
            patch.setattr(volume, "remove", refuse)
            await life.log.checkpoint(life.core)
        assert len(await volume.list(names.coordinator_checkpoints(0))) == 2
        await life.log.checkpoint(life.core)
        record = await record_of(store)
        assert record.checkpoint is not None
        assert await volume.list(names.coordinator_checkpoints(0)) == [record.checkpoint.object]
        assert await life.begin() == 0


async def test_what_is_missing_is_named_and_nothing_begins_without_it(tmp_path: Path) -> None:
    """Neither without the checkpoint nor without the log that the record names."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        first = await begin_life(store, volume, "a")
        await first.begin()
        await store.revoke_lease(first.lease)
        record = await record_of(store)
        assert record.checkpoint is not None
        log = names.log_file("tx-coordinator-0.a", 0)
        data = await volume.read(record.checkpoint.object)
        await volume.remove(record.checkpoint.object)
        with pytest.raises(CorruptData, match=record.checkpoint.object):
            await begin_life(store, volume, "b")
        assert await volume.put_if_absent(record.checkpoint.object, data)
        await volume.remove(log)
        claim = await store.get(keys.coordinator_claim(0))
        assert claim is not None
        await store.delete(keys.coordinator_claim(0))
        with pytest.raises(CorruptData, match=log):
            await begin_life(store, volume, "c")
        assert (await record_of(store)).chain == record.chain, (
            "the chain stays for the owner after the file"
        )


async def test_a_life_that_never_settled_changes_nothing(tmp_path: Path) -> None:
    """It may die anywhere between taking the number and its word: the next one begins where the
    last that answered has ended."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        first = await begin_life(store, volume, "a")
        least = await first.begin()
        await store.revoke_lease(first.lease)
        _, lease = await held(store, "b")
        await store.revoke_lease(lease)
        unsettled = await begin_life(store, volume, "c", settle=False)
        await store.revoke_lease(unsettled.lease)
        last = await begin_life(store, volume, "d")
        assert last.core.status(least) == "OPEN"
        assert await last.begin() == least + 1


async def test_an_older_store_that_was_put_back_is_refused(tmp_path: Path) -> None:
    """It would begin with less than was acknowledged: an incarnation whose epoch storage has seen
    does not begin."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        await begin_life(store, volume, "a")
        with pytest.raises(StorageError, match="an older store was put back"):
            await begin_life(MemoryStore(CLOCK), volume, "b")


@pytest.mark.parametrize("backed_up", [True, False])
async def test_a_lost_store_is_rebuilt_with_every_transaction(
    tmp_path: Path, backed_up: bool
) -> None:
    """From the newest checkpoint and the log behind it, with an old backup and without any; a
    sequence is never given again."""

    store, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        storage_id = await read_or_create_storage_id(volume, CLOCK)
        await store.put(keys.CLUSTER, ClusterRecord(storage_id, 0, 1).encode())
        first = await begin_life(store, volume, "a")
        backup = await read_backup(store, 0) if backed_up else None
        sequences = [await first.begin() for _ in range(3)]
        await first.log.checkpoint(first.core)
        sequences.append(await first.begin())
        await end(first, sequences[0])
        done = await restore_store(fresh, volume, CLOCK, backup=backup, source="test")
        assert done.store.problems == []
        record = await record_of(fresh)
        assert record.state is CoordinatorState.RECOVERING
        second = await begin_life(fresh, volume, "b", restore=done.number)
        assert [second.core.status(least) for least in sequences] == [
            "COMMITTED",
            "OPEN",
            "OPEN",
            "OPEN",
        ]
        assert await second.begin() == 4
        first.answers.clear()
        first.handle(NewRequested("late", 60_000, "", 0))
        await first.settled()
        assert first.answers == []


async def test_a_restore_without_a_coordinators_log_is_a_problem(tmp_path: Path) -> None:
    """It is named before anything is written."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        storage_id = await read_or_create_storage_id(volume, CLOCK)
        await store.put(keys.CLUSTER, ClusterRecord(storage_id, 0, 1).encode())
        first = await begin_life(store, volume, "a")
        await first.begin()
        await volume.remove(names.log_file("tx-coordinator-0.a", 0))
        with pytest.raises(
            InvalidRequest, match="transaction coordinator 0 cannot be recovered without"
        ):
            await restore_store(MemoryStore(CLOCK), volume, CLOCK, backup=None, source="test")


async def test_the_collector_keeps_what_coordinators_need(tmp_path: Path) -> None:
    """A dead life's log stays while the record names it, and goes once a later life has its own;
    a living one is never fenced."""

    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store, replaced_kept_s=0) as broker:
        volume, garbage_collector = broker.context.volume, broker.maintenance.garbage_collector
        first = await begin_life(store, volume, "a")
        least = await first.begin()
        await store.revoke_lease(first.lease)
        _, lease = await held(store, "b")
        await first.log.close()
        for _ in range(3):
            await garbage_collector.collect_dead()
        await store.revoke_lease(lease)
        third = await begin_life(store, volume, "c")
        assert third.core.status(least) == "OPEN"
        for _ in range(3):
            await garbage_collector.collect_dead()
        assert await volume.list(names.logs_of("tx-coordinator-0.a")) == []
        assert await volume.exists(names.claim("tx-coordinator-0.c"))
        assert await third.begin() == least + 1


async def test_a_log_that_cannot_keep_up_ends_its_life(tmp_path: Path) -> None:
    """What was decided and does not fit is never followed by anything: the next incarnation
    begins with what is durable."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        life = await begin_life(store, volume, "a")
        least = await life.begin()
        large = tuple(
            Participant(f"persistent://public/default/{'x' * 900}{number}") for number in range(80)
        )
        life.handle(JoinRequested("join", least, large, ANYBODY))
        assert "cannot keep up" in str(life.failed.result())
        life.handle(NewRequested("new", 60_000, "", 0))
        await asyncio.wait_for(life.log.check_claim(), 120)
        assert life.answers == []
        await store.revoke_lease(life.lease)
        second = await begin_life(store, volume, "b")
        assert (second.core.status(least), second.core.live) == ("OPEN", 1)

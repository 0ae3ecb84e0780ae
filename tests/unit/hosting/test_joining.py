"""A broker that comes with a store which does not fit its storage is refused, and the error
says what to run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from magnetar.broker.incarnation import STORE_RETRY_S
from magnetar.clock import SystemClock
from magnetar.errors import RestoreAwaited, StorageError, StoreError, StoreUnavailable
from magnetar.hosting.joining import check_restore, guarded, join_cluster
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.backup import read_backup
from magnetar.metadata.records import (
    BackupReportRecord,
    ClusterRecord,
    ManifestPointer,
    NamespaceRecord,
    RestoreRecord,
)
from magnetar.metadata.store import Compare, KeyValue, Operation, Put, RangeResult, TxnResult
from magnetar.names import TopicName
from magnetar.storage import names
from magnetar.storage.restore.backups import keep_backup, list_backups
from magnetar.storage.restore.restore_number import raise_restore_number, read_restore_number
from magnetar.storage.restore.restoring import restore_store
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.brokers import TOPIC, open_peer, running_broker, volume_in

CLOCK = SystemClock()
Script = Callable[[MemoryStore, PosixVolume], Awaitable[None]]


async def run(directory: Path, script: Script) -> None:
    store, volume = MemoryStore(CLOCK), PosixVolume(directory)
    try:
        await script(store, volume)
    finally:
        await store.close()
        await volume.close()


async def test_a_new_cluster_begins_and_is_joined_again(tmp_path: Path) -> None:
    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        first = await join_cluster(store, volume, CLOCK)
        await volume.put_if_absent(names.log_file("broker-0.1", 0), b"log")
        assert await join_cluster(store, volume, CLOCK) == first
        assert first.restore == 0
        namespace = await store.get("namespaces/public/default")
        assert namespace is not None
        assert len(NamespaceRecord.decode(namespace.value).boundaries) > 1

    await run(tmp_path, script)


async def test_a_report_on_copies_is_not_taken_for_a_copy(tmp_path: Path) -> None:
    """The leader could make none yet and said so, and all brokers have gone: the cluster is
    joined again."""

    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        first = await join_cluster(store, volume, CLOCK)
        await store.put(
            keys.BACKUP_REPORT,
            BackupReportRecord(problem="no answer from the metadata store").encode(),
        )
        assert await join_cluster(store, volume, CLOCK) == first
        await keep_backup(store, volume, await read_backup(store, 0), kept=2)
        assert await join_cluster(store, volume, CLOCK) == first

    await run(tmp_path, script)


async def test_an_empty_store_over_logs_is_refused(tmp_path: Path) -> None:
    """The error names the commands that bring the store back, and nothing was written into the
    empty one."""

    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        await join_cluster(store, volume, CLOCK)
        await volume.put_if_absent(names.log_file("broker-0.1", 0), b"log")
        empty = MemoryStore(CLOCK)
        with pytest.raises(StorageError, match=r"metadata restore FILE.*metadata rebuild"):
            await join_cluster(empty, volume, CLOCK)
        assert (await empty.range("")).items == ()

    await run(tmp_path, script)


class LostStore(MemoryStore):
    """A store that loses everything (`only`: that key) after so many calls."""

    def __init__(self, before: MemoryStore, calls: int, only: str = "") -> None:
        super().__init__(CLOCK)
        self._before, self._calls, self._only = before, calls, only

    async def _lose(self) -> None:
        self._calls -= 1
        if self._calls == 0:
            for item in (await self._before.range(self._only)).items:
                await self._before.delete(item.key)

    async def get(self, key: str) -> KeyValue | None:
        await self._lose()
        return await self._before.get(key)

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        await self._lose()
        return await self._before.range(prefix, limit=limit)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        await self._lose()
        return await self._before.transact(compares, operations)


@pytest.mark.parametrize("only", ["", keys.RESTORE])
async def test_a_store_that_is_lost_while_it_is_joined_stays_lost(
    tmp_path: Path, only: str
) -> None:
    """At whichever call; so does one whose restore begins then, which takes the restore number
    away (simulation seed 315 of restore)."""

    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        joined = await join_cluster(store, volume, CLOCK)
        await volume.put_if_absent(names.log_file("broker-0.1", 0), b"log")
        whole, refused = (await store.range("")).items, 0
        for calls in range(1, 100):
            lost = LostStore(store, calls, only)
            try:
                assert await join_cluster(lost, volume, CLOCK) == joined
                if lost._calls > 0:
                    break
            except RestoreAwaited:
                refused += 1
            left = {item.key for item in (await store.range("")).items}
            assert left == ({item.key for item in whole} - {keys.RESTORE} if only else set())
            for item in whole:
                await store.put(item.key, item.value)
        assert refused > 3

    await run(tmp_path, script)


async def test_a_store_whose_restore_was_not_finished_is_refused(tmp_path: Path) -> None:
    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        joined = await join_cluster(store, volume, CLOCK)
        assert await raise_restore_number(volume, CLOCK, 1, "test") == 1
        with pytest.raises(StorageError, match="has 0, the storage 1"):
            await join_cluster(store, volume, CLOCK)
        with pytest.raises(StorageError, match="restore"):
            await check_restore(volume, joined.restore)

    await run(tmp_path, script)


async def test_a_store_that_is_older_than_a_copy_in_storage_is_refused(tmp_path: Path) -> None:
    """Even when its revision was raised, as etcd's restore does: it has not learned of the copy."""

    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        await join_cluster(store, volume, CLOCK)
        snapshot = store._core.snapshot()
        await store.put("tenants/a", b"{}")
        await keep_backup(store, volume, await read_backup(store, 0), kept=3)
        await join_cluster(store, volume, CLOCK)  # the store that wrote it fits

        old = MemoryStore(CLOCK)
        for item in snapshot.items:
            await old.put(item.key, item.value)
        for number in range(100):
            await old.put("tenants/b", str(number).encode())
        with pytest.raises(StorageError, match="restore --in-place"):
            await join_cluster(old, volume, CLOCK)

    await run(tmp_path, script)


async def test_a_store_that_is_behind_a_term_in_storage_is_refused(tmp_path: Path) -> None:
    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        await join_cluster(store, volume, CLOCK)
        await volume.put_if_absent(
            "checkpoints/public/default/0x00000000_0x40000000/00000000000000000777-00000001", b""
        )
        with pytest.raises(StorageError, match="a term of revision 777"):
            await join_cluster(store, volume, CLOCK)

    await run(tmp_path, script)


async def test_who_joined_a_store_changes_nothing_in_another_one(tmp_path: Path) -> None:
    """An empty store that replaces it is as good as none, whatever is asked of it; a restored one
    is another, which is said once."""

    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        joined = await join_cluster(store, volume, CLOCK)
        reported: list[str] = []
        ours = guarded(store, joined.restore, reported.append)
        await ours.put("tenants/a", b"1")
        assert await ours.delete("tenants/a") is True
        assert await ours.delete("tenants/a") is False
        assert reported == []
        await store.delete(keys.RESTORE)
        for asked in (ours.put("tenants/a", b"2"), ours.get("tenants/b"), ours.range("tenants/")):
            with pytest.raises(StoreUnavailable, match="waits for its restore"):
                await asked
        assert reported == []
        await store.put(keys.RESTORE, RestoreRecord(1).encode())
        with pytest.raises(StoreError, match="was replaced"):
            await ours.transact((), (Put("tenants/a", b"2"),))
        for asked in (ours.get("tenants/a"), ours.range("tenants/")):
            with pytest.raises(StoreError, match="was replaced"):
                await asked
        assert await store.get("tenants/a") is None
        assert len(reported) == 1

    await run(tmp_path, script)


async def test_concurrent_restores_get_numbers_of_their_own(tmp_path: Path) -> None:
    async def script(_store: MemoryStore, volume: PosixVolume) -> None:
        numbers = await asyncio.gather(
            *(raise_restore_number(volume, CLOCK, 1, "test") for _ in range(5))
        )
        assert sorted(numbers) == [1, 2, 3, 4, 5]
        assert await raise_restore_number(volume, CLOCK, 9, "test") == 9
        assert await read_restore_number(volume) == 9

    await run(tmp_path, script)


async def test_only_the_newest_copies_are_kept_and_an_old_leader_adds_none(tmp_path: Path) -> None:
    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        await join_cluster(store, volume, CLOCK)
        late = await read_backup(store, 0)
        kept = []
        for number in range(4):
            await store.put("tenants/a", str(number).encode())
            kept.append(await keep_backup(store, volume, await read_backup(store, 0), kept=2))
        assert await list_backups(volume) == kept[-2:]
        assert await keep_backup(store, volume, late, kept=2) is None
        assert await list_backups(volume) == kept[-2:]

    await run(tmp_path, script)


async def test_a_wrong_volume_is_refused(tmp_path: Path) -> None:
    async def script(store: MemoryStore, volume: PosixVolume) -> None:
        await store.put(keys.CLUSTER, ClusterRecord("0" * 32, 0, 1).encode())
        with pytest.raises(StorageError, match="different volume"):
            await join_cluster(store, volume, CLOCK)

    await run(tmp_path, script)


async def test_a_broker_whose_store_is_emptied_serves_on_and_ends_with_the_restore(
    tmp_path: Path,
) -> None:
    """It changes nothing in the empty store, registers in it as nobody, and loses nothing; no
    new broker is let in."""

    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        store._core = MemoryStore(CLOCK)._core
        broker._lease_lost("test")
        await peer.send(b"under the claim", 0)
        with pytest.raises(StoreUnavailable, match="waits for its restore"):
            await broker.context.store.put("tenants/a", b"{}")
        await asyncio.sleep(2 * STORE_RETRY_S)  # for several tries to register
        await peer.send(b"still", 1)
        assert broker.ready
        assert (await store.range("")).items == ()
        async with volume_in(tmp_path) as volume:
            with pytest.raises(RestoreAwaited, match="metadata rebuild"):
                await join_cluster(store, volume, CLOCK)
            await restore_store(store, volume, CLOCK, backup=None, source="storage alone")
        assert "claim" in await broker.ended()
        assert (await store.range(keys.INCARNATIONS)).items == ()
    async with (
        running_broker(tmp_path, store=store, name="broker-1") as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        core = (
            (
                await broker.ownership.serving(
                    await broker.ownership.bundle_of(TopicName.parse(TOPIC))
                )
            )
            .topics[TOPIC]
            .core
        )
        assert core.ledgers.end - core.ledgers.first == 2
    await store.close()


async def test_a_restored_store_points_to_manifests_that_are_durable(tmp_path: Path) -> None:
    """Their writers may have been fenced between the name's being there and its being durable
    (simulation seed 184 of restore)."""
    made: list[str] = []

    class Noting(PosixVolume):
        async def put_if_absent(self, name: str, data: bytes) -> bool:
            made.append(name)
            return await super().put_if_absent(name, data)

    async with running_broker(tmp_path) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        await peer.send(b"x", 0)
        await broker.service.roll(TopicName.parse(TOPIC))
    store, volume = MemoryStore(CLOCK), Noting(tmp_path)
    await restore_store(store, volume, CLOCK, backup=None, source="storage alone")
    pointers = [
        ManifestPointer.decode(item.value).object
        for item in (await store.range(keys.MANIFESTS)).items
    ]
    assert pointers
    assert {*pointers} <= {*made}
    await store.close()
    await volume.close()

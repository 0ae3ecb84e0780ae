"""Bringing back the store of a real broker's storage: what is refused, what a problem is, and
that nothing is written then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.errors import InvalidRequest, RestoresExhausted
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.backup import read_backup
from magnetar.metadata.records import (
    RESTORE_STRIDE,
    RESTORES_MAX,
    BundleRecord,
    BundleState,
    ClusterRecord,
    NamespaceRecord,
)
from magnetar.names import BundleName, TopicName, bundles_of
from magnetar.schemas.types import version_bytes
from magnetar.storage import names
from magnetar.storage.restore.backups import keep_backup
from magnetar.storage.restore.restore_number import read_restore_number
from magnetar.storage.restore.restoring import is_restored_for, newest_backup, restore_store
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.topics.ledger_ids import epoch_of
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.brokers import CLOCK, TOPIC, open_peer, running_broker, volume_in

NAME = TopicName.parse(TOPIC)
FENCE = "the restore number is raised"


@asynccontextmanager
async def storage_with_messages(
    directory: Path, store: MemoryStore, count: int = 3
) -> AsyncIterator[PosixVolume]:
    """What a broker leaves behind that was killed after `count` receipts."""
    async with running_broker(directory, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        for number in range(count):
            await peer.send(b"message %d" % number, number)
        broker.fail("killed")
    async with volume_in(directory) as volume:
        yield volume


async def until_sealed(directory: Path, count: int) -> None:
    """Until so many log files are finished."""
    async with asyncio.timeout(120):
        while len([*directory.rglob("*.sealed")]) < count:
            await asyncio.sleep(0.01)


async def messages_in(directory: Path, store: MemoryStore) -> list[tuple[int, int]]:
    """Ids of everything in TOPIC, by a broker on the restored store."""
    async with (
        running_broker(directory, store=store, name="broker-1") as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        core = (
            (await broker.ownership.serving(await broker.ownership.bundle_of(NAME)))
            .topics[TOPIC]
            .core
        )
        found = (
            core.ledgers.position(ordinal)
            for ordinal in range(core.ledgers.first, core.ledgers.end)
        )
        return [(position.ledger, position.entry) for position in found]


async def test_a_bundle_that_began_after_the_backup_is_found_in_its_log(tmp_path: Path) -> None:
    """And the next term's ledgers are above the last one's, although the new store's revisions
    begin at 1."""

    lost, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=lost):
        backup = await read_backup(lost, 0)
    async with storage_with_messages(tmp_path, lost) as volume:
        done = await restore_store(fresh, volume, CLOCK, backup=backup, source="backup")
        assert done.number == 1 == await read_restore_number(volume)
        assert (await volume.list(names.CLAIMS)) == []
    found = await messages_in(tmp_path, fresh)
    assert len(found) == 3
    [record] = [BundleRecord.decode(item.value) for item in (await fresh.range(keys.BUNDLES)).items]
    assert record.state is BundleState.OWNED
    assert record.epoch > RESTORE_STRIDE
    assert all(epoch_of(ledger) < record.epoch for ledger, _ in found)


@pytest.mark.parametrize("copied", [True, False], ids=["with a copy", "from storage alone"])
async def test_schemas_come_from_the_copy_and_from_logs(tmp_path: Path, *, copied: bool) -> None:
    """Whichever client comes back first: no number that a message may carry is given again."""
    lost, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    fields = [{"name": name, "type": "int", "default": 1} for name in "abc"]
    early, late, next_one = (
        api.Schema(
            name="s",
            type=api.Schema.Avro,
            schema_data=json.dumps(
                {"type": "record", "name": "R", "fields": fields[:count]}
            ).encode(),
        )
        for count in range(3)
    )
    async with running_broker(tmp_path, store=lost) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce(1, schema=early)
        backup = await read_backup(lost, 0)
        assert (await peer.produce(2, schema=late)).schema_version == version_bytes(1)
        broker.fail("killed")
    async with volume_in(tmp_path) as volume:
        await restore_store(
            fresh, volume, CLOCK, backup=backup if copied else None, source="the test"
        )
    async with (
        running_broker(tmp_path, store=fresh, name="broker-1") as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        assert (await peer.produce(1, schema=next_one)).schema_version == version_bytes(2)
        for number, schema in enumerate((early, late)):
            answer = await peer.ask("get_schema", topic=TOPIC, schema_version=version_bytes(number))
            assert answer.get_schema_response.schema.schema_data == schema.schema_data
            made = await peer.produce(number + 2, schema=schema)
            assert made.schema_version == version_bytes(number)


async def test_the_restore_number_is_above_every_epoch_in_storage(tmp_path: Path) -> None:
    """Also above one whose revision went on into the bits of the restore number."""

    lost, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with storage_with_messages(tmp_path, lost) as volume:
        [bundle] = [
            BundleName.parse(item.key.removeprefix(keys.BUNDLES))
            for item in (await lost.range(keys.BUNDLES)).items
        ]
        await volume.put_if_absent(names.checkpoint(bundle, 3 * RESTORE_STRIDE + 5, 1), b"")
        done = await restore_store(fresh, volume, CLOCK, backup=None, source="storage")
        assert done.number == 4 == await read_restore_number(volume)
    await messages_in(tmp_path, fresh)
    [record] = [BundleRecord.decode(item.value) for item in (await fresh.range(keys.BUNDLES)).items]
    assert record.epoch > 4 * RESTORE_STRIDE


async def test_a_restore_for_which_message_ids_have_no_room_is_refused(tmp_path: Path) -> None:
    """Nothing is written to the store; the error says what to do."""

    lost, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with storage_with_messages(tmp_path, lost) as volume:
        await volume.put_if_absent(names.restore(RESTORES_MAX), b"")
        with pytest.raises(
            RestoresExhausted, match=r"restore number: 256 is above 255.*new storage"
        ):
            await restore_store(fresh, volume, CLOCK, backup=None, source="storage")
        assert (await fresh.range("")).items == ()


async def test_a_problem_is_named_and_nothing_is_written_unless_forced(tmp_path: Path) -> None:
    """With the log gone the bundle stays named in the store: its owner will name the file,
    instead of beginning again."""

    lost, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with storage_with_messages(tmp_path, lost) as volume:
        backup = await read_backup(lost, 0)
        [log] = [name for name in await volume.list(names.LOGS) if names.log_number(name) == 0]
        await volume.remove(log)
        with pytest.raises(InvalidRequest, match=r"nothing was written: .*00000000.log"):
            await restore_store(fresh, volume, CLOCK, backup=backup, source="backup")
        assert (await fresh.range("")).items == ()
        done = await restore_store(fresh, volume, CLOCK, backup=backup, source="backup", force=True)
        assert done.number == 2
        assert len(done.store.problems) == 1
        [item] = (await fresh.range(keys.BUNDLES)).items
        assert BundleRecord.decode(item.value).chain


async def test_what_never_changes_is_read_before_the_brokers_are_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause of clients begins with the restore number: of finished log files only the seals
    are looked at from then on."""

    fresh, read = MemoryStore(CLOCK), list[str]()
    original, put = PosixVolume.read, PosixVolume.put_if_absent

    async def reading(self: PosixVolume, name: str, *place: int) -> bytes:
        read.append(name)
        return await original(self, name, *place)

    async def putting(self: PosixVolume, name: str, data: bytes) -> bool:
        if name.startswith(names.RESTORE):
            read.append(FENCE)
        return await put(self, name, data)

    async with (
        running_broker(tmp_path, store=MemoryStore(CLOCK)) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        for number in range(3):
            await peer.send(b"message", number)
            await broker.service.roll(NAME)
        await until_sealed(tmp_path, 3)
        async with volume_in(tmp_path) as volume:
            monkeypatch.setattr(PosixVolume, "read", reading)
            monkeypatch.setattr(PosixVolume, "put_if_absent", putting)
            await restore_store(fresh, volume, CLOCK, backup=None, source="storage")
            monkeypatch.undo()
    at = read.index(FENCE)
    logs = [
        [names.log_number(name) for name in part if names.log_number(name) is not None]
        for part in (read[:at], read[at:])
    ]
    assert set(logs[0]) == {0, 1, 2}
    assert set(logs[1]) == {3}, "the one that was open"
    assert len(await messages_in(tmp_path, fresh)) == 3


async def test_the_loss_of_a_last_log_file_is_a_problem(tmp_path: Path) -> None:
    """Nothing names it but the seal of the file before it; without it the bundle would go on as
    if nothing had been acknowledged there."""

    lost, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=lost) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        await peer.send(b"before", 0)
        await broker.service.roll(NAME)
        await peer.send(b"behind", 1)
        broker.fail("killed")
    async with volume_in(tmp_path) as volume:
        [log] = [name for name in await volume.list(names.LOGS) if names.log_number(name) == 1]
        await volume.remove(log)
        with pytest.raises(InvalidRequest, match=r"nothing was written: .*00000001.log"):
            await restore_store(fresh, volume, CLOCK, backup=None, source="storage")


async def test_what_does_not_fit_is_refused_before_anything_changes(tmp_path: Path) -> None:
    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store) as broker, volume_in(tmp_path) as volume:
        with pytest.raises(InvalidRequest, match=f"brokers are registered: {broker.incarnation}"):
            await restore_store(store, volume, CLOCK, backup=None, source="storage")
    async with volume_in(tmp_path) as volume:
        backup = await read_backup(store, 0)
        with pytest.raises(InvalidRequest, match="not empty"):
            await restore_store(store, volume, CLOCK, backup=backup, source="backup")
        other = replace(backup, storage_id="0" * 32)
        with pytest.raises(InvalidRequest, match="is of storage 0000"):
            await restore_store(MemoryStore(CLOCK), volume, CLOCK, backup=other, source="backup")
        assert await read_restore_number(volume) == 0
    (tmp_path / "another").mkdir()
    async with volume_in(tmp_path / "another") as volume:
        with pytest.raises(InvalidRequest, match="no storage id"):
            await restore_store(MemoryStore(CLOCK), volume, CLOCK, backup=None, source="storage")


async def test_a_store_remembers_the_request_it_was_filled_for_and_no_copy_brings_it_back(
    tmp_path: Path,
) -> None:
    lost, fresh, later = MemoryStore(CLOCK), MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with storage_with_messages(tmp_path, lost) as volume:
        assert not await is_restored_for(fresh, "monday")
        await restore_store(fresh, volume, CLOCK, backup=None, source="storage", request="monday")
        assert await is_restored_for(fresh, "monday")
        assert not await is_restored_for(fresh, "tuesday")
        backup = await read_backup(fresh, 0)
        await restore_store(later, volume, CLOCK, backup=backup, source="backup")
        assert not await is_restored_for(later, "monday")


async def test_a_store_that_was_put_back_is_brought_in_line_in_place(tmp_path: Path) -> None:
    """What only the store knew stays; what is not to come back goes; brokers may join again."""

    store = MemoryStore(CLOCK)
    async with storage_with_messages(tmp_path, store) as volume:
        await store.put("tenants/acme", b"{}")
        await store.put("intents/old", b"{}")
        done = await restore_store(
            store, volume, CLOCK, backup=None, source="the store", in_place=True
        )
        cluster = await store.get(keys.CLUSTER)
        assert cluster is not None
        assert ClusterRecord.decode(cluster.value).restore == done.number == 1
        assert await store.get("tenants/acme") is not None
        assert await store.get("intents/old") is None
    assert len(await messages_in(tmp_path, store)) == 3


async def test_the_newest_whole_copy_in_storage_is_taken(tmp_path: Path) -> None:
    store, said = MemoryStore(CLOCK), list[str]()
    async with storage_with_messages(tmp_path, store) as volume:
        assert await newest_backup(volume) is None
        good = await keep_backup(store, volume, await read_backup(store, 0), kept=3)
        await volume.put_if_absent(names.backup(7, 7), b"not a backup")
        found = await newest_backup(volume, said.append)
        assert found is not None
        assert found[1] == good
        assert len(said) == 1
        assert names.backup(7, 7) in said[0]


async def test_without_any_copy_namespaces_come_from_their_bundles(tmp_path: Path) -> None:
    lost, fresh = MemoryStore(CLOCK), MemoryStore(CLOCK)
    async with storage_with_messages(tmp_path, lost) as volume:
        done = await restore_store(fresh, volume, CLOCK, backup=None, source="storage")
    assert any("public/default" in warning for warning in done.store.warnings)
    item = await fresh.get("namespaces/public/default")
    assert item is not None
    record = NamespaceRecord.decode(item.value)
    assert record.policies["retention_policies"] == {
        "retentionTimeInMinutes": -1,
        "retentionSizeInMB": -1,
    }
    [bundle] = (await fresh.range(keys.BUNDLES)).items
    assert bundle.key.removeprefix(keys.BUNDLES) in map(
        str, bundles_of(NAME.namespace_name, record.boundaries)
    )
    assert len(await messages_in(tmp_path, fresh)) == 3

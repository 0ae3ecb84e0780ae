"""The leader's copies of the metadata store: when one is written, and what the store
records of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.broker.upkeep.backups import MetadataBackups
from magnetar.clock import SystemClock
from magnetar.errors import StorageError
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.backup import PART_ENTRIES, Backup, encode_backup
from magnetar.metadata.records import BackupReportRecord
from magnetar.storage.restore.backups import keep_backup, list_backups, load_backup
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.brokers import CLOCK, SETTINGS, running_broker

NEVER_S = 3600.0
"""The broker's own rounds do not come in between."""


class SetForward(SystemClock):
    """The machine's clock, `by_s` seconds ahead."""

    by_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.by_s


class FullVolume:
    """The broker's volume with no room for another object."""

    def __init__(self, volume: PosixVolume) -> None:
        self._volume = volume

    async def put_if_absent(self, name: str, _data: bytes) -> bool:
        raise StorageError(f"{name}: no space left on the volume")

    async def list(self, prefix: str) -> Sequence[str]:
        return await self._volume.list(prefix)


async def report_in(store: MemoryStore) -> BackupReportRecord | None:
    found = await store.get(keys.BACKUP_REPORT)
    return BackupReportRecord.decode(found.value) if found is not None else None


async def test_each_interval_is_reported_and_a_copy_is_made_only_of_what_has_changed(
    tmp_path: Path,
) -> None:
    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store, maintenance_s=NEVER_S) as broker:
        clock = SetForward()
        context = replace(broker.context, clock=clock)
        backups = MetadataBackups(context)
        await backups.keep_up()
        first = await report_in(store)
        assert first is not None
        names = await list_backups(context.volume)
        assert (first.object, first.problem) == (names[-1], "")
        assert first.created_ms == first.current_ms > 0

        await backups.keep_up()
        assert await report_in(store) == first, "the interval is not over"
        clock.by_s += SETTINGS.metadata_backup_interval_s
        await backups.keep_up()
        second = await report_in(store)
        assert second is not None
        assert await list_backups(context.volume) == names
        assert replace(second, current_ms=0) == replace(first, current_ms=0)

        await store.put("tenants/new", b"x")
        clock.by_s += SETTINGS.metadata_backup_interval_s
        await backups.keep_up()
        third = await report_in(store)
        assert third is not None
        assert third.object == (await list_backups(context.volume))[-1] != first.object
        assert third.revision > first.revision


async def test_a_copy_that_fails_is_reported_once_and_over_when_one_succeeds(
    tmp_path: Path,
) -> None:
    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store, maintenance_s=NEVER_S) as broker:
        full = replace(broker.context, volume=FullVolume(broker.context.volume))  # type: ignore[arg-type]
        backups = MetadataBackups(full)
        with pytest.raises(StorageError):
            await backups.keep_up()
        failing = await report_in(store)
        assert failing is not None
        assert ("no space left" in failing.problem, failing.current_ms, failing.object) == (
            True,
            0,
            "",
        )
        with pytest.raises(StorageError, match="no space left"):
            await backups.keep_up()
        assert await report_in(store) == failing, (
            "another try, which names another object, is not reported before the interval is over"
        )

        await store.put("tenants/new", b"x")
        await MetadataBackups(broker.context).keep_up()
        healed = await report_in(store)
        assert healed is not None
        assert (healed.problem, bool(healed.object)) == ("", True)


async def test_a_large_copy_is_made_in_turns(tmp_path: Path) -> None:
    """Others on the leader's loop are served while it is encoded; the bytes are those of a copy
    made at once."""
    turns = 0

    class Counting(PosixVolume):
        """Notes how many turns others have had when the copy is whole."""

        seen = -1

        async def put_if_absent(self, name: str, data: bytes) -> bool:
            self.seen = turns
            return await super().put_if_absent(name, data)

    async def scenario() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        store, volume = MemoryStore(CLOCK), Counting(tmp_path)
        backup = Backup(
            "id", 1, 7, 0, {f"topics/{number:05d}": b"{}" for number in range(20 * PART_ENTRIES)}
        )
        beside = asyncio.create_task(others())
        name = await keep_backup(store, volume, backup, 3)
        beside.cancel()
        assert name is not None
        assert volume.seen >= 20
        assert await volume.read(name) == encode_backup(backup)
        assert await load_backup(volume, name) == backup
        await volume.close()
        await store.close()

    await scenario()

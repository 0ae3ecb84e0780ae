"""EmbeddedStore: what survives, what is acknowledged when, and who may open it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import CorruptData, StoreError, StoreUnavailable
from magnetar.metadata.backends import journal
from magnetar.metadata.backends.core import Change
from magnetar.metadata.backends.embedded import JOURNAL_NAME, EmbeddedStore
from magnetar.metadata.backends.journal import JournalFile
from magnetar.metadata.store import Delete, Put, RangeResult

CLOCK = SystemClock()


async def with_store(
    directory: Path, scenario: Callable[[EmbeddedStore], Coroutine[Any, Any, Any]], **options: int
) -> Any:
    """Open, run, close."""

    async def body() -> Any:
        store = await EmbeddedStore.open(directory, CLOCK, **options)
        try:
            return await scenario(store)
        finally:
            await store.close()

    return await body()


async def content(directory: Path) -> RangeResult:
    async def scenario(store: EmbeddedStore) -> RangeResult:
        return await store.range("")

    found: RangeResult = await with_store(directory, scenario)
    return found


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> RangeResult:
        for number in range(20):
            await store.put(f"k{number % 7}", b"%d" % number)
        await store.transact((), (Put("x", b"1"), Delete("k0")))
        return await store.range("")

    assert (
        await with_store(tmp_path, scenario) == await content(tmp_path) == await content(tmp_path)
    )


async def test_all_leases_end_at_open_in_one_revision_each(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> int:
        first, second = await store.grant_lease(60), await store.grant_lease(60)
        await store.transact(
            (),
            (Put("a1", b"", first), Put("a2", b"", first), Put("b", b"", second), Put("kept", b"")),
        )
        return (await store.range("")).revision

    before = await with_store(tmp_path, scenario)
    found = await content(tmp_path)
    assert [item.key for item in found.items] == ["kept"]
    assert found.revision == before + 2
    assert (await content(tmp_path)).revision == before + 2, "they end once"


@pytest.mark.slow
async def test_a_crash_at_any_byte_leaves_a_prefix_with_every_acknowledged_change(
    tmp_path: Path,
) -> None:
    """Cut copies of the journal at every byte, reopen each, and compare with what was
    acknowledged when the file was that long."""
    source = tmp_path / "source"
    states: list[tuple[int, RangeResult]] = []

    async def scenario(store: EmbeddedStore) -> None:
        path = source / JOURNAL_NAME
        states.append((path.stat().st_size, await store.range("")))
        for number in range(6):
            if number % 3 == 2:
                await store.transact((), (Delete("k0"), Put("k1", b"%d" % number), Put("k2", b"")))
            else:
                await store.put(f"k{number % 3}", b"value-%d" % number)
            states.append((path.stat().st_size, await store.range("")))

    await with_store(source, scenario)
    whole = (source / JOURNAL_NAME).read_bytes()
    assert states[-1][0] == len(whole), "an acknowledged change is in the file"
    for length in range(states[0][0], len(whole) + 1):
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        (crashed / JOURNAL_NAME).write_bytes(whole[:length])
        acknowledged = max((size, state.revision) for size, state in states if size <= length)[1]
        assert await content(crashed) == next(
            state for _, state in states if state.revision == acknowledged
        )
        shutil.rmtree(crashed)


async def test_a_crash_while_the_journal_is_replaced_loses_nothing(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> RangeResult:
        await store.put("k", b"v")
        return await store.range("")

    before = await with_store(tmp_path, scenario)
    (tmp_path / JOURNAL_NAME).with_suffix(".new").write_bytes(b"half a snapsh")
    assert await content(tmp_path) == before


@pytest.mark.slow
async def test_the_journal_stays_short(tmp_path: Path) -> None:
    """Overwriting one key permanently keeps the file near its limit, through restarts, and loses
    nothing."""
    for turn in range(3):

        async def scenario(store: EmbeddedStore, turn: int = turn) -> None:
            for number in range(300):
                await store.put("k", b"%03d" % turn * 50 + b"%d" % number)

        await with_store(tmp_path, scenario, journal_bytes_min=8192)
        assert (tmp_path / JOURNAL_NAME).stat().st_size < 3 * 8192
    found = await content(tmp_path)
    assert found.revision == 1 + 3 * 300
    assert found.items[0].version == 900
    assert found.items[0].value.endswith(b"299")


async def test_damaged_acknowledged_data_is_refused(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        for number in range(5):
            await store.put("k", b"%d" % number)

    await with_store(tmp_path, scenario)
    path = tmp_path / JOURNAL_NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData, match=JOURNAL_NAME):
        await content(tmp_path)
    assert path.read_bytes() == data, "the evidence is left alone"
    with pytest.raises(CorruptData):
        await content(tmp_path)


async def test_a_directory_has_one_owner_who_is_named(tmp_path: Path) -> None:
    async def scenario(_: EmbeddedStore) -> None:
        with pytest.raises(StoreError, match=f"{tmp_path} is in use by process {os.getpid()}"):
            await EmbeddedStore.open(tmp_path, CLOCK)

    await with_store(tmp_path, scenario)
    await content(tmp_path)


@pytest.mark.slow
async def test_a_killed_process_leaves_no_lock_and_no_acknowledged_change_behind(
    tmp_path: Path,
) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from magnetar.clock import SystemClock\n"
        "from magnetar.metadata.backends.embedded import EmbeddedStore\n"
        "async def main():\n"
        "    store = await EmbeddedStore.open(pathlib.Path(sys.argv[1]), SystemClock())\n"
        "    for number in range(10**6):\n"
        "        print(await store.put('k', b'%d' % number), flush=True)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": "broker_image"}
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(50)]
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout.read().split()[:-1]]
    writer.stdout.close()
    writer.wait()
    assert (await content(tmp_path)).revision >= acknowledged[-1]


class Disk:
    """Replaces the journal's flush: it waits for `allow`, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allow = threading.Event()
        self.reached = threading.Event()
        self.error: OSError | None = None
        self.groups: list[int] = []
        original = JournalFile.append

        def append(file: JournalFile, changes: list[Change], give_up: threading.Event) -> None:
            self.groups.append(len(changes))
            self.reached.set()
            assert self.allow.wait(120)
            if self.error:
                raise self.error
            original(file, changes, give_up)

        monkeypatch.setattr(JournalFile, "append", append)


async def test_nothing_is_shown_or_acknowledged_before_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def scenario(store: EmbeddedStore) -> None:
        watching = asyncio.ensure_future(anext(store.watch("", 2)))
        putting = asyncio.create_task(store.put("k", b"v"))
        reading = asyncio.create_task(store.get("k"))
        others = [
            asyncio.create_task(store.range("")),
            asyncio.create_task(store.delete("missing")),
        ]
        assert await asyncio.to_thread(disk.reached.wait, 120)
        done, _ = await asyncio.wait([watching, putting, reading, *others], timeout=0.02)
        assert not done, "even a read of what may be lost again must wait"
        disk.allow.set()
        await asyncio.gather(*others)
        item = await reading
        assert item is not None
        assert item.value == b"v"
        assert (await watching).revision == await putting == item.mod_revision

    await with_store(tmp_path, scenario)


async def test_changes_made_during_a_flush_share_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def scenario(store: EmbeddedStore) -> None:
        first = asyncio.create_task(store.put("first", b""))
        assert await asyncio.to_thread(disk.reached.wait, 120)
        others = [asyncio.create_task(store.put(f"k{number}", b"")) for number in range(40)]
        await asyncio.sleep(0)
        disk.allow.set()
        await asyncio.gather(first, *others)
        assert disk.groups == [1, 40]

    await with_store(tmp_path, scenario)


async def test_a_failing_disk_acknowledges_nothing_and_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.error = OSError(5, "Input/output error")
    disk.allow.set()

    async def scenario(store: EmbeddedStore) -> None:
        watching = asyncio.ensure_future(anext(store.watch("", 2)))
        outcomes = await asyncio.gather(
            *(store.put(f"k{n}", b"") for n in range(5)), return_exceptions=True
        )
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            await store.get("k0")
        with pytest.raises(StoreUnavailable):
            await watching

    await with_store(tmp_path, scenario)
    monkeypatch.undo()
    assert (await content(tmp_path)).items == ()


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a frame, then no space, then some: the change is acknowledged once, and there after a
    restart."""
    monkeypatch.setattr(journal, "FULL_RETRY_S", 0.01)
    write, refused = os.pwrite, list[int]()
    room = threading.Event()

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if room.is_set():
            return write(descriptor, data, offset)
        refused.append(len(data))
        if len(refused) == 1:
            return write(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario(store: EmbeddedStore) -> None:
        monkeypatch.setattr(os, "pwrite", full)
        putting = asyncio.create_task(store.put("k", b"v"))
        while len(refused) < 5:
            await asyncio.sleep(0.01)
        assert not putting.done()
        room.set()
        await putting

    await with_store(tmp_path, scenario)
    monkeypatch.undo()
    assert [item.key for item in (await content(tmp_path)).items] == ["k"]

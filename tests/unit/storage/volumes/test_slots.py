"""Log files made of slots: what lies where, who sees it, and how a log ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import Fenced, StorageError
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.seals import publish_seal
from magnetar.storage.log.writer import RecordPlace
from magnetar.storage.volumes import objects as objects_module
from magnetar.storage.volumes import outage as object_outage
from magnetar.storage.volumes import slots
from magnetar.storage.volumes.objects import RetryingObjects
from magnetar.storage.volumes.slot_format import SLOT_HEADER_BYTES
from magnetar.storage.volumes.slots import SlotVolume
from tests.support.logs import (
    CLOCK,
    INCARNATION,
    Failures,
    append_numbered,
    new_writer,
    read_numbers,
)
from tests.support.objects_in_memory import Laggard, LaggardObjects, MemoryService, unclear_times

LOG = names.log_file(INCARNATION, 0)
LOGS = names.logs_of(INCARNATION)
CAPACITY = 1 << 20
HEADER = bytes(range(100))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "PAUSE_FIRST_S", 0.0)
    monkeypatch.setattr(object_outage, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(objects_module, "OUTAGE_S_MAX", 0.2)


def volume_over(service: MemoryService) -> SlotVolume:
    """A volume as another process has it: it remembers nothing."""
    return SlotVolume(RetryingObjects(service, CLOCK), CLOCK)


def play(script: Callable[[MemoryService], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script(MemoryService()))


@given(
    st.lists(st.integers(1, 300), max_size=12),
    st.lists(
        st.tuples(st.integers(0, 3000), st.none() | st.integers(0, 3000)), min_size=1, max_size=8
    ),
    st.booleans(),
)
def test_a_log_reads_as_what_was_appended_to_it(
    sizes: list[int], reads: list[tuple[int, int | None]], ended: bool
) -> None:
    """By its writer, by one who comes later, and by one who came before it went on; whatever
    range is asked for."""

    async def script(service: MemoryService) -> None:
        writer, follower = volume_over(service), volume_over(service)
        handle = await writer.create_log(LOG, CAPACITY, HEADER)
        expected = HEADER
        for number, size in enumerate(sizes):
            assert await follower.read(LOG, max(0, len(expected) - 7)) == expected[-7:]
            data = bytes([number]) * size
            await handle.append(len(expected), [data[: size // 2], data[size // 2 :]], "")
            expected += data
        if ended:
            await follower.end_log(LOGS)
        for volume in (writer, follower, volume_over(service)):
            for offset, length in reads:
                found = await volume.read(LOG, offset, length)
                assert found == expected[offset : None if length is None else offset + length]

    play(script)


def test_what_cannot_grow_any_more_is_listed_once() -> None:
    """A fenced or a sealed file, for readers; the writer's own never."""

    async def script(service: MemoryService) -> None:
        writer, reader = volume_over(service), volume_over(service)
        handle = await writer.create_log(LOG, CAPACITY, HEADER)
        await handle.append(100, [b"x" * 50], "")
        assert await writer.read(LOG, 90, 1000) == HEADER[90:] + b"x" * 50
        assert service.lists == 0
        await publish_seal(writer, INCARNATION, 0, 150)
        for _ in range(3):
            assert await reader.read(LOG, 90, 1000) == HEADER[90:] + b"x" * 50
        assert service.lists == 1

    play(script)


def test_a_file_with_too_many_slots_is_full_and_the_log_goes_on_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "SLOTS_MAX", 4)

    async def script(service: MemoryService) -> None:
        failures = Failures()
        writer = new_writer(volume_over(service), failures)
        await writer.open()
        done: dict[int, RecordPlace] = {}
        for number in range(10):
            append_numbered(writer, number, done)
            await writer.barrier()
        assert [place.file for place in done.values()] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
        new_owner = volume_over(service)
        await fence(new_owner, INCARNATION)
        assert await read_numbers(new_owner, None) == done
        assert failures == []

    play(script)


def test_a_file_whose_creation_was_never_answered_is_taken_up() -> None:
    async def script(service: MemoryService) -> None:
        volume = volume_over(service)
        created = [False]

        def lost(key: str) -> None:
            created[0] = True
            raise objects_module.ObjectUnclear(key)

        service.after = lost

        async def unanswered(_key: str) -> str:
            raise objects_module.ObjectUnclear("no answer")

        service.mark_of, answer = unanswered, service.mark_of  # type: ignore[method-assign]
        with pytest.raises(StorageError, match=r"failed [0-9]+ times"):
            await volume.create_log(LOG, CAPACITY, HEADER)
        assert created == [True]
        service.mark_of = answer  # type: ignore[method-assign]
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        await handle.append(100, [b"on"], "")
        with pytest.raises(StorageError, match="exists already"):
            await volume.create_log(LOG, CAPACITY, HEADER)
        with pytest.raises(StorageError, match="exists already"):
            await volume_over(service).create_log(LOG, CAPACITY, HEADER)

    # The answer to the append is lost, too, and it is recognised all the same.
    play(script)


def test_an_owner_that_creates_a_file_in_the_same_moment_is_fenced_in_that_file() -> None:
    """The new owner's fence finds the slot taken, and goes on until no further file can appear."""

    async def script(service: MemoryService) -> None:
        owner, new_owner = volume_over(service), volume_over(service)
        handles = [await owner.create_log(LOG, CAPACITY, HEADER)]
        elsewhere = MemoryService()
        for number in (1, 2):
            await volume_over(elsewhere).create_log(
                names.log_file(INCARNATION, number), CAPACITY, HEADER
            )

        def quicker(key: str) -> None:
            if key in elsewhere.objects:
                service.objects.setdefault(key, elsewhere.objects[key])

        service.before = quicker
        await new_owner.end_log(LOGS)
        service.before = unclear_times(0)
        fences = sorted(
            key for key, (data, _) in service.objects.items() if len(data) == SLOT_HEADER_BYTES
        )
        assert fences == [
            names.slot(names.log_file(INCARNATION, 0), 1),
            names.slot(names.log_file(INCARNATION, 1), 1),
            names.slot(names.log_file(INCARNATION, 2), 1),
            names.slot(names.log_file(INCARNATION, 3), 0),
        ]
        with pytest.raises(Fenced):
            await handles[0].append(100, [b"late"], "")
        with pytest.raises(Fenced):
            await owner.create_log(names.log_file(INCARNATION, 3), CAPACITY, HEADER)

    play(script)


def test_whatever_of_the_log_was_collected_its_fences_stay() -> None:
    """Ending it again then puts none, nothing is listed, and the owner's next slot is taken."""

    async def script(service: MemoryService) -> None:
        failures = Failures()
        owner = new_writer(volume_over(service), failures)
        await owner.open()
        done: dict[int, RecordPlace] = {}
        append_numbered(owner, 0, done)
        await owner.barrier()
        new_owner = volume_over(service)
        sealed = await fence(new_owner, INCARNATION)
        assert sealed[0].length > FILE_HEADER_BYTES
        for file in sealed:
            for name in (
                LOG,
                names.index(INCARNATION, file.number),
                names.sealed(INCARNATION, file.number),
            ):
                await new_owner.remove(name)
        left = set(service.objects)
        assert await new_owner.list("") == []
        assert await fence(new_owner, INCARNATION) == []
        assert set(service.objects) == left | {names.slot(LOG, 0)} or set(service.objects) == left
        append_numbered(owner, 1, done)
        while not failures:
            await asyncio.sleep(0)
        assert list(done) == [0]

    play(script)


async def test_a_list_that_lags_behind_hides_nothing_from_a_new_owner() -> None:
    """Slots and files that it does not show yet are found by trying."""

    service = Laggard()
    owner = SlotVolume(RetryingObjects(service, CLOCK), CLOCK)
    failures = Failures()
    writer = new_writer(owner, failures)
    await writer.open()
    done: dict[int, RecordPlace] = {}
    for number in range(6):
        append_numbered(writer, number, done)
        await writer.barrier()
        if number == 3:
            await writer.roll("test")
    service.hidden = {
        key for key in service.objects if names.slot_of(key) not in (None, (LOG, 0), (LOG, 1))
    }
    new_owner = SlotVolume(LaggardObjects(service, CLOCK), CLOCK)
    sealed = await fence(new_owner, INCARNATION)
    assert [file.number for file in sealed] == [0, 1]
    assert await read_numbers(new_owner, None) == done


class TestProbe:
    def test_a_store_that_overwrites_is_refused(self) -> None:
        class Overwriting(MemoryService):
            async def create(self, key: str, buffers: Any, mark: str) -> None:
                self.objects.pop(key, None)
                await super().create(key, buffers, mark)

        self.refused(Overwriting(), "let 4 win instead of one")

    def test_a_store_that_lists_late_is_refused(self) -> None:
        class Blind(MemoryService):
            async def list(self, _prefix: str) -> list[tuple[str, int]]:
                return []

        self.refused(Blind(), "does not list")

    def test_a_store_that_drops_metadata_is_refused(self) -> None:
        """Were the answer to a put lost, nobody could say who won."""

        class Forgetful(MemoryService):
            async def mark_of(self, key: str) -> str:
                self._found(key)
                return ""

        self.refused(Forgetful(), "metadata")

    def refused(self, service: MemoryService, why: str) -> None:
        with pytest.raises(StorageError, match=why):
            asyncio.run(volume_over(service).probe())
        assert not [key for key in service.objects if not key.startswith("probes/")]

    async def test_a_good_store_is_left_as_it_was(self) -> None:
        service = MemoryService()
        await volume_over(service).probe()
        assert service.objects == {}

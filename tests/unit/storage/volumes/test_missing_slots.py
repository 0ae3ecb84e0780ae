"""Slots that were deleted from outside: they are named before anything is written, and bringing
them back brings everything back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData, InvalidRequest
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.accepted_loss import accept_loss, examine_loss
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import fence, log_end
from magnetar.storage.log.recovery import scan
from magnetar.storage.log.seals import read_seal
from magnetar.storage.log.writer import RecordPlace
from magnetar.storage.volumes.linked import LinkedObjects
from magnetar.storage.volumes.objects import ObjectStore, RetryingObjects
from magnetar.storage.volumes.posix import PosixVolume
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
from tests.support.objects_in_memory import Laggard, LaggardObjects, MemoryService

FIRST = names.log_file(INCARNATION, 0)
SECOND = names.log_file(INCARNATION, 1)
START = LogPosition(0, FILE_HEADER_BYTES)


def new_owner(service: MemoryService) -> SlotVolume:
    """A process that remembers nothing."""
    return SlotVolume(RetryingObjects(service, CLOCK), CLOCK)


async def crashed(
    volume: SlotVolume, per_file: list[int], *, sealed: bool = True
) -> dict[int, RecordPlace]:
    """A log of so many appends in each of its files, whose owner has died; the files before the
    last are sealed unless the crash came too soon."""
    done: dict[int, RecordPlace] = {}
    seals = asyncio.Semaphore(0)
    writer = new_writer(volume, Failures(), on_sealed=lambda *_: seals.release())
    await writer.open()
    number = 0
    for file, appends in enumerate(per_file):
        if file:
            await writer.roll("test")
        for _ in range(appends):
            append_numbered(writer, number, done)
            await writer.barrier()
            number += 1
    for _ in per_file[1:]:
        await seals.acquire()
    if not sealed:
        for file in range(len(per_file) - 1):
            await volume.remove(names.sealed(INCARNATION, file))
    assert len(done) == number
    return done


def fences(service: MemoryService) -> list[str]:
    return [key for key, (data, _) in service.objects.items() if len(data) == SLOT_HEADER_BYTES]


@given(st.integers(1, 8), st.sets(st.integers(0, 8), min_size=1))
def test_a_hole_is_named_and_left_as_it_is(appends: int, gone: set[int]) -> None:
    """Whichever slots below the last are missing, no fence is put anywhere; once they are back
    everything is read."""
    gone = {slot for slot in gone if slot < appends}

    async def script() -> None:
        service = MemoryService()
        done = await crashed(new_owner(service), [appends])
        before = dict(service.objects)
        for slot in gone:
            del service.objects[names.slot(FIRST, slot)]
        volume = new_owner(service)
        if gone:
            for _ in range(2):
                with pytest.raises(CorruptData, match=f"{min(gone):08d} is missing") as missing:
                    await fence(volume, INCARNATION)
            assert missing.value.file == names.slot(FIRST, min(gone))
            assert fences(service) == []
        service.objects.update(
            {key: value for key, value in before.items() if names.slot_of(key) is not None}
        )
        await fence(volume, INCARNATION)
        assert await read_numbers(volume, None) == done

    asyncio.run(script())


async def test_a_hole_in_a_file_that_was_just_left_is_named_too() -> None:
    """Its owner died before it was sealed; the next file is as it should be."""

    service = MemoryService()
    await crashed(new_owner(service), [4, 3], sealed=False)
    del service.objects[names.slot(FIRST, 2)]
    with pytest.raises(CorruptData, match=r"00000000\.log/00000002 is missing"):
        await fence(new_owner(service), INCARNATION)
    assert fences(service) == []


async def test_a_sealed_file_is_whole_again_once_its_slots_are_back() -> None:
    """What was found while they were missing is remembered by nobody."""

    service = MemoryService()
    done = await crashed(new_owner(service), [4, 3])
    volume = new_owner(service)
    await fence(volume, INCARNATION)
    for slot in (1, 4):
        lost = service.objects.pop(names.slot(FIRST, slot))
        with pytest.raises(
            CorruptData, match=f"{slot:08d} is missing, but the file is sealed"
        ) as missing:
            await read_numbers(new_owner(service), None)
        assert missing.value.file == names.slot(FIRST, slot)
        follower = new_owner(service)
        with pytest.raises(CorruptData):
            await read_numbers(follower, None)
        service.objects[names.slot(FIRST, slot)] = lost
        assert await read_numbers(follower, None) == done


async def test_missing_last_slots_are_named_where_their_length_is_known() -> None:
    """From a term that began there, or a key of a file whose seal is missing as well; before a
    fence hides them."""

    service = MemoryService()
    done = await crashed(new_owner(service), [6])
    known = {0: (await new_owner(service).appended_length(FIRST))}
    lost = {slot: service.objects.pop(names.slot(FIRST, slot)) for slot in (5, 6)}
    volume = new_owner(service)
    with pytest.raises(CorruptData, match=f"ends before {known[0]}"):
        await fence(volume, INCARNATION, known)
    assert fences(service) == []
    assert await read_seal(volume, INCARNATION, 0) is None
    service.objects.update({names.slot(FIRST, slot): value for slot, value in lost.items()})
    assert (await fence(volume, INCARNATION, known))[0].length == known[0]
    assert await read_numbers(volume, None) == done


async def test_no_fence_hides_a_file_that_is_missing_as_a_whole() -> None:
    """Its predecessor's seal announces it: the fence goes to the place behind it."""

    service = MemoryService()
    done = await crashed(new_owner(service), [3, 3])
    lost = {
        key: service.objects.pop(key)
        for key in list(service.objects)
        if key.startswith(f"{SECOND}/")
    }
    await fence(new_owner(service), INCARNATION)
    assert [key for key in fences(service) if key in lost] == []
    service.objects.update(lost)
    volume = new_owner(service)
    assert [file.number for file in await fence(volume, INCARNATION)] == [0, 1]
    assert await read_numbers(volume, None) == done


async def test_a_list_that_shows_a_slot_and_not_the_one_before_is_no_hole() -> None:
    """A list is no moment: the owner may have put both while it was made. Only a look by name
    decides."""

    service = Laggard()
    done = await crashed(new_owner(service), [6])
    service.hidden = {names.slot(FIRST, slot) for slot in (0, 2, 5)}
    volume = new_owner(service)
    await volume.end_log(names.logs_of(INCARNATION))
    service.hidden = set()
    await fence(volume, INCARNATION)
    assert await read_numbers(volume, None) == done


async def test_a_hole_that_a_late_list_does_not_show_is_found_by_name() -> None:
    """A file system that caches: the list ends below the hole, or shows nothing of the file."""

    for shown in (range(3), range(0)):
        service = Laggard()
        await crashed(SlotVolume(LaggardObjects(service, CLOCK), CLOCK), [6])
        del service.objects[names.slot(FIRST, 4)]
        service.hidden = {names.slot(FIRST, slot) for slot in range(7) if slot not in shown}
        with pytest.raises(CorruptData, match="00000004 is missing"):
            await fence(SlotVolume(LaggardObjects(service, CLOCK), CLOCK), INCARNATION)
        assert fences(service) == []


async def _linked(directory: Path) -> ObjectStore:
    objects = LinkedObjects(directory)
    await objects.check()
    return objects


async def test_a_hole_among_links_is_named(tmp_path: Path) -> None:
    objects = await _linked(tmp_path)
    done = await crashed(SlotVolume(objects, CLOCK), [6])
    path = tmp_path / names.slot(FIRST, 3)
    path.rename(tmp_path / "kept")
    volume = SlotVolume(objects, CLOCK)
    with pytest.raises(CorruptData, match="00000003 is missing"):
        await fence(volume, INCARNATION)
    (tmp_path / "kept").rename(path)
    await fence(volume, INCARNATION)
    assert await read_numbers(volume, None) == done
    await objects.close()


async def test_a_fence_in_a_hole_is_named_with_what_it_hides() -> None:
    service = MemoryService()
    await crashed(new_owner(service), [6])
    key = names.slot(FIRST, 3)
    del service.objects[key]
    await new_owner(service)._fence(names.logs_of(INCARNATION), 0, 3, {})
    with pytest.raises(CorruptData, match=rf"remove the fence {key} first"):
        await fence(new_owner(service), INCARNATION)


class TestAccepting:
    """An operator says that what is missing is lost: the log ends before it."""

    def test_a_hole_ends_the_log_where_it_is(self) -> None:
        async def script(volume: SlotVolume, service: MemoryService) -> None:
            lost = service.objects.pop(names.slot(FIRST, 4))
            kept = await self.accepted(volume, names.slot(FIRST, 4))
            found = await fence(new_owner(service), INCARNATION)
            assert [(file.length, file.accepted) for file in found[:1]] == [(kept, True)]
            assert log_end(found, START) == LogPosition(0, kept)
            assert list(await self.read(new_owner(service), found)) == [0, 1, 2]
            service.objects[names.slot(FIRST, 4)] = lost
            assert list(
                await self.read(new_owner(service), await fence(new_owner(service), INCARNATION))
            ) == [0, 1, 2]

        self.play([6], script)

    def test_a_sealed_file_is_sealed_again_and_later_files_are_given_up(self) -> None:
        async def script(volume: SlotVolume, service: MemoryService) -> None:
            del service.objects[names.slot(FIRST, 2)]
            await self.accepted(volume, FIRST)
            found = await fence(new_owner(service), INCARNATION)
            assert [file.number for file in found] == [0, 1]
            assert list(await self.read(new_owner(service), found)) == [0]
            # Who needs only what came later has it all; so has a range that was closed before the
            # loss.
            later = LogPosition(1, FILE_HEADER_BYTES)
            assert list(await read_numbers(new_owner(service), log_end(found, later), later)) == [
                4,
                5,
            ]
            assert list(
                await read_numbers(new_owner(service), LogPosition(1, found[1].length))
            ) == [0]

        self.play([4, 2], script)

    def test_a_file_that_is_missing_is_passed_over(self) -> None:
        async def script(volume: SlotVolume, service: MemoryService) -> None:
            for key in [key for key in service.objects if key.startswith(f"{SECOND}/")]:
                del service.objects[key]
            assert await self.accepted(volume, SECOND) == 0
            found = await fence(new_owner(service), INCARNATION)
            assert [(file.number, file.length) for file in found] == [(0, found[0].length), (1, 0)]
            assert list(await self.read(new_owner(service), found)) == [0, 1, 2]

        self.play([3, 3], script)

    async def test_a_damaged_file_of_a_directory_too(self, tmp_path: Path) -> None:
        volume, done = PosixVolume(tmp_path), dict[int, RecordPlace]()
        writer = new_writer(volume, Failures())
        await writer.open()
        for number in range(4):
            append_numbered(writer, number, done)
            await writer.barrier()
        with (tmp_path / FIRST).open("r+b") as file:
            file.seek(done[2].offset)
            file.write(b"\xff")
        with pytest.raises(CorruptData):
            await fence(volume, INCARNATION)
        await accept_loss(volume, await examine_loss(volume, FIRST))
        assert list(await self.read(volume, await fence(volume, INCARNATION))) == [0, 1]
        await writer.close()
        await volume.close()

    @pytest.mark.parametrize(
        ("file", "why"),
        [("manifests/x", "no log file"), (FIRST, "later files follow"), (SECOND, "may be alive")],
    )
    def test_what_may_not_be_accepted(self, file: str, why: str) -> None:
        async def script(volume: SlotVolume, _service: MemoryService) -> None:
            if why == "may be alive":
                await volume.put_if_absent(names.claim(INCARNATION), b"")
            with pytest.raises(InvalidRequest, match=why):
                await examine_loss(volume, file)

        self.play([3, 3], script)

    def play(
        self, per_file: list[int], script: Callable[[SlotVolume, MemoryService], Awaitable[None]]
    ) -> None:
        async def main() -> None:
            service = MemoryService()
            volume = new_owner(service)
            await crashed(volume, per_file)
            await volume.remove(names.claim(INCARNATION))
            await script(new_owner(service), service)

        asyncio.run(main())

    async def accepted(self, volume: SlotVolume, file: str) -> int:
        loss = await examine_loss(volume, file)
        await accept_loss(volume, loss)
        return loss.kept

    async def read(self, volume: SlotVolume | PosixVolume, found: list) -> list[int]:  # type: ignore[type-arg]
        end = log_end(found, START)
        return [
            int.from_bytes(scanned.record.data[:8], "little")  # type: ignore[union-attr]
            async for scanned in scan(volume, INCARNATION, START, end)
        ]

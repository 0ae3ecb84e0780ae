"""Owners of logs on slots that are fenced at any moment, asleep or not.

Owns: the scenario `run(seed)`. One owner process appends to one incarnation's log after another, in
files so small that it rolls all the time; a new owner fences it, reads what it finds and, every
other time, deletes the files as the collector does; before that the owner is put to sleep at any
step, in the middle of a request, too, and afterwards it goes on. At times the service refuses
everything for long, or a slot is deleted from outside and brought back after a new owner has met
the hole. Imports: the kernel, storage. Invariants: what an owner ever acknowledged, its new owner
has read; every owner learns that it is over, and none ends because the service refuses for a while;
no new owner passes over a hole, or puts anything there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter

from magnetar.errors import CorruptData, StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.format import EntriesRecord, encode_entries
from magnetar.storage.log.recovery import scan
from magnetar.storage.log.writer import LogWriter, RecordPlace
from magnetar.storage.volumes.volume import Volume
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.world import Environment, World

FAULTS = Faults.none().but(
    object_latency_s=(0.002, 0.03),
    object_lost_request_probability=0.01,
    object_lost_reply_probability=0.02,
    object_late_probability=0.01,
    object_late_s=(0.0, 3.0),
    object_conflict_probability=0.02,
    object_slow_probability=0.01,
    object_slow_s=(0.2, 3.0),
)
TAKEOVERS = 6
FILE_BYTES = 12 * 1024
ENTRY_BYTES = 900
IN_FLIGHT = 3
CLAIM_CHECK_S = 1.0
COLLECTED_FILES = 8
AWAKE_S = 60.0
RUN_S_MAX = 600.0
THROTTLED_S = (5.0, 20.0)


class Takeovers:
    """What owners acknowledged, and new owners read, by incarnation."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, set[int]] = {}
        self.read: dict[str, set[int]] = {}
        self.over: set[str] = set()
        self.counts: Counter[str] = Counter()

    async def own(self, environment: Environment) -> None:
        """One incarnation after another, until the world ends."""
        for number in range(1 << 20):
            await self._serve(environment, f"owner.{number:016x}")

    async def _serve(self, environment: Environment, incarnation: str) -> None:
        """Append until fenced."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fenced(error: StorageError) -> None:
            self.counts[type(error).__name__] += 1
            over.set_result(None)

        writer = LogWriter(
            environment.volume,
            environment.clock,
            incarnation,
            file_bytes=FILE_BYTES,
            block_bytes_max=FILE_BYTES // 3,
            on_fenced=fenced,
        )
        try:
            await writer.open()
        except StorageError:
            self.over.add(incarnation)
            return
        numbers = iter(range(1 << 40))
        acknowledged = self.acknowledged[incarnation] = set()

        def append() -> None:
            number = next(numbers)
            encoded = encode_entries(
                epoch=1,
                ledger=3,
                first_entry=number,
                append_ms=0,
                topic=b"persistent://public/default/t",
                producer=b"p",
                message_counts=[1],
                sequences=[number],
                entries=[number.to_bytes(8, "little").ljust(ENTRY_BYTES, b".")],
            )

            def durable(_place: RecordPlace) -> None:
                acknowledged.add(number)
                append()

            writer.append(encoded.buffers, encoded.size, 1, durable)

        for _ in range(IN_FLIGHT):
            append()
        while not over.done():
            # As a broker does: a new owner may have to run after an owner that is awake and busy,
            # until this.
            await asyncio.wait([over], timeout=CLAIM_CHECK_S)
            with contextlib.suppress(StorageError):
                await writer.check_claim()
        self.over.add(incarnation)
        await writer.close()

    async def take(self, volume: Volume, incarnation: str) -> list[int]:
        """Fence, and read everything; the numbers of the files. Tried until the service lets it."""
        while True:
            try:
                files, found = await self._read(volume, incarnation)
            except StorageError:
                self.counts["takeover tried again"] += 1
                continue
            self.read[incarnation] = found
            return files

    async def _read(self, volume: Volume, incarnation: str) -> tuple[list[int], set[int]]:
        """One attempt: numbers of the files, and what was read. Raises StorageError."""
        sealed = await fence(volume, incarnation)
        found = set()
        if sealed:
            end = LogPosition(sealed[-1].number, sealed[-1].length)
            async for scanned in scan(volume, incarnation, LogPosition(0, 0), end):
                assert isinstance(scanned.record, EntriesRecord)
                found.add(int.from_bytes(scanned.record.data[:8], "little"))
        return [file.number for file in sealed], found

    async def meet_hole(self, world: World, volume: Volume, incarnation: str) -> None:
        """Delete a slot below another one, have a new owner meet that, and bring the slot back."""
        objects = world.objects.objects
        slots = sorted(
            key
            for key in objects
            if key.startswith(f"{names.logs_of(incarnation)}/") and names.slot_of(key) is not None
        )
        below = [
            key
            for key, later in itertools.pairwise(slots)
            if key.rpartition("/")[0] == later.rpartition("/")[0]
        ]
        if not below:
            return
        key = world.objects.chance.choice(below)
        gone = objects.pop(key)
        world.loop.record("outside", "object deleted", key)
        while True:
            try:
                await self._read(volume, incarnation)
            except CorruptData:
                break
            except StorageError:
                continue
            if objects.get(key) == gone:
                return  # a late request of its owner has put it there again
            raise AssertionError(f"{key} was missing, and its new owner has not found that out")
        assert objects.get(key, gone) == gone, (
            f"something was put at {key}, which its new owner has not found"
        )
        objects[key] = gone
        self.counts["hole"] += 1

    async def throttle(self, world: World, incarnation: str) -> None:
        """Refuse everything for long: the owner waits, and goes on."""
        world.objects.throttle(world.objects.chance.uniform(*THROTTLED_S))
        before = len(self.acknowledged[incarnation])
        deadline = world.now + AWAKE_S
        while len(self.acknowledged[incarnation]) == before:
            assert incarnation not in self.over, (
                f"{incarnation} ended because the service refused for a while"
            )
            assert world.now < deadline, f"{incarnation} has not gone on in {AWAKE_S} s"
            await asyncio.sleep(0.05)
        self.counts["throttled"] += 1

    async def collect(self, volume: Volume, incarnation: str, files: list[int]) -> None:
        """Delete the last files, the only ones that their owner may still know, in the
        collector's order."""
        for number in files[-COLLECTED_FILES:]:
            for name in (names.log_file, names.index, names.sealed):
                await volume.remove(name(incarnation, number))

    async def trouble(self, world: World, new_owner: Environment) -> None:
        """Take over one incarnation after another."""
        chance = world.objects.chance
        for number in range(TAKEOVERS):
            incarnation = f"owner.{number:016x}"
            while len(self.acknowledged.get(incarnation, ())) < 2 and incarnation not in self.over:
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            if chance.random() < 0.3 and incarnation not in self.over:
                await self.throttle(world, incarnation)
            asleep = chance.random() < 0.8
            if asleep:
                world.pause("owner")
                await asyncio.sleep(chance.choice((0.0, chance.uniform(0.0, 5.0))))
            if chance.random() < 0.4:
                await self.meet_hole(world, new_owner.volume, incarnation)
            files = await self.take(new_owner.volume, incarnation)
            if chance.random() < 0.5:
                await self.collect(new_owner.volume, incarnation, files)
                self.counts["collected"] += 1
            if asleep:
                await asyncio.sleep(chance.choice((0.0, chance.uniform(0.0, 3.0))))
                world.resume("owner")
            deadline = world.now + AWAKE_S
            while incarnation not in self.over:
                self.check(incarnation)
                assert world.now < deadline, (
                    f"{incarnation} has not learned in {AWAKE_S} s that it is over"
                )
                await asyncio.sleep(0.05)
            self.check(incarnation)
            self.counts["takeover"] += 1

    def check(self, incarnation: str) -> None:
        """Raises AssertionError if it acknowledged what its new owner has not read."""
        lost = self.acknowledged.get(incarnation, set()) - self.read[incarnation]
        assert not lost, (
            f"{incarnation} acknowledged {sorted(lost)[:10]}, which its new owner has not found"
        )


def run(seed: int, faults: Faults = FAULTS) -> dict[str, int]:
    """The counts of a run; raises if anything acknowledged is lost, or an owner never learns
    that it is over."""
    takeovers = Takeovers()
    with World(seed, faults, slots=True) as world:
        world.node("owner", takeovers.own)
        world.complete(takeovers.trouble(world, world.outsider("new owner")), RUN_S_MAX)
        for incarnation in takeovers.read:
            takeovers.check(incarnation)
        takeovers.counts["acknowledged"] = sum(map(len, takeovers.acknowledged.values()))
        takeovers.counts["files"] = sum(
            key.endswith(".log/00000000") for key in world.objects.objects
        )
    return dict(takeovers.counts)

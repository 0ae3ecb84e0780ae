"""A paused owner acknowledges nothing after takeover: real processes, real signals, real storage of
every kind.

An owner process appends to its log and reports each record it acknowledges through a pipe. It is
stopped (SIGSTOP) at a random moment; this process fences it, seals its files, reads them and, every
other time, deletes them as the collector does; the owner goes on (SIGCONT). Every record it ever
reported must be among those read. With a protection switched off, in a subclass that exists only
here, the same rounds lose records: on a file system the check of the claim, with slots the fences,
and that they outlive the clean-up.

Rounds: MAGNETAR_TAKEOVER_ROUNDS of each kind (default 50 in all). This file is also the owner's
program.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.format import EntriesRecord, encode_entries
from magnetar.storage.log.recovery import scan
from magnetar.storage.log.writer import LogWriter, RecordPlace
from magnetar.storage.volumes.linked import LinkedObjects
from magnetar.storage.volumes.objects import ObjectStore
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.posix_log import PosixLogHandle
from magnetar.storage.volumes.slot_format import SLOT_HEADER_BYTES
from magnetar.storage.volumes.slots import SlotVolume
from tests.contract.storage.volumes import s3_objects, s3_server

# the first use of the S3 server installs what it runs on
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = {"posix": 20, "linked": 15, "s3": 15}
CHOSEN_ROUNDS = int(os.environ.get("MAGNETAR_TAKEOVER_ROUNDS", "0"))
FILE_BYTES = 256 * 1024
IN_FLIGHT = 4
ZOMBIE_ACKNOWLEDGEMENTS_ENOUGH = 200
LINE_TIMEOUT_S = 60.0
REPORTS = -1


# --- volumes --------------------------------------------------------------------------------------


class UncheckedVolume(PosixVolume):
    """The broken variant: appends that do not look for their claim."""

    async def create_log(self, name: str, capacity: int, header: bytes) -> PosixLogHandle:
        handle = await super().create_log(name, capacity, header)
        handle._look_for = lambda claim: None  # type: ignore[method-assign]  # noqa: ARG005
        return handle


class UnfencedVolume(SlotVolume):
    """The broken variant: a new owner that removes the claim and puts no fences."""

    async def end_log(self, directory: str, lost: Collection[int] = ()) -> None:
        """Nothing."""


class ForgetfulVolume(SlotVolume):
    """The broken variant: a collector that deletes fences with everything else."""

    async def remove(self, name: str) -> bool:
        removed = await super().remove(name)
        if names.is_log(name):
            for key, size in await self._objects.list(names.LOGS):
                if size == SLOT_HEADER_BYTES:
                    await self._objects.delete(key)
        return removed


AnyVolume = PosixVolume | SlotVolume
BROKEN: dict[str, type[AnyVolume]] = {
    "unchecked": UncheckedVolume,
    "unfenced": UnfencedVolume,
    "forgetful": ForgetfulVolume,
}


def volume_of(kind: str, place: str, variant: str) -> AnyVolume:
    """A volume of its own for each process: `place` is a directory, or on S3 a prefix and the
    server's port."""
    broken = BROKEN.get(variant)
    if kind == "posix":
        return (
            UncheckedVolume(Path(place)) if broken is UncheckedVolume else PosixVolume(Path(place))
        )
    objects: ObjectStore = (
        LinkedObjects(Path(place)) if kind == "linked" else s3_objects(*place.rsplit("@", 1))
    )
    assert broken is None or issubclass(broken, SlotVolume)
    return (broken or SlotVolume)(objects, SystemClock())


# --- the owner's program --------------------------------------------------------------------------


def report(line: str) -> None:
    """To the pipe that only this writes to: the owner's logs go to standard error."""
    os.write(REPORTS, f"{line}\n".encode())


async def serve_one_incarnation(volume: AnyVolume, incarnation: str) -> None:
    """Append and report until fenced."""
    clock = SystemClock()
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fenced(_error: StorageError) -> None:
        report("fenced")
        over.set_result(None)

    writer = LogWriter(
        volume,
        clock,
        incarnation,
        file_bytes=FILE_BYTES,
        block_bytes_max=FILE_BYTES // 4,
        on_fenced=fenced,
    )
    await writer.open()
    numbers = iter(range(1 << 40))

    def append(_place: RecordPlace | None = None) -> None:
        number = next(numbers)
        entry = number.to_bytes(8, "little") + bytes(clock.random_bits(11))
        encoded = encode_entries(
            epoch=1,
            ledger=3,
            first_entry=number,
            append_ms=0,
            topic=b"persistent://public/default/takeover",
            producer=b"owner",
            message_counts=[1],
            sequences=[number],
            entries=[entry],
        )

        def acknowledge(place: RecordPlace) -> None:
            report(str(number))
            append(place)

        writer.append(encoded.buffers, encoded.size, 1, acknowledge)

    report("open")
    for _ in range(IN_FLIGHT):
        append()
    await over
    await writer.close()


async def owner(kind: str, place: str, variant: str) -> None:
    """One incarnation after another, until killed."""
    volume = volume_of(kind, place, variant)
    for number in range(1 << 20):
        await serve_one_incarnation(volume, f"owner-0.{number:016x}")


# --- the new owner --------------------------------------------------------------------------------


class Owner:
    """The owner process and what it reports."""

    def __init__(self, kind: str, place: str, variant: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, __file__, kind, place, variant]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.decode().strip())

    def line(self) -> str:
        """The next line."""
        return self.lines.get(timeout=LINE_TIMEOUT_S)

    def stop(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        os.kill(self.process.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the owner ended by itself: {status}"

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def running_owner(kind: str, place: str, variant: str = "") -> Iterator[Owner]:
    process = Owner(kind, place, variant)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        process._reader.join(LINE_TIMEOUT_S)
        assert process.process.stdout is not None
        process.process.stdout.close()


async def take_over(volume: AnyVolume, incarnation: str, clean_up: bool) -> set[int]:
    """Fence, seal, read: the numbers of all records. With `clean_up` the files go afterwards."""
    try:
        sealed = await fence(volume, incarnation)
        end = LogPosition(sealed[-1].number, sealed[-1].length)
        found = set()
        async for scanned in scan(volume, incarnation, LogPosition(0, 0), end):
            assert isinstance(scanned.record, EntriesRecord)
            found.add(int.from_bytes(scanned.record.data[:8], "little"))
        for file in sealed if clean_up else ():
            for name in (names.log_file, names.index, names.sealed):
                await volume.remove(name(incarnation, file.number))
        return found
    finally:
        await volume.close()


async def play_round(
    process: Owner, volume: AnyVolume, incarnation: str, chance: random.Random, *, clean_up: bool
) -> tuple[set[int], set[int]]:
    """One takeover: (what the owner acknowledged, before and after it; what the new owner read)."""
    while process.line() != "open":
        pass
    acknowledged = {int(process.line())}
    time.sleep(chance.uniform(0.0, 0.03))  # the random moment is the point
    process.stop()
    read = await take_over(volume, incarnation, clean_up)
    while not process.lines.empty():
        acknowledged.add(int(process.line()))
    process.resume()
    for _ in range(ZOMBIE_ACKNOWLEDGEMENTS_ENOUGH):
        line = process.line()
        if line == "fenced":
            break
        acknowledged.add(int(line))
    return acknowledged, read


def place_of(kind: str, directory: Path) -> str:
    """Where a volume is that nobody else has."""
    return (
        f"takeover/{directory.name}/{uuid4()}@{s3_server().endpoint}"
        if kind == "s3"
        else str(directory / kind)
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ROUNDS)
async def test_a_paused_owner_acknowledges_nothing_that_the_new_owner_has_not_read(
    tmp_path: Path, kind: str
) -> None:
    """Invariant 2, and 1 over a takeover: nothing acknowledged is lost in any round, also if
    nothing is left of the owner's files."""
    chance, place, rounds = (
        random.Random(20),
        place_of(kind, tmp_path),
        CHOSEN_ROUNDS or ROUNDS[kind],
    )
    total = 0
    with running_owner(kind, place) as process:
        for number in range(rounds):
            incarnation = f"owner-0.{number:016x}"
            acknowledged, read = await play_round(
                process, volume_of(kind, place, ""), incarnation, chance, clean_up=number % 2 == 1
            )
            assert acknowledged <= read, f"round {number}: lost {sorted(acknowledged - read)[:10]}"
            total += len(acknowledged)
    assert total >= rounds
    print(
        f"  {kind}: {rounds} forced takeovers, {total} records acknowledged, none lost", flush=True
    )


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        ("posix", "unchecked"),
        ("linked", "unfenced"),
        ("linked", "forgetful"),
        ("s3", "unfenced"),
        ("s3", "forgetful"),
    ],
)
async def test_without_the_protection_records_are_lost(
    tmp_path: Path, kind: str, variant: str
) -> None:
    """The test above would notice: no check of the claim, no fences, or fences that go with the
    files they protect."""
    for number in range(2):
        place = place_of(kind, tmp_path / str(number))
        with running_owner(kind, place, variant) as process:
            acknowledged, read = await play_round(
                process,
                volume_of(kind, place, variant),
                "owner-0.0000000000000000",
                random.Random(number),
                clean_up=variant == "forgetful",
            )
        assert acknowledged - read, (
            f"round {number}: the zombie acknowledged nothing beyond the seal"
        )


if __name__ == "__main__":
    REPORTS = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asyncio.run(owner(*sys.argv[1:4]))

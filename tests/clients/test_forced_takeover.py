"""A paused owner acknowledges nothing after takeover: real processes, real signals, a real file system.

An owner process appends to its log and reports each record it acknowledges through a pipe. It is stopped (SIGSTOP) at a random moment; this
process removes its claim, seals its files and reads them; the owner goes on (SIGCONT). Every record it ever reported must be among those read.
With the check of the claim switched off, in a subclass that exists only here, the same rounds lose records: the check is what protects.

Rounds: MAGNETAR_TAKEOVER_ROUNDS (default 50). This file is also the owner's program.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage.fencing import fence
from magnetar.storage.log import LogWriter, RecordPlace
from magnetar.storage.log_format import EntriesRecord, encode_entries
from magnetar.storage.posix import PosixVolume
from magnetar.storage.posix_log import PosixLogHandle
from magnetar.storage.recovery import scan

ROUNDS = int(os.environ.get("MAGNETAR_TAKEOVER_ROUNDS", "50"))
FILE_BYTES = 256 * 1024
IN_FLIGHT = 4
ZOMBIE_ACKNOWLEDGEMENTS_ENOUGH = 200
LINE_TIMEOUT_S = 20.0
REPORTS = -1


# --- the owner's program ------------------------------------------------------------------------------------------------------


class UncheckedVolume(PosixVolume):
    """The broken variant: appends that do not look for their claim."""

    async def create_log(self, name: str, capacity: int, header: bytes) -> PosixLogHandle:
        handle = await super().create_log(name, capacity, header)
        handle._look_for = lambda claim: None  # type: ignore[method-assign]  # noqa: ARG005
        return handle


def report(line: str) -> None:
    """To the pipe that only this writes to: the owner's logs go to standard error."""
    os.write(REPORTS, f"{line}\n".encode())


async def serve_one_incarnation(volume: PosixVolume, incarnation: str) -> None:
    """Append and report until fenced."""
    clock = SystemClock()
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fenced(_error: StorageError) -> None:
        report("fenced")
        over.set_result(None)

    writer = LogWriter(volume, clock, incarnation, file_bytes=FILE_BYTES, block_bytes_max=FILE_BYTES // 4, on_fenced=fenced)
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


async def owner(root: Path, checked: bool) -> None:
    """One incarnation after another, until killed."""
    volume = PosixVolume(root) if checked else UncheckedVolume(root)
    for number in range(1 << 20):
        await serve_one_incarnation(volume, f"owner-0.{number:016x}")


# --- the taker ----------------------------------------------------------------------------------------------------------------


class Owner:
    """The owner process and what it reports."""

    def __init__(self, root: Path, checked: bool) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, __file__, str(root), "checked" if checked else "unchecked"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
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
def running_owner(root: Path, checked: bool) -> Iterator[Owner]:
    process = Owner(root, checked)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        process._reader.join(LINE_TIMEOUT_S)
        assert process.process.stdout is not None
        process.process.stdout.close()


async def take_over(root: Path, incarnation: str) -> set[int]:
    """Fence, seal, read: the numbers of all records."""
    volume = PosixVolume(root)
    try:
        sealed = await fence(volume, incarnation)
        end = LogPosition(sealed[-1].number, sealed[-1].length)
        found = set()
        async for scanned in scan(volume, incarnation, LogPosition(0, 0), end):
            assert isinstance(scanned.record, EntriesRecord)
            found.add(int.from_bytes(scanned.record.data[:8], "little"))
        return found
    finally:
        await volume.close()


def play_round(root: Path, process: Owner, incarnation: str, chance: random.Random) -> tuple[set[int], set[int]]:
    """One takeover: (what the owner acknowledged, before and after it; what the taker read)."""
    while process.line() != "open":
        pass
    acknowledged = {int(process.line())}
    time.sleep(chance.uniform(0.0, 0.03))  # the random moment is the point
    process.stop()
    read = asyncio.run(take_over(root, incarnation))
    while not process.lines.empty():
        acknowledged.add(int(process.line()))
    process.resume()
    for _ in range(ZOMBIE_ACKNOWLEDGEMENTS_ENOUGH):
        line = process.line()
        if line == "fenced":
            break
        acknowledged.add(int(line))
    return acknowledged, read


@pytest.mark.slow
def test_a_paused_owner_acknowledges_nothing_that_the_taker_has_not_read(tmp_path: Path) -> None:
    """Invariant 2, and 1 over a takeover: nothing acknowledged is lost in any round."""
    chance = random.Random(20)
    total = 0
    with running_owner(tmp_path, checked=True) as process:
        for number in range(ROUNDS):
            acknowledged, read = play_round(tmp_path, process, f"owner-0.{number:016x}", chance)
            assert acknowledged <= read, f"round {number}: lost {sorted(acknowledged - read)[:10]}"
            total += len(acknowledged)
    assert total >= ROUNDS


@pytest.mark.slow
def test_without_the_check_of_the_claim_records_are_lost(tmp_path: Path) -> None:
    """The test above would notice: an owner that does not look for its claim acknowledges what nobody will read."""
    for number in range(2):
        root = tmp_path / str(number)
        with running_owner(root, checked=False) as process:
            acknowledged, read = play_round(root, process, "owner-0.0000000000000000", random.Random(number))
        assert acknowledged - read, f"round {number}: the zombie acknowledged nothing beyond the seal"


if __name__ == "__main__":
    REPORTS = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asyncio.run(owner(Path(sys.argv[1]), sys.argv[2] == "checked"))

"""`python -m dev.bench.transaction_log`: what compaction of transaction logs gives.

Owns: one transaction interleaved with others, dispatched beside itself before and after the job, and
the space that aborted ones take. Imports: load_client, server_process, wire; the job runs as a
process of its own. Invariants: both layouts are served at the same time by servers of their own,
from copies of the same data, and measured by turns; neither has been asked before the first
dispatch, nor does it hold in memory where the entries lie; space is counted in the bytes of files.
Timing fails nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.bench.load_client import LoadConnection, LoadFailed, send_frames
from dev.bench.report import table
from dev.kube.report import say
from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import encode_entry

Type = api.BaseCommand.Type
TOPIC = "persistent://public/default/interleaved"
KIB = 1024
MESSAGES, OTHERS, PAIRS = 1000, 100, 9
MARK = {True: b"<kept-->", False: b"<abort->"}
ASKED = b"<asked->"
"""Ends the payload of the transaction that is dispatched."""
COLLECTED_S = 90.0
ROUND_S = 2.0
STILL = {
    "MAGNETAR_REWRITE_AGE_S": "86400",
    "MAGNETAR_REWRITE_GARBAGE_SHARE": "1",
    "MAGNETAR_MAINTENANCE_S": "0.5",
    "MAGNETAR_CHECKPOINT_AGE_S": "1",
    "MAGNETAR_REPLACED_KEPT_S": "1",
}
"""The server rewrites nothing by itself, and collects soon."""
SPEED_BAR, READS_BAR, SPACE_BAR = 3.0, 5.0, 0.99


@dataclass(slots=True)
class Dispatched:
    """Of one layout: read calls of the server for the first dispatch after its start, and seconds
    of those after it."""

    reads: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.seconds) * 1000


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured; the marks are aborted messages whose bytes are in files."""

    before: Dispatched
    after: Dispatched
    aborted_before: int
    aborted_after: int
    job: dict[str, object]

    @property
    def reclaimed(self) -> float:
        return 1 - self.aborted_after / self.aborted_before


def measure(directory: Path, messages: int, others: int, pairs: int) -> Found:
    """Raises LoadFailed if the server refuses something, RuntimeError if the job fails."""
    first = ServerProcess(directory / "before", environment=STILL)
    (directory / "before").mkdir()
    with first:
        say(f"publishing {messages * (1 + others)} messages of {others + 1} transactions")
        publish(first, messages, others)
        position = find(first)
        Admin(first).topic("POST", TOPIC, "roll?rewrite=false")
    shutil.copytree(directory / "before", directory / "after")
    second = ServerProcess(directory / "after", environment=STILL)
    with second:
        say("compacting")
        job = compact(second)
    before, after = Dispatched(), Dispatched()
    with first, second:
        aborted = marks(first)
        for server in (first, second):
            forget(server)
        sides = [(first, before), (second, after)]
        for server, found in sides:
            reads = read_calls(server)
            dispatch(server, position, messages)
            found.reads = read_calls(server) - reads
        for turn in range(pairs):
            for server, found in sides if turn % 2 else reversed(sides):
                found.seconds.append(dispatch(server, position, messages))
        deadline = time.monotonic() + COLLECTED_S
        while (left := marks(second)) and time.monotonic() < deadline:
            time.sleep(1)
    return Found(before, after, aborted, left, job)


def publish(server: ServerProcess, messages: int, others: int) -> None:
    """One transaction, of which a message follows one of each other; every second of these is
    aborted. It commits in their midst."""
    connection = LoadConnection(server.broker_port)
    connection.producer(TOPIC)
    commits = [number == 0 or number % 2 == 1 for number in range(others + 1)]
    marked = [ASKED if number == 0 else MARK[commits[number]] for number in range(others + 1)]
    entries = [
        encode_entry(
            api.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1),
            os.urandom(KIB - len(mark)) + mark,
        )
        for mark in marked
    ]
    sequence = 0
    for _ in range(messages):
        frames = []
        for number in range(others + 1):
            frames.append(requests.send(1, sequence, entries[number], txn=TxnId(0, number)))
            sequence += 1
        connection.socket.sendall(b"".join(frames))
        _await(connection, Type.SEND_RECEIPT, len(frames))
    middle = others // 2
    for number in [*range(1, middle), 0, *range(middle, others + 1)]:
        end = requests.end_txn_on_partition(
            number, TxnId(0, number), TOPIC, commit=commits[number], low_watermark=-1
        )
        connection.socket.sendall(end)
        _await(connection, Type.END_TXN_ON_PARTITION_RESPONSE, 1)
    connection.close()


def forget(server: ServerProcess) -> None:
    """Have the server find by its manifest what it wrote before it started, as it does with all
    that is old: its own log begins, is rolled, and a round of maintenance passes."""
    connection = LoadConnection(server.broker_port)
    connection.producer(TOPIC)
    connection.socket.sendall(send_frames(KIB, 1, 1)[0])
    _await(connection, Type.SEND_RECEIPT, 1)
    connection.close()
    Admin(server).topic("POST", TOPIC, "roll?rewrite=false")
    time.sleep(ROUND_S)


def find(server: ServerProcess) -> tuple[int, int]:
    """The position of the first message of the transaction that is dispatched."""
    connection = LoadConnection(server.broker_port)
    connection.read_from(TOPIC, (-1, -1), 1 << 20)
    while True:
        for start, body, end in _frames(connection):
            is_message = connection.byte(start + 1) == Type.MESSAGE
            if is_message and connection.body(body, end).endswith(ASKED):
                found = connection.command(start, body).message.message_id
                connection.close()
                return found.ledgerId, found.entryId
        connection.forget()


def dispatch(server: ServerProcess, position: tuple[int, int], messages: int) -> float:
    """Seconds from the permits to the last of the transaction's messages."""
    connection = LoadConnection(server.broker_port)
    begun = connection.read_from(TOPIC, position, messages)
    received = 0
    while received < messages:
        for start, body, end in _frames(connection):
            if connection.byte(start + 1) == Type.MESSAGE:
                if not connection.body(body, end).endswith(ASKED):
                    raise LoadFailed("another transaction's message came between")
                received += 1
        connection.forget()
    seconds = time.perf_counter() - begun
    connection.close()
    return seconds


def _frames(connection: LoadConnection) -> list[tuple[int, int, int]]:
    if not connection.receive():
        raise LoadFailed("the server closed the connection")
    return connection.frames()


def _await(connection: LoadConnection, kind: int, count: int) -> None:
    while count > 0:
        for start, body, _end in _frames(connection):
            command = connection.command(start, body)
            if command.type == kind:
                if command.end_txn_on_partition_response.HasField("error"):
                    raise LoadFailed(command.end_txn_on_partition_response.message)
                count -= 1
            elif command.type != Type.PING:
                raise LoadFailed(str(command))
        connection.forget()


def compact(server: ServerProcess) -> dict[str, object]:
    """Run the job; its result. Raises RuntimeError with its last words."""
    volume = server.directory / "data" / "storage"
    arguments = [
        *("-m", "magnetar_jobs.transaction_log", "--report"),
        *("--topic", TOPIC, "--broker-url", server.http_url, "--volume", str(volume)),
        *("--job", "bench", "--run", "1", "--master", "local[2]"),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    said: dict[str, object] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            said |= json.loads(line)
    result = said.get("result")
    if done.returncode or not isinstance(result, dict):
        raise RuntimeError(f"{said.get('error')} {done.stderr[-2000:]}")
    return result


def read_calls(server: ServerProcess) -> int:
    """How often the process has called for bytes of files."""
    for line in Path(f"/proc/{server.pid}/io").read_text().splitlines():
        if line.startswith("syscr:"):
            return int(line.split()[1])
    raise RuntimeError("this kernel counts no read calls")


def marks(server: ServerProcess) -> int:
    """Aborted messages whose bytes are in log files or segments of the server's storage."""
    storage = server.directory / "data" / "storage"
    count = 0
    for path in [*storage.rglob("*.log"), *storage.rglob("*.seg")]:
        try:
            count += path.read_bytes().count(MARK[False])
        except FileNotFoundError:
            continue  # collected just now
    return count


def render(found: Found) -> str:
    faster = found.before.median_ms / found.after.median_ms
    fewer = found.before.reads / max(1, found.after.reads)
    rows = [
        ["dispatch, median ms", f"{found.before.median_ms:.1f}", f"{found.after.median_ms:.1f}",
         f"x{faster:.1f}", f">= x{SPEED_BAR:.0f}"],
        ["reads of the first dispatch", str(found.before.reads), str(found.after.reads),
         f"x{fewer:.1f}", f">= x{READS_BAR:.0f}"],
        ["aborted messages in files", str(found.aborted_before), str(found.aborted_after),
         f"{found.reclaimed:.1%}", f">= {SPACE_BAR:.0%}"],
    ]  # fmt: skip
    counts = ", ".join(f"{key} {value}" for key, value in found.job.items() if value)
    return table(["", "before", "after", "ratio", "bar"], rows) + f"\nthe job: {counts}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.transaction_log",
        description="One transaction between others, before and after compaction of their log.",
    )
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of each transaction")
    parser.add_argument("--others", type=int, default=OTHERS, help="transactions beside it")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="dispatches of each layout")
    parser.add_argument("--directory", type=Path, help="where data is written")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=chosen.directory) as name:
        print(render(measure(Path(name), chosen.messages, chosen.others, chosen.pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

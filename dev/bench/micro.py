"""`python -m dev.bench.micro [case ...]`: short loads on a standalone server with a generator of our own.

Owns: the cases, one fresh server each, and their table. Imports: load_client, server_profile (processor time), dev.server_process.
Seconds instead of the minutes that `python -m dev.bench` takes, and without Java: what one changes and measures with. Processor time per message is
the figure to compare; two trees are compared by `--tree`, whose servers take turns. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.bench.load_client import Consumer, LoadConnection, Publisher, send_frames
from dev.bench.report import hot_functions, table
from dev.bench.server_profile import ProfiledServer, processor_time, read_profile
from dev.server_process import ServerProcess

KIB = 1024
PACED_RATE = 10_000
WARM_S = 1.0
HEADERS = (
    "case",
    "tree",
    "msg/s",
    "MB/s",
    "p50 ms",
    "p99",
    "p99.9",
    "end to end p50",
    "p99",
    "p99.9 ms",
    "CPU us/msg",
    "loop us",
    "note",
)


@dataclass
class Row:
    """What one case found; latencies in seconds."""

    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    publish: Sequence[float] = ()
    end_to_end: Sequence[float] = ()
    processor_us: float = 0.0
    loop_us: float = 0.0
    note: str = ""


def publishing(
    size: int, messages: int, per_write: int, window: int, *, consumer: bool = False
) -> Callable[[ServerProcess, float], Row]:
    """A closed loop of one producer, `window` messages without receipt, and maybe a consumer at the tail."""

    def run(server: ServerProcess, seconds: float) -> Row:
        topic = "persistent://public/default/load"
        taker = _consumer(server, topic, messages, []) if consumer else None
        publisher = Publisher(_producer(server, topic), send_frames(size, messages), messages, per_write, window)
        publisher.run(WARM_S)
        publisher.latencies.clear()
        before, first, begun = processor_time(server.pid), publisher.published, time.perf_counter()
        publisher.run(seconds)
        elapsed, spent = time.perf_counter() - begun, processor_time(server.pid).since(before)
        count = publisher.published - first
        note = ""
        if taker is not None:
            published = publisher.published
            note = f"consumer {taker.received / max(1, published):.2f} of published"
        return Row(
            count / elapsed,
            count * size / elapsed,
            publisher.latencies,
            (),
            spent.process_s * 1e6 / count,
            spent.main_thread_s * 1e6 / count,
            note,
        )

    return run


def paced(rate: int, messages: int, kind: int = 0) -> Callable[[ServerProcess, float], Row]:
    """`rate` messages of 1 KiB per second in entries of `messages`, one write per millisecond, a consumer at the tail."""

    def run(server: ServerProcess, seconds: float) -> Row:
        topic = "persistent://public/default/paced"
        per_write = max(1, rate // 1000 // messages)
        arrivals: list[float] = []
        taker = _consumer(server, topic, messages, arrivals, kind)
        publisher = Publisher(_producer(server, topic), send_frames(KIB, messages), messages, per_write, 0)
        writes_per_s = rate / messages / per_write
        publisher.run_paced(writes_per_s, WARM_S)
        time.sleep(0.1)
        publisher.latencies.clear()
        arrivals.clear()
        base = taker.entries
        sent: list[float] = []
        write = publisher.write

        def timed(number: int) -> None:
            sent.append(time.perf_counter())
            write(number)

        publisher.write = timed  # type: ignore[method-assign]
        before, first, begun = processor_time(server.pid), publisher.published, time.perf_counter()
        publisher.run_paced(writes_per_s, seconds)
        elapsed, spent = time.perf_counter() - begun, processor_time(server.pid).since(before)
        count = publisher.published - first
        taker.wait((base + len(sent) * per_write) * messages)
        end_to_end = [arrivals[(index + 1) * per_write - 1] - at for index, at in enumerate(sent)]
        return Row(
            count / elapsed,
            count * KIB / elapsed,
            publisher.latencies,
            end_to_end,
            spent.process_s * 1e6 / count,
            spent.main_thread_s * 1e6 / count,
        )

    return run


def synchronous(server: ServerProcess, seconds: float) -> Row:
    """One message at a time: the next is sent when the receipt is there."""
    return publishing(KIB, 1, 1, 1)(server, seconds)


def catch_up(server: ServerProcess, seconds: float) -> Row:
    """Read a backlog that was written before the server started: batches of 100 messages of 1 KiB."""
    messages, topic = 100, "persistent://public/default/backlog"
    producing = _producer(server, topic)
    publisher = Publisher(producing, send_frames(KIB, messages, 64), messages, 4, 4000)
    subscriber = LoadConnection(server.broker_port)
    subscriber.subscribe(topic)
    subscriber.close()
    entries = int(seconds * 1500)
    for number in range(entries // 4):
        publisher.write(number)
    publisher.wait(entries // 4 * 4 * messages)
    producing.close()
    server.stop()
    server.start()
    before, begun = processor_time(server.pid), time.perf_counter()
    taker = _consumer(server, topic, messages, [])
    count = entries // 4 * 4 * messages
    taker.wait(count)
    elapsed, spent = time.perf_counter() - begun, processor_time(server.pid).since(before)
    return Row(count / elapsed, count * KIB / elapsed, (), (), spent.process_s * 1e6 / count, spent.main_thread_s * 1e6 / count)


def fairness(server: ServerProcess, seconds: float) -> Row:
    """One message at a time on one topic, while another process floods another topic: the figures are the slow topic's."""
    hot = multiprocessing.get_context("spawn").Process(target=_flood, args=(server.broker_port, seconds + 2 * WARM_S))
    connection = _producer(server, "persistent://public/default/slow")
    hot.start()
    try:
        time.sleep(WARM_S)
        slow = Publisher(connection, send_frames(KIB, 1, 100), 1, 1, 1)
        begun, number = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            slow.write(number)
            number += 1
            time.sleep(0.005)
        slow.wait(number)
    finally:
        hot.join()
    return Row(slow.published / seconds, 0, slow.latencies, note="the slow topic; another one is flooded meanwhile")


def _flood(port: int, seconds: float) -> None:
    connection = LoadConnection(port)
    connection.producer("persistent://public/default/hot")
    Publisher(connection, send_frames(KIB, 1), 1, 50, 4000).run(seconds)


def idle(server: ServerProcess, seconds: float) -> Row:
    """Memory and processor time of a server that has nothing to do."""
    time.sleep(3)  # what follows the start is over
    before = processor_time(server.pid)
    time.sleep(seconds)
    share = processor_time(server.pid).since(before).process_s / seconds
    return Row(note=f"{server.resident_bytes() / 1e6:.1f} MB resident, {share:.2%} of a core")


def topics(server: ServerProcess, seconds: float) -> Row:
    """10 000 topics, each written to once: what one more costs in memory, and idle processor time with all of them."""
    count = 10_000
    base = server.resident_bytes()
    begun = time.perf_counter()
    for first in range(0, count, 1000):
        connection = LoadConnection(server.broker_port)
        for number in range(first, first + 1000):
            connection.producer(f"persistent://public/default/many-{number}", number)
        connection.close()
    elapsed = time.perf_counter() - begun
    time.sleep(2)
    grown = server.resident_bytes() - base
    before = processor_time(server.pid)
    time.sleep(seconds)
    share = processor_time(server.pid).since(before).process_s / seconds
    return Row(count / elapsed, note=f"{grown / count / 1000:.1f} kB per idle topic (created/s left), idle {share:.2%} of a core")


CASES: dict[str, Callable[[ServerProcess, float], Row]] = {
    "unbatched": publishing(KIB, 1, 20, 1000),
    "unbatched-4000": publishing(KIB, 1, 50, 4000),
    "unbatched-consumer": publishing(KIB, 1, 20, 1000, consumer=True),
    "batched": publishing(KIB, 100, 1, 1000),
    "64KiB": publishing(64 * KIB, 1, 1, 256),
    "paced": paced(PACED_RATE, 10),
    "paced-unbatched": paced(PACED_RATE, 1),
    "paced-shared": paced(PACED_RATE, 1, kind=1),
    "synchronous": synchronous,
    "catch-up": catch_up,
    "fairness": fairness,
    "idle": idle,
    "topics": topics,
}


def _producer(server: ServerProcess, topic: str) -> LoadConnection:
    connection = LoadConnection(server.broker_port)
    connection.producer(topic)
    return connection


def _consumer(server: ServerProcess, topic: str, messages: int, arrivals: list[float], kind: int = 0) -> Consumer:
    connection = LoadConnection(server.broker_port)
    connection.subscribe(topic, kind)
    return Consumer(connection, messages, lambda _index, now: arrivals.append(now))


def _cells(case: str, tree: str, row: Row) -> list[str]:
    def quantiles(values: Sequence[float]) -> list[str]:
        ordered = sorted(values)
        return [f"{ordered[int(len(ordered) * q)] * 1e3:.2f}" if ordered else "" for q in (0.5, 0.99, 0.999)]

    return [
        case,
        tree,
        f"{row.messages_per_s:,.0f}" if row.messages_per_s else "",
        f"{row.bytes_per_s / 1e6:.0f}" if row.bytes_per_s else "",
        *quantiles(row.publish),
        *quantiles(row.end_to_end),
        f"{row.processor_us:.2f}" if row.processor_us else "",
        f"{row.loop_us:.2f}" if row.loop_us else "",
        row.note,
    ]


def _profile(case: str, directory: Path, seconds: float) -> str:
    """The hottest functions of the event loop, from the server's start on."""
    server = ProfiledServer(directory)
    server.start()
    try:
        server.begin()
        row = CASES[case](server, seconds)
    finally:
        elapsed = server.finish()
    return hot_functions(read_profile(case, server.profile_path, elapsed, int(row.messages_per_s * (seconds + WARM_S)), count=30))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.bench.micro", description="Short loads on a standalone server.")
    parser.add_argument("cases", nargs="*", default=list(CASES), choices=[*CASES, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured per case (default 4)")
    parser.add_argument(
        "--tree", action="append", help="a checkout whose server is measured; repeat to compare (default: this one)"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="the hottest functions of each case (this tree) instead of figures")
    parser.add_argument("--directory", type=Path, help="where data is written (default: the system's /tmp)")
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        for _ in range(options.rounds):
            for tree in options.tree or ["."]:
                with tempfile.TemporaryDirectory(prefix="magnetar-micro-", dir=options.directory) as name:
                    if options.profile:
                        print(_profile(case, Path(name), options.seconds))
                        continue
                    path = os.pathsep.join(str(Path(tree).resolve() / part) for part in ("broker_image", "."))
                    server = ServerProcess(Path(name), environment={"PYTHONPATH": path})
                    server.start()
                    try:
                        rows.append(_cells(case, Path(tree).resolve().name, CASES[case](server, options.seconds)))
                        print(
                            "  ".join(f"{head} {cell}" for head, cell in zip(HEADERS, rows[-1], strict=True) if cell),
                            file=sys.stderr,
                        )
                    finally:
                        server.stop()
    print(table(HEADERS, rows))


if __name__ == "__main__":
    main()

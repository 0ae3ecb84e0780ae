"""Loads of a generator of our own: what the load tool cannot say, and short loads for profiling.

Owns: the cases (one message at a time, paced with end-to-end latency, catch-up, fairness, idle
cost, many topics, ...) and what each found. Imports: load_client, perf_output (Latency),
pulsar_perf (BenchFailed), server_profile (samples of /proc). Invariants: each case uses topics of
its own and works on every server that speaks the protocol, so that a peer runs the same; processor
time covers exactly the messages counted; a refused or lost message is an error, a slow one is not.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dev.bench.load_client import Consumer, LoadConnection, LoadFailed, Publisher, send_frames
from dev.bench.perf_output import Latency
from dev.bench.pulsar_perf import BenchFailed
from dev.bench.server_profile import ProcessorTime, memory_bytes, processor_time

KIB = 1024
PACED_RATE = 10_000
WARM_S = 1.0
QUIET_S = 3.0
SHARED = 1
TOPICS = 10_000
TOPICS_PER_CONNECTION = 1000
BACKLOG_BATCHES_PER_S = 2500
BACKLOG_MESSAGES_PER_S = 50_000
PACE_S = 0.005


class Target(Protocol):
    """A running server."""

    @property
    def broker_port(self) -> int: ...

    @property
    def pid(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case found; processor time in microseconds per message, 0 where it was not asked
    for."""

    case: str
    messages_per_s: float = 0.0
    payload_bytes_per_s: float = 0.0
    publish: Latency | None = None
    end_to_end: Latency | None = None
    processor_us_per_message: float = 0.0
    event_loop_us_per_message: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One load: `run` measures for about so many seconds and finds a result (its name is set
    here)."""

    name: str
    what: str
    run: Callable[[str, Target, float], CaseResult]

    def measure(self, server: Target, seconds: float) -> CaseResult:
        """Raises BenchFailed if something broke."""
        try:
            return self.run(self.name, server, seconds)
        except LoadFailed as error:
            raise BenchFailed(f"{self.name}: {error}") from error


def latency(seconds: Sequence[float]) -> Latency:
    """Percentiles of latencies in seconds, of which there must be some."""
    ordered = sorted(seconds)
    p50, p99, p999, highest = (
        ordered[min(len(ordered) - 1, int(len(ordered) * q))] * 1e3 for q in (0.5, 0.99, 0.999, 1.0)
    )
    return Latency(p50, p99, p999, highest)


def _topic(case: str) -> str:
    return f"persistent://public/default/case-{case}"


def _producer(server: Target, topic: str) -> LoadConnection:
    connection = LoadConnection(server.broker_port)
    connection.producer(topic)
    return connection


def _consumer(
    server: Target, topic: str, messages: int, arrivals: list[float] | None = None, kind: int = 0
) -> Consumer:
    connection = LoadConnection(server.broker_port)
    connection.subscribe(topic, kind)
    return Consumer(
        connection, messages, None if arrivals is None else lambda _index, now: arrivals.append(now)
    )


def _result(
    case: str,
    size: int,
    count: int,
    elapsed: float,
    spent: ProcessorTime,
    *,
    publish: Sequence[float] = (),
    end_to_end: Sequence[float] = (),
    note: str = "",
) -> CaseResult:
    if count == 0:
        raise LoadFailed("not one message in the measured time")
    return CaseResult(
        case,
        count / elapsed,
        count * size / elapsed,
        latency(publish) if publish else None,
        latency(end_to_end) if end_to_end else None,
        spent.process_s * 1e6 / count,
        spent.main_thread_s * 1e6 / count,
        note,
    )


def publishing(
    size: int, messages: int, per_write: int, window: int, *, consumer: bool = False
) -> Callable[[str, Target, float], CaseResult]:
    """A closed loop of one producer, `window` messages without receipt, and maybe a consumer at
    the tail."""

    def run(case: str, server: Target, seconds: float) -> CaseResult:
        receiver = _consumer(server, _topic(case), messages) if consumer else None
        connection = _producer(server, _topic(case))
        publisher = Publisher(connection, send_frames(size, messages), messages, per_write, window)
        publisher.run(WARM_S)
        publisher.latencies.clear()
        before, first, begun = processor_time(server.pid), publisher.published, time.perf_counter()
        publisher.run(seconds)
        elapsed, spent = time.perf_counter() - begun, processor_time(server.pid).since(before)
        count = publisher.published - first
        note = (
            f"consumer has {receiver.received / publisher.published:.0%}"
            if receiver is not None
            else ""
        )
        publisher.settle()
        return _result(case, size, count, elapsed, spent, publish=publisher.latencies, note=note)

    return run


def paced(rate: int, messages: int, kind: int = 0) -> Callable[[str, Target, float], CaseResult]:
    """`rate` messages of 1 KiB per second in entries of `messages`, one write per millisecond, a
    consumer at the tail."""

    def run(case: str, server: Target, seconds: float) -> CaseResult:
        per_write = max(1, rate // 1000 // messages)
        arrivals: list[float] = []
        receiver = _consumer(server, _topic(case), messages, arrivals, kind)
        publisher = Publisher(
            _producer(server, _topic(case)), send_frames(KIB, messages), messages, per_write, 0
        )
        writes_per_s = rate / messages / per_write
        publisher.run_paced(writes_per_s, WARM_S)
        publisher.settle()
        receiver.wait(publisher.published)
        publisher.latencies.clear()
        publisher.writes.clear()
        arrivals.clear()
        before, first, begun = processor_time(server.pid), publisher.published, time.perf_counter()
        publisher.run_paced(writes_per_s, seconds)
        elapsed, spent = time.perf_counter() - begun, processor_time(server.pid).since(before)
        count = publisher.published - first
        publisher.settle()
        receiver.wait(publisher.published)
        end_to_end = [
            arrivals[(index + 1) * per_write - 1] - at for index, at in enumerate(publisher.writes)
        ]
        return _result(
            case, KIB, count, elapsed, spent, publish=publisher.latencies, end_to_end=end_to_end
        )

    return run


def catch_up(messages: int, entries_per_s: int) -> Callable[[str, Target, float], CaseResult]:
    """Read a backlog of batches of `messages` of 1 KiB, much of which is in no cache of the
    server's any more."""

    def run(case: str, server: Target, seconds: float) -> CaseResult:
        return _catch_up(case, server, messages, int(seconds * entries_per_s))

    return run


def _catch_up(case: str, server: Target, messages: int, entries: int) -> CaseResult:
    subscriber = LoadConnection(server.broker_port)
    subscriber.subscribe(_topic(case))
    subscriber.close()
    # Few entries at a time: each group commit then holds a few only, as at a low rate, and not one
    # long run.
    publisher = Publisher(
        _producer(server, _topic(case)), send_frames(KIB, messages, 64), messages, 1, 16 * messages
    )
    for number in range(entries):
        publisher.write(number)
    publisher.settle()
    time.sleep(WARM_S)
    before, begun = processor_time(server.pid), time.perf_counter()
    _consumer(server, _topic(case), messages).wait(entries * messages)
    elapsed, spent = time.perf_counter() - begun, processor_time(server.pid).since(before)
    return _result(
        case,
        KIB,
        entries * messages,
        elapsed,
        spent,
        note=f"{entries * messages * KIB / 1e6:.0f} MB of backlog",
    )


def fairness(case: str, server: Target, seconds: float) -> CaseResult:
    """One message every few milliseconds on one topic, while another process floods another
    topic: the figures are the slow topic's."""
    hot = multiprocessing.get_context("spawn").Process(
        target=_flood, args=(server.broker_port, seconds + 2 * WARM_S)
    )
    connection = _producer(server, _topic(case))
    hot.start()
    try:
        time.sleep(WARM_S)
        slow = Publisher(connection, send_frames(KIB, 1, 100), 1, 1, 1)
        begun, number = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            slow.write(number)
            number += 1
            time.sleep(PACE_S)
        slow.settle()
    finally:
        hot.join()
    return CaseResult(
        case,
        slow.published / seconds,
        publish=latency(slow.latencies),
        note="the slow topic beside a flooded one",
    )


def _flood(port: int, seconds: float) -> None:
    connection = LoadConnection(port)
    connection.producer(_topic("flooded"))
    Publisher(connection, send_frames(KIB, 1), 1, 50, 4000).run(seconds)


def idle(case: str, server: Target, seconds: float) -> CaseResult:
    """Memory and processor time of a server that has nothing to do."""
    time.sleep(QUIET_S)  # what follows the start is over
    return CaseResult(
        case,
        note=f"{memory_bytes(server.pid) / 1e6:.1f} MB, {_share(server, seconds):.2%} of a core",
    )


def topics(case: str, server: Target, seconds: float) -> CaseResult:
    """10 000 topics: how fast they are created, what each costs in memory, and idle processor
    time with all of them."""
    base, begun = memory_bytes(server.pid), time.perf_counter()
    for first in range(0, TOPICS, TOPICS_PER_CONNECTION):
        connection = LoadConnection(server.broker_port)
        for number in range(first, first + TOPICS_PER_CONNECTION):
            connection.producer(_topic(f"{case}-{number}"), number)
        connection.close()
    rate = TOPICS / (time.perf_counter() - begun)
    time.sleep(QUIET_S)
    each = (memory_bytes(server.pid) - base) / TOPICS
    note = (
        f"{rate:.0f} topics created per second, {each / 1e3:.1f} kB each, idle "
        f"{_share(server, seconds):.2%} of a core"
    )
    return CaseResult(case, note=note)


def _share(server: Target, seconds: float) -> float:
    before = processor_time(server.pid)
    time.sleep(seconds)
    return processor_time(server.pid).since(before).process_s / seconds


SYNCHRONOUS = Case(
    "synchronous", "the next message is sent when the receipt is there", publishing(KIB, 1, 1, 1)
)
PACED = Case("paced", "10 000 msg/s in batches of 10, to a consumer", paced(PACED_RATE, 10))
PACED_UNBATCHED = Case(
    "paced-unbatched", "10 000 msg/s one by one, to a consumer", paced(PACED_RATE, 1)
)
CATCH_UP = Case("catch-up", "a backlog of batches of 100", catch_up(100, BACKLOG_BATCHES_PER_S))
CATCH_UP_UNBATCHED = Case(
    "catch-up-unbatched",
    "a backlog written a few messages at a time",
    catch_up(1, BACKLOG_MESSAGES_PER_S),
)
FAIRNESS = Case("fairness", "a slow topic beside a flooded one", fairness)
IDLE = Case("idle", "nothing to do", idle)
MANY_TOPICS = Case("topics", "10 000 topics", topics)
COMPARED = (SYNCHRONOUS, PACED, PACED_UNBATCHED, CATCH_UP, CATCH_UP_UNBATCHED, FAIRNESS)
"""Run on both servers by `python -m dev.bench`."""
CASES = {
    case.name: case
    for case in (
        Case("unbatched", "1 KiB one by one", publishing(KIB, 1, 20, 1000)),
        Case("unbatched-4000", "the same with a wider window", publishing(KIB, 1, 50, 4000)),
        Case(
            "unbatched-consumer",
            "the same to a consumer",
            publishing(KIB, 1, 20, 1000, consumer=True),
        ),
        Case("batched", "batches of 100", publishing(KIB, 100, 1, 1000)),
        Case("64KiB", "64 KiB one by one", publishing(64 * KIB, 1, 1, 256)),
        Case(
            "paced-shared",
            "10 000 msg/s one by one, to a Shared consumer",
            paced(PACED_RATE, 1, SHARED),
        ),
        *COMPARED,
        IDLE,
        MANY_TOPICS,
    )
}
"""By the name on the command line of `python -m dev.bench.micro`."""

"""The loads and how one is measured.

Owns: the scenarios of the load tool, the windows that count, a measurement. Imports: pulsar_perf,
perf_output, server_profile. Invariants: the tool's first windows (its JIT warm-up) never count;
processor time and messages are taken over exactly the same windows; a run without messages or with
failed sends is an error, a slow one is not.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dev.bench.perf_output import WINDOW_S, Latency, Window, join
from dev.bench.pulsar_perf import BenchFailed, PerfProcess, PublishLoad, PulsarPerf
from dev.bench.server_profile import (
    Profile,
    ProfiledServer,
    memory_bytes,
    processor_time,
    read_profile,
)

PACED_RATE = 10_000
FREE_DISK_BYTES_MIN = 16 << 30


class RunningServer(Protocol):
    """What is measured: its address, its process and what it logs."""

    @property
    def service_url(self) -> str: ...

    @property
    def broker_port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def log_tail(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load on one topic of its own."""

    name: str
    load: PublishLoad
    consumer: bool = False

    def topic(self) -> str:
        return f"persistent://public/default/bench-{self.name.replace(' ', '-')}"


UNBATCHED = Scenario("unbatched", PublishLoad(batched=False))
BATCHED = Scenario("batched", PublishLoad(batched=True))
LARGE = Scenario("64 KiB", PublishLoad(batched=False, size_bytes=64 * 1024))
PACED = Scenario(f"paced {PACED_RATE}", PublishLoad(batched=True, rate=PACED_RATE), consumer=True)
SCENARIOS = (UNBATCHED, BATCHED, LARGE, PACED)
PROFILED = (
    Scenario("unbatched with a consumer", PublishLoad(batched=False), consumer=True),
    PACED,
)  # all of SEND, receipt, dispatch and ACK


@dataclass(frozen=True, slots=True)
class Durations:
    """Windows of 10 s: how many are discarded and how many count."""

    warm_windows: int
    measured_windows: int

    @staticmethod
    def of(seconds: float, quick: bool) -> Durations:
        """`quick`: one window each, for a first look; else the 20 s the tool needs to get hot,
        and `seconds` rounded up to windows."""
        return Durations(1, 1) if quick else Durations(2, max(1, -int(-seconds // WINDOW_S)))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One scenario on one server. Processor time in microseconds per published message
    (delivered ones cost nothing extra here)."""

    scenario: str
    messages_per_s: float
    payload_bytes_per_s: float
    publish: Latency
    end_to_end: Latency | None
    delivered_per_s: float | None
    processor_us_per_message: float
    event_loop_us_per_message: float
    memory_bytes: int


def measure(
    server: RunningServer, scenario: Scenario, tool: PulsarPerf, durations: Durations
) -> Measurement:
    """Run one scenario. Raises BenchFailed if something broke."""
    first, last = durations.warm_windows, durations.warm_windows + durations.measured_windows
    processes: list[PerfProcess] = []
    try:
        if scenario.consumer:
            processes.append(tool.consume(server.service_url, scenario.topic()))
        producer = tool.produce(server.service_url, scenario.topic(), scenario.load)
        processes.append(producer)
        producer.wait_windows(first)
        before = processor_time(server.pid)
        windows = producer.wait_windows(last)
        spent = processor_time(server.pid).since(before)
        delivered = join(processes[0].wait_windows(last)[first:]) if scenario.consumer else None
        memory = memory_bytes(server.pid)
    finally:
        for process in reversed(processes):
            process.stop()
    messages = windows[-1].messages_total - windows[first - 1].messages_total
    published = join(windows[first:])
    _require_success(scenario, producer, published, messages)
    return Measurement(
        scenario=scenario.name,
        messages_per_s=published.rate,
        payload_bytes_per_s=published.rate * scenario.load.size_bytes,
        publish=published.latency,
        end_to_end=delivered.latency if delivered else None,
        delivered_per_s=delivered.rate if delivered else None,
        processor_us_per_message=spent.process_s * 1e6 / messages,
        event_loop_us_per_message=spent.main_thread_s * 1e6 / messages,
        memory_bytes=memory,
    )


def _require_success(
    scenario: Scenario, producer: PerfProcess, published: Window, messages: int
) -> None:
    if messages == 0:
        raise BenchFailed(
            f"{scenario.name}: not one message was acknowledged in the measured "
            f"windows:\n{producer.tail()}"
        )
    if published.failed_rate > 0:
        raise BenchFailed(
            f"{scenario.name}: {published.failed_rate:.1f} sends failed per "
            f"second:\n{producer.tail()}"
        )


def profile(directory: Path, scenario: Scenario, tool: PulsarPerf) -> Profile:
    """The hottest functions of a fresh server under one load, in the window after the load
    tool's first. Raises BenchFailed if something broke."""
    server = ProfiledServer(directory)
    processes: list[PerfProcess] = []
    try:
        server.start()
        if scenario.consumer:
            processes.append(tool.consume(server.service_url, scenario.topic()))
        producer = tool.produce(server.service_url, scenario.topic(), scenario.load)
        processes.append(producer)
        (warm,) = producer.wait_windows(1)
        server.begin()
        measured = producer.wait_windows(2)[1]
        seconds = server.finish()
    finally:
        for process in reversed(processes):
            process.stop()
        server.stop()
    return read_profile(
        scenario.name, server.profile_path, seconds, measured.messages_total - warm.messages_total
    )


def require_free_disk(directory: Path) -> None:
    """Raises BenchFailed if the load could fill the disk: the fastest servers write several GiB
    per scenario."""
    free = shutil.disk_usage(directory).free
    if free < FREE_DISK_BYTES_MIN:
        raise BenchFailed(
            f"{directory}: {free >> 30} GiB free, {FREE_DISK_BYTES_MIN >> 30} are needed; choose "
            "another with --directory"
        )

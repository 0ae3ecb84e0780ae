"""What a server costs: processor time, memory, and where the time goes.

Owns: samples of /proc, a server started under cProfile, the hottest functions. Imports:
dev.server_process, the standard library. Invariants: cost per message comes from a server that is
not profiled; a profile only says which functions share the cost, because the profiler slows small
functions most.
"""

from __future__ import annotations

import os
import pstats
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dev.bench.pulsar_perf import BenchFailed
from dev.server_process import ServerProcess

_Place = tuple[str, int, str]  # file, line, function
# primitive calls, calls, own seconds, cumulative seconds, callers
_Cost = tuple[int, int, float, float, object]


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """User and system seconds of a process so far, and those of its first thread: the event loop
    of a Magnetar server."""

    process_s: float
    main_thread_s: float

    def since(self, earlier: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(
            self.process_s - earlier.process_s, self.main_thread_s - earlier.main_thread_s
        )


def processor_time(pid: int) -> ProcessorTime:
    """Sample now; resolution is a clock tick, 10 ms."""
    return ProcessorTime(
        _stat_seconds(Path(f"/proc/{pid}/stat")),
        _stat_seconds(Path(f"/proc/{pid}/task/{pid}/stat")),
    )


def _stat_seconds(path: Path) -> float:
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """The proportional set: resident memory, shared pages counted once. (A JVM's collector maps
    its heap several times, which RSS counts each.)"""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise BenchFailed(f"/proc/{pid}/smaps_rollup has no Pss line; this kernel is too old")


class ProfiledServer(ServerProcess):
    """A standalone server under cProfile; `stop` makes it write `profile_path`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, name="profiled")
        self.profile_path = directory / "profile.pstats"
        self._began = 0.0

    def start(self, wait: bool = True) -> float:
        """As ServerProcess.start, through `dev.bench.profiled_main`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = ["standalone", "--data-dir", str(self.directory / "data"), "--log-level", "info"]
        command += ["--broker-port", str(self.broker_port), "--http-port", str(self.http_port)]
        started = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dev.bench.profiled_main", str(self.profile_path), *command],
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()
        return time.monotonic() - started

    def begin(self) -> None:
        """Start profiling."""
        self._began = time.monotonic()
        self.signal(signal.SIGUSR1)

    def finish(self) -> float:
        """Stop the server, which writes the profile; seconds profiled."""
        assert self._began, "begin() first"
        seconds = time.monotonic() - self._began
        self.stop()
        return seconds


@dataclass(frozen=True, slots=True)
class HotFunction:
    """Own time of one function: its share of the time in all functions, and per message of the
    load."""

    name: str
    own_share: float
    own_microseconds_per_message: float
    calls_per_message: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The event loop's thread under one load: the share of time outside Python (waiting, uvloop
    itself), and the hottest functions."""

    load: str
    outside_share: float
    functions: list[HotFunction]


def read_profile(
    load: str, profile_path: Path, seconds: float, messages: int, count: int = 10
) -> Profile:
    """The `count` functions with the most own time, of `seconds` profiled and `messages` published
    in them.

    Raises BenchFailed if the server wrote no profile.
    """
    if not profile_path.is_file():
        raise BenchFailed(f"the profiled server wrote no {profile_path}; see the log beside it")
    assert messages > 0, "a profile without load says nothing"
    costs: dict[_Place, _Cost] = vars(pstats.Stats(str(profile_path)))["stats"]
    inside_s = sum(cost[2] for cost in costs.values())
    ordered = sorted(costs.items(), key=lambda item: item[1][2], reverse=True)
    functions = [
        HotFunction(
            name=_readable(place),
            own_share=cost[2] / inside_s,
            own_microseconds_per_message=cost[2] * 1e6 / messages,
            calls_per_message=cost[1] / messages,
        )
        for place, cost in ordered[:count]
    ]
    return Profile(load, max(0.0, 1 - inside_s / seconds), functions)


def _readable(place: _Place) -> str:
    """`package/module.py:line function`, or a built-in's own name."""
    file, line, function = place
    if file == "~":
        return function.strip("<>")
    return f"{'/'.join(Path(file).parts[-3:])}:{line} {function}"

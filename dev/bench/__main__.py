"""`python -m dev.bench`: figures of the publish path.

Owns: the order of a run, its arguments and exit code (0 done, however slow; 1 something broke).
Imports: everything else in this package. Invariants: with a peer, both servers take turns scenario
by scenario, the raw disk measured in between; everything lies in one temporary directory that is
removed at the end; every process started is stopped.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dev.bench import pulsar_distribution, raw_disk, report
from dev.bench.cases import COMPARED, IDLE, MANY_TOPICS, Case
from dev.bench.pulsar_peer import PulsarPeer
from dev.bench.pulsar_perf import BenchFailed, PulsarPerf
from dev.bench.report import MAGNETAR, PEER, Findings
from dev.bench.scenarios import (
    BATCHED,
    PROFILED,
    SCENARIOS,
    UNBATCHED,
    Durations,
    Measurement,
    RunningServer,
    Scenario,
    measure,
    profile,
    require_free_disk,
)
from dev.kube.report import CommandFailed, say
from dev.server_process import ServerProcess

RESULT = Path(__file__).resolve().parents[2] / "build" / "bench.json"
CASE_S, QUICK_CASE_S = 8.0, 3.0
GIVING_UP = {
    "MAGNETAR_TRIM_GRACE_S": "5",
    "MAGNETAR_RETENTION_CHECK_S": "5",
    "MAGNETAR_CHECKPOINT_AGE_S": "5",
    "MAGNETAR_REPLACED_KEPT_S": "5",
}
"""The loads write some 10 GB a minute that nobody reads: what is given up must leave the disk
within the run."""
# of each of two loads: a fresh JVM broker does half as well as one warmed up for a minute
PEER_WARM_WINDOWS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=options.directory) as name:
            findings = run(
                Path(name),
                Durations.of(options.seconds, options.quick),
                peer=options.peer,
                quick=options.quick,
            )
    except (BenchFailed, CommandFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(report.render(findings))
    report.write(findings, RESULT)
    say(f"written to {RESULT}")
    return 0


def run(directory: Path, durations: Durations, *, peer: bool, quick: bool) -> Findings:
    """Measure everything below `directory`. Raises BenchFailed or CommandFailed if something
    broke."""
    require_free_disk(directory)
    home = pulsar_distribution.ensure()
    tool = PulsarPerf(home, directory)
    findings = Findings(machine=_machine())
    with ExitStack() as running:
        servers: dict[str, RunningServer] = {
            MAGNETAR: _start_magnetar(directory, findings, running)
        }
        _run_case(IDLE, MAGNETAR, servers[MAGNETAR], quick, findings)
        if peer:
            servers[PEER] = _start_peer(home, directory, findings, running)
            _warm_up(servers[PEER], tool, quick)
        for scenario in SCENARIOS:
            for name, server in servers.items():
                require_free_disk(directory)
                findings.disk.append(raw_disk.measure(directory))
                say(f"{scenario.name} on {name}")
                found = _measure(server, scenario, tool, durations)
                findings.measurements.setdefault(name, []).append(found)
                say(_progress(found))
        for case in COMPARED:
            for name, server in servers.items():
                require_free_disk(directory)
                _run_case(case, name, server, quick, findings)
    with ExitStack() as running:
        many = _start_magnetar(directory / "many-topics", Findings(machine={}), running)
        _run_case(MANY_TOPICS, MAGNETAR, many, quick, findings)
    for number, scenario in enumerate(PROFILED):
        say(f"profile: {scenario.name}")
        findings.profiles.append(profile(directory / f"profiled-{number}", scenario, tool))
    return findings


def _start_magnetar(directory: Path, findings: Findings, running: ExitStack) -> RunningServer:
    server = ServerProcess(directory / MAGNETAR, environment=GIVING_UP)
    running.callback(server.stop)
    try:
        findings.ready_s[MAGNETAR] = server.start()
    except RuntimeError as error:
        raise BenchFailed(str(error)) from error
    return server


def _start_peer(
    home: Path, directory: Path, findings: Findings, running: ExitStack
) -> RunningServer:
    server = PulsarPeer(home, directory / PEER)
    running.callback(server.stop)
    say("starting Apache Pulsar")
    findings.ready_s[PEER] = server.start()
    return server


def _measure(
    server: RunningServer, scenario: Scenario, tool: PulsarPerf, durations: Durations
) -> Measurement:
    try:
        return measure(server, scenario, tool, durations)
    except BenchFailed as error:  # the log lies in a directory that is about to be removed
        raise BenchFailed(f"{error}\nThe server's log ends with:\n{server.log_tail()}") from error


def _run_case(
    case: Case, name: str, server: RunningServer, quick: bool, findings: Findings
) -> None:
    say(f"{case.name} on {name}: {case.what}")
    try:
        found = case.measure(server, QUICK_CASE_S if quick else CASE_S)
    except BenchFailed as error:
        raise BenchFailed(f"{error}\nThe server's log ends with:\n{server.log_tail()}") from error
    findings.cases.setdefault(name, []).append(found)


def _warm_up(server: RunningServer, tool: PulsarPerf, quick: bool) -> None:
    say("warming Apache Pulsar up")
    for scenario in (UNBATCHED, BATCHED):
        _measure(server, scenario, tool, Durations(1, 1 if quick else PEER_WARM_WINDOWS - 1))


def _progress(found: Measurement) -> str:
    return (
        f"  {found.messages_per_s:,.0f} msg/s, p99 {found.publish.p99_ms:.1f} ms, "
        f"{found.processor_us_per_message:.1f} us of CPU per message"
    )


def _machine() -> dict[str, str]:
    return {
        "processors": str(len(os.sched_getaffinity(0))),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench",
        description="Figures of the publish path, beside the raw disk and a peer.",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="measured per load, in windows of 10 s, after 20 s of warm-up (default 20)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="10 s of warm-up and 10 s measured per load: a first look",
    )
    parser.add_argument(
        "--peer",
        action="store_true",
        default=os.environ.get("PEER") == "1",
        help="also measure Apache Pulsar (or PEER=1)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="where data is written; decides which disk is measured (default: the system's /tmp)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

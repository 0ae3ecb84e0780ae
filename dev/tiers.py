"""Run the tiers of tests.

Owns: which tiers there are, their commands, the order, and which run beside each other; prints the
plan first and a table at the end. Imports: the standard library only. Invariants: a tier that
cannot run fails and says what it needs (in CI nothing is skipped); what a tier prints stands
together, in the order of the plan, also when another one runs beside it; the exit code is 0 only if
every tier passed; the last line counts passed and failed tests over all tiers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

SUMMARY = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")
CHECKED_PACKAGES = (
    "broker_image/magnetar",
    "operator/magnetar_operator",
    "spark_jobs/magnetar_jobs",
    "dev",
)
FOLLOW_S = 0.2
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
ALONE, FIRST, SECOND, THIRD = 0, 1, 2, 3
"""Lanes. A tier that is ALONE has the machine to itself; the others mostly wait, or use one
core: FIRST, SECOND and THIRD run beside each other. With two of them both cores stood idle for
half of the time."""
FOREIGN = "foreign or pulsar_admin"
"""Which tests of tests/clients use programs of others, and are a tier of their own."""


@dataclass(frozen=True)
class Tier:
    """One tier: its commands run one after another."""

    name: str
    proves: str
    commands: list[list[str]]
    lane: int = ALONE


@dataclass
class Outcome:
    """What a tier's run showed."""

    tier: Tier
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    broken: list[str] = field(default_factory=list)


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "--durations=10", *arguments]


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def _programs(*names: str) -> list[list[str]]:
    """Build and cache programs before the tests that need them: with progress, and outside a
    test's time limit."""
    return [_python("dev.kube", "binary", name) for name in names]


S3_SERVER = _python("dev.s3.server")
"""Installs what it runs on, and says where."""
FOREIGN_PROGRAMS = _python("dev.testbed.foreign_build", "java", "go", "admin")

TIERS = {
    tier.name: tier
    for tier in (
        Tier(
            "check",
            "formatting, lint, strict types, import layers",
            [
                _python("ruff", "check", "."),
                _python("ruff", "format", "--check", "."),
                _python("mypy", *CHECKED_PACKAGES),
                [str(Path(sys.executable).with_name("lint-imports"))],
            ],
        ),
        Tier(
            "simulation",
            "the whole cluster in one process, seed by seed",
            [_pytest("tests/simulation")],
        ),
        Tier(
            "unit",
            "pure cores, formats, builders: unit and property tests",
            [*_programs("helm"), _pytest("tests/unit", "tests/dev", "tests/test_tidy.py")],
            SECOND,
        ),
        Tier(
            "contract",
            "every metadata store and volume keeps its promises",
            [*_programs("etcd"), S3_SERVER, _pytest("tests/contract")],
            SECOND,
        ),
        Tier(
            "clients",
            "real processes, real etcd, the official Python client",
            [
                *_programs("etcd"),
                S3_SERVER,
                FOREIGN_PROGRAMS,
                _pytest("tests/clients", "-k", f"not ({FOREIGN})"),
            ],
            FIRST,
        ),
        Tier(
            "foreign",
            "the official Java and Go clients and pulsar-admin on real processes",
            [*_programs("etcd"), FOREIGN_PROGRAMS, _pytest("tests/clients", "-k", FOREIGN)],
            THIRD,
        ),
        Tier(
            "differential",
            "answers as Apache Pulsar gave them, recorded",
            [_pytest("tests/differential")],
            THIRD,
        ),
        Tier(
            "spark",
            "the jobs on a real Spark session",
            [S3_SERVER, _pytest("tests/spark")],
            SECOND,
        ),
        Tier(
            "apiserver",
            "CRDs and the operator against a real kube-apiserver",
            [*_programs("etcd", "kube-apiserver", "kubectl", "helm"), _pytest("tests/apiserver")],
            THIRD,
        ),
        Tier(
            "kubernetes",
            "a real node: scale, drain, forced deletion, Spark pods",
            [_python("dev.cluster", "up"), _pytest("-x", "tests/kubernetes")],
        ),
    )
}


def rounds(tiers: Sequence[Tier]) -> list[list[Tier]]:
    """What runs at the same time: neighbours that need not be alone."""
    found: list[list[Tier]] = []
    for tier in tiers:
        if found and ALONE not in (tier.lane, found[-1][-1].lane):
            found[-1].append(tier)
        else:
            found.append([tier])
    return found


def environment_of_tiers() -> dict[str, str]:
    """Hashes are the same in every run. Bytecode is kept whatever the environment says: tests
    start hundreds of servers and commands, and each would compile all that it imports."""
    kept = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    return {**kept, "PYTHONHASHSEED": "0"}


class Run:
    """Tiers of one round, each with a file for what it prints."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def output(self, tier: Tier) -> Path:
        return self._directory / f"{tier.name}.log"

    def tier(self, tier: Tier) -> Outcome:
        """Run one tier and count its tests."""
        outcome, started = Outcome(tier), time.monotonic()
        environment = environment_of_tiers()
        path = self.output(tier)
        for command in tier.commands:
            if self._stopping:
                break
            before = path.stat().st_size
            with path.open("ab") as sink:
                process = subprocess.Popen(
                    command, stdout=sink, stderr=subprocess.STDOUT, env=environment
                )
            self._processes.add(process)
            code = process.wait()
            self._processes.discard(process)
            _count(outcome, command, code, path.read_bytes()[before:].decode(errors="replace"))
        if outcome.skipped and os.environ.get("CI"):
            outcome.broken.append(f"{outcome.skipped} skipped; in CI every test must run")
        outcome.seconds = time.monotonic() - started
        return outcome

    def round(self, tiers: Sequence[Tier]) -> list[Outcome]:
        """Run the tiers of a round, every lane beside the others, and show what each of them
        prints, one after another."""
        lanes = {lane: ThreadPoolExecutor(1) for lane in sorted({tier.lane for tier in tiers})}
        try:
            for tier in tiers:
                self.output(tier).write_text(f"\n=== {tier.name}: {tier.proves}\n")
            running = {tier.name: lanes[tier.lane].submit(self.tier, tier) for tier in tiers}
            for tier in tiers:
                _follow(self.output(tier), running[tier.name].done)
            return [running[tier.name].result() for tier in tiers]
        finally:
            self._stopping = True
            for process in list(self._processes):
                process.terminate()
            for executor in lanes.values():
                executor.shutdown(cancel_futures=True)


def _count(outcome: Outcome, command: list[str], code: int, printed: str) -> None:
    """Take over what a command of the tier showed."""
    if "pytest" in command:
        last = next((line for line in reversed(printed.splitlines()) if SUMMARY.search(line)), "")
        for count, kind in SUMMARY.findall(last):
            if kind == "passed":
                outcome.passed += int(count)
            elif kind == "skipped":
                outcome.skipped += int(count)
            else:
                outcome.failed += int(count)
    else:
        outcome.passed += code == 0
        outcome.failed += code != 0
    if code != 0:
        outcome.broken.append(" ".join(command[-3:]))


def _follow(path: Path, finished: Callable[[], bool]) -> None:
    """Show what is written into the file until nobody writes any more."""
    sys.stdout.flush()
    with path.open("rb") as source:
        while True:
            last = finished()
            text = source.read()
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
            if last and not text:
                return
            if not text:
                time.sleep(FOLLOW_S)


def main() -> None:
    names = sys.argv[1:] or list(TIERS)
    unknown = [name for name in names if name not in TIERS]
    if unknown:
        sys.exit(f"unknown tiers {unknown}; there are {', '.join(TIERS)}")
    plan, started = rounds([TIERS[name] for name in names]), time.monotonic()
    print("Plan:")
    for group in plan:
        for tier in group:
            beside = sorted({other.name for other in group if other.lane != tier.lane})
            print(
                f"  {tier.name:<12} {tier.proves}"
                + (f" (beside {', '.join(beside)})" if beside else "")
            )
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="magnetar-tiers-") as directory:
        for group in plan:
            outcomes += Run(Path(directory)).round(group)
    print(f"\n{'tier':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>9}  result")
    for outcome in outcomes:
        print(
            f"{outcome.tier.name:<12} {outcome.passed:>7} {outcome.failed:>7} {outcome.skipped:>8} "
            f"{outcome.seconds:>9.1f}  "
            + ("ok" if not outcome.broken else "FAILED: " + "; ".join(outcome.broken))
        )
    print(f"{'all':<12} {'':>24} {time.monotonic() - started:>9.1f}")
    broken = any(outcome.broken for outcome in outcomes)
    print(
        f"\n{sum(o.passed for o in outcomes)} passed, "
        f"{sum(max(o.failed, bool(o.broken)) for o in outcomes)} failed",
        flush=True,
    )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()

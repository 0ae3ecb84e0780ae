"""Run the tiers of tests.

Owns: which tiers there are, their commands and the order; prints the plan first and a table at the end. Imports: the standard library only.
Invariants: a tier that cannot run fails and says what it needs (in CI nothing is skipped); the exit code is 0 only if every tier passed; the last
line counts passed and failed tests over all tiers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

SUMMARY = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")
CHECKED_PACKAGES = ("broker_image/magnetar", "operator/magnetar_operator", "spark_jobs/magnetar_jobs", "dev")


@dataclass(frozen=True)
class Tier:
    """One tier: its commands run one after another."""

    name: str
    proves: str
    commands: list[list[str]]


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
    return [sys.executable, "-m", "pytest", "-q", "--durations=5", *arguments]


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def _programs(*names: str) -> list[list[str]]:
    """Build and cache programs before the tests that need them: with progress, and outside a test's time limit."""
    return [_python("dev.kube", "binary", name) for name in names]


S3_SERVER = _python("dev.s3.server")
"""Installs what it runs on, and says where."""

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
            "unit",
            "pure cores, formats, builders: unit and property tests",
            [_pytest("tests/unit", "tests/dev", "tests/test_tidy.py")],
        ),
        Tier(
            "contract",
            "every metadata store and volume keeps its promises",
            [*_programs("etcd"), S3_SERVER, _pytest("tests/contract")],
        ),
        Tier("simulation", "the whole cluster in one process, seed by seed", [_pytest("tests/simulation")]),
        Tier(
            "clients",
            "real processes, real etcd, the official Python, Java and Go clients",
            [
                *_programs("etcd"),
                S3_SERVER,
                _python("tests.clients.foreign_build", "java", "go", "admin"),
                _pytest("tests/clients"),
            ],
        ),
        Tier("spark", "the jobs on a real Spark session", [_pytest("tests/spark")]),
        Tier(
            "apiserver",
            "CRDs and the operator against a real kube-apiserver",
            [*_programs("etcd", "kube-apiserver", "kubectl", "helm"), _pytest("tests/apiserver")],
        ),
        Tier(
            "kubernetes",
            "a real node: scale, drain, forced deletion, Spark pods",
            [_python("dev.cluster", "up"), _pytest("-x", "tests/kubernetes")],
        ),
    )
}


def run_tier(tier: Tier) -> Outcome:
    """Run one tier, passing its output through, and count its tests."""
    print(f"\n=== {tier.name}: {tier.proves}", flush=True)
    outcome, started = Outcome(tier), time.monotonic()
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    for command in tier.commands:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if SUMMARY.search(line):
                last = line
        code = process.wait()
        if "pytest" in command:
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
    if outcome.skipped and os.environ.get("CI"):
        outcome.broken.append(f"{outcome.skipped} skipped; in CI every test must run")
    outcome.seconds = time.monotonic() - started
    return outcome


def main() -> None:
    names = sys.argv[1:] or list(TIERS)
    unknown = [name for name in names if name not in TIERS]
    if unknown:
        sys.exit(f"unknown tiers {unknown}; there are {', '.join(TIERS)}")
    print("Plan:")
    for name in names:
        print(f"  {name:<12} {TIERS[name].proves}")
    outcomes = [run_tier(TIERS[name]) for name in names]
    print(f"\n{'tier':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>9}  result")
    for outcome in outcomes:
        print(
            f"{outcome.tier.name:<12} {outcome.passed:>7} {outcome.failed:>7} {outcome.skipped:>8} {outcome.seconds:>9.1f}  "
            + ("ok" if not outcome.broken else "FAILED: " + "; ".join(outcome.broken))
        )
    broken = any(outcome.broken for outcome in outcomes)
    print(f"\n{sum(o.passed for o in outcomes)} passed, {sum(max(o.failed, bool(o.broken)) for o in outcomes)} failed", flush=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()

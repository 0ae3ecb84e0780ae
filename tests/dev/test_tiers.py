"""Tiers that run beside each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dev.tiers import ALONE, FIRST, SECOND, TIERS, Run, Tier, rounds

MEET = """
import pathlib, sys, time
mine, other = (pathlib.Path(name) for name in sys.argv[1:3])
print("began", flush=True)
mine.touch()
while not other.exists():
    time.sleep(0.01)
print("ended")
sys.exit(int(sys.argv[3]))
"""


def meeting(name: str, directory: Path, other: str, code: int, lane: int) -> Tier:
    """A tier that ends when the other one has begun."""
    return Tier(
        name,
        f"proves {name}",
        [[sys.executable, "-c", MEET, str(directory / name), str(directory / other), str(code)]],
        lane,
    )


def test_two_lanes_run_at_once_and_are_shown_one_after_the_other(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The failure of one is its own; a third tier runs after the one in its lane."""
    tiers = [
        meeting("one", tmp_path, "two", 0, SECOND),
        meeting("two", tmp_path, "one", 3, FIRST),
        meeting("three", tmp_path, "one", 0, SECOND),
    ]
    outcomes = Run(tmp_path).round(tiers)
    assert [(outcome.tier.name, outcome.passed, outcome.failed, bool(outcome.broken)) for outcome in outcomes] == [
        ("one", 1, 0, False), ("two", 0, 1, True), ("three", 1, 0, False),
    ]  # fmt: skip
    shown = capfdbinary.readouterr().out.decode()
    lines = [line for line in shown.splitlines() if line]
    assert lines == [
        line
        for name in ("one", "two", "three")
        for line in (f"=== {name}: proves {name}", "began", "ended")
    ]


def test_counts_come_from_the_last_line_of_a_pytest_run(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        "import pytest\n"
        "def test_good(): print('7 passed')\n"
        "def test_bad(): print('9 passed'); assert False\n"
        "@pytest.mark.skip\n"
        "def test_skipped(): pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        str(file),
    ]
    (outcome,) = Run(tmp_path).round([Tier("some", "something", [command])])
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 1, 1)
    assert outcome.broken


def test_what_needs_the_machine_runs_alone() -> None:
    """Neighbours in the plan share a round only if neither is alone."""
    first, second, alone = (Tier(str(lane), "", [], lane) for lane in (FIRST, SECOND, ALONE))
    assert rounds([alone, second, first, second, alone, alone]) == [
        [alone],
        [second, first, second],
        [alone],
        [alone],
    ]
    names = [[tier.name for tier in found] for found in rounds(list(TIERS.values()))]
    assert names == [
        ["check"],
        ["simulation"],
        ["unit", "contract", "clients", "foreign", "differential", "spark", "apiserver"],
        ["kubernetes"],
    ]

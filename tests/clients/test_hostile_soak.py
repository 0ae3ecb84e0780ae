"""The soak with a hostile client, in half a minute: the tool works, and ordinary clients keep
what they were promised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.soak.hostile import HostileSoak
from dev.soak.hostile_peer import ATTACKS
from dev.soak.hostile_report import measured

MINUTES = 0.3
ENTRIES = 20_000
ATTACKS_MIN = 1


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostileSoak, int]]:
    """A run that has ended, with its exit code."""
    directory: Path = tmp_path_factory.mktemp("hostile")
    made = HostileSoak(directory, MINUTES, "ci", entries=ENTRIES)
    try:
        yield made, made.run()
    finally:
        made.stop()


def test_no_promise_is_broken(soak: tuple[HostileSoak, int]) -> None:
    """Nothing acknowledged is lost, nothing comes twice or out of order, no process ends, no
    attack stops a subscription."""
    made, code = soak
    assert (made.problems, made.findings, code) == ([], [], 0)


def test_the_report_compares_two_kinds_of_phases(soak: tuple[HostileSoak, int]) -> None:
    """Messages were measured in calm and in hostile phases of the same run, and attacks took
    place in the latter only."""
    made, _ = soak
    assert made.traffic is not None
    assert [phase.hostile for phase in made.phases] == [False, True]
    for hostile in (False, True):
        assert measured(made.traffic.receipts, made.phases, hostile).count > 100
        assert measured(made.traffic.deliveries, made.phases, hostile).count > 100
    turns = made.turns
    assert len(turns) >= ATTACKS_MIN
    assert {turn["attack"] for turn in turns} <= {*ATTACKS}
    assert all(made.phases[1].began <= turn["began"] <= turn["ended"] for turn in turns)

"""`make attack` with a fiftieth of its connections: an ordinary client is served throughout, and
the server gives back what it took."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.soak.attack import AttackRun
from dev.soak.attacks.resources import CONNECTS
from dev.soak.hostile_peer import RESOURCE_ATTACKS

pytestmark = pytest.mark.slow
MINUTES, SCALE = 0.3, 0.02
ENDED = ("connected", "held", "closed", "ended", "examined", "refused")
"""How attacks end that are not cut short."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AttackRun, int]]:
    """A run that has ended, with its exit code."""
    made = AttackRun(tmp_path_factory.mktemp("attack"), MINUTES, "ci", scale=SCALE)
    try:
        yield made, made.run()
    finally:
        made.stop()


def test_the_ordinary_client_never_fails_and_nothing_wrong_gets_in(
    attacked: tuple[AttackRun, int],
) -> None:
    """Nothing is lost or answered with an error, probes are good, wrong credentials are refused;
    descriptors and memory come back."""
    run, code = attacked
    assert (run.problems, code) == ([], 0)
    assert run.after.descriptors - run.before.descriptors < SCALE * CONNECTS / 4


def test_every_attack_takes_place_and_is_compared_with_calm_phases(
    attacked: tuple[AttackRun, int],
) -> None:
    """Once to warm up and once in a phase of its own; the server holds the connections of the
    one that makes most of them."""
    run, _ = attacked
    ended = [turn["attack"] for turn in run.turns if turn["outcome"] in ENDED]
    assert [attack for attack in RESOURCE_ATTACKS if ended.count(attack) < 2] == []
    assert [phase.attack for phase in run.phases] == [
        attack for name in RESOURCE_ATTACKS for attack in ("", name)
    ]
    assert (
        run.peaks["connections_without_connect"].descriptors
        > run.before.descriptors + SCALE * CONNECTS / 2
    )
    assert [line.split()[0] for line in run.table()[1:]] == ["calm", *RESOURCE_ATTACKS]

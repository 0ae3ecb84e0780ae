"""The planner against its bars, and against Pulsar's shedders, on simulated clusters."""

from __future__ import annotations

import pytest

from dev.bench import balance
from dev.bench.balance import CASES, TARGETS, disturbed, measured
from dev.bench.balance_simulation import STRATEGIES, Result, Simulation
from magnetar.balance.settings import PLANNER


@pytest.mark.slow
@pytest.mark.parametrize("case", TARGETS)
def test_the_planner_meets_its_bars(case: str) -> None:
    """Every broker within 2 % of the mean, little moved, at once."""
    results = measured(case, PLANNER, 1 if case == "E" else 2)
    for result in results:
        assert result.max_over_lb <= 1.021
        assert result.cv <= 0.0105
        assert result.settled_s <= 60
    assert sum(result.moved_over_least for result in results) / len(results) <= 1.2


@pytest.mark.slow
@pytest.mark.parametrize("case", ["C", "D"])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != PLANNER])
def test_the_planner_beats_every_shedder(case: str, strategy: str) -> None:
    """In balance, and in time where the other acts at all."""
    (other,), (ours,) = measured(case, strategy, 1), measured(case, PLANNER, 1)
    assert ours.max_over_lb < other.max_over_lb or ours.cv < other.cv
    assert ours.settled_s < other.settled_s or not other.moves


def test_a_new_broker_stays_idle_under_the_threshold_family() -> None:
    """Case B: why ThresholdShedder is not our default."""
    (result,) = measured("B", "ThresholdShedder, LeastLongTermMessageRate", 1)
    assert result.moves == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", ["orphans", "unequal"])
def test_other_cases(case: str) -> None:
    (result,) = measured(case, PLANNER, 1)
    assert result.max_over_lb <= 1.05
    assert result.cv <= 0.02


@pytest.mark.slow
def test_noise_moves_nothing() -> None:
    """Twenty minutes of samples that are off by up to 20 %."""
    _, moves = disturbed(10, 20, rounds=240)
    assert sum(moves) == 0


@pytest.mark.parametrize("step", [1.3, 2.0, 0.5])
def test_a_step_is_answered_in_ten_seconds(step: float) -> None:
    """15 points of a broker at 50 % and more, up and down: the second sample confirms it."""
    simulation, moves = disturbed(20, 20, rounds=12, noise=0.0, step=step)
    assert moves[0] == 0, "one sample may be noise"
    assert moves[1] > 0
    assert sum(moves[2:]) == 0
    fills = simulation.start.fills(simulation.owners)
    assert max(fills) <= 1.021
    assert min(fills) >= 0.979


def test_runs_repeat() -> None:
    start = CASES["A"][1](3)
    first, second = (Simulation(start, STRATEGIES["AvgShedder"]) for _ in range(2))
    for simulation in (first, second):
        for _ in range(4):
            simulation.step(60_000)
    assert first.owners == second.owners
    assert first.moves


def test_the_command_prints_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "measured", lambda *_: [Result(1.01, 0.005, 3, 0.1, 1.05, 5.0)])
    monkeypatch.setattr("sys.argv", ["balance", "--json"])
    balance.main()
    assert '"A": {"max_over_lb": 1.01' in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["balance", "--case", "B", "--strategy", PLANNER])
    balance.main()
    assert "| B" in capsys.readouterr().out.replace("B ", "| B", 1)

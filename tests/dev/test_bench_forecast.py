"""Forecasts and cut points against their bars, on fixed seeds."""

from __future__ import annotations

import json

import pytest

from dev.bench import forecast, scaling_ahead, split_advice


@pytest.mark.slow
@pytest.mark.parametrize("trace", forecast.GROWING)
def test_forecasts_beat_seasonal_naive_on_growth(trace: str) -> None:
    """By 30 % of the pinball loss; and its twin, whose quantiles are those of its own errors."""
    found = forecast.measured(trace, 2)
    assert found.ratio <= forecast.BAR
    assert found.ratio_spread < 0.95
    assert 0.85 <= found.coverage <= 0.995


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_cut_points_balance_zipf_loads_within_two_rounds(seed: int) -> None:
    found = split_advice.measured(1.0, seed)
    assert found.advised[0] > split_advice.BAR, "the case is worth a split"
    assert found.advised[-1] <= split_advice.BAR
    assert found.advised[-1] <= max(found.halved[-1], 1.06)


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["growing", "added"])
def test_scaling_ahead_halves_the_minutes_above_the_target(trace: str) -> None:
    """For few broker-hours more, and fewer changes."""
    found = scaling_ahead.measured(trace, 1)
    reactive, ahead = found.reactive, found.ahead
    assert ahead.minutes_over <= scaling_ahead.OVER_BAR * reactive.minutes_over
    assert ahead.broker_hours <= scaling_ahead.HOURS_BAR * reactive.broker_hours
    assert ahead.changes <= reactive.changes


@pytest.mark.slow
def test_figures_are_printed_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast.main(["--seeds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["trace"] for row in found["traces"]} == set(forecast.TRACES)
    assert split_advice.main(["--seeds", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == len(split_advice.EXPONENTS)

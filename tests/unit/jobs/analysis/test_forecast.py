"""A forecast is sane whatever the history is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_jobs.analysis.forecast import (
    DAY_S,
    GROWTH_MAX,
    HISTORY_MIN,
    Series,
    forecast,
    pinball,
    seasonal_naive,
)

HOUR_S = 3600.0
QUANTILES = (0.05, 0.5, 0.95)
VALUE = st.one_of(st.floats(0, 1e12), st.just(float("nan")))


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUE, max_size=120), st.integers(1, 48), st.floats(0, 2e9))
def test_any_history_gives_finite_quantiles_in_order(
    values: list[float], steps: int, start_s: float
) -> None:
    series = Series(start_s, HOUR_S, np.asarray(values, dtype=np.float64))
    found = forecast(series, steps, QUANTILES)
    known = series.values[np.isfinite(series.values)]
    if found is None:
        assert len(known) < HISTORY_MIN
        return
    assert found.values.shape == (3, steps)
    assert np.isfinite(found.values).all()
    assert (found.values >= 0).all()
    assert (found.values <= GROWTH_MAX * known.max()).all()
    assert (np.diff(found.values, axis=0) >= 0).all()
    again = forecast(series, steps, QUANTILES)
    assert again is not None
    assert (again.values == found.values).all()


def test_a_pattern_without_noise_is_continued() -> None:
    times = HOUR_S * np.arange(24 * 8)
    day = 100 + 50 * np.sin(2 * np.pi * times / DAY_S)
    found = forecast(Series(0.0, HOUR_S, day[: 24 * 7]), 24, QUANTILES)
    assert found is not None
    assert np.abs(found.values[1] - day[24 * 7 :]).max() < 2
    assert "the day" in found.method
    assert found.start_s == 7 * DAY_S


def test_growth_is_continued_and_yesterday_is_not_enough() -> None:
    values = np.linspace(100, 200, 24 * 10)
    series, actual = Series(0.0, HOUR_S, values[: 24 * 9]), values[24 * 9 :]
    found = forecast(series, 24, QUANTILES)
    assert found is not None
    naive = seasonal_naive(series, 24, QUANTILES)
    assert pinball(actual, found.values, QUANTILES) < 0.3 * pinball(actual, naive, QUANTILES)


def test_less_than_a_day_says_so() -> None:
    found = forecast(Series(0.0, HOUR_S, np.full(20, 7.0)), 5, QUANTILES)
    assert found is not None
    assert "level only" in found.method
    assert found.values == pytest.approx(np.full((3, 5), 7.0))


def test_pinball_punishes_the_side_that_a_quantile_forbids() -> None:
    actual = np.asarray([10.0, np.nan])
    high, low = np.asarray([[20.0, 0.0]]), np.asarray([[0.0, 0.0]])
    assert pinball(actual, high, (0.9,)) == pytest.approx(1.0)
    assert pinball(actual, low, (0.9,)) == pytest.approx(9.0)

"""How the load of one bundle or broker behaves over time.

Owns: `Profile` and `profile`. Imports: numpy, forecast's series. Pure. Invariants: figures are finite;
gaps are left out; less than two days of history have no daily pattern, less than one no growth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from magnetar_jobs.analysis.forecast import DAY_S, Floats, Series

IDLE, STEADY, DAILY, GROWING, SHRINKING, BURSTY = (
    "idle",
    "steady",
    "daily",
    "growing",
    "shrinking",
    "bursty",
)
HOURS = 24
DAILY_SHARE_MIN = 0.5
"""Of the variance around the trend, for a pattern to count as daily."""
GROWTH_MIN, BURST_MIN = 0.02, 5.0


@dataclass(frozen=True, slots=True)
class Profile:
    """`daily`: the share of the variance that hours of the day explain. `growth`: per day, of the
    mean. `variation`: standard deviation over mean. `missing`: share of steps without a value."""

    kind: str
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    highest: float = 0.0
    variation: float = 0.0
    daily: float = 0.0
    growth: float = 0.0
    missing: float = 1.0


def profile(series: Series, idle_below: float = 1e-9) -> Profile:
    """What a series is like. A mean up to `idle_below` counts as idle."""
    known = np.isfinite(series.values)
    values = series.values[known]
    if not len(values):
        return Profile(IDLE)
    mean, highest = float(values.mean()), float(values.max())
    p50, p95, p99 = (float(value) for value in np.quantile(values, (0.5, 0.95, 0.99)))
    times = series.times(0, len(series.values))[known]
    growth, around = _trend(times, values) if series.days >= 1 else (0.0, values - mean)
    daily = _daily_share(times, around) if series.days >= 2 else 0.0
    found = Profile(
        STEADY,
        mean,
        p50,
        p95,
        p99,
        highest,
        float(values.std() / mean) if mean else 0.0,
        daily,
        growth / mean if mean else 0.0,
        float(1 - known.mean()),
    )
    return replace(found, kind=_kind(found, idle_below))


def _kind(found: Profile, idle_below: float) -> str:
    if found.mean <= idle_below:
        return IDLE
    if found.daily >= DAILY_SHARE_MIN:
        return DAILY
    if found.highest > BURST_MIN * max(found.mean, found.p95):
        return BURSTY
    if abs(found.growth) >= GROWTH_MIN:
        return GROWING if found.growth > 0 else SHRINKING
    return STEADY


def _trend(times: Floats, values: Floats) -> tuple[float, Floats]:
    """Growth per day, and what is left without it."""
    days = (times - times.mean()) / DAY_S
    size = float(np.sum(days**2))
    slope = float(np.sum(days * (values - values.mean())) / size) if size else 0.0
    return slope, np.asarray(values - values.mean() - slope * days)


def _daily_share(times: Floats, around: Floats) -> float:
    """The share of the variance that the means of hours explain."""
    total = float(np.sum(around**2))
    if total <= 1e-18:
        return 0.0
    hours = ((times % DAY_S) // (DAY_S / HOURS)).astype(int)
    counts = np.bincount(hours, minlength=HOURS)
    sums = np.bincount(hours, weights=around, minlength=HOURS)
    means = np.divide(sums, counts, out=np.zeros(HOURS), where=counts > 0)
    return float(np.clip(np.sum(counts * means**2) / total, 0.0, 1.0))


def concentration(loads: Floats) -> float:
    """The Gini coefficient: 0 = all are equal, near 1 = one has everything."""
    ordered = np.sort(loads[np.isfinite(loads)])
    total = float(ordered.sum())
    if not len(ordered) or total <= 0:
        return 0.0
    count = len(ordered)
    weighed = float(np.sum(np.arange(1, count + 1) * ordered))
    return float(np.clip(2 * weighed / (count * total) - (count + 1) / count, 0.0, 1.0))

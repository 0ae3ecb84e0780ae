"""A forecast of load with quantiles.

Owns: `forecast`, and seasonal naive to compare it with. Imports: numpy. Pure. Method: a ridge
regression on a linear trend and on harmonics of the day and the week, fitted on the original scale,
on roots and on logarithms, whichever has foretold the last day of the history best; the last
residuals decay into it. Quantiles are those of the residuals. Invariants: no value is negative,
infinite or not a number; quantiles do not cross; equal inputs give equal forecasts; gaps in the
history are left out, never filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DAY_S, WEEK_S = 86_400, 604_800
DAILY_HARMONICS, WEEKLY_HARMONICS = 6, 9
HISTORY_MIN = 12
"""Values below which nothing is foretold."""
TREND_DAYS_MIN, WEEKLY_DAYS_MIN, CHOICE_DAYS_MIN = 2.0, 13.0, 3.0
RIDGE = 1e-3
OUTLIER_DEVIATIONS = 2.5
FITS = 4
PHI_MAX = 0.98
GROWTH_MAX = 10.0
"""A forecast is at most so many times the highest value of the history."""
CHOICE_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Series:
    """Values at equal intervals from `start_s` (seconds since the epoch) on; NaN = not measured."""

    start_s: float
    step_s: float
    values: Floats

    @property
    def days(self) -> float:
        return float(len(self.values) * self.step_s / DAY_S)

    def times(self, begin: int, end: int) -> Floats:
        return self.start_s + self.step_s * np.arange(begin, end, dtype=np.float64)

    def until(self, count: int) -> Series:
        return Series(self.start_s, self.step_s, self.values[:count])


@dataclass(frozen=True, slots=True)
class _Scale:
    name: str
    to: Callable[[Floats], Floats]
    back: Callable[[Floats], Floats]


_SCALES = (
    _Scale("original", lambda values: values, lambda values: values),
    _Scale("roots", np.sqrt, lambda values: np.square(np.maximum(values, 0.0))),
    _Scale("logarithms", np.log1p, lambda values: np.expm1(np.clip(values, 0.0, 50.0))),
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """`values[i]` are those of `quantiles[i]`, one a step behind the history. `method` says how it
    was made, for people."""

    start_s: float
    step_s: float
    quantiles: tuple[float, ...]
    values: Floats
    method: str


def forecast(series: Series, steps: int, quantiles: Sequence[float]) -> Forecast | None:
    """The next `steps` values; None if the history is too short."""
    known = series.values[np.isfinite(series.values)]
    if len(known) < HISTORY_MIN or steps < 1:
        return None
    wanted = tuple(sorted(quantiles))
    scale = _best_scale(series) if series.days >= CHOICE_DAYS_MIN else _SCALES[0]
    values = _bounded(_foretold(series, steps, wanted, scale), float(known.max()))
    start_s = series.start_s + series.step_s * len(series.values)
    return Forecast(start_s, series.step_s, wanted, values, _method(series, scale))


def _bounded(values: Floats, highest: float) -> Floats:
    clean = np.nan_to_num(values, nan=0.0, posinf=GROWTH_MAX * highest, neginf=0.0)
    return np.maximum.accumulate(np.clip(clean, 0.0, GROWTH_MAX * highest), axis=0)


def _method(series: Series, scale: _Scale) -> str:
    parts = ["the day"] if series.days >= 1 else []
    parts += ["the week"] if series.days >= WEEKLY_DAYS_MIN else []
    parts += ["a trend"] if series.days >= TREND_DAYS_MIN else []
    what = (
        f"harmonics of {', '.join(parts)}" if parts else "the level only: less than a day is known"
    )
    return f"{what}; scale: {scale.name}"


def _best_scale(series: Series) -> _Scale:
    """The scale that has foretold the last day best from what was before."""
    held = min(round(DAY_S / series.step_s), len(series.values) // 3)
    before, actual = series.until(len(series.values) - held), series.values[-held:]
    losses = [
        pinball(actual, _foretold(before, held, CHOICE_QUANTILES, scale), CHOICE_QUANTILES)
        for scale in _SCALES
    ]
    return _SCALES[int(np.argmin(losses))]


def _foretold(series: Series, steps: int, quantiles: Sequence[float], scale: _Scale) -> Floats:
    count = len(series.values)
    known = np.isfinite(series.values)
    target = scale.to(np.maximum(series.values[known], 0.0))
    features = _features(series, 0, count + steps)
    weights = _fitted(features[:count][known], target)
    residuals = np.full(count, np.nan)
    residuals[known] = target - features[:count][known] @ weights
    phi = _persistence(residuals)
    recent = residuals[-3:][np.isfinite(residuals[-3:])]
    decay = phi ** np.arange(1, steps + 1)
    center = features[count:] @ weights + decay * (recent.mean() if len(recent) else 0.0)
    # Parameters are estimated, too: their error grows with their number.
    spread = np.sqrt(np.maximum(1 - decay**2, 0.02)) * (1 + features.shape[1] / max(known.sum(), 1))
    offsets = np.quantile(residuals[known], quantiles)
    return scale.back(center[None, :] + spread[None, :] * offsets[:, None])


def _features(series: Series, begin: int, end: int) -> Floats:
    """Of each step: 1, the trend, sines and cosines of the day and the week."""
    times, columns = series.times(begin, end), [np.ones(end - begin)]
    if series.days >= TREND_DAYS_MIN:
        columns.append((times - series.start_s) / (series.days * DAY_S))
    waves: list[float] = []
    if series.days >= 1:
        waves += [number / DAY_S for number in range(1, DAILY_HARMONICS + 1)]
    if series.days >= WEEKLY_DAYS_MIN:
        waves += [number / WEEK_S for number in range(1, WEEKLY_HARMONICS + 1) if number % 7]
    for frequency in waves:
        columns += [np.sin(2 * np.pi * frequency * times), np.cos(2 * np.pi * frequency * times)]
    return np.stack(columns, axis=1)


def _fitted(features: Floats, target: Floats) -> Floats:
    """Weights of a ridge regression; what is far from the rest counts less in each next fit."""
    importance = np.ones(len(target))
    penalty = RIDGE * len(target) * np.eye(features.shape[1])
    penalty[0, 0] = 0.0
    weights: Floats = np.zeros(features.shape[1])
    for _ in range(FITS):
        weighted = features * importance[:, None]
        solved = np.linalg.lstsq(features.T @ weighted + penalty, weighted.T @ target, rcond=None)
        weights = np.asarray(solved[0], dtype=np.float64)
        residuals = np.abs(target - features @ weights)
        typical = 1.4826 * float(np.median(residuals)) or float(residuals.mean()) or 1.0
        importance = np.minimum(1.0, OUTLIER_DEVIATIONS * typical / np.maximum(residuals, 1e-12))
    return weights


def _persistence(residuals: Floats) -> float:
    """How much of a residual is left in the next one."""
    now, before = residuals[1:], residuals[:-1]
    both = np.isfinite(now) & np.isfinite(before)
    if both.sum() < HISTORY_MIN:
        return 0.0
    size = float(np.sum(before[both] ** 2))
    return float(np.clip(np.sum(now[both] * before[both]) / size, 0.0, PHI_MAX)) if size else 0.0


def seasonal_naive(
    series: Series, steps: int, quantiles: Sequence[float], *, spread: bool = False
) -> Floats:
    """As yesterday at the same time, at every quantile; with `spread` moved by the quantiles of
    the errors that this has made in the history."""
    season, values = round(DAY_S / series.step_s), series.values
    last = values[-season:]
    filled = np.where(np.isfinite(last), last, np.nanmean(last))
    point = np.resize(filled, steps)
    offsets = np.zeros(len(quantiles))
    if spread:
        errors = values[season:] - values[:-season]
        offsets = np.quantile(errors[np.isfinite(errors)], quantiles)
    return np.maximum(point[None, :] + offsets[:, None], 0.0)


def pinball(actual: Floats, foretold: Floats, quantiles: Sequence[float]) -> float:
    """The mean pinball loss over steps and quantiles; steps that were not measured do not count."""
    errors = actual[None, :] - foretold
    levels = np.asarray(quantiles)[:, None]
    return float(np.nanmean(np.maximum(levels * errors, (levels - 1) * errors)))

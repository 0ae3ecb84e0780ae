"""`python -m dev.bench.forecast`: forecasts of load against seasonal naive.

Owns: traces with known ground truth, and the table of pinball losses; `--json` for the figures.
Imports: magnetar_jobs.analysis, report. Deterministic: traces come from seeds. Two opponents: seasonal
naive (yesterday at the same time), and the same with the quantiles of its own errors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dev.bench.report import table
from magnetar_jobs.analysis.forecast import (
    DAY_S,
    WEEK_S,
    Floats,
    Series,
    forecast,
    pinball,
    seasonal_naive,
)

STEP_S = 600
DAYS = 15
HORIZON = DAY_S // STEP_S
ORIGINS = (10.0, 10.5, 11.25, 12.0, 12.75, 13.5)
"""Days after which the next one is foretold."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BAR = 0.7
"""Of seasonal naive's loss: what a trace with a daily pattern and growth may have."""
Trace = Callable[[np.random.Generator, Floats], Floats]


def _day(times: Floats, amplitude: float = 0.5, peak_h: float = 15.0) -> Floats:
    phase = 2 * np.pi * (times / DAY_S - peak_h / 24)
    return np.asarray(1 + amplitude * np.cos(phase) + 0.15 * np.cos(2 * phase))


def _noise(random: np.random.Generator, count: int, deviation: float, phi: float) -> Floats:
    """Steps that remember a share of the one before."""
    steps = random.normal(0, deviation * np.sqrt(1 - phi**2), count)
    for at in range(1, count):
        steps[at] += phi * steps[at - 1]
    return np.asarray(1 + steps)


def _growth(times: Floats, per_day: float) -> Floats:
    return np.asarray(1 + per_day * (times - times[0]) / DAY_S)


def _diurnal(random: np.random.Generator, times: Floats) -> Floats:
    return 1000 * _day(times) * _noise(random, len(times), 0.08, 0.5)


def _growing(random: np.random.Generator, times: Floats) -> Floats:
    return _diurnal(random, times) * _growth(times, 0.05)


def _added(random: np.random.Generator, times: Floats) -> Floats:
    """Growth on top of a pattern that does not grow with it."""
    noise = 60 * (_noise(random, len(times), 1.0, 0.5) - 1)
    return np.asarray(1000 * _day(times, 0.4) + 40 * (times - times[0]) / DAY_S + noise)


def _weekly(random: np.random.Generator, times: Floats) -> Floats:
    week = 1 + 0.15 * np.cos(2 * np.pi * (times / WEEK_S - 0.3))
    return np.asarray(_growing(random, times) * week)


def _crowds(random: np.random.Generator, times: Floats) -> Floats:
    """Ten times the load for half an hour, now and then."""
    found = _growing(random, times)
    for at in random.integers(0, len(times) - 3, 6):
        found[at : at + 3] *= 10
    return found


def _gaps(random: np.random.Generator, times: Floats) -> Floats:
    found = _growing(random, times)
    found[random.random(len(times)) < 0.1] = np.nan
    begin = int(random.integers(0, len(times) // 2))
    found[begin : begin + 60] = np.nan
    return found


def _bursts(random: np.random.Generator, times: Floats) -> Floats:
    """Two levels, between which a chain goes, on top of the day and growth."""
    on, states = False, np.zeros(len(times))
    for at in range(len(times)):
        on = on != (random.random() < 0.03)
        states[at] = on
    return np.asarray(_growing(random, times) * (1 + 0.4 * states))


TRACES: Mapping[str, tuple[str, Trace]] = {
    "diurnal": ("a daily pattern", _diurnal),
    "growing": ("a daily pattern that grows by 5 % a day", _growing),
    "added": ("a daily pattern and growth of 4 % on top", _added),
    "weekly": ("as growing, and a weekly pattern", _weekly),
    "crowds": ("as growing, and flash crowds", _crowds),
    "gaps": ("as growing, with missing samples", _gaps),
    "bursts": ("as growing, between two levels", _bursts),
}
GROWING = ("growing", "added", "weekly", "crowds", "gaps", "bursts")
"""Those with a daily pattern and growth: the bar is for them."""


@dataclass(frozen=True, slots=True)
class Result:
    """Mean losses of one trace, and how often what came was below the highest quantile."""

    trace: str
    ours: float
    naive: float
    naive_spread: float
    coverage: float

    @property
    def ratio(self) -> float:
        return self.ours / self.naive

    @property
    def ratio_spread(self) -> float:
        return self.ours / self.naive_spread


def measured(trace: str, seeds: int) -> Result:
    make = TRACES[trace][1]
    losses: list[tuple[float, float, float, float]] = []
    for seed in range(seeds):
        times = STEP_S * np.arange(DAYS * DAY_S // STEP_S, dtype=np.float64)
        values = make(np.random.default_rng(seed), times)
        for days in ORIGINS:
            count = round(days * DAY_S / STEP_S)
            before, actual = Series(0.0, STEP_S, values[:count]), values[count : count + HORIZON]
            found = forecast(before, HORIZON, QUANTILES)
            assert found is not None, "ten days are enough for any forecast"
            known = np.isfinite(actual)
            losses.append(
                (
                    pinball(actual, found.values, QUANTILES),
                    pinball(actual, seasonal_naive(before, HORIZON, QUANTILES), QUANTILES),
                    pinball(
                        actual, seasonal_naive(before, HORIZON, QUANTILES, spread=True), QUANTILES
                    ),
                    float(np.mean(actual[known] <= found.values[-1][known])),
                )
            )
    ours, naive, spread, coverage = np.mean(np.asarray(losses), axis=0).tolist()
    return Result(trace, ours, naive, spread, coverage)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.forecast", description="Forecasts of load, 24 h ahead."
    )
    parser.add_argument("--seeds", type=int, default=5, help="traces of each kind (default 5)")
    parser.add_argument("--json", action="store_true", help="figures only, as JSON")
    options = parser.parse_args(arguments)
    results = [measured(trace, options.seeds) for trace in TRACES]
    if options.json:
        rows = [
            asdict(found) | {"ratio": found.ratio, "ratio_spread": found.ratio_spread}
            for found in results
        ]
        print(json.dumps({"bar": BAR, "growing": list(GROWING), "traces": rows}, indent=2))
        return 0
    print(
        table(
            ("trace", "what", "ours", "naive", "ours/naive", "ours/naive+", "below q95"),
            [
                (
                    found.trace,
                    TRACES[found.trace][0],
                    f"{found.ours:.1f}",
                    f"{found.naive:.1f}",
                    f"{found.ratio:.2f}",
                    f"{found.ratio_spread:.2f}",
                    f"{found.coverage:.1%}",
                )
                for found in results
            ],
        )
    )
    print("pinball loss; naive: as yesterday; naive+: with the quantiles of its own errors")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

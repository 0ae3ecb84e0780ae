"""`python -m dev.bench.scaling_ahead`: the autoscaler with a forecast against the same without.

Owns: a cluster whose brokers take time to start, played over the traces of `forecast`; `--json` for the
figures. Imports: magnetar_operator.brokers (the decision itself), magnetar_jobs.analysis, forecast,
report. Deterministic: traces come from seeds, time is simulated. Load is even over the brokers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dev.bench.forecast import STEP_S, TRACES
from dev.bench.report import table
from magnetar.resources.scaling import Autoscaling, AutoscalingStatus, ForecastUse
from magnetar_jobs.analysis.forecast import DAY_S, Floats, Forecast, Series, forecast
from magnetar_operator.brokers.autoscaling import Report, Sight, decide
from magnetar_operator.brokers.forecasting import Outlook

LOOK_S, RUN_S = 30, 3600
LEAD_S, LEVEL = ForecastUse().lead_seconds, ForecastUse().percent / 100
AHEAD_STEPS = (RUN_S + LEAD_S) // STEP_S + 1
START_S = 300
"""From the decision until a new broker has its share of the load."""
HISTORY_DAYS, PLAYED_DAYS = 10, 3
CORES_PER_MESSAGE = 3.6 / 1000
SPEC = Autoscaling.model_validate({"enabled": True, "minReplicas": 1, "maxReplicas": 40})
OVER = SPEC.targets.cpu_percent / 100 * (1 + SPEC.tolerance_percent / 100)
"""CPU of a broker above which it carries more than it should."""
PLAYED = ("diurnal", "growing", "added", "weekly")
OVER_BAR, HOURS_BAR = 0.5, 1.15
"""Of the autoscaler without a forecast: minutes above the target, and broker-hours."""


@dataclass(frozen=True, slots=True)
class Played:
    """Minutes in which brokers had more than they should, hours of brokers, and changes."""

    minutes_over: float = 0.0
    broker_hours: float = 0.0
    changes: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    trace: str
    reactive: Played
    ahead: Played


class _Forecasts:
    """Of a job that runs every hour."""

    def __init__(self, values: Floats) -> None:
        self._values = values
        self._made_s = -1
        self._found: Forecast | None = None

    def outlook(self, second: int) -> Outlook:
        """The highest load within the lead, by the last run."""
        made_s = second // RUN_S * RUN_S
        if made_s != self._made_s:
            known = Series(0.0, STEP_S, self._values[: made_s // STEP_S])
            self._made_s, self._found = made_s, forecast(known, AHEAD_STEPS, (LEVEL,))
        found = self._found
        if found is None:
            return Outlook()
        begin = max(0, int((second - found.start_s) // STEP_S))
        end = int((second + LEAD_S - found.start_s) // STEP_S) + 1
        return Outlook("Used", LEAD_S, (("cpu", float(found.values[-1][begin:end].max())),))


def play(values: Floats, *, ahead: bool) -> Played:
    """Three days of a cluster; `values` is its load in cores."""
    begin, end = HISTORY_DAYS * DAY_S, (HISTORY_DAYS + PLAYED_DAYS) * DAY_S
    times = STEP_S * (np.arange(len(values)) + 0.5)
    replicas = serving = int(np.ceil(values[begin // STEP_S] / 0.6))
    ready_s, over, hours, changes = 0.0, 0, 0.0, 0
    status, forecasts = AutoscalingStatus(), _Forecasts(values)
    for second in range(begin, end, LOOK_S):
        if second >= ready_s:
            serving = replicas
        load = float(np.interp(second, times, values))
        over += load / serving > OVER
        hours += replicas * LOOK_S / 3600
        outlook = forecasts.outlook(second) if ahead else Outlook()
        share, names = load / serving, tuple(f"b-{at}" for at in range(replicas))
        reports = tuple(Report(name, 1.0, 8, share, 0.0, 0.0, 0.0) for name in names)
        busy = "" if serving == replicas else "brokers start"
        decision = decide(
            SPEC,
            status,
            Sight(replicas, names, reports, 60.0, busy, outlook=outlook),
            second * 1000,
        )
        status = decision.status
        if decision.replicas is not None and decision.replicas != replicas:
            ready_s = second + (START_S if decision.replicas > replicas else LOOK_S)
            replicas, changes = decision.replicas, changes + 1
            serving = min(serving, replicas)
    return Played(over * LOOK_S / 60, hours, changes)


def measured(trace: str, seeds: int) -> Result:
    found: dict[bool, list[Played]] = {False: [], True: []}
    times = STEP_S * np.arange((HISTORY_DAYS + PLAYED_DAYS) * DAY_S // STEP_S, dtype=np.float64)
    for seed in range(seeds):
        values = CORES_PER_MESSAGE * TRACES[trace][1](np.random.default_rng(seed), times)
        for ahead, played in found.items():
            played.append(play(values, ahead=ahead))
    return Result(trace, _mean(found[False]), _mean(found[True]))


def _mean(played: Sequence[Played]) -> Played:
    count = len(played)
    return Played(
        sum(one.minutes_over for one in played) / count,
        sum(one.broker_hours for one in played) / count,
        round(sum(one.changes for one in played) / count),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.scaling_ahead", description="Scaling ahead of the load."
    )
    parser.add_argument("--seeds", type=int, default=3, help="traces of each kind (default 3)")
    parser.add_argument("--json", action="store_true", help="figures only, as JSON")
    options = parser.parse_args(arguments)
    results = [measured(trace, options.seeds) for trace in PLAYED]
    if options.json:
        print(json.dumps([asdict(found) for found in results], indent=2))
        return 0
    print(
        table(
            ("trace", "what", "over, min", "ahead", "broker-hours", "ahead", "changes", "ahead"),
            [
                (
                    found.trace,
                    TRACES[found.trace][0],
                    f"{found.reactive.minutes_over:.0f}",
                    f"{found.ahead.minutes_over:.0f}",
                    f"{found.reactive.broker_hours:.0f}",
                    f"{found.ahead.broker_hours:.0f}",
                    f"{found.reactive.changes}",
                    f"{found.ahead.changes}",
                )
                for found in results
            ],
        )
    )
    print(
        f"over: minutes of {PLAYED_DAYS} days above {OVER:.0%} CPU; a broker starts in {START_S} s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

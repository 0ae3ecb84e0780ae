"""`python -m dev.bench.balance`: every strategy of load balancing on synthetic clusters.

Owns: the cases, the table of strategies side by side, `--json` for the planner alone, `--svg` for
pictures. Imports: balance_simulation, balance_stories, report. Deterministic: loads come from
seeds, time is simulated. A cluster is idealised, so compare the columns with each other and not
with a real cluster.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dev.bench.balance_simulation import (
    STRATEGIES,
    Result,
    Simulation,
    Start,
    even_start,
    random_start,
    with_new,
    without_last,
)
from dev.bench.balance_stories import draw
from dev.bench.report import table
from magnetar.balance.settings import PLANNER

HEADERS = ("case", "strategy", "max/LB", "cv", "moves", "moved %", "of least", "last move at")

CASES: Mapping[str, tuple[str, Callable[[int], Start]]] = {
    "A": ("50 brokers x 20, random", lambda seed: random_start(50, 20, seed)),
    "B": ("one broker more than 50", lambda seed: with_new(even_start(50, 20, seed), 1)),
    "C": ("10 to 20 brokers", lambda seed: with_new(even_start(10, 20, seed), 10)),
    "D": (
        "one of 50 crashed, its bundles anywhere",
        lambda seed: without_last(even_start(50, 20, seed), seed, orphans=False),
    ),
    "E": ("100 brokers x 100, random", lambda seed: random_start(100, 100, seed)),
    "orphans": (
        "one of 50 crashed, its bundles to be placed",
        lambda seed: without_last(even_start(50, 20, seed), seed, orphans=True),
    ),
    "unequal": (
        "30 brokers x 30, half of them twice as large",
        lambda seed: random_start(30, 30, seed, [1.0, 2.0] * 15),
    ),
}
TARGETS = ("A", "B", "C", "D", "E")
"""What `--json` prints."""


def measured(case: str, strategy: str, seeds: int) -> list[Result]:
    begin = CASES[case][1]
    return [Simulation(begin(seed), STRATEGIES[strategy]).run() for seed in range(seeds)]


def disturbed(
    brokers: int, each: int, rounds: int, noise: float = 0.2, step: float = 1.0, seed: int = 0
) -> tuple[Simulation, list[int]]:
    """The planner's moves, round by round, on a balanced cluster that it knows: every sample has
    white noise, and from the first round on one broker's bundles have `step` times their load."""
    chance = random.Random(seed)
    start = even_start(brokers, each, seed)
    loads = tuple(
        load * (1.0 if owner else step)
        for load, owner in zip(start.loads, start.owners, strict=True)
    )
    simulation = Simulation(start, STRATEGIES[PLANNER])
    simulation.start = replace(start, loads=loads)
    moves = []
    for _ in range(rounds):
        samples = [load * chance.uniform(1 - noise, 1 + noise) for load in loads]
        simulation.observe(samples)
        moves.append(simulation.step(int(1000 * simulation.settings.plan_interval_s)))
    return simulation, moves


def _summary(results: Sequence[Result]) -> Result:
    columns = {
        name: statistics.fmean(getattr(result, name) for result in results)
        for name in Result.__dataclass_fields__
    }
    return Result(**{**columns, "moves": round(columns["moves"])})  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.bench.balance", description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--strategy", action="append", choices=STRATEGIES, help="default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the planner on A to E")
    parser.add_argument(
        "--svg", type=Path, metavar="DIR", help="pictures of loads that change, nothing else"
    )
    options = parser.parse_args()
    if options.svg is not None:
        for path in draw(options.svg):
            print(path)
        return
    if options.json:
        found = {}
        for case in TARGETS:
            result = _summary(measured(case, PLANNER, options.seeds))
            found[case] = {
                name: round(getattr(result, name), 4)
                for name in ("max_over_lb", "moved_over_least", "settled_s", "cv", "moves")
            }
        print(json.dumps(found))
        return
    rows = []
    for case in options.case or CASES:
        print(f"{case}: {CASES[case][0]}", flush=True)
        for strategy in options.strategy or STRATEGIES:
            result = _summary(measured(case, strategy, options.seeds))
            rows.append((
                case, strategy, f"{result.max_over_lb:.3f}", f"{result.cv:.3f}", str(result.moves),
                f"{100 * result.moved:.1f}", f"{result.moved_over_least:.2f}",
                f"{result.settled_s / 60:.1f} min" if result.moves else "never",
            ))  # fmt: skip
    print(table(HEADERS, rows))


if __name__ == "__main__":
    main()

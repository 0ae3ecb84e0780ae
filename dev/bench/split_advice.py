"""`python -m dev.bench.split_advice`: cut points by load against equal halves.

Owns: namespaces whose topics have Zipf loads, rounds of splits on them, and the fullest broker over
the mean after each; `--json` for the figures. Imports: magnetar.balance, magnetar_jobs.analysis,
report. Deterministic: loads and their order come from seeds. The analysis knows what a history has:
the hottest topics of each bundle with noise, and the load of the rest.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dev.bench.report import table
from magnetar.balance.load_history import TOPICS_MAX
from magnetar.balance.rebalance import ORPHAN, Problem, rebalance
from magnetar.names import BundleName, TopicName, bundles_of, initial_boundaries
from magnetar.ownership.splits import boundaries_of, children_of_split
from magnetar_jobs.analysis.cutting import cut

BROKERS, TOPICS, BUNDLES, ROUNDS = 6, 1000, 4, 2
SPLIT_SHARE = 0.25
NOISE = 0.1
BAR = 1.3
LOAD = 100_000.0
EXPONENTS = (0.8, 1.0, 1.2)


@dataclass(frozen=True, slots=True)
class Result:
    """max/mean of brokers after each round, the first before any. `least`: what one topic that
    cannot be divided leaves possible."""

    exponent: float
    seed: int
    advised: tuple[float, ...]
    halved: tuple[float, ...]
    least: float


def loads_of(exponent: float, seed: int) -> dict[TopicName, float]:
    """Topics of one namespace, the popular ones anywhere in the hash range."""
    chance = random.Random(seed)
    ranks = list(range(1, TOPICS + 1))
    chance.shuffle(ranks)
    total = sum(rank**-exponent for rank in ranks)
    return {
        TopicName.parse(f"persistent://public/zipf/t{at}-{seed}"): LOAD * rank**-exponent / total
        for at, rank in enumerate(ranks)
    }


def imbalance(bundles: Sequence[BundleName], loads: dict[TopicName, float]) -> float:
    """Of brokers, once the planner has placed the bundles."""
    sizes = [sum(load for topic, load in loads.items() if one.contains(topic)) for one in bundles]
    result = rebalance(
        Problem(
            loads=sizes,
            owners=[ORPHAN] * len(sizes),
            capacities=[1.0] * BROKERS,
        )
    )
    totals = [0.0] * BROKERS
    placed = {step.bundle: step.destination for step in result.steps}
    for at, size in enumerate(sizes):
        totals[placed[at]] += size
    return max(totals) / (sum(totals) / BROKERS)


def _advised(bundle: BundleName, loads: dict[TopicName, float], seed: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    inside = {topic: load for topic, load in loads.items() if bundle.contains(topic)}
    total = sum(inside.values())
    hottest = sorted(inside, key=lambda topic: -inside[topic])[:TOPICS_MAX]
    known = [(topic.hash, inside[topic] * chance.gauss(1, NOISE)) for topic in hottest]
    most = SPLIT_SHARE * LOAD / BROKERS
    if total <= most:
        return ()
    rest = max(0.0, total - sum(load for _, load in known))
    return cut(bundle, known, rest, most / 2).boundaries


def measured(exponent: float, seed: int) -> Result:
    loads = loads_of(exponent, seed)
    namespace = next(iter(loads)).namespace_name
    begin = bundles_of(namespace, initial_boundaries(BUNDLES))
    courses = []
    for advised in (True, False):
        bundles, course = begin, [imbalance(begin, loads)]
        for _ in range(ROUNDS):
            after: list[BundleName] = []
            for bundle in bundles:
                size = sum(load for topic, load in loads.items() if bundle.contains(topic))
                if advised:
                    where = _advised(bundle, loads, seed)
                else:
                    hot = size > SPLIT_SHARE * LOAD / BROKERS
                    where = boundaries_of(bundle, "") if hot else ()
                after += children_of_split(bundle, where) if where else [bundle]
            bundles = after
            course.append(imbalance(bundles, loads))
        courses.append(tuple(course))
    return Result(exponent, seed, courses[0], courses[1], max(loads.values()) / (LOAD / BROKERS))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.split_advice", description="Cut points of bundles by load."
    )
    parser.add_argument("--seeds", type=int, default=5, help="namespaces of each kind (default 5)")
    parser.add_argument("--json", action="store_true", help="figures only, as JSON")
    options = parser.parse_args(arguments)
    found = [measured(one, seed) for one in EXPONENTS for seed in range(options.seeds)]
    if options.json:
        print(json.dumps({"bar": BAR, "results": [_row(one) for one in found]}, indent=2))
        return 0
    print(
        table(
            ("Zipf", "seed", "before", "round 1", "round 2", "halves 1", "halves 2", "one topic"),
            [
                (
                    f"{one.exponent}",
                    f"{one.seed}",
                    *(f"{value:.2f}" for value in one.advised),
                    *(f"{value:.2f}" for value in one.halved[1:]),
                    f"{one.least:.2f}",
                )
                for one in found
            ],
        )
    )
    print(f"max/mean of {BROKERS} brokers; halves: range_equally_divide")
    return 0


def _row(one: Result) -> dict[str, object]:
    return {
        "exponent": one.exponent,
        "seed": one.seed,
        "advised": one.advised,
        "halved": one.halved,
        "least": one.least,
    }


if __name__ == "__main__":
    raise SystemExit(main())

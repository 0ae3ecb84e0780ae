"""From samples to what the analysis takes.

Owns: `measure`, the queries of a run and what is collected of them. Imports: pyspark, numpy, load
windows, analysis. Invariants: what comes to the driver is bounded: a row per broker and window, per
bundle, and per topic of the hottest bundles; a cluster's total counts only windows of which half is
covered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import functions as F

from magnetar.balance.advice import BUNDLES_MAX, BYTES, CPU, MESSAGES
from magnetar.balance.load import Rates
from magnetar.balance.settings import Settings
from magnetar.errors import InvalidTopicName
from magnetar.names import BundleName
from magnetar_jobs.analysis.forecast import Series
from magnetar_jobs.analysis.measured import (
    Measured,
    MeasuredBroker,
    MeasuredBundle,
    MeasuredTopic,
)
from magnetar_jobs.analysis.profiles import Profile
from magnetar_jobs.load_samples import BROKER, DAMAGED
from magnetar_jobs.load_windows import (
    RATES,
    Grid,
    broker_windows,
    bundle_courses,
    bundle_windows,
    rows_of,
    topic_shares,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COVERED_MIN = 0.5
IDLE_FACTOR = 1.05
"""A bundle whose load is less than this beyond what an idle one costs is idle."""


def measure(samples: DataFrame, step_s: int, settings: Settings) -> Measured | None:
    """All of a history; None if there is not one sample."""
    kept = samples.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        [span] = kept.agg(
            F.min(F.when(F.col("kind") == BROKER, F.col("at_ms"))).alias("first"),
            F.max(F.when(F.col("kind") == BROKER, F.col("at_ms"))).alias("last"),
            F.count_if(F.col("kind") == BROKER).alias("samples"),
            F.count_if(F.col("kind") == DAMAGED).alias("damaged"),
        ).collect()
        if span["first"] is None:
            return None
        grid = Grid.over(span["first"], span["last"], step_s)
        brokers = list(rows_of(broker_windows(kept, grid)))
        courses = bundle_courses(
            bundle_windows(kept, grid), grid, IDLE_FACTOR * settings.bundle_cost
        )
        hottest = courses.orderBy(F.desc("now"), "bundle").limit(BUNDLES_MAX)
        bundles = _bundles(list(rows_of(hottest)), list(rows_of(topic_shares(kept))))
        return Measured(
            span["first"],
            span["last"],
            span["samples"],
            span["damaged"],
            bundles,
            _brokers(brokers, grid),
            _totals(brokers, grid),
        )
    finally:
        kept.unpersist()


def _bundles(
    rows: list[dict[str, Any]], shares: list[dict[str, Any]]
) -> tuple[MeasuredBundle, ...]:
    topics: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    for row in shares:
        topics[row["bundle"]].append((row["topic"], row["position"], row["share"]))
    found = []
    for row in rows:
        if not _is_bundle(row["bundle"]):
            continue
        load = Profile(**{name: row[name] for name in Profile.__dataclass_fields__})
        usual, peak = (
            Rates(*(row[f"{when}_{name}"] for name in RATES)) for when in ("usual", "peak")
        )
        own = tuple(
            MeasuredTopic(name, position, share * load.mean)
            for name, position, share in sorted(
                topics.get(row["bundle"], ()), key=lambda one: -one[2]
            )
        )
        found.append(
            MeasuredBundle(
                row["bundle"], row["broker"], usual, peak, load, row["now"], row["days"], own
            )
        )
    return tuple(found)


def _is_bundle(name: str) -> bool:
    try:
        BundleName.parse(name)
    except InvalidTopicName:
        return False
    return True


def _by_broker(rows: list[dict[str, Any]]) -> Mapping[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["broker"]].append(row)
    return dict(sorted(found.items()))


def _brokers(rows: list[dict[str, Any]], grid: Grid) -> tuple[MeasuredBroker, ...]:
    """Those that reported within the last windows: others have gone."""
    newest = max((row["window"] for row in rows), default=0)
    return tuple(
        MeasuredBroker(
            name,
            _series(own, "load", grid),
            _series(own, "cpu", grid),
            max(row["cpu_limit"] for row in own),
            own[-1]["memory_share"],
        )
        for name, unordered in _by_broker(rows).items()
        for own in [sorted(unordered, key=lambda row: row["window"])]
        if own[-1]["window"] >= newest - 1
    )


def _series(rows: list[dict[str, Any]], name: str, grid: Grid) -> Series:
    return grid.series([row["window"] for row in rows], [row[name] for row in rows])


def _totals(rows: list[dict[str, Any]], grid: Grid) -> dict[str, Series]:
    """The sum over brokers, each by the share of the window in which it was there."""
    covered, sums = (
        np.zeros(grid.steps),
        {name: np.zeros(grid.steps) for name in (CPU, MESSAGES, BYTES)},
    )
    for row in rows:
        at = row["window"]
        if not 0 <= at < grid.steps:
            continue
        covered[at] = max(covered[at], row["covered"])
        sums[CPU][at] += row["covered"] * row["cpu"]
        sums[MESSAGES][at] += row["covered"] * (row["messages_in"] + row["messages_out"])
        sums[BYTES][at] += row["covered"] * (row["bytes_in"] + row["bytes_out"])
    enough = covered >= COVERED_MIN
    return {
        name: Series(
            float(grid.from_s),
            float(grid.step_s),
            np.where(enough, values / np.maximum(covered, COVERED_MIN), np.nan),
        )
        for name, values in sums.items()
    }

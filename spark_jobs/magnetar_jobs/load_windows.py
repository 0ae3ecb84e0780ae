"""Load by windows, as DataFrame-to-DataFrame functions.

Owns: means of brokers and bundles by window, one row per bundle with the course of its load, shares
of topics. Imports: pyspark, numpy, analysis. Invariants: a mean weighs samples by the seconds that
they cover; a window without samples has no row; the result depends on the set of samples only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from magnetar_jobs.analysis.forecast import DAY_S, Series
from magnetar_jobs.analysis.profiles import Profile, profile
from magnetar_jobs.load_samples import BROKER, BUNDLE, TOPIC

if TYPE_CHECKING:
    import pandas as pd

RATES = ("messages_in", "messages_out", "bytes_in", "bytes_out")
TOPICS_MAX = 64
"""Of one bundle: those with the largest shares of its load."""
PEAK_QUANTILE = 0.99
_PROFILE = ", ".join(
    f"{name} {'string' if name == 'kind' else 'double'}" for name in Profile.__dataclass_fields__
)
BUNDLE_SCHEMA = (
    "bundle string, broker string, days double, now double, "
    + ", ".join(f"usual_{name} double, peak_{name} double" for name in RATES)
    + f", {_PROFILE}"
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Windows of `step_s` seconds from `from_s` (a multiple of it) on."""

    from_s: int
    step_s: int
    steps: int

    @staticmethod
    def over(from_ms: int, to_ms: int, step_s: int) -> Grid:
        """Those that a time falls into."""
        first, last = from_ms // 1000 // step_s, to_ms // 1000 // step_s
        return Grid(first * step_s, step_s, last - first + 1)

    def series(self, windows: Any, values: Any) -> Series:
        """Values at these windows, gaps elsewhere."""
        found = np.full(self.steps, np.nan)
        at = np.asarray(windows, dtype=np.int64)
        inside = (at >= 0) & (at < self.steps)
        found[at[inside]] = np.asarray(values, dtype=np.float64)[inside]
        return Series(float(self.from_s), float(self.step_s), found)


def _windowed(samples: DataFrame, kind: str, grid: Grid) -> DataFrame:
    """Samples of a kind with the number of their window: a sample counts where its middle is."""
    middle = F.col("at_ms") / 1000 - F.col("seconds") / 2
    window = F.floor((middle - grid.from_s) / grid.step_s)
    return samples.where(F.col("kind") == kind).withColumn("window", window)


def _mean(name: str) -> Any:
    return (F.sum(F.col(name) * F.col("seconds")) / F.sum("seconds")).alias(name)


def broker_windows(samples: DataFrame, grid: Grid) -> DataFrame:
    """A row per broker and window; `covered` is the share of the window that samples cover."""
    return (
        _windowed(samples, BROKER, grid)
        .groupBy("broker", "window")
        .agg(
            F.least(F.lit(1.0), F.sum("seconds") / grid.step_s).alias("covered"),
            *(_mean(name) for name in (*RATES, "load", "cpu")),
            F.max("cpu_limit").alias("cpu_limit"),
            F.max("memory_share").alias("memory_share"),
        )
    )


def bundle_windows(samples: DataFrame, grid: Grid) -> DataFrame:
    """A row per bundle and window, whichever brokers had it; `broker` was its last owner."""
    return (
        _windowed(samples, BUNDLE, grid)
        .groupBy("bundle", "window")
        .agg(
            *(_mean(name) for name in (*RATES, "load")),
            F.max_by("broker", "at_ms").alias("broker"),
        )
    )


def bundle_courses(windows: DataFrame, grid: Grid, idle: float) -> DataFrame:
    """A row per bundle, as `BUNDLE_SCHEMA` has it. A mean load up to `idle` counts as none."""
    return windows.groupBy("bundle").applyInPandas(
        lambda rows: _course(grid, idle, rows), BUNDLE_SCHEMA
    )


def _course(grid: Grid, idle: float, rows: pd.DataFrame) -> pd.DataFrame:
    """What a task makes of the windows of one bundle."""
    import pandas as pd

    ordered = rows.sort_values("window")
    last = ordered.iloc[-1]
    series = grid.series(ordered["window"], ordered["load"])
    first, end = max(0, int(ordered["window"].iloc[0])), int(last["window"])
    lately = ordered[ordered["window"] > end - DAY_S // grid.step_s]
    begin_s = series.start_s + first * series.step_s
    known = Series(begin_s, series.step_s, series.values[first : end + 1])
    found = {
        "bundle": last["bundle"],
        "broker": last["broker"],
        "days": known.days,
        "now": float(lately["load"].mean()),
        **{f"usual_{name}": float(ordered[name].mean()) for name in RATES},
        **{f"peak_{name}": float(ordered[name].quantile(PEAK_QUANTILE)) for name in RATES},
        **asdict(profile(known, idle)),
    }
    return pd.DataFrame([found])


def topic_shares(samples: DataFrame) -> DataFrame:
    """The share of its bundle's load that each of its largest topics has, over the samples that
    name topics of the bundle."""
    weighed = (F.sum(F.col("load") * F.col("seconds"))).alias("weight")
    whole = samples.where((F.col("kind") == BUNDLE) & F.col("hot")).groupBy("bundle").agg(weighed)
    topics = (
        samples.where(F.col("kind") == TOPIC).groupBy("bundle", "topic", "position").agg(weighed)
    )
    rank = F.row_number().over(Window.partitionBy("bundle").orderBy(F.desc("weight"), "topic"))
    return (
        topics.withColumn("rank", rank)
        .where(F.col("rank") <= TOPICS_MAX)
        .join(whole.withColumnRenamed("weight", "whole"), "bundle")
        .where(F.col("whole") > 0)
        .select(
            "bundle",
            "topic",
            "position",
            F.least(F.lit(1.0), F.col("weight") / F.col("whole")).alias("share"),
        )
    )


def rows_of(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Collected rows as dictionaries."""
    return (row.asDict() for row in frame.collect())

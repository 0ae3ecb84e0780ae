"""From what was measured to advice.

Owns: `advise`, and the rules for splits, merges, hot topics and compactions. Imports: balance,
names, siblings. Pure. Invariants: equal inputs give equal advice; every list is bounded, the most
useful items first; what is advised passes the checks of its readers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.balance.advice import (
    BUNDLES_MAX,
    BYTES,
    CPU,
    MERGES_MAX,
    MESSAGES,
    SPLITS_MAX,
    TOPICS_MAX,
    BundleAdvice,
    LoadAdvice,
    LoadForecast,
    MergeAdvice,
    SplitAdvice,
    TopicAdvice,
)
from magnetar.balance.settings import MIB, Settings
from magnetar.balance.top_k import is_excluded
from magnetar.names import BundleName
from magnetar_jobs.analysis.cutting import cut
from magnetar_jobs.analysis.forecast import Series, forecast
from magnetar_jobs.analysis.measured import Measured, MeasuredBundle, StoredTopic

QUANTILES = (0.05, 0.5, 0.7, 0.95)
HORIZON_S = 86_400
MERGE_DAYS_MIN = 1.0
"""Neighbours that were seen for less are not advised."""
HOT_SHARE = 0.1
"""Of a mean broker's load: a topic with less is none of the hot ones."""
ALONE_SHARE = 0.5
"""A topic with more cannot be balanced by moving its bundle: it wants partitions."""
COMPACTION_BYTES_MIN = 8 * MIB
UNKNOWN_RATIO = 0.1
"""How much of a topic's bytes compaction may be taken to free when nothing is known."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """Which run gives the advice, and for how long it holds."""

    made_ms: int
    valid_ms: int
    job: str = ""
    run: str = ""


def advise(measured: Measured, settings: Settings, purpose: Purpose) -> LoadAdvice:
    """All advice, as much of it as fits into the store."""
    bundles = sorted(
        (found for found in measured.bundles if not is_excluded(found.name, settings)),
        key=lambda found: (-found.now, found.name),
    )
    return LoadAdvice(
        purpose.made_ms,
        purpose.made_ms + purpose.valid_ms,
        measured.from_ms,
        measured.to_ms,
        purpose.job,
        purpose.run,
        tuple(
            BundleAdvice(found.name, found.usual.rounded(), found.peak.rounded())
            for found in bundles[:BUNDLES_MAX]
        ),
        tuple(itertools.islice(_splits(bundles, measured, settings), SPLITS_MAX)),
        tuple(_merges(bundles, measured, settings)[:MERGES_MAX]),
        tuple(_hot_topics(bundles, measured)[:TOPICS_MAX]),
        tuple(_compactions(measured)[:TOPICS_MAX]),
        tuple(_forecasts(measured)),
    ).fitting()


def _splits(
    bundles: list[MeasuredBundle], measured: Measured, settings: Settings
) -> Iterator[SplitAdvice]:
    """Of bundles that are, or at their peak would be, a large share of a broker's load."""
    mean, most = measured.mean_broker, _split_load(measured, settings)
    for found in bundles:
        if max(found.now, found.load.p95) <= most:
            continue
        name = BundleName.parse(found.name)
        known = [(topic.position, topic.load) for topic in found.topics]
        rest = max(0.0, found.load.mean - sum(load for _, load in known))
        cuts = cut(name, known, rest, most / 2 * found.load.mean / max(found.now, found.load.p95))
        if cuts.boundaries:
            share = cuts.largest / mean if mean else 0.0
            yield SplitAdvice(found.name, cuts.boundaries, float(f"{share:.4g}"))


def _split_load(measured: Measured, settings: Settings) -> float:
    """The load above which the planner splits a bundle."""
    return max(settings.split_share * measured.mean_broker, settings.split_rate_min)


def _merges(
    bundles: list[MeasuredBundle], measured: Measured, settings: Settings
) -> list[MergeAdvice]:
    """Neighbours whose peaks together use little of a bundle's limits, and which no split would
    part again under twice that, coldest first; no bundle twice."""
    most = _split_load(measured, settings)
    names = {BundleName.parse(found.name): found for found in bundles}
    by_begin = {(str(name.namespace), name.low): found for name, found in names.items()}
    pairs = []
    for name, left in names.items():
        right = by_begin.get((str(name.namespace), name.high))
        if right is None or right is left:
            continue
        both = left.peak + right.peak
        shares = (
            both.messages / settings.bundle_rate_max,
            both.throughput / MIB / settings.bundle_mib_max,
        )
        seen = min(left.days, right.days) >= MERGE_DAYS_MIN
        peak = left.load.p99 + right.load.p99
        if seen and max(shares) <= settings.merge_share and 2 * peak <= most:
            pairs.append(MergeAdvice((left.name, right.name), float(f"{peak:.4g}")))
    found, taken = [], set[str]()
    for pair in sorted(pairs, key=lambda pair: (pair.peak, pair.bundles)):
        if taken.isdisjoint(pair.bundles):
            taken.update(pair.bundles)
            found.append(pair)
    return found


def _hot_topics(bundles: list[MeasuredBundle], measured: Measured) -> list[TopicAdvice]:
    mean = measured.mean_broker
    found = []
    for bundle in bundles if mean else ():
        for topic in bundle.topics:
            share = topic.load / mean
            if share < HOT_SHARE:
                continue
            alone = share >= ALONE_SHARE
            found.append(
                TopicAdvice(
                    topic.name,
                    float(f"{topic.load:.4g}"),
                    float(f"{share:.4g}"),
                    math.ceil(share / ALONE_SHARE * 2) if alone else 0,
                    note="more than moves and splits can balance: use partitions" if alone else "",
                )
            )
    return sorted(found, key=lambda topic: (-topic.load, topic.topic))


def _compactions(measured: Measured) -> list[TopicAdvice]:
    """Topics by the bytes that a run would free, most first."""
    found = []
    for stored in measured.stored:
        ratio, note = _overwritten(stored)
        freed = round(stored.behind_bytes * ratio)
        if stored.behind_bytes >= COMPACTION_BYTES_MIN and freed > 0:
            share = stored.behind_bytes / max(1, stored.behind_bytes + stored.view_bytes)
            found.append(TopicAdvice(stored.topic, share=round(share, 4), bytes=freed, note=note))
    return sorted(found, key=lambda topic: (-topic.bytes, topic.topic))


def _overwritten(stored: StoredTopic) -> tuple[float, str]:
    """The share of what came since the last compaction that another would drop, and how that is
    known."""
    if stored.sampled:
        ratio = 1 - stored.keys / stored.sampled
        return ratio, f"{stored.keys} keys in {stored.sampled} messages that were looked at"
    if stored.compacted and stored.before_entries > stored.view_entries:
        ratio = 1 - stored.view_entries / stored.before_entries
        return ratio, f"its last compaction kept {1 - ratio:.0%} of the entries"
    if stored.compacted:
        return UNKNOWN_RATIO, "compacted before; how many keys were overwritten is not known"
    return UNKNOWN_RATIO, "never compacted; by size, its keys were not looked at"


def _forecasts(measured: Measured) -> list[LoadForecast]:
    found = []
    for measure in (CPU, MESSAGES, BYTES):
        series = measured.totals.get(measure)
        made = _forecast_of(measure, series) if series is not None else None
        if made is not None:
            found.append(made)
    return found


def _forecast_of(measure: str, series: Series) -> LoadForecast | None:
    made = forecast(series, round(HORIZON_S / series.step_s), QUANTILES)
    if made is None:
        return None
    rows = tuple(tuple(float(f"{value:.5g}") for value in row) for row in made.values.tolist())
    return LoadForecast(
        measure, round(1000 * made.start_s), round(1000 * made.step_s), made.quantiles, rows
    )

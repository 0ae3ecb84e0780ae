"""Loads of bundles that a split or merge has just made.

Owns: `inherited`. Imports: names, balance.load. Pure. Invariants: the parts of a bundle have its
load together, within what rounding costs; each hot topic counts where it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.balance.load import BundleLoad, History, Level, Mean, Rates, TopicLoad
from magnetar.names import BundleName


def inherited(bundle: BundleName, reported: Iterable[BundleLoad]) -> BundleLoad | None:
    """What a report from before a split or merge says of a bundle: its part of those that it was
    made from. None if they are not in the report."""
    parts = [
        _part(load, parent, bundle)
        for load in reported
        if load.name.startswith(f"{bundle.namespace}/")
        for parent in [BundleName.parse(load.name)]
        if parent.low < bundle.high and bundle.low < parent.high
    ]
    if not parts:
        return None
    whole = parts[0]
    for part in parts[1:]:
        whole = BundleLoad(
            whole.name,
            _sum(whole.history, part.history),
            whole.topics + part.topics,
            whole.producers + part.producers,
            whole.consumers + part.consumers,
            whole.hot + part.hot,
        )
    return whole


def _part(load: BundleLoad, parent: BundleName, bundle: BundleName) -> BundleLoad:
    """Hot topics count where they are, the rest evenly over the range."""
    low, high = max(parent.low, bundle.low), min(parent.high, bundle.high)
    width = (high - low) / (parent.high - parent.low)
    hot = tuple(topic for topic in load.hot if low <= topic.position < high)
    total, inside = load.history.level.mean.rates.size, _size(hot)
    rest = max(total - _size(load.hot), 0.0)
    ratio = min((inside + rest * width) / total, 1.0) if total else width
    return BundleLoad(
        str(bundle),
        _scaled(load.history, ratio),
        max(len(hot), round(load.topics * width)),
        round(load.producers * ratio),
        round(load.consumers * ratio),
        hot,
    )


def _size(topics: Iterable[TopicLoad]) -> float:
    return sum(topic.rates.size for topic in topics)


def _scaled(history: History, ratio: float) -> History:
    short, long, level = (
        Mean(Rates().toward(mean.rates, ratio), mean.samples)
        for mean in (history.short, history.long, history.level.mean)
    )
    return History(short, long, Level(level))


def _sum(ours: History, theirs: History) -> History:
    short, long, level = (
        Mean(left.rates + right.rates, min(left.samples, right.samples))
        for left, right in (
            (ours.short, theirs.short),
            (ours.long, theirs.long),
            (ours.level.mean, theirs.level.mean),
        )
    )
    return History(short, long, Level(level))

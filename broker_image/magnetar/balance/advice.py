"""What load analytics advises, and until when.

Owns: `LoadAdvice`, the document, its bounds and its checks. Imports: errors, names, balance.load,
balance.top_k, metadata.codec, ownership.splits. Pure. Invariants: a document that is too large,
malformed, expired, from the future or out of bounds is refused as a whole, with the reason; nothing
that passes has a number that is negative, infinite or not a number, a boundary outside of its
bundle, or bundles to merge that are no neighbours.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from magnetar.balance.load import Rates, bounded
from magnetar.errors import InvalidRequest, InvalidTopicName, NotAllowed, StoreError
from magnetar.metadata.codec import Record
from magnetar.names import BundleName
from magnetar.ownership.splits import children_of_split

DOCUMENT = "loadAnalytics"
"""The group of documents that it is stored as, and its name there."""
ADVICE_BYTES_MAX = 512 << 10
"""Encoded: the store takes no value above 1.5 MiB, and every broker mirrors this one."""
BUNDLES_MAX, SPLITS_MAX, MERGES_MAX, TOPICS_MAX, STEPS_MAX = 1000, 100, 200, 200, 288
FORECASTS_MAX, QUANTILES_MAX = 8, 9
VALID_MS_MAX = 7 * 86_400_000
AHEAD_MS_MAX = 3_600_000
"""How far the clock of the machine that made it may be ahead."""
TEXT_MAX = 4096
CPU, MESSAGES, BYTES = "cpu", "messages", "bytes"


@dataclass(frozen=True, slots=True)
class BundleAdvice:
    """What a bundle usually has, and its highest load within the history (99 % of windows are
    below)."""

    name: str
    usual: Rates
    peak: Rates


@dataclass(frozen=True, slots=True)
class SplitAdvice:
    """Where to cut a bundle once it is too hot: by load, not by range. `share` is the load of its
    largest part over the mean of a broker."""

    bundle: str
    boundaries: tuple[int, ...]
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class MergeAdvice:
    """Neighbours that were cold throughout the history; `peak` is their highest load together, in
    messages/s."""

    bundles: tuple[str, str]
    peak: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicAdvice:
    """A topic that has much of the cluster's load, or stored bytes that compaction would free."""

    topic: str
    load: float = 0.0
    share: float = 0.0
    partitions: int = 0
    bytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """The load of all brokers together: `values[i]` are those of `quantiles[i]`, a step each from
    `from_ms` on. `measure`: cpu in cores, messages and bytes in and out per second."""

    measure: str
    from_ms: int
    step_ms: int
    quantiles: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def highest(self, from_ms: int, to_ms: int, level: float = 1.0) -> float:
        """The highest value within a time of the lowest quantile that is not below `level`, or of
        the highest; 0 outside of the forecast."""
        rows = zip(self.quantiles, self.values, strict=True)
        row = next((values for quantile, values in rows if quantile >= level), self.values[-1])
        at = zip(itertools.count(self.from_ms, self.step_ms), row, strict=False)
        return max(
            (value for begin, value in at if begin + self.step_ms > from_ms and begin <= to_ms),
            default=0.0,
        )


@dataclass(frozen=True)
class LoadAdvice(Record):
    """One run's advice. `from_ms` to `to_ms` is the history that it was made of."""

    made_ms: int
    valid_until_ms: int
    from_ms: int = 0
    to_ms: int = 0
    job: str = ""
    run: str = ""
    bundles: tuple[BundleAdvice, ...] = ()
    splits: tuple[SplitAdvice, ...] = ()
    merges: tuple[MergeAdvice, ...] = ()
    hot_topics: tuple[TopicAdvice, ...] = ()
    compactions: tuple[TopicAdvice, ...] = ()
    forecasts: tuple[LoadForecast, ...] = ()

    @staticmethod
    def read(document: Any, now_ms: int) -> LoadAdvice:
        """Check what the store has. Raises StoreError saying why it is not used."""
        try:
            data = json.dumps(document).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"load advice: not JSON: {error}") from error
        if len(data) > ADVICE_BYTES_MAX:
            raise StoreError(f"load advice of {len(data)} bytes; at most {ADVICE_BYTES_MAX}")
        advice = LoadAdvice.decode(data)
        advice.check(now_ms)
        return advice

    def check(self, now_ms: int) -> None:
        """Raises StoreError."""
        self._check_times(now_ms)
        for name, found, most in (
            ("bundles", self.bundles, BUNDLES_MAX),
            ("splits", self.splits, SPLITS_MAX),
            ("merges", self.merges, MERGES_MAX),
            ("hot_topics", self.hot_topics, TOPICS_MAX),
            ("compactions", self.compactions, TOPICS_MAX),
            ("forecasts", self.forecasts, FORECASTS_MAX),
        ):
            if len(found) > most:
                raise StoreError(f"load advice: {name} has {len(found)} items; at most {most}")
        try:
            self._check_bundles()
        except (InvalidRequest, InvalidTopicName, NotAllowed) as error:
            raise StoreError(f"load advice: {error}") from error
        for forecast in self.forecasts:
            _check_forecast(forecast)

    def _check_times(self, now_ms: int) -> None:
        if self.made_ms > now_ms + AHEAD_MS_MAX:
            raise StoreError("load advice: it was made in the future; compare the clocks")
        if self.valid_until_ms > self.made_ms + VALID_MS_MAX:
            raise StoreError(f"load advice: it is valid for more than {VALID_MS_MAX} ms")
        if self.valid_until_ms <= now_ms:
            raise StoreError("load advice: it has expired; run the job again")

    def _check_bundles(self) -> None:
        for found in self.bundles:
            BundleName.parse(found.name)
        for split in self.splits:
            _check_number("share", split.share)
            children_of_split(BundleName.parse(split.bundle), split.boundaries)
        for merge in self.merges:
            left, right = map(BundleName.parse, merge.bundles)
            _check_number("peak", merge.peak)
            if left.namespace != right.namespace or left.high != right.low:
                raise StoreError(f"load advice: {left} and {right} are no neighbours")
        for topic in (*self.hot_topics, *self.compactions):
            for number in (topic.load, topic.share, topic.partitions, topic.bytes):
                _check_number(topic.topic[:80], number)
            if max(len(topic.topic), len(topic.note)) > TEXT_MAX:
                raise StoreError("load advice: a text is too long")

    @cached_property
    def by_bundle(self) -> dict[str, BundleAdvice]:
        return {found.name: found for found in self.bundles}

    @cached_property
    def cuts(self) -> dict[str, tuple[int, ...]]:
        """Boundaries by bundle."""
        return {found.bundle: found.boundaries for found in self.splits}

    @cached_property
    def cold(self) -> frozenset[tuple[str, str]]:
        """Pairs that may be merged early."""
        return frozenset((left, right) for left, right in (found.bundles for found in self.merges))

    def about(self, names: Iterable[str]) -> LoadAdvice:
        """What it says of these bundles, without topics and forecasts: what a decision keeps."""
        known = frozenset(names)
        return replace(
            self,
            bundles=tuple(found for found in self.bundles if found.name in known),
            splits=tuple(found for found in self.splits if found.bundle in known),
            merges=tuple(found for found in self.merges if known.issuperset(found.bundles)),
            hot_topics=(),
            compactions=(),
            forecasts=(),
        )

    def fitting(self) -> LoadAdvice:
        """As much of it as the store takes: the bundles with least load go first."""
        found = self
        while len(found.encode()) > ADVICE_BYTES_MAX and (found.bundles or found.hot_topics):
            found = replace(
                found,
                bundles=found.bundles[: len(found.bundles) // 2],
                hot_topics=found.hot_topics[: len(found.hot_topics) // 2],
                compactions=found.compactions[: len(found.compactions) // 2],
            )
        return found


def _check_number(name: str, number: float) -> None:
    if bounded(number) != number:
        raise StoreError(f"load advice: {name}: {number!r} is out of range")


def _check_forecast(found: LoadForecast) -> None:
    if found.measure not in (CPU, MESSAGES, BYTES):
        raise StoreError(f"load advice: measure {found.measure[:80]!r} is not known")
    if not 1000 <= found.step_ms <= 86_400_000 or bounded(found.from_ms) != found.from_ms:
        raise StoreError(f"load advice: the times of {found.measure} are out of range")
    levels = found.quantiles
    if not 1 <= len(levels) <= QUANTILES_MAX or not all(0 < level < 1 for level in levels):
        raise StoreError(f"load advice: the quantiles of {found.measure} are out of range")
    if list(levels) != sorted(set(levels)) or len(found.values) != len(levels):
        raise StoreError(f"load advice: the quantiles of {found.measure} are not in order")
    for row in found.values:
        if not 1 <= len(row) <= STEPS_MAX or len(row) != len(found.values[0]):
            raise StoreError(f"load advice: {found.measure} has too few or too many steps")
        for value in row:
            _check_number(found.measure, value)

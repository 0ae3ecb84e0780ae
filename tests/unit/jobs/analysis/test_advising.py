"""What is advised for what was measured; all of it passes the checks of its readers."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from magnetar.balance.advice import ADVICE_BYTES_MAX, CPU, LoadAdvice
from magnetar.balance.load import Rates
from magnetar.balance.settings import BALANCE
from magnetar.names import BundleName
from magnetar_jobs.analysis.advising import Purpose, advise
from magnetar_jobs.analysis.forecast import Series
from magnetar_jobs.analysis.measured import (
    Measured,
    MeasuredBroker,
    MeasuredBundle,
    MeasuredTopic,
    StoredTopic,
)
from magnetar_jobs.analysis.profiles import (
    BURSTY,
    DAILY,
    GROWING,
    IDLE,
    STEADY,
    Profile,
    concentration,
    profile,
)

NOW_MS = 10**12
PURPOSE = Purpose(NOW_MS, 3_600_000, "team/nightly", "once")
HOUR_S = 3600.0


def bundle(
    low: int, high: int, load: float, *topics: MeasuredTopic, days: float = 7.0
) -> MeasuredBundle:
    name = f"public/default/0x{low:08x}_0x{high:08x}"
    rates = Rates(load / 2, load / 2)
    found = Profile(STEADY, load, load, load, load, load, missing=0.0)
    return MeasuredBundle(name, "b0", rates, rates, found, load, days, topics)


def brokers(count: int) -> tuple[MeasuredBroker, ...]:
    empty = Series(0.0, 600.0, np.zeros(0))
    return tuple(MeasuredBroker(f"b{at}", empty, empty) for at in range(count))


def advised(*bundles: MeasuredBundle, count: int = 2, **more: object) -> LoadAdvice:
    measured = Measured(0, 7 * 86_400_000, bundles=bundles, brokers=brokers(count))
    found = advise(replace(measured, **more), BALANCE, PURPOSE)  # type: ignore[arg-type]
    return LoadAdvice.read(json.loads(found.encode()), NOW_MS)


def test_a_hot_bundle_is_cut_where_its_load_is() -> None:
    """The hottest topic alone, the others on both sides."""
    hot = (MeasuredTopic("t1", 0x100, 100.0), MeasuredTopic("t2", 0x50000000, 900.0))
    found = advised(bundle(0, 0x80000000, 1100.0, *hot), bundle(0x80000000, 0xFFFFFFFF, 1000.0))
    split = next(one for one in found.splits if one.bundle.endswith("0x00000000_0x80000000"))
    ends = [0, *split.boundaries, 0x80000000]
    parts = list(itertools.pairwise(ends))
    assert sum(low <= 0x50000000 < high for low, high in parts) == 1
    alone = next(part for part in parts if part[0] <= 0x50000000 < part[1])
    assert alone[1] - alone[0] < 0x1000000
    assert 0.7 < split.share < 1.0


def test_cold_neighbours_are_merge_candidates_and_hot_or_new_ones_are_not() -> None:
    found = advised(
        bundle(0, 0x20000000, 1.0),
        bundle(0x20000000, 0x40000000, 2.0),
        bundle(0x40000000, 0x60000000, 50_000.0),
        bundle(0x60000000, 0x80000000, 1.0, days=0.1),
        bundle(0x80000000, 0xA0000000, 1.0),
    )
    [pair] = found.merges
    assert [BundleName.parse(name).low for name in pair.bundles] == [0, 0x20000000]
    assert pair.peak == 3.0


def test_a_bundle_that_is_cold_now_and_hot_every_day_is_no_candidate() -> None:
    daily = replace(bundle(0x20000000, 0x40000000, 1.0), peak=Rates(20_000.0))
    assert advised(bundle(0, 0x20000000, 1.0), daily).merges == ()


def test_a_topic_that_is_half_of_a_broker_wants_partitions() -> None:
    topics = (
        MeasuredTopic("big", 5, 900.0),
        MeasuredTopic("mid", 6, 150.0),
        MeasuredTopic("no", 7, 1.0),
    )
    found = advised(bundle(0, 0x80000000, 1051.0, *topics), bundle(0x80000000, 0xFFFFFFFF, 949.0))
    assert [(one.topic, one.share, one.partitions) for one in found.hot_topics] == [
        ("big", 0.9, 4),
        ("mid", 0.15, 0),
    ]


@pytest.mark.parametrize(
    ("stored", "freed", "note"),
    [
        (
            StoredTopic("t", behind_bytes=100 << 20, sampled=100, keys=10),
            90 << 20,
            "10 keys in 100",
        ),
        (
            StoredTopic("t", 10 << 20, 25, 100, behind_bytes=100 << 20, behind_entries=9),
            75 << 20,
            "kept 25%",
        ),
        (StoredTopic("t", behind_bytes=100 << 20), 10 << 20, "never compacted"),
        (StoredTopic("t", behind_bytes=1 << 20, sampled=100, keys=10), 0, ""),
        (StoredTopic("t", behind_bytes=100 << 20, sampled=100, keys=100), 0, ""),
    ],
)
def test_compaction_candidates_by_what_they_would_free(
    stored: StoredTopic, freed: int, note: str
) -> None:
    found = advised(stored=(stored,)).compactions
    assert [round(one.bytes / (1 << 20)) for one in found] == ([freed >> 20] if freed else [])
    assert all(note in one.note for one in found)


def test_the_forecast_is_of_all_brokers() -> None:
    times = 600.0 * np.arange(144 * 5)
    series = Series(0.0, 600.0, 2 + np.sin(2 * np.pi * times / 86_400))
    [found] = advised(totals={CPU: series}).forecasts
    assert (found.measure, found.step_ms, len(found.values[0])) == (CPU, 600_000, 144)
    begin = found.from_ms
    peak = found.highest(begin, begin + 86_400_000)
    assert peak == pytest.approx(3, abs=0.1)
    rows = dict(zip(found.quantiles, found.values, strict=True))
    assert found.highest(begin, begin + 86_400_000, 0.6) == max(rows[0.7])
    assert found.highest(begin, begin + 86_400_000, 0.05) == max(rows[0.05])
    assert found.highest(begin - 10**9, begin - 10**8) == 0.0
    # 18 h is the trough of the sine
    assert found.highest(begin + 17 * 3_600_000, begin + 18 * 3_600_000) < 1.4


def test_much_advice_is_cut_to_what_the_store_takes() -> None:
    width = 0xFFFFFFFF // 4000
    many = [bundle(at * width, (at + 1) * width, 5000.0 - at) for at in range(4000)]
    found = advised(*many)
    assert len(json.dumps(json.loads(found.encode()))) <= ADVICE_BYTES_MAX
    assert found.bundles[0].name == many[0].name


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (IDLE, np.zeros(100)),
        (STEADY, np.full(100, 5.0)),
        (DAILY, 5 + 4 * np.sin(2 * np.pi * np.arange(24 * 7) / 24)),
        (GROWING, np.linspace(1, 10, 24 * 7)),
        (BURSTY, np.where(np.arange(24 * 7) == 80, 1000.0, 1.0)),
    ],
)
def test_kinds_of_load_are_distinguished(kind: str, values: np.ndarray) -> None:  # type: ignore[type-arg]
    assert profile(Series(0.0, HOUR_S, values)).kind == kind


def test_concentration_is_zero_for_equals_and_near_one_for_one() -> None:
    assert concentration(np.full(10, 3.0)) == pytest.approx(0)
    assert concentration(np.asarray([0.0] * 99 + [1.0])) == pytest.approx(0.99)
    assert concentration(np.zeros(0)) == 0

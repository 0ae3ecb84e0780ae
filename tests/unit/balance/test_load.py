"""Load reports: rates over time, usage, when to write, what fits."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.balance.cluster import joined
from magnetar.balance.load import (
    LEVEL_SAMPLES,
    REPORT_BYTES_MAX,
    REPORTED_BUNDLES_MAX,
    UNKNOWN,
    BundleLoad,
    History,
    Level,
    LoadReport,
    Mean,
    Rates,
    Resource,
    TopicLoad,
    report_due,
)
from magnetar.balance.settings import Settings
from magnetar.balance.top_k import top_bundles
from magnetar.errors import StoreError
from tests.support.balance import MINUTE_MS, NOW_MS, name_of, rates

ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True)


def test_w1_the_highest_weighted_usage() -> None:
    report = LoadReport(
        "b1",
        NOW_MS,
        cpu=Resource(40, 100),
        memory=Resource(90, 100),
        bandwidth_in=Resource(30, 100),
        bandwidth_out=Resource(20, 100),
    )
    assert report.weighted_usage(Settings()) == pytest.approx(0.40)
    direct = Settings.read({"loadBalancerDirectMemoryResourceWeight": 1})
    assert report.weighted_usage(direct) == pytest.approx(0.90)
    assert Resource(5, 0).percent == 0
    assert Resource(300, 100).percent == 300, "above the limit is legal"


def test_a_mean_caps_its_samples() -> None:
    """The first sample replaces the default of unknown bundles; then v = ((n-1)v + x)/n."""
    mean = Mean()
    assert mean.rates == UNKNOWN
    mean = mean.observe(rates(100), 10)
    assert mean.rates.messages == 100
    assert mean.observe(rates(200), 10).rates.messages == pytest.approx(150)
    for _ in range(50):
        mean = mean.observe(rates(100), 10)
    assert mean.samples == 10
    assert mean.observe(rates(200), 10).rates.messages == pytest.approx(110)


def test_a_level_follows_a_step_in_two_samples() -> None:
    level = Level()
    for _ in range(50):
        level = level.observe(rates(100))
    level = level.observe(rates(160))
    assert level.mean.rates.messages == pytest.approx(100), "it may be noise"
    level = level.observe(rates(160))
    assert level.mean.rates.messages == pytest.approx(160)


def test_a_level_ignores_noise() -> None:
    """+-20 % and single outliers: close to the mean of all samples."""
    chance, level = random.Random(1), Level()
    samples = [100 * chance.uniform(0.8, 1.2) for _ in range(LEVEL_SAMPLES - 1)]
    samples[60], samples[90] = 200.0, 0.0
    for sample in samples:
        level = level.observe(rates(sample))
    assert level.mean.rates.messages == pytest.approx(sum(samples) / len(samples), rel=0.01)


def test_history_survives_a_move() -> None:
    """The new owner has not reported the bundle: what the former one said counts."""
    history = History.steady(rates(1000), 40)
    old = LoadReport("b1", NOW_MS, top=(BundleLoad(name_of(1), history, 3, 1, 2),))
    newer = LoadReport("b2", NOW_MS + 1)
    (bundle,) = joined({name_of(1): "b2"}, [old, newer])
    assert bundle.broker == "b2"
    assert bundle.history == history
    assert (bundle.topics, bundle.sessions) == (3, 3)
    own = replace(newer, top=(BundleLoad(name_of(1), history.observe(rates(2000))),))
    late = replace(old, updated_ms=NOW_MS + 9)
    (bundle,) = joined({name_of(1): "b2"}, [own, late], pinned=[name_of(1)])
    assert bundle.history is not None
    assert bundle.history.long.samples == 41, "the owner knows best"
    assert bundle.pinned


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"rates": rates(1090)}, None),
        ({"rates": rates(1111)}, "message rate changed by 11 %"),
        ({"bundles": 12}, "bundles changed by 20 %"),
        ({"producers": 1000}, None),
        ({"cpu": Resource(61, 100)}, "usage changed by 11 %"),
        ({"updated_ms": NOW_MS + 15 * MINUTE_MS}, "report is 900 s old"),
    ],
)
def test_when_a_report_is_written(change: dict[str, object], why: str | None) -> None:
    written = LoadReport("b1", NOW_MS, Resource(50, 100), rates=rates(1000), bundles=10)
    assert report_due(written, replace(written, **change), Settings()) == why  # type: ignore[arg-type]


def test_from_nothing_to_something_is_always_written() -> None:
    idle = LoadReport("b1", NOW_MS)
    assert report_due(None, idle, Settings()) == "first report"
    assert report_due(idle, idle, Settings()) is None
    assert report_due(idle, replace(idle, bundles=1), Settings()) == "bundles changed by inf %"


@given(ANY_NUMBER, ANY_NUMBER)
def test_no_number_is_garbage(one: float, other: float) -> None:
    found = Rates(one, other, one, other)
    resource = Resource(one, other)
    for value in (found.messages, found.throughput, resource.percent):
        assert 0 <= value < math.inf


@given(st.floats(0, 1e9), st.integers(0, 20))
def test_a_report_survives_its_json(value: float, count: int) -> None:
    topic = TopicLoad("persistent://public/default/t", 7, rates(value))
    history = History.steady(rates(value)).observe(rates(2 * value))
    report = LoadReport(
        "b1",
        NOW_MS,
        Resource(value, 100),
        rates=rates(value),
        top=tuple(BundleLoad(name_of(at), history, hot=(topic,)) for at in range(count)),
    )
    assert LoadReport.read(report.encode()) == report


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"schema":3}',
        b'{"schema":99,"broker":"b","updated_ms":1}',
        b'{"schema":3,"broker":"b","updated_ms":1,"cpu":{"usage":"x","limit":1}}',
        b'{"schema":3,"broker":"b","updated_ms":1,"more":1}',
        b" " * (REPORT_BYTES_MAX + 1),
    ],
)
def test_a_malformed_report_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError):
        LoadReport.read(data)


def test_a_report_has_so_many_bundles() -> None:
    load = BundleLoad(name_of(1), History())
    full = LoadReport("b1", NOW_MS, top=(load,) * (REPORTED_BUNDLES_MAX + 1))
    with pytest.raises(StoreError, match="1001 bundles"):
        LoadReport.read(full.encode())


def test_garbage_in_a_report_becomes_zero() -> None:
    data = b'{"schema":3,"broker":"b","updated_ms":1,"cpu":{"usage":NaN,"limit":-1.0}}'
    assert LoadReport.read(data).cpu == Resource(0, 0)


def test_top_k() -> None:
    """The K with most load, most first, equal ones by name; idle, system and excluded ones are
    left out."""
    loads = [
        BundleLoad(name_of(at, namespace), History.steady(rates(messages)))
        for at, namespace, messages in [
            (1, "a/b", 10.0),
            (2, "a/b", 30.0),
            (3, "a/b", 0.0),
            (4, "pulsar/system", 99.0),
            (5, "quiet/place", 99.0),
            (6, "a/b", 30.0),
            (7, "a/b", 20.0),
        ]
    ]
    settings = {
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport": 3,
        "loadBalancerSheddingExcludedNamespaces": "quiet/place",
    }
    named = [load.name for load in top_bundles(loads, Settings.read(settings))]
    assert named == [name_of(at, "a/b") for at in (2, 6, 7)]
    everything = {**settings, "loadBalancerMaxNumberOfBundlesInBundleLoadReport": 0}
    assert len(top_bundles(loads, Settings.read(everything))) == 4


def test_reported_rates_are_rounded() -> None:
    history = History.steady(Rates(1234.567, 0.000123456, 0.0, 7)).observe(Rates(9_999_999.0))
    (found,) = top_bundles([BundleLoad(name_of(1), history)], Settings())
    assert found.history.long.rates.messages_in == 11230.0
    assert found.history.short.rates.messages_out == 0.0001111
    assert found.history.level.outlier == Rates(1e7)


def test_hot_topics_are_bounded() -> None:
    topics = tuple(TopicLoad(f"t{at}", at, rates(at)) for at in range(100))
    load = BundleLoad(name_of(1), History.steady(rates(10)), hot=topics)
    (found,) = top_bundles([load], Settings())
    assert [topic.name for topic in found.hot] == [f"t{at}" for at in range(99, 91, -1)]

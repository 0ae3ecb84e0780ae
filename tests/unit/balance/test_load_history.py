"""Lines of samples: what is written is read again, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.balance.load import Rates, TopicLoad
from magnetar.balance.load_history import (
    BUNDLES_MAX,
    TOPICS_MAX,
    BundleSample,
    LoadSample,
    hottest,
    most_loaded,
    read_lines,
)
from magnetar.errors import StoreError

RATE = st.floats(0, 1e9)
RATES = st.builds(Rates, RATE, RATE, RATE, RATE)
TOPIC = st.builds(TopicLoad, st.text(max_size=20), st.integers(0, 2**32 - 1), RATES)
BUNDLE = st.builds(
    BundleSample,
    st.text(max_size=20),
    RATES,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.lists(TOPIC, max_size=3).map(tuple),
)
SAMPLE = st.builds(
    LoadSample,
    st.integers(0, 2**40),
    st.floats(0.001, 3600),
    st.text(max_size=20),
    RATE,
    RATE,
    RATE,
    RATE,
    RATES,
    st.lists(BUNDLE, max_size=3).map(tuple),
    st.integers(0, 9),
)


@given(st.lists(SAMPLE, max_size=3))
def test_lines_are_read_as_they_were_written(samples: list[LoadSample]) -> None:
    assert list(read_lines(b"".join(found.encode() + b"\n" for found in samples))) == samples


@given(st.binary(max_size=200))
def test_garbage_is_refused_line_by_line(garbage: bytes) -> None:
    whole = LoadSample(1, 1.0, "b")
    found = list(read_lines(whole.encode() + b"\n" + garbage + b"\n" + whole.encode() + b"\n"))
    assert found[0] == found[-1] == whole
    assert all(isinstance(one, StoreError) for one in found[1:-1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", 0.0),
        ("seconds", -1.0),
        ("seconds", float("nan")),
        ("cpu", float("inf")),
        ("cpu", -1.0),
        ("memory_limit", float("nan")),
        ("at_ms", -1),
        ("broker", "x" * 5000),
        ("surprise", 1),
        ("schema", 99),
    ],
)
def test_a_figure_that_cannot_be_is_refused(field: str, value: Any) -> None:
    body = json.loads(LoadSample(1, 1.0, "b").encode()) | {field: value}
    with pytest.raises(StoreError):
        LoadSample.read(json.dumps(body).encode())


def test_a_sample_is_bounded() -> None:
    bundles = [BundleSample(f"b{at:05}", Rates(float(at))) for at in range(BUNDLES_MAX + 7)]
    named = most_loaded(bundles)
    assert len(named) == BUNDLES_MAX
    assert named[0].rates.messages_in == BUNDLES_MAX + 6
    topics = [TopicLoad(f"t{at}", at, Rates(float(at))) for at in range(TOPICS_MAX + 7)]
    assert [found.position for found in hottest(topics)][:2] == [TOPICS_MAX + 6, TOPICS_MAX + 5]
    assert len(hottest(topics)) == TOPICS_MAX
    many = LoadSample(1, 1.0, "b", bundles=tuple(bundles))
    with pytest.raises(StoreError, match="too many"):
        LoadSample.read(many.encode())

"""A document of load analytics that is not sound is refused whole, whatever is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.balance.advice import (
    AHEAD_MS_MAX,
    BUNDLES_MAX,
    CPU,
    VALID_MS_MAX,
    BundleAdvice,
    LoadAdvice,
    LoadForecast,
    MergeAdvice,
    SplitAdvice,
    TopicAdvice,
)
from magnetar.balance.load import Rates
from magnetar.errors import StoreError

NOW_MS = 10**12
LEFT, RIGHT = "public/default/0x00000000_0x40000000", "public/default/0x40000000_0x80000000"
GOOD = LoadAdvice(
    NOW_MS,
    NOW_MS + 1000,
    bundles=(BundleAdvice(LEFT, Rates(1.0), Rates(2.0)),),
    splits=(SplitAdvice(LEFT, (0x1000, 0x2000), 0.5),),
    merges=(MergeAdvice((LEFT, RIGHT), 3.0),),
    hot_topics=(TopicAdvice("persistent://public/default/t", 5.0, 0.5, 4),),
    forecasts=(LoadForecast(CPU, NOW_MS, 600_000, (0.5, 0.95), ((1.0, 2.0), (2.0, 3.0))),),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def document(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOOD.encode()) | changes
    return found


def test_a_sound_document_is_read_as_it_was_written() -> None:
    assert LoadAdvice.read(document(), NOW_MS) == GOOD


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"valid_until_ms": NOW_MS}, "expired"),
        ({"valid_until_ms": NOW_MS + VALID_MS_MAX + 1}, "valid for more"),
        ({"made_ms": NOW_MS + AHEAD_MS_MAX + 1}, "future"),
        ({"schema": 99}, "schema"),
        ({"surprise": 1}, "unknown fields"),
        ({"job": "x" * (600 << 10)}, "at most"),
        ({"bundles": [{"name": "nonsense", "usual": {}, "peak": {}}]}, "not valid"),
        ({"bundles": [{"name": LEFT, "usual": {}, "peak": {}}] * (BUNDLES_MAX + 1)}, "at most"),
        ({"splits": [{"bundle": LEFT, "boundaries": [0]}]}, "."),
        ({"splits": [{"bundle": LEFT, "boundaries": [0x40000000]}]}, "."),
        ({"splits": [{"bundle": LEFT, "boundaries": [7, 5]}]}, "."),
        ({"splits": [{"bundle": LEFT, "boundaries": []}]}, "."),
        ({"splits": [{"bundle": LEFT, "boundaries": list(range(1, 200))}]}, "."),
        ({"splits": [{"bundle": LEFT, "boundaries": [5], "share": float("inf")}]}, "out of range"),
        ({"merges": [{"bundles": [RIGHT, LEFT]}]}, "no neighbours"),
        ({"merges": [{"bundles": [LEFT, RIGHT], "peak": -1.0}]}, "out of range"),
        ({"hot_topics": [{"topic": "t", "load": float("nan")}]}, "out of range"),
        ({"hot_topics": [{"topic": "t" * 5000}]}, "too long"),
        ({"forecasts": [{}]}, "."),
        ({"forecasts": ["x"]}, "."),
    ],
)
def test_an_unsound_document_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(StoreError, match=why):
        LoadAdvice.read(document(**changes), NOW_MS)


@pytest.mark.parametrize(
    "changes",
    [
        {"measure": "disk"},
        {"step_ms": 0},
        {"step_ms": 10**12},
        {"from_ms": -5},
        {"quantiles": [0.95, 0.5]},
        {"quantiles": [0.5]},
        {"quantiles": [0.5, 1.5]},
        {"values": [[1.0], [1.0, 2.0]]},
        {"values": [[], []]},
        {"values": [[float("inf")], [1.0]]},
        {"values": [[-1.0], [1.0]]},
        {"values": [[0.0] * 300] * 2},
    ],
)
def test_an_unsound_forecast_is_refused(changes: dict[str, Any]) -> None:
    sound = json.loads(GOOD.encode())["forecasts"][0]
    with pytest.raises(StoreError):
        LoadAdvice.read(document(forecasts=[sound | changes]), NOW_MS)


@given(JSON)
def test_any_json_is_refused_or_sound(found: Any) -> None:
    with pytest.raises(StoreError):
        LoadAdvice.read(found, NOW_MS)


@given(st.sampled_from(sorted(json.loads(GOOD.encode()))), JSON)
def test_any_field_may_be_anything(field: str, value: Any) -> None:
    """It is refused, or what is read passes every check again."""
    try:
        read = LoadAdvice.read(document(**{field: value}), NOW_MS)
    except StoreError:
        return
    read.check(NOW_MS)


def test_only_what_concerns_a_decision_is_kept_with_it() -> None:
    assert GOOD.about([RIGHT]) == LoadAdvice(NOW_MS, NOW_MS + 1000)
    kept = GOOD.about([LEFT, RIGHT])
    assert (kept.cuts, kept.cold) == ({LEFT: (0x1000, 0x2000)}, {(LEFT, RIGHT)})
    assert kept.by_bundle[LEFT].peak == Rates(2.0)
    assert (kept.hot_topics, kept.forecasts) == ((), ())

"""What arguments mean: targets, positions, times, name=value; what cannot be meant is wrong
usage and says how to write it."""

from __future__ import annotations

import time

import pytest

from magnetar.cli.failures import WrongUsage
from magnetar.cli.names import EARLIEST, LATEST, pairs_of, start_of, target_of
from magnetar.names import BundleName, NamespaceName, TopicName


def test_targets_are_distinguished() -> None:
    """Two parts are a namespace, a range behind them a bundle (in any case), everything else a
    topic."""
    assert target_of("a/b") == NamespaceName("a", "b")
    assert target_of("a/b/0x00000000_0x4000000A") == BundleName(
        NamespaceName("a", "b"), 0, 0x4000000A
    )
    assert target_of("t") == TopicName.parse("persistent://public/default/t")
    assert target_of("persistent://a/b/c") == TopicName("persistent", "a", "b", "c")
    assert target_of("a/b/c") == TopicName("persistent", "a", "b", "c")


@pytest.mark.parametrize("text", ["a/b?", "x://a/b/c", "a/b/0x80000000_0x40000000", ""])
def test_what_is_no_target_is_wrong_usage(text: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        target_of(text)
    assert refused.value.remedy


def test_places_in_a_topic() -> None:
    """Both ends, ids with or without a partition, ages, moments."""
    assert start_of("earliest") == EARLIEST
    assert start_of("latest") == LATEST
    assert start_of("7:12") == (7, 12)
    assert start_of("7:12:-1") == (7, 12)
    assert start_of("1700000000000") == 1_700_000_000_000
    assert start_of("2024-05-01T12:00:00+00:00") == 1_714_564_800_000
    ago = start_of("2h")
    assert isinstance(ago, int)
    assert abs(time.time() * 1000 - 7_200_000 - ago) < 60_000
    with pytest.raises(WrongUsage, match="neither a message id nor a time"):
        start_of("yesterday")


def test_pairs() -> None:
    """A value may hold further equals signs; a name may not be missing."""
    assert pairs_of(["a=1", "b=x=y", "c="], "--property") == {"a": "1", "b": "x=y", "c": ""}
    for text in ("a", "=1"):
        with pytest.raises(WrongUsage, match="--property"):
            pairs_of([text], "--property")

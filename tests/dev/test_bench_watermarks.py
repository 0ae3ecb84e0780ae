"""The benchmark of watermarks: every case runs, and its topic ends where it should."""

from __future__ import annotations

import pytest

from dev.bench.watermarks import CASES, Topic, snapshot_ms, update_us


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_measured(case: str) -> None:
    assert update_us(case, producers=20, updates=50, rounds=1) > 0


def test_what_is_done_once_is_measured() -> None:
    assert {*snapshot_ms(20)} == {"snapshot", "encode", "kilobytes", "seek over an interval"}


def test_the_subscription_follows_the_slowest() -> None:
    topic = Topic(3)
    for number, event in enumerate(
        CASES["the slowest asserts"](topic)(at)[0] for at in range(1, 7)
    ):
        topic.take(event)
        assert topic.generator.watermark_ms == max(0, number - 1)

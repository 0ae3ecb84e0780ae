"""Token buckets: how long is waited, and that no rate is exceeded over a long time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.policies import Rate
from magnetar.topics.rates import UNLIMITED, TokenBucket


def test_a_periods_worth_may_go_at_once_and_what_was_too_much_is_waited_for() -> None:
    bucket = TokenBucket(Rate(10, period_s=2), 0.0)
    assert (bucket.wait_s(0.0), bucket.room()) == (0.0, 10)
    bucket.take(15, 1 << 20)
    assert bucket.wait_s(0.0) == pytest.approx(1.2)
    assert bucket.wait_s(1.0) == pytest.approx(0.2)
    assert (bucket.wait_s(1.21), bucket.room()) == (0.0, 1)
    assert bucket.wait_s(1000.0) == 0.0
    assert bucket.room() == 10, "never more than a period's worth"


def test_bytes_and_messages_are_limited_each_on_its_own() -> None:
    bucket = TokenBucket(Rate(0, 100), 0.0)
    assert bucket.room() == UNLIMITED
    bucket.take(1_000, 200)
    assert bucket.wait_s(0.0) == pytest.approx(1.01)


def test_without_limits_nothing_waits_and_a_clock_that_stands_still_gives_nothing() -> None:
    assert TokenBucket(Rate(), 0.0).wait_s(5.0) == 0.0
    bucket = TokenBucket(Rate(1), 5.0)
    bucket.take(1, 0)
    assert bucket.wait_s(5.0) == bucket.wait_s(5.0) == 1.0


@given(
    st.integers(1, 1000),
    st.integers(1, 60),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1, max_size=60),
)
def test_over_a_long_time_no_more_goes_through_than_the_rate(
    limit: int, period_s: int, steps: list[tuple[float, int]]
) -> None:
    """Who waits as asked gets the rate, a period's worth at once, and the last step's size."""
    bucket, now, taken = TokenBucket(Rate(limit, period_s=period_s), 0.0), 0.0, 0
    for pause_s, count in steps:
        now += pause_s
        now += bucket.wait_s(now)
        assert bucket.wait_s(now) <= 1e-6 * period_s
        bucket.take(count, 0)
        taken += count
        assert taken <= limit + now * limit / period_s + count + 1

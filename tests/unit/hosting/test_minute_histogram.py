"""Counts of a minute: in one bucket each, of the last whole minute."""

from __future__ import annotations

import pytest

from magnetar.hosting.minute_histogram import MinuteHistogram


@pytest.mark.parametrize(("value", "bucket"), [(0, 0), (10, 0), (10.1, 1), (20, 1), (20.1, 2)])
def test_bounds_belong_to_the_bucket_below(value: float, bucket: int) -> None:
    histogram = MinuteHistogram((10, 20), 0)
    histogram.add(value, 3)
    found = histogram.read(1)
    assert [count for count in found.buckets if count] == [3] == [found.buckets[bucket]]
    assert found.total == 3 * value


def test_a_whole_minute_is_read_until_the_next_one_is_over() -> None:
    """A longer one is scaled, and one without values has none."""
    histogram = MinuteHistogram((10,), 0)
    histogram.add(1, 60)
    assert histogram.read(120).values == 30
    histogram.add(1, 5)
    assert histogram.read(150).values == 30
    assert histogram.read(180).values == 5
    assert histogram.read(240).values == 0

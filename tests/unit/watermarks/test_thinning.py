"""A timeline keeps a bounded number of records, and no watermark is wrong for it."""

from __future__ import annotations

import pytest

from magnetar.watermarks import timeline as timelines
from magnetar.watermarks.generator import Generator, Reset, Watermark
from magnetar.watermarks.records import NOWHERE, Assertion
from magnetar.watermarks.timeline import Timeline

MOST = 10


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    """Behind each of eleven entries its number is asserted; the older half is forgotten."""
    monkeypatch.setattr(timelines, "RECORDS_MAX", MOST)
    made = Timeline()
    for entry in range(MOST + 1):
        made.apply(*made.queue((1, entry), Assertion("p", entry)))
    assert made.thin()
    assert not made.thin()
    return made


def test_the_newer_half_stays(timeline: Timeline) -> None:
    """With the standing at each of its entries, and at the last one that went."""
    assert (timeline.first, timeline.end) == (5, MOST + 1)
    for entry in range(4, MOST + 1):
        assert timeline.standing_at((1, entry))[0].exact_ms == entry
    assert timeline.head.exact_ms == MOST


def test_a_subscription_further_behind_has_none_until_it_has_passed(timeline: Timeline) -> None:
    """It never gets one that holds only later; then it has what stands there."""
    for start in (NOWHERE, (1, 3)):
        generator = Generator(timeline, start)
        assert generator.watermark_ms is None
        assert not generator.behind
        assert not generator.gains((1, 3))
        assert generator.advance((1, 3)) is None
        assert generator.gains((1, 7))
        assert generator.advance((1, 7)) == Watermark(7)
        assert generator.advance((1, MOST)) == Watermark(MOST)


def test_one_that_was_reading_goes_on(timeline: Timeline) -> None:
    """What it would have read next is in the horizon; a seek before that resets to none."""
    generator = Generator(timeline, (1, 6))
    for entry in range(MOST + 1, 2 * MOST):
        timeline.apply(*timeline.queue((1, entry), Assertion("p", entry)))
        timeline.thin()
    assert timeline.first > 6
    assert generator.advance((1, 2 * MOST)) == Watermark(2 * MOST - 1)
    assert generator.seek((1, 1)) == Reset(None)
    assert generator.advance((1, 2 * MOST)) == Watermark(2 * MOST - 1)


def test_the_state_of_a_checkpoint_is_as_bounded(timeline: Timeline) -> None:
    """Nothing stands before its horizon in what is restored, either."""
    restored = Timeline(timeline.to_state())
    assert restored.standing_at((1, 3))[0].exact_ms is None
    assert restored.standing_at((1, 9))[0].exact_ms == 9

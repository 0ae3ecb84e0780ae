"""One watermark of several partitions or topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.watermarks.combination import Combination
from magnetar.watermarks.generator import Effect, Reset, Watermark

SOURCES = ("p0", "p1", "p2")
EFFECTS = st.one_of(
    st.builds(Watermark, st.integers(0, 9)), st.builds(Reset, st.none() | st.integers(0, 9))
)


def test_a_missing_source_means_no_watermark() -> None:
    both = Combination(["p0", "p1"])
    assert both.apply("p0", Watermark(5)) is None
    assert both.apply("p1", Watermark(3)) == Watermark(3)
    assert both.apply("p1", Watermark(9)) == Watermark(5)
    assert both.watermark_ms == 5


def test_a_new_partition_stops_it_where_it_is() -> None:
    both = Combination(["p0"])
    assert both.apply("p0", Watermark(5)) == Watermark(5)
    both.add("p1")
    assert both.apply("p0", Watermark(8)) is None
    assert both.apply("p1", Watermark(2)) is None
    assert both.watermark_ms == 5
    assert both.apply("p1", Watermark(7)) == Watermark(7)


def test_a_source_that_ended_counts_no_more() -> None:
    both = Combination(["p0", "p1"])
    both.apply("p0", Watermark(5))
    assert both.remove("p1") == Watermark(5)
    assert both.remove("p0") is None
    assert both.watermark_ms == 5


def test_a_recovered_broker_begins_lower_without_a_step_back() -> None:
    one = Combination(["p0"])
    one.apply("p0", Watermark(5))
    assert one.apply("p0", Watermark(3)) is None
    assert one.apply("p0", Watermark(6)) == Watermark(6)


def test_a_reset_goes_back() -> None:
    both = Combination(["p0", "p1"])
    both.apply("p0", Watermark(5))
    both.apply("p1", Watermark(6))
    assert both.apply("p1", Reset(2)) == Reset(2)
    assert both.apply("p0", Reset(None)) == Reset(None)
    assert both.apply("p0", Watermark(1)) == Watermark(1)


@given(st.lists(st.tuples(st.sampled_from(SOURCES), EFFECTS), max_size=40))
def test_it_is_the_minimum_and_goes_back_by_resets_only(
    effects: list[tuple[str, Effect]],
) -> None:
    combination, values = Combination(SOURCES), dict[str, int | None].fromkeys(SOURCES)
    delivered: int | None = None
    for source, effect in effects:
        before, now = values[source], effect.event_ms
        if isinstance(effect, Watermark) and before is not None:
            now = max(before, effect.event_ms)
        values[source] = now
        known = [value for value in values.values() if value is not None]
        least = min(known) if len(known) == len(SOURCES) else None
        if isinstance(effect, Reset):
            delivered = least
            assert combination.apply(source, effect) == Reset(least)
        elif least is not None and (delivered is None or least > delivered):
            delivered = least
            assert combination.apply(source, effect) == Watermark(least)
        else:
            assert combination.apply(source, effect) is None
        assert combination.watermark_ms == delivered

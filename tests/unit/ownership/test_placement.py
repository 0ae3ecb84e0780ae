"""The basic placement."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.records import LoadRecord
from magnetar.ownership.placement import least_loaded


def report(rate_in: float, rate_out: float = 0.0, bundles: int = 0) -> LoadRecord:
    return LoadRecord("b", 0, bundles, 0, 0, 0, rate_in, rate_out, 0.0, 0.0, 0.0, 0.0)


def test_the_lowest_message_rate_wins() -> None:
    """In and out count together, before the number of bundles."""
    candidates = {"a": report(10, 5), "b": report(2, 12), "c": report(20)}
    assert least_loaded(candidates, {"b": 99}, 0) == "b"


def test_bundles_decide_among_equal_rates() -> None:
    """A broker that has not reported yet counts as idle, so that the counts spread a cold start."""
    assert least_loaded({"a": None, "b": report(0)}, {"a": 3, "b": 2}, 0) == "b"


def test_a_cold_start_spreads_evenly() -> None:
    """Placing one by one with current counts never differs by more than one bundle."""
    counts: dict[str, int] = {}
    for number in range(20):
        chosen = least_loaded(dict.fromkeys("abc"), counts, number * 7919)
        counts[chosen] = counts.get(chosen, 0) + 1
    assert sorted(counts.values()) == [6, 7, 7]


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 2), min_size=1),
    st.integers(0, 1 << 31),
)
def test_ties_depend_on_the_tie_break_alone(rates: dict[str, int], tie_break: int) -> None:
    """Same arguments, same answer, whatever the order of the mapping; every equal candidate can
    be chosen."""
    candidates = {name: report(rate) for name, rate in rates.items()}
    backwards = dict(reversed(candidates.items()))
    assert least_loaded(candidates, {}, tie_break) == least_loaded(backwards, {}, tie_break)
    best = {name for name, rate in rates.items() if rate == min(rates.values())}
    assert {least_loaded(candidates, {}, number) for number in range(len(best))} == best


def test_orphans_placed_between_two_reports_are_spread() -> None:
    """Sixty bundles of a dead broker: whoever was a little idler than the other gets a little
    more, not everything."""
    counts = {"a": 60, "b": 60}
    candidates = {"a": report(900, bundles=60), "b": report(1100, bundles=60)}
    for number in range(60):
        counts[least_loaded(candidates, counts, number)] += 1
    assert counts["a"] - counts["b"] in range(10, 15)
    assert sum(counts.values()) == 180

"""The minimum of values that change, against `min`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.watermarks.minimum import STALE_MAX, Minimum

CHANGES = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9)), max_size=60)


@given(CHANGES)
def test_the_minimum_is_exact(changes: list[tuple[int, int | None]]) -> None:
    values: dict[int, int] = {}
    minimum: Minimum[int] = Minimum()
    for key, value in changes:
        if value is None:
            values.pop(key, None)
            minimum.remove(key)
        else:
            values[key] = value
            minimum.set(key, value)
        least = minimum.least()
        assert (least[0] if least else None) == min(values.values(), default=None)
        assert least is None or values[least[1]] == least[0]
        assert dict(minimum.values) == values


def test_stale_values_are_bounded() -> None:
    """Though the slowest stays where it is, so none of them ever surfaces."""
    minimum = Minimum({"slow": 0, "fast": 1})
    for value in range(10_000):
        minimum.set("fast", value + 2)
        assert len(minimum._heap) <= 2 * len(minimum) + STALE_MAX
    assert minimum.least() == (0, "slow")

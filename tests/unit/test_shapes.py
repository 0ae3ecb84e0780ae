"""JSON read as Jackson reads it for Apache Pulsar 4.2's admin API: what was sent to one, and what
its GET returned."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import InvalidRequest
from magnetar.policy_shapes import SHAPES
from magnetar.shapes import FLAG, INT, LONG, TEXT, TEXTS, Bean, Choice, Items, Named, Number, Shape

COLOUR = Choice("RED", "GREEN")
BEAN = Bean({"size": INT, "on": FLAG, "colour": COLOUR}, {"size": 7})
READ: list[tuple[Shape, Any, Any]] = [
    (INT, "10", 10),
    (INT, " 10 ", 10),
    (INT, 10.7, 10),
    (INT, "-3", -3),
    (INT, "", None),
    (INT, None, None),
    (LONG, 1 << 40, 1 << 40),
    (Number(), "1.5", 1.5),
    (Number(), 2, 2.0),
    (FLAG, "true", True),
    (FLAG, "FALSE", False),
    (FLAG, 1, True),
    (FLAG, 0, False),
    (FLAG, "", None),
    (TEXT, 5, "5"),
    (TEXT, True, "true"),
    (TEXT, "", ""),
    (COLOUR, "RED", "RED"),
    (COLOUR, 1, "GREEN"),
    (COLOUR, "", None),
    (Items(COLOUR), ["RED", 0, "", None], ["RED"]),
    (TEXTS, [1, "a", 1], ["1", "a"]),
    (Named(TEXT), {"a": 1, "b": None}, {"a": "1"}),
    (BEAN, {"size": "3", "on": 1, "colour": "", "unheard": 9}, {"size": 3, "on": True}),
    (BEAN, {}, {"size": 7}),
    (BEAN, {"size": None}, {"size": 7}),
    (BEAN, None, None),
]
REFUSED: list[tuple[Shape, Any]] = [
    (INT, True),
    (INT, "x"),
    (INT, "1_0"),
    (INT, [5]),
    (INT, {}),
    (INT, 1 << 31),
    (INT, float("inf")),
    (INT, "9" * 100),
    (LONG, 1 << 63),
    (Number(), "nan"),
    (FLAG, "yes"),
    (FLAG, 1.5),
    (FLAG, []),
    (TEXT, {}),
    (TEXT, [1]),
    (COLOUR, "BLUE"),
    (COLOUR, 2),
    (COLOUR, True),
    (TEXTS, "a"),
    (TEXTS, {}),
    (Named(TEXT), []),
    (BEAN, []),
    (BEAN, ""),
    (BEAN, 5),
    (BEAN, {"size": "many"}),
]


@pytest.mark.parametrize(("shape", "given", "found"), READ)
def test_what_jackson_takes_is_taken_in_one_form(shape: Shape, given: Any, found: Any) -> None:
    assert shape.read("f", given) == found


@pytest.mark.parametrize(("shape", "given"), REFUSED)
def test_what_cannot_be_meant_is_refused_by_field_and_with_a_remedy(
    shape: Shape, given: Any
) -> None:
    with pytest.raises(InvalidRequest, match=r"^f[.:]") as refused:
        shape.read("f", given)
    assert refused.value.remedy


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(st.sampled_from(sorted(SHAPES)), JSON)
def test_any_json_is_read_or_refused_and_what_was_read_stays_the_same(key: str, value: Any) -> None:
    """No other error, whatever a peer sends."""
    try:
        found = SHAPES[key].read(key, value)
    except InvalidRequest:
        return
    assert SHAPES[key].read(key, found) == found


def test_fields_that_are_not_known_can_be_named() -> None:
    assert list(BEAN.unknown({"size": 1, "siez": 2})) == ["siez"]

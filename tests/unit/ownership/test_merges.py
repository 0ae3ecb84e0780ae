"""Which bundles can become one, and what their namespace looks like then."""

from __future__ import annotations

import pytest

from magnetar.errors import NotAllowed
from magnetar.names import FULL_RANGE_END, BundleName, NamespaceName, bundles_of
from magnetar.ownership.merges import Neighbours, right_neighbour, without_edge

NAMESPACE = NamespaceName("public", "default")
BOUNDARIES = (0, 0x40000000, 0x80000000, FULL_RANGE_END)
FIRST, SECOND, LAST = bundles_of(NAMESPACE, BOUNDARIES)


def test_neighbours_become_the_bundle_between_their_outer_ends() -> None:
    pair = right_neighbour(BOUNDARIES, SECOND)
    assert pair == Neighbours(SECOND, LAST)
    assert pair.merged == BundleName(NAMESPACE, 0x40000000, FULL_RANGE_END)
    after = without_edge(BOUNDARIES, pair)
    assert after == (0, 0x40000000, FULL_RANGE_END)
    assert bundles_of(NAMESPACE, after) == [FIRST, pair.merged]


def test_only_neighbours_are_a_pair() -> None:
    for left, right in ((FIRST, LAST), (SECOND, FIRST), (FIRST, FIRST)):
        with pytest.raises(NotAllowed, match="right neighbour"):
            Neighbours(left, right)
    other = BundleName(NamespaceName("public", "other"), SECOND.low, SECOND.high)
    with pytest.raises(NotAllowed):
        Neighbours(FIRST, other)


def test_the_last_bundle_and_a_range_that_is_none_have_no_neighbour() -> None:
    with pytest.raises(NotAllowed, match="the last of its namespace"):
        right_neighbour(BOUNDARIES, LAST)
    with pytest.raises(NotAllowed, match="is not a bundle"):
        right_neighbour(BOUNDARIES, BundleName(NAMESPACE, 0, 0x80000000))


def test_a_namespace_that_was_split_or_merged_since_is_left_alone() -> None:
    pair = Neighbours(FIRST, SECOND)
    assert without_edge((0, 0x80000000, FULL_RANGE_END), pair) is None
    assert without_edge((0, 0x20000000, *BOUNDARIES[1:]), pair) is None

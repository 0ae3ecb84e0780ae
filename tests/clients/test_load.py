"""The comparison that the cluster tests rest on notices what it is there for."""

from __future__ import annotations

import pytest

from tests.clients.load import check_order


@pytest.mark.parametrize("numbers", [[], [0, 1, 2], [0, 1, 2, 1, 2, 3], [0, 0, 1]])
def test_an_order_with_few_repetitions_passes(numbers: list[int]) -> None:
    check_order("t", numbers, duplicates_max=2)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0, 2], "order or a message is lost"),
        ([1, 2], "lost"),
        ([0, 2, 1], "order"),
        ([0, 1, 0, 1, 2, 2], "3 messages are stored twice"),
    ],
)
def test_a_hole_a_swap_or_many_repetitions_fail(numbers: list[int], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_order("t", numbers, duplicates_max=2)

"""Moves of the last hour, as reports count them."""

from __future__ import annotations

from magnetar.broker.bundles.balancing.trend import RecentMoves


def test_moves_are_counted_for_an_hour() -> None:
    moves = RecentMoves()
    assert (moves.count(1000.0), moves.last) == (0, None)
    for now in (10.0, 20.0, 30.0, 1800.0):
        moves.note(now)
    assert (moves.count(1800.0), moves.last) == (4, 1800.0)
    assert moves.count(3599.0) == 4
    assert moves.count(3660.0) == 1
    assert moves.count(5460.0) == 0


def test_moves_of_many_hours_take_no_more_room() -> None:
    moves = RecentMoves()
    for minute in range(600):
        moves.note(60.0 * minute)
    assert moves.count(60.0 * 599) == 60

"""Since when drivers wait, by what one process saw pass."""

from __future__ import annotations

from magnetar_operator.jobs import waiting
from magnetar_operator.jobs.waiting import Waits


def test_a_pod_waits_since_it_was_first_seen_to() -> None:
    waits = Waits()
    assert waits.seen("job", ["a"], 100.0) == {"a": 0.0}
    assert waits.seen("job", ["a", "b"], 130.0) == {"a": 30.0, "b": 0.0}
    assert waits.seen("job", [], 140.0) == {}
    assert waits.seen("job", ["a"], 150.0) == {"a": 0.0}


def test_memory_is_bounded() -> None:
    waits = Waits()
    for number in range(waiting.REMEMBERED_MAX + 1):
        waits.seen(str(number), ["a"], 0.0)
    assert waits.seen("0", ["a"], 9.0) == {"a": 0.0}

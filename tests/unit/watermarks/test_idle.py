"""The idle policy: time that the process saw pass, one decision for each silence."""

from __future__ import annotations

from magnetar.watermarks.idle import IdlePolicy


def test_the_silent_are_due_once() -> None:
    policy = IdlePolicy(1000)
    policy.asserted("a", 0)
    policy.asserted("b", 400)
    assert policy.due(999, 10) == []
    assert policy.due(1000, 10) == ["a"]
    assert policy.due(1399, 10) == []
    assert policy.due(5000, 10) == ["b"]
    assert policy.due(9000, 10) == []


def test_a_producer_that_returns_is_due_again() -> None:
    policy = IdlePolicy(1000)
    policy.asserted("a", 0)
    assert policy.due(1000, 10) == ["a"]
    policy.asserted("a", 1500)
    assert policy.due(2499, 10) == []
    assert policy.due(2500, 10) == ["a"]


def test_sending_is_not_idle_and_does_not_join() -> None:
    policy = IdlePolicy(1000)
    policy.asserted("a", 0)
    policy.sent("a", 900)
    policy.sent("never asserted", 900)
    assert policy.due(1800, 10) == []
    assert policy.due(1900, 10) == ["a"]


def test_after_a_recovery_each_has_a_whole_timeout() -> None:
    """The time without an owner makes nobody idle."""
    policy = IdlePolicy(1000, ["a", "b"], now_ms=50_000)
    assert policy.due(50_999, 10) == []
    assert policy.due(51_000, 1) == ["a"]
    assert policy.due(51_000, 10) == ["b"]


def test_who_has_left_is_not_due_and_zero_means_never() -> None:
    policy = IdlePolicy(1000, ["a"])
    policy.left("a")
    policy.left("a")
    assert policy.due(10_000, 10) == []
    assert IdlePolicy(0, ["a"]).due(1 << 40, 10) == []

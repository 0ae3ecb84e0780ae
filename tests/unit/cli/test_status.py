"""What `magnetar status` counts as a problem."""

from __future__ import annotations

from magnetar.cli.status import problems_of

WELL = {"leader": "b", "brokers": [{"incarnation": "b.1", "state": "serving"}], "bundles": []}


def test_a_broker_that_lacks_space_is_named_with_the_reason() -> None:
    nothing = {"damage": [], "short_of_space": {}, "unreachable": []}
    assert problems_of(WELL, nothing) == []
    assert problems_of(WELL, {**nothing, "short_of_space": {"b": "no room"}}) == [
        "broker b publishes nothing: no room"
    ]

"""What official clients make of refusals."""

from __future__ import annotations

import time

import pulsar
import pytest

pytestmark = pytest.mark.slow


def test_an_empty_subscription_name_is_invalid_configuration(client: pulsar.Client) -> None:
    """At once: the client does not try again until its operation timeout."""
    begun = time.monotonic()
    with pytest.raises(pulsar.InvalidConfiguration):
        client.subscribe("unnamed", "")
    assert time.monotonic() - begun < 20


def test_names_that_the_broker_gives_are_short(client: pulsar.Client) -> None:
    """They are in every entry."""
    names = {client.create_producer("named").producer_name() for _ in range(3)}
    assert len(names) == 3
    assert max(map(len, names)) <= len("standalone-xxx-1")

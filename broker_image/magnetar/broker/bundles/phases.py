"""Phases of a bundle at one broker.

Owns: the state machine of a bundle as the broker that acquires, serves and releases it sees it. The
record's own states, which all brokers see, are `ownership.states.BUNDLES`. Imports: nothing of
ours. Pure. Invariants: a bundle is served only between its Owned record and its freeze; a term that
was released is never resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Phase(StrEnum):
    """What this broker does with a bundle."""

    ABSENT = "absent"
    """Nothing: another broker has it, or none."""
    RECOVERING = "recovering"
    """Its Assigning record names us: fence the former owner, load the checkpoint, replay."""
    RETRYING = "retrying"
    """Recovery failed; the next attempt is not due yet."""
    COMMITTING = "committing"
    """It is recovered; its Owned record is being committed."""
    SERVING = "serving"
    """Topics are published to and delivered."""
    FROZEN = "frozen"
    """Nothing is published or delivered; what was under way is flushed, RELEASE behind it."""
    RELEASED = "released"
    """RELEASE is durable; the record that ends our term is being committed."""


FOLLOWING: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        # SERVING: a bundle that a split or merge made here.
        Phase.ABSENT: frozenset({Phase.RECOVERING, Phase.SERVING}),
        # ABSENT: the record was replaced.
        Phase.RECOVERING: frozenset({Phase.RETRYING, Phase.COMMITTING, Phase.ABSENT}),
        Phase.RETRYING: frozenset({Phase.RECOVERING, Phase.ABSENT}),
        # ABSENT: another broker changed the record first, or our claim is gone.
        Phase.COMMITTING: frozenset({Phase.SERVING, Phase.ABSENT}),
        # ABSENT, from here on: transferred, divided, merged or freed; or the incarnation is over.
        Phase.SERVING: frozenset({Phase.FROZEN, Phase.ABSENT}),
        Phase.FROZEN: frozenset({Phase.RELEASED, Phase.ABSENT}),
        Phase.RELEASED: frozenset({Phase.ABSENT}),
    }
)


def advance(phase: Phase, following: Phase) -> Phase:
    """`following`, which must be allowed after `phase`."""
    assert following in FOLLOWING[phase], (phase, following)
    return following

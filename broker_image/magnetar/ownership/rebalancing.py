"""Which bundle changes hands for the sake of balance.

Owns: `next_move`, the rule by which the leader balances how many bundles brokers have. Imports:
metadata.records, bundles. Pure. Invariants: the answer depends on the arguments only, chance
included; a pinned bundle is not moved, and counts for the broker that has it; nothing moves while a
bundle changes hands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.ownership.rules import is_pinned

DIFFERENCE_MIN = 2
"""Bundles that one broker must have more than another: a smaller difference would only change
sides."""
_SETTLED = (BundleState.OWNED, BundleState.FREE, BundleState.DELETED)


class Move(NamedTuple):
    """A bundle, and the incarnation that is to have it."""

    bundle: str
    destination: str


def next_move(
    records: Mapping[str, BundleRecord],
    candidates: Collection[str],
    overdue: Collection[str],
    now_ms: int,
    chance: int,
) -> Move | None:
    """One bundle from the broker with most, among those that have one to give, to the one with
    fewest; None if they differ too little.

    `candidates` are the incarnations that take bundles. A bundle that is `overdue` may never
    arrive, and delays nothing.
    """
    counts = dict.fromkeys(candidates, 0)
    movable: dict[str, list[str]] = {}
    for name, record in sorted(records.items()):
        if record.state not in _SETTLED and name not in overdue:
            return None
        if record.state is BundleState.OWNED and record.incarnation in counts:
            counts[record.incarnation] += 1
            if not is_pinned(record, now_ms):
                movable.setdefault(record.incarnation, []).append(name)
    if len(counts) < 2 or not movable:
        return None
    fewest = min(counts, key=lambda identifier: (counts[identifier], identifier))
    most = max(movable, key=lambda identifier: (counts[identifier], identifier))
    if counts[most] - counts[fewest] < DIFFERENCE_MIN:
        return None
    return Move(movable[most][chance % len(movable[most])], fewest)

"""How a topic drops its first entries.

Owns: the properties that say so, and what they mean for its ledgers. Imports: errors, ledgers. Pure.
Invariants: what was dropped stays dropped; a compacted view keeps the positions of what it has of
dropped entries, until it is dropped itself; a view that has been lost is an error, never empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from magnetar.errors import CorruptData
from magnetar.topics.ledgers import (
    TRIMMED,
    LedgerTable,
    position_of_text,
    position_text,
)

VIEWED_AFTER = "viewed_after"
"""Property with a position `ledger:entry`: the last entry before those dropped ones that a compacted
view may still have."""


class Trimmable(Protocol):
    """What drops entries: a topic's properties and ledgers."""

    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def ledgers(self) -> LedgerTable: ...


def trim_changes(
    topic: Trimmable, ordinal: int, viewed_from: tuple[int, int] | None
) -> dict[str, str]:
    """The changes of a topic's properties that drop its entries below `ordinal`; none if there is
    nothing to drop. `viewed_from`: the first entry of the compacted view that stays; None drops
    what a view has of them as well."""
    ledgers = topic.ledgers
    if not ledgers.first <= ordinal <= ledgers.end:
        return {}
    floor = ordinal
    if viewed_from is not None:
        floor = min(ledgers.clamp_known(viewed_from), ordinal)
    if ordinal == ledgers.first and floor <= ledgers.floor:
        return {}
    changes = {TRIMMED: position_text(ledgers.position_before(ordinal))}
    if floor < ordinal:
        changes[VIEWED_AFTER] = position_text(ledgers.position_before(floor))
    elif VIEWED_AFTER in topic.properties:
        changes[VIEWED_AFTER] = ""
    return changes


def dropped(topic: Trimmable) -> tuple[int, int] | None:
    """The first ordinal that a topic has, by its properties, and the first one whose position is
    known; None if nothing was dropped."""
    ledgers = topic.ledgers
    text, viewed = topic.properties.get(TRIMMED), topic.properties.get(VIEWED_AFTER)
    if text is None:
        return None
    first = ledgers.ordinal_after(position_of_text(text))
    if viewed is None:
        return first, first
    ledger, entry = position_of_text(viewed)
    return first, ledgers.clamp_known((ledger, entry + 1))


def stands_for(topic: Trimmable, horizon: tuple[int, int]) -> bool:
    """Whether a compacted view up to `horizon` is one of this topic: not of an earlier one of its
    name, and not truncated since."""
    trimmed, ledgers = topic.properties.get(TRIMMED), topic.ledgers
    if trimmed is not None:
        return position_of_text(trimmed) <= horizon
    return ledgers.ordinal_after(horizon) > ledgers.first


def check_view(topic: Trimmable, name: str, horizon: tuple[int, int] | None) -> None:
    """Whether the compacted view, up to `horizon` (None: there is none), is as new as the one
    behind which the topic has dropped entries. Raises CorruptData."""
    trimmed = topic.properties.get(TRIMMED)
    if trimmed is None or VIEWED_AFTER not in topic.properties:
        return
    if horizon is None or horizon < position_of_text(trimmed):
        raise CorruptData(
            f"topic {name} has dropped its entries up to {trimmed}, which a compacted view holds, "
            "and the manifest of its bundle has no view up to there; restore that manifest from a "
            "backup, or truncate the topic",
            topic=name,
        )

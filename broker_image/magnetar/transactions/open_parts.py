"""What a transaction buffer keeps of one open transaction.

Owns: `ConfirmedPart`, which is durable, and `PartAhead`, which is on its way; how states hold producers. Imports: participant_records. Pure.
Invariant: producers are known by name, each with its highest sequence id and where that entry lies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from magnetar.transactions.participant_records import Outcome, Place, Span


@dataclass(slots=True)
class ConfirmedPart:
    """Confirmed part of an open transaction."""

    since_ms: int
    size: int = 0
    entries: int = 0
    spans: list[Span] = field(default_factory=list)
    producers: dict[str, tuple[int, Place]] = field(default_factory=dict)


@dataclass(slots=True)
class PartAhead:
    """What of a transaction is on its way to stable storage."""

    changes: int = 0
    size: int = 0
    entries: int = 0
    spans: deque[Span] = field(default_factory=deque)
    producers: dict[str, tuple[int, Place]] = field(default_factory=dict)
    outcome: Outcome | None = None


def producers_in_state(known: dict[str, tuple[int, Place]]) -> tuple[tuple[str, int, Place], ...]:
    """(name, highest sequence id, position of its entry), by name."""
    return tuple((name, sequence, position) for name, (sequence, position) in sorted(known.items()))


def producers_of_state(producers: Iterable[tuple[str, int, Place]]) -> dict[str, tuple[int, Place]]:
    """The inverse of `producers_in_state`."""
    return {name: (sequence, position) for name, sequence, position in producers}

"""What a transaction coordinator makes durable.

Owns: the changes of its log and the state of its checkpoints, as plain values;
`storage.transactions.coordinator_format` has their bytes. Imports: nothing. Pure. Source: PIP-31
(states). Invariants: a change is durable before anything that depends on it leaves; replay is
idempotent: changes applied in order to a state, including some that it already has, give the same
final state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Action(enum.IntEnum):
    """How a transaction ends, with the wire's numbers."""

    COMMIT = 0
    ABORT = 1


class Participant(NamedTuple):
    """A topic (`subscription` is "") that a transaction publishes to, or one of its
    subscriptions, where it acknowledges. `topic` is as the client wrote it: a topic may be there
    under several names."""

    topic: str
    subscription: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A transaction began. `owner` is the principal that began it, "" without security."""

    least: int
    timeout_ms: int
    opened_ms: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A transaction got participants, none of which it had before."""

    least: int
    participants: tuple[Participant, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """How a transaction ends is certain from here on."""

    least: int
    action: Action
    at_ms: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Every participant has carried the decision out. A coordinator that loses this record asks them
    again, which changes nothing."""

    least: int
    at_ms: int


Change = Opened | Joined | Decided | Ended


@dataclass(frozen=True, slots=True)
class LiveTransaction:
    """A transaction that has not ended; `action` is None while it is open."""

    least: int
    timeout_ms: int
    opened_ms: int
    owner: str
    participants: tuple[Participant, ...]
    action: Action | None = None


class Outcome(NamedTuple):
    """How a transaction has ended; it is forgotten at `forget_ms`."""

    least: int
    action: Action
    forget_ms: int
    owner: str


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """All that a coordinator knows: the next sequence, transactions by sequence, outcomes in the
    order in which they are forgotten, the time."""

    next: int = 0
    live: tuple[LiveTransaction, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    seen_ms: int = 0

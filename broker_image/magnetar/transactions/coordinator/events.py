"""Events of a transaction coordinator, and the effects that its host carries out.

Owns: events and effects of `coordinator.CoordinatorCore`. Imports: errors, records. Pure.
Invariant: they are values: what was handled can be handled again in a test.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.errors import MagnetarError
from magnetar.transactions.records import Action, Change, Participant


class Caller(NamedTuple):
    """The caller: its authenticated principal ("" without security), and whether it may act on all
    transactions."""

    principal: str = ""
    superuser: bool = True


# --- events ---------------------------------------------------------------------------------------

Request = Hashable
"""Names what the host has to answer; the core only keeps it."""


@dataclass(frozen=True, slots=True)
class NewRequested:
    """NEW_TXN."""

    request: Request
    timeout_ms: int
    principal: str
    now_ms: int
    origin: str = ""
    """Where the client is, by the group of its address; "" is not counted, nor is what an
    earlier incarnation began."""


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """ADD_PARTITION_TO_TXN or ADD_SUBSCRIPTION_TO_TXN."""

    request: Request
    least: int
    participants: tuple[Participant, ...]
    caller: Caller


@dataclass(frozen=True, slots=True)
class EndRequested:
    """END_TXN."""

    request: Request
    least: int
    action: Action
    caller: Caller
    now_ms: int


@dataclass(frozen=True, slots=True)
class ParticipantEnded:
    """A participant has carried the decision out, or does not exist any more."""

    least: int
    participant: Participant
    now_ms: int


@dataclass(frozen=True, slots=True)
class PatienceOver:
    """A caller of END_TXN has waited for participants long enough: the decision is durable."""

    request: Request
    least: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: `CoordinatorCore.due_ms` says when to come, and when to come again if
    much is due."""

    now_ms: int


Event = NewRequested | JoinRequested | EndRequested | ParticipantEnded | PatienceOver | Ticked


# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request: with success, `least` being the transaction's sequence, or with `error`."""

    request: Request
    least: int
    error: MagnetarError | None = None


@dataclass(frozen=True, slots=True)
class Drive:
    """Have every participant that `CoordinatorCore.to_drive` names carry the decision out; each
    one's success is a ParticipantEnded."""

    least: int


@dataclass(frozen=True, slots=True)
class Await:
    """Answer that request after the host's patience at the latest, by PatienceOver."""

    request: Request
    least: int


Then = Answer | Drive | Await


@dataclass(frozen=True, slots=True)
class Write:
    """Append `changes` (perhaps none) to the log; once all that was appended up to here is durable,
    do `then`.

    A `lazy` one may wait for the next write of another kind.
    """

    changes: tuple[Change, ...]
    then: tuple[Then, ...] = ()
    lazy: bool = False


Effect = Write | Answer

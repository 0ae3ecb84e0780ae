"""States of an incarnation of a transaction coordinator.

Owns: `State` and the table of its transitions. Imports: state_tables. Pure. Invariants: commands
are answered in READY only; an incarnation that has ended never becomes ready again.
"""

from __future__ import annotations

import enum
from types import MappingProxyType

from magnetar.state_tables import StateTable


class State(enum.Enum):
    STARTING = "Starting"
    READY = "Ready"
    ENDED = "Ended"
    CLOSED = "Closed"


class Event(enum.Enum):
    SETTLED = "claim held, log recovered, set settled"
    ENDED = "failed or stopped"
    CLOSED = "resources released"


STATES: StateTable[State, Event] = StateTable(
    State.STARTING,
    MappingProxyType(
        {
            (State.STARTING, Event.SETTLED): State.READY,
            (State.STARTING, Event.ENDED): State.ENDED,
            (State.STARTING, Event.CLOSED): State.CLOSED,
            (State.READY, Event.ENDED): State.ENDED,
            (State.READY, Event.CLOSED): State.CLOSED,
            (State.ENDED, Event.CLOSED): State.CLOSED,
            (State.CLOSED, Event.ENDED): State.CLOSED,
            (State.CLOSED, Event.CLOSED): State.CLOSED,
        }
    ),
)

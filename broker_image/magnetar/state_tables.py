"""State machines as tables.

Owns: `StateTable`. Imports: nothing. Pure. Invariants: code takes each transition from its table,
and refuses one that is not there; `make docs` draws the tables into docs/state-machines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State")
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class StateTable(Generic[State, Event]):
    """Where it begins, and which state follows which event in each state."""

    initial: State
    transitions: Mapping[tuple[State, Event], State]

    def after(self, state: State, event: Event) -> State | None:
        """The next state; None if the event is not allowed in this one."""
        return self.transitions.get((state, event))

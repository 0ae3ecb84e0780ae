"""States of a transaction.

Owns: `Status` and the table of its transitions. Imports: state_tables, records. Pure. Source:
PIP-31. Invariant: a decision is never changed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from magnetar.state_tables import StateTable
from magnetar.transactions.records import Action


class Status(enum.StrEnum):
    """PIP-31's states; they are shown to users."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


class Step(enum.Enum):
    """What happens to a transaction; decisions have the names of `Action`."""

    COMMIT = "END_TXN COMMIT"
    ABORT = "END_TXN ABORT, or the timeout"
    ENDED = "all participants have ended it"


TRANSACTIONS: StateTable[Status, Step] = StateTable(
    Status.OPEN,
    MappingProxyType(
        {
            (Status.OPEN, Step.COMMIT): Status.COMMITTING,
            (Status.OPEN, Step.ABORT): Status.ABORTING,
            (Status.COMMITTING, Step.COMMIT): Status.COMMITTING,
            (Status.COMMITTING, Step.ENDED): Status.COMMITTED,
            (Status.ABORTING, Step.ABORT): Status.ABORTING,
            (Status.ABORTING, Step.ENDED): Status.ABORTED,
            (Status.COMMITTED, Step.COMMIT): Status.COMMITTED,
            (Status.ABORTED, Step.ABORT): Status.ABORTED,
        }
    ),
)
STEPS: Mapping[Action, Step] = {action: Step[action.name] for action in Action}
DECIDED: Mapping[Status, Action] = {
    Status.COMMITTING: Action.COMMIT,
    Status.ABORTING: Action.ABORT,
}
ENDED: Mapping[Action, Status] = {
    Action.COMMIT: Status.COMMITTED,
    Action.ABORT: Status.ABORTED,
}

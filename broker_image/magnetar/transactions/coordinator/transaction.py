"""One transaction, as its coordinator keeps it.

Owns: `Transaction`, from its begin to its end. Imports: events, records, states. Pure. Invariant:
its status changes as the table of `states` allows.
"""

from __future__ import annotations

from magnetar.transactions.coordinator.events import Request
from magnetar.transactions.coordinator.states import DECIDED, STEPS, TRANSACTIONS, Status, Step
from magnetar.transactions.records import Action, LiveTransaction, Participant


class Transaction:
    """`remaining` are the participants that have not answered, `waiting` the callers of END_TXN,
    `bytes` the size of the participants' names."""

    __slots__ = (
        "bytes",
        "least",
        "opened_ms",
        "origin",
        "owner",
        "participants",
        "remaining",
        "status",
        "timeout_ms",
        "waiting",
    )

    def __init__(
        self, least: int, timeout_ms: int, opened_ms: int, owner: str, origin: str
    ) -> None:
        self.least, self.timeout_ms, self.opened_ms = least, timeout_ms, opened_ms
        self.owner, self.origin = owner, origin
        self.status: Status = TRANSACTIONS.initial
        self.participants: dict[Participant, None] = {}
        self.bytes = 0
        self.remaining: set[Participant] = set()
        self.waiting: dict[Request, None] = {}

    @property
    def action(self) -> Action | None:
        """The decision; None while it is open."""
        return DECIDED.get(self.status)

    @property
    def deadline_ms(self) -> int:
        return self.opened_ms + self.timeout_ms

    def decide(self, action: Action) -> bool:
        """False if the other action was decided."""
        is_open = self.status is Status.OPEN
        if not self._take(STEPS[action]):
            return False
        if is_open:
            self.remaining = set(self.participants)
        return True

    def end(self) -> bool:
        """False while nothing was decided."""
        return self._take(Step.ENDED)

    def _take(self, step: Step) -> bool:
        after = TRANSACTIONS.after(self.status, step)
        if after is None:
            return False
        self.status = after
        return True

    def value(self) -> LiveTransaction:
        """For other modules to keep."""
        return LiveTransaction(
            self.least,
            self.timeout_ms,
            self.opened_ms,
            self.owner,
            tuple(self.participants),
            self.action,
        )

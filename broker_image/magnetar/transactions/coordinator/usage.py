"""What transactions use of a coordinator.

Owns: `Limits`, and `Usage`, which counts against them. Imports: errors, events, transaction,
records. Pure. Invariant: a name without transactions takes no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.errors import InvalidRequest, LimitExceeded, MagnetarError
from magnetar.transactions.coordinator.events import NewRequested
from magnetar.transactions.coordinator.transaction import Transaction
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Participant


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one coordinator. An outcome is forgotten after `outcome_kept_ms` or the transaction's own
    timeout, whichever is longer."""

    open_max: int = 100_000
    open_per_owner_max: int = 100_000
    open_per_origin_max: int = 100_000
    participants_max: int = 10_000
    participant_bytes_max: int = 256 << 20
    timeout_max_ms: int = 86_400_000
    outcomes_max: int = 200_000
    outcome_kept_ms: int = 600_000


class Usage:
    """Unfinished transactions, in all and per owner and origin, and bytes of their participants'
    names."""

    __slots__ = ("_bytes", "_limits", "_open", "_origins", "_owners", "_tcid")

    def __init__(self, tcid: int, limits: Limits) -> None:
        self._tcid, self._limits = tcid, limits
        self._owners, self._origins = Counter[str](), Counter[str]()
        self._open = self._bytes = 0

    def opened(self, found: Transaction) -> None:
        self._open += 1
        for counts, name in ((self._owners, found.owner), (self._origins, found.origin)):
            if name:
                counts[name] += 1

    def joined(self, found: Transaction, participants: Iterable[Participant]) -> None:
        """Add the participants to the transaction, those that it has excepted."""
        for name in participants:
            if name not in found.participants:
                found.participants[name] = None
                found.bytes += _size(name)
                self._bytes += _size(name)

    def ended(self, found: Transaction) -> None:
        self._open -= 1
        self._bytes -= found.bytes
        for counts, name in ((self._owners, found.owner), (self._origins, found.origin)):
            if not name:
                continue
            if counts[name] == 1:
                del counts[name]
            else:
                counts[name] -= 1

    def refusal_to_open(self, event: NewRequested) -> MagnetarError | None:
        """Why no transaction begins. One owner or address must not use up what others need."""
        limits, owner, origin = self._limits, event.principal, event.origin
        if self._open >= limits.open_max:
            return LimitExceeded(
                f"transaction coordinator {self._tcid} has {self._open} transactions that have not "
                "ended, as many as transactions_open_max allows; end some, or add coordinators"
            )
        if owner and self._owners[owner] >= limits.open_per_owner_max:
            return LimitExceeded(
                f"role {owner!r} has {self._owners[owner]} unfinished transactions at coordinator "
                f"{self._tcid}, as many as transactions_open_per_role_max allows; end some"
            )
        if origin and self._origins[origin] >= limits.open_per_origin_max:
            return LimitExceeded(
                f"clients at {origin} have {self._origins[origin]} unfinished transactions at "
                f"coordinator {self._tcid}, as many as transactions_open_per_address_max allows; "
                "end some"
            )
        if not 0 < event.timeout_ms <= limits.timeout_max_ms:
            return InvalidRequest(
                f"timeout: {event.timeout_ms} ms is out of range: use 1..{limits.timeout_max_ms} ms"
            )
        return None

    def refusal_to_join(
        self, found: Transaction, new: tuple[Participant, ...]
    ) -> MagnetarError | None:
        """Why the transaction takes no more participants."""
        limits, count = self._limits, len(found.participants) + len(new)
        if count > limits.participants_max:
            return LimitExceeded(
                f"transaction {TxnId(self._tcid, found.least)} would have {count} participants, "
                f"more than {limits.participants_max}: divide the work among several transactions"
            )
        size = self._bytes + sum(map(_size, new))
        if new and size > limits.participant_bytes_max:
            return LimitExceeded(
                f"the names of all participants would take {size} bytes, more than "
                f"{limits.participant_bytes_max}: end transactions first"
            )
        return None


def _size(name: Participant) -> int:
    return len(name.topic) + len(name.subscription)

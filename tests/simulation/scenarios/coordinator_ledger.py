"""What clients asked of coordinators, the answers, and what participants received.

Owns: `Ledger`, and the promises of a coordinator judged from it: an id is given once and ids rise;
what was answered of an outcome never changes; every participant receives one decision, the one
that clients got, and no other; the low watermark passes nothing that has not ended; what no client
ends times out, and nothing else does. Imports: transactions (names). Invariant: it only accuses; an
answer that did not come decides nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Participant


class PromiseBroken(AssertionError):
    """A coordinator has not kept its word."""


@dataclass(slots=True)
class Known:
    """A transaction whose id a client was given. `joined` are the participants whose addition
    was confirmed, `asked` all that were named."""

    txn: TxnId
    timeout_s: float
    joined: set[Participant] = field(default_factory=set)
    asked: set[Participant] = field(default_factory=set)
    wanted: set[Action] = field(default_factory=set)
    outcome: Action | None = None

    def wish(self, action: Action) -> None:
        """A client is about to ask for this end."""
        self.wanted.add(action)


class Ledger:
    """One run's. `gone` are participants that do not exist: they receive nothing and count as
    ended."""

    def __init__(self, long_timeout_s: float, gone: frozenset[Participant]) -> None:
        self.known: dict[TxnId, Known] = {}
        self.counts: Counter[str] = Counter()
        self.received: dict[tuple[Participant, TxnId], Action] = {}
        self._long_timeout_s, self._gone = long_timeout_s, gone
        self._highest: dict[int, int] = {}
        self._unfinished: dict[int, dict[int, Known]] = {}
        self._watermarks: dict[int, int] = {}
        self._violations: list[str] = []

    # --- answers to clients -----------------------------------------------------------------------

    def mark(self) -> dict[int, int]:
        """Ids given so far, by number: one that is asked for now is higher."""
        return dict(self._highest)

    def given(self, txn: TxnId, timeout_s: float, mark: dict[int, int]) -> Known:
        """NEW_TXN, asked for at `mark`, was answered."""
        if txn in self.known:
            raise PromiseBroken(f"transaction {txn} was given twice")
        if txn.least <= mark.get(txn.most, -1):
            raise PromiseBroken(f"transaction {txn} was given after {mark[txn.most]} was")
        found = self.known[txn] = Known(txn, timeout_s)
        self._highest[txn.most] = max(txn.least, self._highest.get(txn.most, -1))
        self._unfinished.setdefault(txn.most, {})[txn.least] = found
        self.counts["begun"] += 1
        return found

    def joins(self, known: Known, participant: Participant) -> bool:
        """A client is about to name a participant; whether that must be refused, to be given to
        `joined`."""
        known.asked.add(participant)
        return known.outcome is not None or known.txn.least <= self._watermarks.get(
            known.txn.most, -1
        )

    def joined(self, known: Known, participant: Participant, over: bool) -> None:
        """It was confirmed. What is asked for after the end was answered, or passed by the low
        watermark, must be refused."""
        if over:
            raise PromiseBroken(
                f"transaction {known.txn} took {participant} after its end: {known.outcome!r}, "
                f"watermark {self._watermarks}"
            )
        known.joined.add(participant)
        self.counts["joined"] += 1

    def answered(self, known: Known, outcome: Action) -> None:
        """An END_TXN was answered, with success or by the name of the other outcome."""
        if known.outcome is not None and known.outcome is not outcome:
            raise PromiseBroken(
                f"transaction {known.txn} was {known.outcome.name}, and is {outcome.name} now"
            )
        if outcome not in known.wanted and (
            outcome is Action.COMMIT or known.timeout_s >= self._long_timeout_s
        ):
            raise PromiseBroken(
                f"transaction {known.txn} is {outcome.name}, which nobody has asked for"
            )
        self.counts[
            "answered again" if known.outcome is not None else f"answered {outcome.name}"
        ] += 1
        if outcome is Action.ABORT and outcome not in known.wanted:
            self.counts["timed out"] += 1
        known.outcome = outcome

    # --- what participants receive ----------------------------------------------------------------

    def receives(
        self, participant: Participant, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        """A participant receives the end of a transaction."""
        before = self.received.get((participant, txn))
        if before is not None and before is not action:
            self._broken(f"{participant} received {before.name} and then {action.name} of {txn}")
        self.counts["received again" if before is not None else "received"] += 1
        self.received[participant, txn] = action
        found = self.known.get(txn)
        if found is None:
            self._broken(
                f"{participant} received {action.name} of {txn}, an id that nobody was given"
            )
            return
        if participant not in found.asked:
            self._broken(f"{participant} received {action.name} of {txn}, of which it is no part")
        if action is Action.COMMIT and action not in found.wanted:
            self._broken(f"{participant} received COMMIT of {txn}, which nobody has asked for")
        if found.outcome is not None and found.outcome is not action:
            self._broken(
                f"{participant} received {action.name} of {txn}, which was {found.outcome.name}"
            )
        self._check_watermark(txn.most, low_watermark)

    def _check_watermark(self, tcid: int, low_watermark: int) -> None:
        self._watermarks[tcid] = max(low_watermark, self._watermarks.get(tcid, -1))
        unfinished = self._unfinished[tcid]
        for least in [least for least in unfinished if least <= low_watermark]:
            found = unfinished.pop(least)
            if missing := self.missing(found):
                self._broken(
                    f"the low watermark is {low_watermark}, and {missing} have not learned of "
                    f"{found.txn}"
                )

    def _broken(self, text: str) -> None:
        """What happens in a broker does not end the run: it is kept for `check`."""
        self._violations.append(text)

    def missing(self, known: Known) -> list[Participant]:
        """Participants that have not learned how a transaction ended."""
        return sorted(
            name for name in known.joined - self._gone if (name, known.txn) not in self.received
        )

    # --- the end ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Every transaction has one outcome, and all of its participants have learned of it.
        Raises PromiseBroken."""
        if self._violations:
            raise PromiseBroken("\n".join(self._violations))
        for known in self.known.values():
            if known.outcome is None:
                raise PromiseBroken(f"transaction {known.txn} has no outcome")
            if missing := self.missing(known):
                raise PromiseBroken(
                    f"{missing} have never learned that {known.txn} is {known.outcome.name}"
                )
        for (participant, txn), action in self.received.items():
            if self.known[txn].outcome is not action:
                raise PromiseBroken(
                    f"{participant} received {action.name} of {txn}, the outcome is "
                    f"{self.known[txn].outcome}"
                )

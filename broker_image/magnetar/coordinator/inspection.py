"""What administrators see of a coordinator, and the one thing they may do.

Owns: `CoordinatorInspection`: facts about a number and its transactions as JSON, and ending a
transaction by force. Imports: incarnation, core. Invariants: the HTTP listener has admitted the
request; answers are bounded, whatever transactions hold; a transaction that was decided is never
aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from magnetar.broker.connections.refusals import COORDINATOR_REFUSES
from magnetar.coordinator.incarnation import Coordinator
from magnetar.coordinator.transactions import Transactions
from magnetar.errors import InvalidTxnStatus, ServiceNotReady, TransactionNotFound
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.coordinator.events import Caller
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, LiveTransaction, Outcome, Participant

NAMES_BYTES_MAX = 8 << 20
"""Of names of participants in one answer, about: transactions beyond it only say how many they
have. Who asks takes 16 MiB (`peers`)."""
ABORTED_AT_ONCE_MAX = 1000
"""Transactions of a role that one request ends."""
NAME_BYTES = 48
"""What JSON adds to a participant, at most."""


class CoordinatorInspection:
    """Answers for the incarnation that the process runs now."""

    def __init__(self, life: Callable[[], Coordinator | None]) -> None:
        self._current = life

    async def stats(self, tcid: int) -> dict[str, Any]:
        """The number's state, sequences, live transactions and log. Raises ServiceNotReady,
        TransactionCoordinatorNotFound, StorageError."""
        life, found = self._answering()
        core = await life.service.core_of(found, tcid)
        own, log = tcid == life.tcid, life.log
        facts: dict[str, Any] = {
            "tcid": tcid,
            "state": "Ready" if own else "Released",
            "incarnation": life.incarnation if own else "",
            "last": core.last,
            "low_watermark": core.low_watermark,
            "live": core.live,
            "outcomes": core.outcomes,
            "recovery_began_ms": life.recovered_ms[0] if own else 0,
            "recovery_ended_ms": life.recovered_ms[1] if own else 0,
        }
        if own and log is not None:
            facts["log"] = {
                "file": log.position.file,
                "offset": log.position.offset,
                "since_checkpoint": log.since_checkpoint,
            }
        return facts

    async def transactions(self, tcid: int, older_ms: int, limit: int) -> list[dict[str, Any]]:
        """Transactions that have not ended everywhere and began so long ago, the oldest first.
        Raises as `stats`."""
        life, found = self._answering()
        core, times, room = (
            await life.service.core_of(found, tcid),
            _times(life, found, tcid),
            NAMES_BYTES_MAX,
        )
        rows: list[dict[str, Any]] = []
        for live in core.living():
            if len(rows) >= limit:
                break
            if times.age_ms(live) < older_ms:
                break
            size = _bytes_of(live)
            rows.append(_live(core, live, times, whole=size <= room))
            room -= min(size, room)
        return rows

    async def transaction(self, tcid: int, least: int) -> dict[str, Any]:
        """One of them, or how it has ended. Raises TransactionNotFound, and as `stats`."""
        life, found = self._answering()
        core, times = await life.service.core_of(found, tcid), _times(life, found, tcid)
        known, txn = core.known(least), TxnId(tcid, least)
        if known is None:
            raise TransactionNotFound(
                f"transaction {txn} is not known: it never began, or ended so long ago that its "
                "outcome is forgotten"
            )
        return (
            _ended(txn, known, times)
            if isinstance(known, Outcome)
            else _live(core, known, times, whole=_bytes_of(known) <= NAMES_BYTES_MAX)
        )

    async def abort(self, tcid: int, least: int) -> None:
        """End an open transaction of any role. Raises TransactionNotFound,
        InvalidTxnStatus, StoreUnavailable if this incarnation ends before the answer, and as
        `stats`."""
        life, found = self._answering()
        await life.unless_ended(life.service.end(found, TxnId(tcid, least), Action.ABORT, Caller()))

    async def abort_of(self, tcid: int, owner: str) -> dict[str, Any]:
        """End open transactions that a role began, so many in one call: `aborted` is how many,
        `more` whether there are others. Raises as `stats`."""
        life, found = self._answering()
        core = await life.service.core_of(found, tcid)
        leasts = list(
            islice(
                (
                    live.least
                    for live in core.living()
                    if live.owner == owner and live.action is None
                ),
                ABORTED_AT_ONCE_MAX + 1,
            )
        )
        ends = [self.abort(tcid, least) for least in leasts[:ABORTED_AT_ONCE_MAX]]
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, InvalidTxnStatus | TransactionNotFound
            ):
                raise outcome
        return {
            "aborted": sum(outcome is None for outcome in outcomes),
            "more": len(leasts) > ABORTED_AT_ONCE_MAX,
        }

    def _answering(self) -> tuple[Coordinator, Transactions]:
        life = self._current()
        if life is None or not life.ready:
            raise ServiceNotReady(
                "the transaction coordinator is starting or stopping; try again in a moment"
            )
        if life.service.transactions is None:
            raise ServiceNotReady(COORDINATOR_REFUSES)
        return life, life.service.transactions


def _bytes_of(live: LiveTransaction) -> int:
    """What the names of its participants take in an answer, at most: once it is decided, they
    are there twice."""
    return sum(
        2 * (len(name.topic.encode()) + len(name.subscription.encode()) + NAME_BYTES)
        for name in live.participants
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """Now by a core's time, and how far the wall's clock is ahead of it: what people read is the
    wall's."""

    now_ms: int
    behind_ms: int

    def age_ms(self, live: LiveTransaction) -> int:
        return max(0, self.now_ms - live.opened_ms)


def _times(life: Coordinator, found: Transactions, tcid: int) -> _Times:
    now_ms, wall_ms = found.now_ms(), found.wall_ms()
    return _Times(now_ms, wall_ms - now_ms) if tcid == life.tcid else _Times(wall_ms, 0)


def _live(
    core: CoordinatorCore, live: LiveTransaction, times: _Times, *, whole: bool
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "txn": str(TxnId(core.tcid, live.least)),
        "most": core.tcid,
        "least": live.least,
        "status": core.status(live.least),
        "owner": live.owner,
        "opened_ms": live.opened_ms + times.behind_ms,
        "age_ms": times.age_ms(live),
        "timeout_ms": live.timeout_ms,
        "participants": len(live.participants),
    }
    driven = core.to_drive(live.least)
    if driven is not None:
        facts["waiting"] = len(driven[1])
    if whole:
        facts |= _named(live.participants, "partitions", "subscriptions")
        facts |= (
            _named(driven[1], "waiting_partitions", "waiting_subscriptions")
            if driven is not None
            else {}
        )
    return facts


def _named(
    participants: tuple[Participant, ...], topics: str, subscriptions: str
) -> dict[str, Any]:
    return {
        topics: [name.topic for name in participants if not name.subscription],
        subscriptions: [
            {"topic": name.topic, "subscription": name.subscription}
            for name in participants
            if name.subscription
        ],
    }


def _ended(txn: TxnId, outcome: Outcome, times: _Times) -> dict[str, Any]:
    return {
        "txn": str(txn),
        "most": txn.most,
        "least": txn.least,
        "status": "COMMITTED" if outcome.action is Action.COMMIT else "ABORTED",
        "owner": outcome.owner,
        "forgotten_ms": outcome.forget_ms + times.behind_ms,
    }

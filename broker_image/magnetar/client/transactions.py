"""Transactions.

Owns: `Transaction`: its state, which partitions and subscriptions take part, what is on its way in
it, and how it ends. Imports: coordinators, failures. Source: PIP-31's rules for END_TXN, which is
idempotent and queryable. Invariants: a partition or subscription is registered before the first
message or acknowledgement of the transaction leaves for it; COMMIT is sent only when everything in
the transaction has succeeded; a commit returns only if the transaction took place, raises
TransactionAborted only if it did not, and TransactionOutcomeUnknown without an answer.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self

from magnetar.client.coordinators import Coordinators
from magnetar.client.failures import TransactionAborted, TransactionOutcomeUnknown
from magnetar.errors import InvalidRequest, InvalidTxnStatus, MagnetarError, TransactionNotFound
from magnetar.transactions.ids import TxnId

TRANSACTION_TIMEOUT_S = 60.0
OUTCOME_WAIT_S = 600.0
"""How long an end is requested: a coordinator remembers outcomes at least that long."""
_log = logging.getLogger(__name__)


class TransactionState(enum.Enum):
    """How far a transaction has come, as its client knows."""

    NEW = "new"
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    UNKNOWN = "outcome unknown"


class _Gate:
    """The registration of one participant. Operations that wait for it pass in order, in one turn
    of the event loop: messages that are sent together stay together, and share a batch."""

    def __init__(self) -> None:
        self._registration: asyncio.Task[None] | None = None
        self._registered = False
        self._came = self._passed = 0

    async def enter(self, register: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Pass once the participant is registered. Raises the refusal: the first one, also for
        those who come later."""
        number, self._came = self._came, self._came + 1
        try:
            if not self._registered:
                if self._registration is None:
                    self._registration = asyncio.create_task(register())
                    # all may have left
                    self._registration.add_done_callback(
                        lambda done: done.cancelled() or done.exception()
                    )
                await asyncio.shield(self._registration)
                self._registered = True
            while self._passed < number:  # those before us are about to
                await asyncio.sleep(0)
        finally:
            self._passed += 1


class Transaction:
    """Messages and acknowledgements that take place together or not at all. Made by
    `Client.transaction`; use it in `async with`.

    Leaving the block commits; an exception in it aborts, and passes on. Any failed `send` or
    `acknowledge` of the transaction leaves it only one end: `commit` then aborts and raises
    TransactionAborted.
    """

    def __init__(
        self, coordinators: Coordinators, timeout_s: float, outcome_wait_s: float = OUTCOME_WAIT_S
    ) -> None:
        if timeout_s <= 0:
            raise InvalidRequest(f"transaction timeout is {timeout_s:g} s; it must be above 0")
        self.state = TransactionState.NEW
        self.timeout_s = timeout_s
        self._coordinators = coordinators
        self._outcome_wait_s = outcome_wait_s
        self._id: TxnId | None = None
        self._gates: dict[tuple[str, ...], _Gate] = {}
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed: BaseException | None = None
        self._on_aborted: dict[int, Callable[[], None]] = {}

    @classmethod
    def resumed(cls, coordinators: Coordinators, txn_id: TxnId) -> Self:
        """One that another client has begun, to be ended here."""
        found = cls(coordinators, TRANSACTION_TIMEOUT_S)
        found._id, found.state = txn_id, TransactionState.OPEN
        return found

    @property
    def id(self) -> TxnId:
        """Coordinator number and counter; there is one once the transaction has begun."""
        if self._id is None:
            raise InvalidRequest(
                "the transaction has not begun; use it in `async with`, or await begin() first"
            )
        return self._id

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_failure: object) -> None:
        if self.state is TransactionState.OPEN:
            await (self.commit() if kind is None else self.abort())

    def __str__(self) -> str:
        return "(not begun)" if self._id is None else str(self._id)

    async def begin(self) -> None:
        """Have a coordinator open the transaction. Raises NotAllowed if the cluster offers none,
        ConnectionLost if none answers."""
        if self.state is not TransactionState.NEW:
            raise InvalidRequest(f"transaction {self} is {self.state.value}; make a new one")
        self._id = await self._coordinators.begin(max(1, round(self.timeout_s * 1000)))
        self.state = TransactionState.OPEN

    # --- for producers and consumers

    @asynccontextmanager
    async def publishing(self, topic: str) -> AsyncIterator[TxnId]:
        """Around one message to a topic (one partition). Raises InvalidRequest unless the
        transaction is open, and the coordinator's refusal."""
        async with self._operation():
            await self._enlist((topic,), lambda: self._coordinators.add_partition(self.id, topic))
            yield self.id

    @asynccontextmanager
    async def acknowledging(self, topic: str, subscription: str) -> AsyncIterator[TxnId]:
        """Around one acknowledgement. Raises as `publishing`."""
        async with self._operation():
            await self._enlist(
                (topic, subscription),
                lambda: self._coordinators.add_subscription(self.id, topic, subscription),
            )
            yield self.id

    def on_aborted(self, owner: object, redeliver: Callable[[], None]) -> None:
        """Have `redeliver` called once if the transaction does not take place; one call per
        owner."""
        self._on_aborted[id(owner)] = redeliver

    @asynccontextmanager
    async def _operation(self) -> AsyncIterator[None]:
        if self.state is not TransactionState.OPEN:
            raise InvalidRequest(
                f"transaction {self} is {self.state.value}; nothing can be added to it"
            )
        self._pending += 1
        self._idle.clear()
        try:
            yield
        except BaseException as failure:  # cancelled as well: whether it took effect is unknown
            self._failed = self._failed or failure
            raise
        finally:
            self._pending -= 1
            if not self._pending:
                self._idle.set()

    async def _enlist(
        self, participant: tuple[str, ...], register: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Register a participant once. Raises its refusal."""
        await self._gates.setdefault(participant, _Gate()).enter(register)

    # --- its end

    async def commit(self) -> None:
        """Make everything in the transaction take place; waits for what is on its way in it first.
        May be asked again.

        The end is requested until a coordinator answers. Raises TransactionAborted if it did
        not take place (it had failed in part, was aborted or timed out), TransactionOutcomeUnknown
        when there was no answer for ten minutes.
        """
        if self.state is TransactionState.COMMITTED:
            return
        if self.state not in (TransactionState.OPEN, TransactionState.UNKNOWN):
            raise self._ended("committed")
        asked_before = self.state is TransactionState.UNKNOWN
        self.state = TransactionState.COMMITTING
        try:
            await self._idle.wait()
            if self._failed is not None:
                self.state = TransactionState.OPEN
                await self.abort()
                raise TransactionAborted(
                    f"transaction {self} is aborted: a part of it failed: {self._failed!r}"
                ) from self._failed
            await self._commit(asked_before)
        except asyncio.CancelledError:
            if self.state is TransactionState.COMMITTING:
                self.state = TransactionState.UNKNOWN
            raise

    async def _commit(self, asked_before: bool) -> None:
        try:
            answered = await self._coordinators.commit(self.id, self._outcome_wait_s)
        except MagnetarError as failure:
            self.state = TransactionState.UNKNOWN
            raise TransactionOutcomeUnknown(f"transaction {self}: {failure}") from failure
        refusal = answered.refusal
        if refusal is None:
            self.state = TransactionState.COMMITTED
            return
        # Apache Pulsar forgets at once what has ended: then only the first question has an answer
        # that says something.
        first = not (asked_before or answered.repeated)
        aborted = isinstance(refusal, InvalidTxnStatus) and "ABORT" in str(refusal).upper()
        if aborted or (first and isinstance(refusal, InvalidTxnStatus | TransactionNotFound)):
            self._did_not_happen()
            raise TransactionAborted(
                f"transaction {self} did not take place: {refusal}"
            ) from refusal
        self.state = TransactionState.UNKNOWN
        raise TransactionOutcomeUnknown(f"transaction {self}: {refusal}") from refusal

    async def abort(self) -> None:
        """Have nothing of the transaction take place; what it acknowledged comes again.

        Where no coordinator answers, it times out there by itself. After a commit whose outcome is
        unknown: raises InvalidTxnStatus if it was committed, TransactionOutcomeUnknown without
        an answer.
        """
        if self.state is TransactionState.ABORTED:
            return
        if self.state not in (TransactionState.OPEN, TransactionState.UNKNOWN):
            raise self._ended("aborted")
        before, self.state = self.state, TransactionState.ABORTING
        refusal: MagnetarError | None
        try:
            await self._idle.wait()
            refusal = (await self._coordinators.abort(self.id)).refusal
        except MagnetarError as failure:
            refusal = failure
        except asyncio.CancelledError:
            self.state = before
            raise
        # its commit was never requested, so it has only one end
        if refusal is None or before is TransactionState.OPEN:
            if refusal is not None:
                _log.warning("transaction %s is left to its timeout: %s", self, refusal)
            self._did_not_happen()
            return
        # an abort is refused to what commits or has committed
        if isinstance(refusal, InvalidTxnStatus):
            self.state = TransactionState.COMMITTED
            raise refusal
        self.state = TransactionState.UNKNOWN
        raise TransactionOutcomeUnknown(f"transaction {self}: {refusal}") from refusal

    def _did_not_happen(self) -> None:
        self.state = TransactionState.ABORTED
        redeliveries, self._on_aborted = self._on_aborted, {}
        for redeliver in redeliveries.values():
            redeliver()

    def _ended(self, wish: str) -> MagnetarError:
        text = f"transaction {self} is {self.state.value}; it cannot be {wish}"
        return (
            InvalidTxnStatus(text)
            if self.state is not TransactionState.NEW
            else InvalidRequest(text)
        )

"""Talking to transaction coordinators.

Owns: which coordinators there are, staying connected to those in use, and requests that are sent
again until they are answered. Imports: attachment, backoff, failures, wire. Invariants: a
transaction's requests go to the coordinator that its id names; a request is sent again after a lost
connection or answer (all of them may be: a lost NEW_TXN leaves an empty transaction that times
out); a final refusal ends it, and so does its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from magnetar.client.attachment import Attachment, Session
from magnetar.client.backoff import Backoff
from magnetar.client.connection import Answer, Connection
from magnetar.client.failures import AlreadyClosed, ConnectionLost
from magnetar.errors import (
    MagnetarError,
    NotAllowed,
    Retry,
    TopicNotFound,
    TransactionCoordinatorNotFound,
)
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests

ASSIGN_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"
COORDINATORS_TRIED_MAX = 3
REQUEST_RETRY_LAST_S = 5.0


class Answered(NamedTuple):
    """An answer or a final refusal; `repeated`: an earlier attempt may have been carried out
    without our hearing of it."""

    answer: Answer | None
    refusal: MagnetarError | None
    repeated: bool

    def accepted(self) -> Answer:
        """The answer. Raises the refusal."""
        if self.refusal is not None:
            raise self.refusal
        assert self.answer is not None, "one of both is there"
        return self.answer


class Coordinator(Attachment):
    """The coordinator of one number (TCID)."""

    def __init__(self, session: Session, number: int) -> None:
        super().__init__(session, f"{ASSIGN_TOPIC}-partition-{number}", number)

    async def ask(self, build: Callable[[int], bytes], within_s: float) -> Answered:
        """Send what `build` makes of a request id until it is answered. Raises ConnectionLost
        after `within_s`."""
        repeated = False
        last: MagnetarError | None = None
        backoff = Backoff(self._session.clock, last_s=REQUEST_RETRY_LAST_S)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    connection = await self.attached()
                    request_id = self._session.pool.next_request_id()
                    try:
                        return Answered(
                            await self._once(connection, request_id, build(request_id)),
                            None,
                            repeated,
                        )
                    except ConnectionLost as failure:
                        last, repeated = failure, True
                    except MagnetarError as failure:
                        if failure.retry is Retry.NEVER:
                            return Answered(None, failure, repeated)
                        last = failure
                        if isinstance(failure, TransactionCoordinatorNotFound):
                            self._leave(connection)
                    await asyncio.sleep(backoff.next())
        except TimeoutError as timeout:
            raise ConnectionLost(
                f"transaction coordinator {self.identity} did not answer in {within_s:g} s; "
                f"outcome unknown; last: {last!r}"
            ) from timeout

    async def _once(self, connection: Connection, request_id: int, frame: bytes) -> Answer:
        try:
            async with asyncio.timeout(self._session.operation_timeout_s):
                return await connection.request(request_id, frame)
        except TimeoutError as timeout:
            raise ConnectionLost(
                f"no answer in {self._session.operation_timeout_s:g} s; outcome unknown"
            ) from timeout

    def _leave(self, connection: Connection) -> None:
        """The number is served elsewhere: look it up again."""
        if connection.coordinators.pop(self.identity, None) is self:
            self.on_detached(None)

    async def _attach(self, connection: Connection) -> None:
        connection.coordinators[self.identity] = self
        request_id = self._session.pool.next_request_id()
        await connection.request(
            request_id, requests.coordinator_connect(request_id, self.identity)
        )

    def _release(self, connection: Connection) -> None:
        if connection.coordinators.get(self.identity) is self:
            del connection.coordinators[self.identity]

    def _on_failed(self, failure: MagnetarError) -> None:
        """Callers of `attached` get it."""


class Coordinators:
    """The transaction coordinators of a cluster, found with the first transaction."""

    def __init__(self, session: Session, partitions: Callable[[str], Awaitable[int]]) -> None:
        self._session = session
        self._partitions = partitions
        self._count = 0
        self._turn = session.clock.random_bits(16)
        self._made: dict[int, asyncio.Task[Coordinator]] = {}
        self._closed = False

    async def begin(self, timeout_ms: int) -> TxnId:
        """A new transaction at one of the coordinators, round-robin; another one is tried if that
        cannot be reached.

        Raises NotAllowed if the cluster has none, the coordinator's refusal, ConnectionLost if none
        answers.
        """
        count = await self._coordinators()
        tries = min(count, COORDINATORS_TRIED_MAX)
        within_s = self._session.operation_timeout_s / tries
        for attempt in range(tries):
            self._turn += 1
            number = self._turn % count
            try:
                return await self._begin_at(number, timeout_ms, within_s)
            except (ConnectionLost, TransactionCoordinatorNotFound):
                if attempt + 1 == tries:
                    raise
        raise AssertionError("there is at least one coordinator to try")

    async def _begin_at(self, number: int, timeout_ms: int, within_s: float) -> TxnId:
        try:
            async with asyncio.timeout(within_s):
                coordinator = await self._of(number)
        except TimeoutError as timeout:
            raise ConnectionLost(
                f"transaction coordinator {number} was not reached in {within_s:g} s"
            ) from timeout
        answered = await coordinator.ask(
            lambda request_id: requests.new_txn(request_id, number, timeout_ms), within_s
        )
        body = answered.accepted().new_txn_response
        # perhaps another coordinator's: a retired one asks for it
        return TxnId(body.txnid_most_bits, body.txnid_least_bits)

    async def add_partition(self, txn: TxnId, topic: str) -> None:
        """The transaction will publish to `topic`. Raises the refusal."""
        await self._add(
            txn, lambda request_id: requests.add_partitions_to_txn(request_id, txn, [topic])
        )

    async def add_subscription(self, txn: TxnId, topic: str, subscription: str) -> None:
        """The transaction will acknowledge messages of a subscription. Raises the refusal."""
        await self._add(
            txn,
            lambda request_id: requests.add_subscription_to_txn(
                request_id, txn, topic, subscription
            ),
        )

    async def _add(self, txn: TxnId, build: Callable[[int], bytes]) -> None:
        (await (await self._of(txn.most)).ask(build, self._session.operation_timeout_s)).accepted()

    async def commit(self, txn: TxnId, within_s: float) -> Answered:
        """Ask for a transaction's commit until there is an answer. Raises ConnectionLost when
        there is none."""
        return await (await self._of(txn.most)).ask(
            lambda number: requests.end_txn(number, txn, commit=True), within_s
        )

    async def abort(self, txn: TxnId) -> Answered:
        """Ask for a transaction's abort until there is an answer. Raises ConnectionLost when
        there is none by the operation timeout."""
        within_s = self._session.operation_timeout_s
        return await (await self._of(txn.most)).ask(
            lambda number: requests.end_txn(number, txn, commit=False), within_s
        )

    async def close(self) -> None:
        """Leave every coordinator; idempotent."""
        self._closed = True
        tasks = list(self._made.values())
        self._made.clear()
        for task in tasks:
            task.cancel()
            (made,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(made, Coordinator):
                await made.stop()

    async def _coordinators(self) -> int:
        if not self._count:
            try:
                self._count = await self._partitions(ASSIGN_TOPIC)
            except TopicNotFound as failure:
                raise NotAllowed(
                    f"this cluster has no transaction coordinators: {failure}"
                ) from failure
        if not self._count:
            raise NotAllowed(
                "this cluster has no transaction coordinators; its transactions are switched off"
            )
        return self._count

    async def _of(self, number: int) -> Coordinator:
        if self._closed:
            raise AlreadyClosed("client is closed; make a new one")
        task = self._made.get(number)
        if task is None or (
            task.done()
            and (
                task.cancelled()
                or task.exception() is not None
                or task.result().failure is not None
            )
        ):
            task = asyncio.create_task(self._open(number))
            # the last waiter may have left
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._made[number] = task
        return await asyncio.shield(task)

    async def _open(self, number: int) -> Coordinator:
        coordinator = Coordinator(self._session, number)
        await coordinator.open()
        return coordinator

"""One consumer that moves messages in transactions.

Owns: `Mover`, its sessions and transactions, and what all movers of a run share. Imports:
magnetar.client, histories, the plans. Invariants: a question is in the history before it is asked;
a transaction whose commit failed without an answer is kept, so that it can be asked about again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dev.histories.transactions import (
    Acknowledgement,
    Fate,
    History,
    Input,
    Session,
    TransactionHistory,
)
from dev.soak.transaction_plans import (
    ABORT,
    ASK_TWICE,
    COMMIT,
    LEAVE,
    MOVER,
    PLANS,
    REGRET,
    Counts,
    Route,
    fate_of,
    place_of,
)
from magnetar.client import (
    Client,
    Consumer,
    Message,
    Producer,
    Transaction,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from magnetar.errors import MagnetarError

INPUTS_MAX = 8
LEFT_OPEN_TIMEOUT_S = 5.0
TIMEOUT_S = 60.0
SESSION_S_MIN, SESSION_S_MAX = 3.0, 15.0
QUIET_S = 1.5
RECEIVE_S = 0.5
RETRY_S = 0.2
PAUSES_S = (0.0, 0.0, 0.05, 0.2)
"""Before a transaction: so that some have several messages."""
ASK_AGAIN_S = 60.0


@dataclass(slots=True)
class SharedByMovers:
    """What the movers of one run share. `over` ends them; `committed` counts the messages that
    were committed of each ordered source; by `open_until` every transaction that was left open has
    ended."""

    history: History
    counts: Counts
    chance: random.Random
    targets: Sequence[str]
    committed: dict[str, int]
    numbers: Iterator[int] = field(default_factory=itertools.count)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False
    unknown: list[tuple[Transaction, TransactionHistory]] = field(default_factory=list)
    open_until: float = 0.0


async def subscribe(history: History, client: Client, route: Route) -> tuple[Consumer, Session]:
    """A consumer of the route's source and its session in the history. Raises MagnetarError."""
    session = history.subscribe(route.source, MOVER)
    consumer = await client.subscribe(
        route.source, MOVER, type=route.kind, initial_position="Earliest", receiver_queue=50
    )
    return consumer, session


class Mover:
    """Moves messages of one route until the run is over."""

    def __init__(
        self,
        shared: SharedByMovers,
        route: Route,
        number: int,
        client: Client,
        outputs: Sequence[Producer],
    ) -> None:
        self._shared, self._route, self._client, self._outputs = shared, route, client, outputs
        self._name = f"{route.kind}-{number}"

    async def run(self) -> None:
        """One session after another, until nothing has come for a while after the feeding
        ended."""
        counts = self._shared.counts
        while not self._shared.over.is_set():
            try:
                consumer, session = await subscribe(self._shared.history, self._client, self._route)
            except MagnetarError as error:
                counts.trouble.append(f"{self._name} subscribes: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await self._session(consumer, session)
            except MagnetarError as error:
                counts.trouble.append(f"{self._name}: {error}")
            with contextlib.suppress(MagnetarError):
                await consumer.close()

    async def _session(self, consumer: Consumer, session: Session) -> None:
        shared, route = self._shared, self._route
        until = time.monotonic() + shared.chance.uniform(SESSION_S_MIN, SESSION_S_MAX)
        while (time.monotonic() < until or shared.draining) and not shared.over.is_set():
            await asyncio.sleep(shared.chance.choice(PAUSES_S))
            received = await consumer.batch_receive(
                shared.chance.randint(1, INPUTS_MAX), QUIET_S if shared.draining else RECEIVE_S
            )
            for message in received:
                session.receive(place_of(message.id), message.value.decode())
            messages = list({message.id: message for message in received}.values())
            if route.ordered:
                messages = self._next_in_order(messages)
                if len(messages) < len(received):
                    consumer.redeliver_unacknowledged()
            if not messages:
                if shared.draining and not received:
                    return
                await asyncio.sleep(RETRY_S if received else 0)
                continue
            plan = COMMIT
            if not shared.draining:
                plan = shared.chance.choices(list(PLANS), list(PLANS.values()))[0]
            if plan == LEAVE and route.ordered:
                plan = ABORT  # its only consumer would have nothing to do until the timeout
            if not await self._transact(consumer, messages, plan):
                await asyncio.sleep(RETRY_S)
            elif route.ordered and plan != ABORT:
                shared.committed[route.source] += len(messages)

    def _next_in_order(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that follow what was committed, without a gap.

        A cumulative acknowledgement takes what lies before as well, and what an abort gives back
        may come behind what follows it.
        """
        found = []
        expected = self._shared.committed[self._route.source]
        for message in messages:
            if int(message.value.split(b"-")[1]) == expected:
                found.append(message)
                expected += 1
        return found

    async def _transact(self, consumer: Consumer, messages: Sequence[Message], plan: str) -> bool:
        """Move messages in one transaction, which ends as planned; whether it did."""
        shared = self._shared
        txn = self._client.transaction(
            timeout_s=LEFT_OPEN_TIMEOUT_S if plan == LEAVE else TIMEOUT_S
        )
        try:
            await txn.begin()
        except MagnetarError as error:
            shared.counts.trouble.append(f"{self._name} begins: {error}")
            consumer.redeliver(messages)
            return False
        shared.counts.begun += 1
        record = shared.history.begin(str(txn.id), self._name)
        if not await self._fill(consumer, txn, record, messages):
            await self._abort(txn, record)
            shared.counts.end("failed")
            return False
        if plan == LEAVE:
            shared.open_until = time.monotonic() + LEFT_OPEN_TIMEOUT_S + 1
            shared.counts.end("left open")
            return True
        if plan == ABORT:
            await self._abort(txn, record)
            shared.counts.end("aborted")
            return True
        return await self._commit(consumer, txn, record, messages, plan)

    async def _fill(
        self,
        consumer: Consumer,
        txn: Transaction,
        record: TransactionHistory,
        messages: Sequence[Message],
    ) -> bool:
        """Publish what follows from each message, and acknowledge it. False: something failed;
        what is not acknowledged was asked for again."""
        shared = self._shared
        work: list[Coroutine[Any, Any, None]] = []
        for message in messages:
            source = Input(self._route.source, MOVER, message.value.decode())
            chosen = shared.chance.sample(range(len(self._outputs)), shared.chance.randint(1, 2))
            work += [
                self._send(txn, record, self._outputs[at], shared.targets[at], source)
                for at in chosen
            ]
        sent = len(work)
        acknowledgements = [
            record.acknowledge(self._route.source, MOVER, message.value.decode())
            for message in messages
        ]
        if self._route.ordered:
            work.append(self._acknowledge_up_to(consumer, txn, acknowledgements, messages[-1]))
        else:
            work += [
                self._acknowledge(consumer, txn, one, message)
                for one, message in zip(acknowledgements, messages, strict=True)
            ]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if not failures:
            return True
        shared.counts.trouble.append(f"{record}: {failures[0]!r}")
        refused = (
            messages
            if self._route.ordered
            else [m for m, o in zip(messages, outcomes[sent:], strict=True) if o is not None]
        )
        consumer.redeliver(refused)
        return False

    async def _send(
        self,
        txn: Transaction,
        record: TransactionHistory,
        producer: Producer,
        target: str,
        source: Input,
    ) -> None:
        value = f"out-{next(self._shared.numbers)}"
        sent = record.send(target, value, [source], producer.name)
        await producer.send(value.encode(), txn=txn)
        sent.confirm()

    async def _acknowledge(
        self,
        consumer: Consumer,
        txn: Transaction,
        acknowledgement: Acknowledgement,
        message: Message,
    ) -> None:
        await consumer.acknowledge(message, txn=txn)
        acknowledgement.confirm()

    async def _acknowledge_up_to(
        self,
        consumer: Consumer,
        txn: Transaction,
        acknowledgements: Sequence[Acknowledgement],
        last: Message,
    ) -> None:
        await consumer.acknowledge_cumulative(last, txn=txn)
        for acknowledgement in acknowledgements:
            acknowledgement.confirm()

    async def _abort(self, txn: Transaction, record: TransactionHistory) -> None:
        try:
            await txn.abort()
        except MagnetarError as error:
            self._shared.counts.trouble.append(f"{record} aborts: {error}")
        self._shared.open_until = max(self._shared.open_until, time.monotonic() + 1)

    async def _commit(
        self,
        consumer: Consumer,
        txn: Transaction,
        record: TransactionHistory,
        messages: Sequence[Message],
        plan: str,
    ) -> bool:
        shared = self._shared
        record.ask_commit()
        try:
            await txn.commit()
        except TransactionAborted as failure:
            record.answer(Fate.ABORTED)
            shared.counts.trouble.append(f"{record}: {failure}")
            shared.counts.end("aborted instead of committed")
            consumer.redeliver(messages if self._route.ordered else [])
            return False
        except TransactionOutcomeUnknown as failure:
            shared.unknown.append((txn, record))
            shared.counts.trouble.append(f"{record}: {failure}")
            shared.counts.end("outcome unknown")
            # what is held may come back behind what follows it: nothing more can be done in order
            if self._route.ordered:
                await shared.over.wait()
            return False
        record.answer(Fate.COMMITTED)
        shared.counts.end("committed")
        shared.counts.moved += len(messages)
        if plan in (ASK_TWICE, REGRET):
            await self._ask_afterwards(txn, record, plan)
        return True

    async def _ask_afterwards(
        self, txn: Transaction, record: TransactionHistory, plan: str
    ) -> None:
        """A delayed END_TXN, as of a client that got no answer, or one that asks for the
        opposite."""
        coordinators = self._client._coordinators
        try:
            if plan == ASK_TWICE:
                fate = fate_of(
                    (await coordinators.commit(txn.id, ASK_AGAIN_S)).refusal, Fate.COMMITTED
                )
            else:
                fate = fate_of((await coordinators.abort(txn.id)).refusal, Fate.ABORTED)
        except MagnetarError as error:
            self._shared.counts.trouble.append(f"{record}, asked again: {error}")
            return
        record.answer(fate)

"""Clients that consume, transform and produce in transactions, and what they find out.

Owns: a client whose transactions write themselves down; feeders, movers (by `exactly_once`, and by
hand with acknowledgements of every kind), publishers and readers beside them; what is read back in
the end. Imports: magnetar.client, the history of transactions, the tracer's clients. Invariants: a
question is in the history before it is asked, an answer when it came; a value is sent by one call
of `send`, ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dev.histories.transactions import Fate, History, Input, Place, TransactionHistory
from magnetar.client import (
    EARLIEST,
    Batching,
    Client,
    Consumer,
    Message,
    MessageId,
    Producer,
    Transaction,
    TransactionAborted,
    TransactionState,
    exactly_once,
)
from magnetar.client.coordinators import Coordinators
from magnetar.errors import InvalidTxnStatus
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer_clients import (
    ALLOWED,
    DRAINED_S,
    READ_ATTEMPTS,
    position_of,
    until_done,
)
from tests.simulation.scenarios.tracer_cluster import SERVICE_URL

BATCH_MESSAGES_MAX = 4
TIMEOUT_S = (3.0, 8.0)
RECEIVE_S = 2.0
PAUSE_S = (0.05, 0.5)
GIVEN_UP_S = (0.0, 0.02)
"""How long a client that gives up waits for the outcome: a commit takes about half of it."""
SESSION_TRANSACTIONS = 6
DELAY_MS_MAX = 2000
QUIET_S = 12.0
"""A subscription that gives nothing for so long has nothing left: what is delayed is due by
then, also where clocks were set back."""
CHUNKED_BYTES = 9_000
"""More than a broker in these worlds takes in one message."""
IN_CHUNKS = "~"
"""Ends the name of an output that is as large."""
KEYS = 5
Acknowledge = Callable[..., Awaitable[None]]


class RecordedTransaction(Transaction):
    """A transaction that is in the history."""

    def __init__(
        self, coordinators: Coordinators, timeout_s: float, history: History, client: str
    ) -> None:
        super().__init__(coordinators, timeout_s)
        self._history, self._client = history, client
        self.record: TransactionHistory

    async def begin(self) -> None:
        await super().begin()
        self.record = self._history.begin(str(self.id), self._client)

    async def commit(self) -> None:
        self.record.ask_commit()
        try:
            await super().commit()
        except TransactionAborted:
            self.record.answer(Fate.ABORTED)
            raise
        self.record.answer(Fate.COMMITTED)

    async def abort(self) -> None:
        try:
            await super().abort()
        except InvalidTxnStatus:
            if self.state is TransactionState.COMMITTED:
                self.record.answer(Fate.COMMITTED)
            raise
        self.record.answer(Fate.ABORTED)


class RecordingClient(Client):
    """A client whose transactions are in the history."""

    def __init__(self, history: History, environment: Environment) -> None:
        super().__init__(
            SERVICE_URL,
            network=environment.network,
            clock=environment.clock,
            operation_timeout_s=6,
            keep_alive_s=3,
        )
        self._history, self._name = history, f"{environment.name}-{environment.life}"

    def transaction(self, *, timeout_s: float = TIMEOUT_S[1]) -> RecordedTransaction:
        return RecordedTransaction(self._coordinators, timeout_s, self._history, self._name)


def value_of(message: Message) -> str:
    """What it is called in the history: without the padding that makes it need chunks."""
    return message.value.split(b" ", 1)[0].decode()


def padded(value: str, size: int) -> bytes:
    """A payload of at least `size` bytes that is called `value`."""
    return value.encode() + b" " + b"x" * size if size else value.encode()


def place_of(message: Message) -> Place:
    return tuple(position_of(message))  # type: ignore[return-value]  # three numbers


@dataclass(frozen=True, slots=True)
class Route:
    """What is moved: from a topic's subscription of a kind, to topics."""

    source: str
    subscription: str
    kind: str
    targets: tuple[str, ...]

    def input(self, message: Message) -> Input:
        return Input(self.source, self.subscription, value_of(message))


# --- beside transactions --------------------------------------------------------------------------


async def feed(history: History, topic: str, environment: Environment) -> None:
    """Publish numbered messages, some of them in batches, permanently."""
    client, clock = RecordingClient(history, environment), environment.clock
    name = f"{environment.name}-{environment.life}"
    batching = Batching() if clock.random_bits(1) else None
    producer = await until_done(
        environment,
        lambda: client.create_producer(topic, name=name, send_timeout_s=None, batching=batching),
    )
    number = 0
    while True:
        pending = []
        for _ in range(1 + clock.random_bits(2)):
            value = f"{name}-{number}"
            pending.append((history.publish(topic, value), producer.send_nowait(value.encode())))
            number += 1
        for send, receipt in pending:
            await receipt
            send.confirm()
        await asyncio.sleep(clock.uniform(*PAUSE_S))


async def feed_mixed(history: History, topic: str, environment: Environment) -> None:
    """Publish messages with keys until cancelled: some are delayed, and some come in chunks."""
    client, clock = RecordingClient(history, environment), environment.clock
    name = f"{environment.name}-{environment.life}"
    producer = await until_done(
        environment,
        lambda: client.create_producer(topic, name=name, send_timeout_s=None, chunking=True),
    )
    number = 0
    while True:
        pending = []
        for _ in range(1 + clock.random_bits(1)):
            value, size = f"{name}-{number}", CHUNKED_BYTES if clock.random_bits(2) == 0 else 0
            due = deliver_at(environment) if clock.random_bits(2) == 0 else None
            pending.append(
                (
                    history.publish(topic, value),
                    producer.send_nowait(
                        padded(value, size), key=str(number % KEYS), deliver_at=due
                    ),
                )
            )
            number += 1
        for send, receipt in pending:
            await receipt
            send.confirm()
        await asyncio.sleep(clock.uniform(*PAUSE_S))


def deliver_at(environment: Environment) -> int:
    """Soon, by the client's clock."""
    return environment.clock.wall_ms() + int(environment.clock.uniform(0, DELAY_MS_MAX))


async def read_along(history: History, topics: Sequence[str], environment: Environment) -> None:
    """Read topics from the beginning, again and again."""
    client, clock = RecordingClient(history, environment), environment.clock
    while True:
        topic = topics[clock.random_bits(16) % len(topics)]
        session = history.subscribe(topic, f"reader-{len(history.sessions)}", whole=True)
        try:
            reader = await client.create_reader(topic, start_message_id=EARLIEST, receiver_queue=20)
            while await reader.has_message_available():
                message = await reader.receive(timeout_s=4)
                session.receive(place_of(message), value_of(message))
            await reader.close()
        except ALLOWED:
            pass
        await asyncio.sleep(clock.uniform(0.5, 2.0))


# --- moving ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reached:
    """How far a subscription is acknowledged cumulatively, by all incarnations of its only
    consumer."""

    done: MessageId | None = None
    """Everything up to it was acknowledged in a transaction that took place."""
    unsettled: dict[Input, None] = field(default_factory=dict)
    """What was acknowledged since, in transactions that may not have taken place."""


class Mover:
    """What two ways of moving share: producers, a session of the consumer, and sends that are in
    the history."""

    def __init__(
        self,
        history: History,
        route: Route,
        environment: Environment,
        reached: Reached | None = None,
    ) -> None:
        self.history, self.route, self.environment, self.clock = (
            history,
            route,
            environment,
            environment.clock,
        )
        self.client = RecordingClient(history, environment)
        self.reached = reached or Reached()
        self._outputs: dict[str, Producer] = {}
        self._chunking: set[str] = set()
        """Topics whose producers do not batch: large messages go there in chunks."""

    async def output(self, topic: str) -> Producer:
        """A producer, batching or else in chunks."""
        if topic not in self._outputs:
            batching = Batching() if self.clock.random_bits(1) else None
            if batching is None:
                self._chunking.add(topic)
            self._outputs[topic] = await self.client.create_producer(
                topic, send_timeout_s=8, batching=batching, chunking=True
            )
        return self._outputs[topic]

    async def consumer(self) -> Consumer:
        """A consumer of its own session."""
        self.session = self.history.subscribe(self.route.source, self.route.subscription)
        return await self.client.subscribe(
            self.route.source,
            self.route.subscription,
            type=self.route.kind,
            initial_position="Earliest",
            receiver_queue=20,
            negative_ack_delay_s=0.2,
        )

    def received(self, message: Message) -> None:
        self.session.receive(place_of(message), value_of(message))

    async def acknowledge(
        self, acknowledge: Acknowledge, message: Message, *, txn: RecordedTransaction
    ) -> None:
        """Have a message acknowledged in a transaction. Raises as `acknowledge` does."""
        acknowledged = txn.record.acknowledge(*self.route.input(message))
        await acknowledge(message, txn=txn)
        acknowledged.confirm()

    async def acknowledge_cumulative(
        self, consumer: Consumer, messages: Sequence[Message], txn: RecordedTransaction
    ) -> None:
        """Have everything up to the last of these acknowledged in a transaction. Raises as
        Consumer.acknowledge_cumulative does."""
        found = dict.fromkeys(map(self.route.input, messages))
        # It covers as well what an earlier transaction held while this session began, should that
        # have been aborted since.
        for earlier in self.reached.unsettled:
            if earlier not in found:
                txn.record.acknowledge(*earlier)
        self.reached.unsettled.update(found)
        acknowledged = [txn.record.acknowledge(*one) for one in found]
        await consumer.acknowledge_cumulative(messages[-1], txn=txn)
        for one in acknowledged:
            one.confirm()

    async def send_outputs(self, txn: RecordedTransaction, messages: Sequence[Message]) -> None:
        """One message per input and target, each target's sent at once, in order."""
        producers = [await self.output(topic) for topic in self.route.targets]
        sends = []
        for message in messages:
            for topic, producer in zip(self.route.targets, producers, strict=True):
                size = (
                    CHUNKED_BYTES
                    if len(message.value) > CHUNKED_BYTES and topic in self._chunking
                    else 0
                )
                value = f"{value_of(message)}@{txn.id}@{len(txn.record.sends)}{IN_CHUNKS if size else ''}"
                sent = txn.record.send(topic, value, [self.route.input(message)], producer.name)
                due = deliver_at(self.environment) if self.clock.random_bits(2) == 0 else None
                sends.append(
                    (
                        sent,
                        asyncio.ensure_future(
                            producer.send(padded(value, size), txn=txn, deliver_at=due)
                        ),
                    )
                )
        outcomes = await asyncio.gather(*(future for _, future in sends), return_exceptions=True)
        for (sent, _), outcome in zip(sends, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                sent.confirm()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


async def move_once(history: History, route: Route, environment: Environment) -> None:
    """By `exactly_once`, with aborts of the work's own."""
    mover = Mover(history, route, environment)

    async def work(messages: Sequence[Message], txn: Transaction) -> None:
        assert isinstance(txn, RecordedTransaction)
        for message in messages:
            mover.received(message)
        await mover.send_outputs(txn, messages)
        if mover.clock.random_bits(3) == 0:
            await txn.abort()
            return

    while True:
        consumer = await until_done(environment, mover.consumer)
        # What `exactly_once` acknowledges is in the history as what is acknowledged by hand.
        consumer.acknowledge = partial(mover.acknowledge, consumer.acknowledge)  # type: ignore[method-assign]
        try:
            timeout_s = mover.clock.uniform(*TIMEOUT_S)
            await exactly_once(
                mover.client,
                consumer,
                work,
                messages_max=BATCH_MESSAGES_MAX,
                idle_s=4,
                transaction_timeout_s=timeout_s,
            )
        except ALLOWED:
            pass
        await asyncio.sleep(mover.clock.uniform(*PAUSE_S))
        with contextlib.suppress(*ALLOWED):
            await consumer.close()


async def move_by_hand(
    history: History, route: Route, environment: Environment, reached: Reached | None = None
) -> None:
    """One transaction after the other: some are committed, some aborted, some left to their
    timeouts. The client gives up waiting for the answers of some commits.

    In an Exclusive subscription cumulatively.
    """
    mover = Mover(history, route, environment, reached)
    while True:
        consumer = await until_done(environment, mover.consumer)
        try:
            for _ in range(SESSION_TRANSACTIONS):
                if not await _move_some(mover, consumer):
                    break
        except ALLOWED:
            await asyncio.sleep(mover.clock.uniform(*PAUSE_S))
        with contextlib.suppress(*ALLOWED):
            await consumer.close()


async def _move_some(mover: Mover, consumer: Consumer) -> bool:
    """One transaction. False if the session must end, because what it holds comes again to the
    next one only."""
    messages = list(
        {
            message.id: message
            for message in await consumer.batch_receive(BATCH_MESSAGES_MAX, RECEIVE_S)
        }.values()
    )
    if not messages:
        return False
    for message in messages:
        mover.received(message)
    if mover.route.kind == "Exclusive" and mover.reached.done is not None:
        # What a broker has delivered again waits in our queue, whatever was acknowledged since; a
        # cumulative acknowledgement does not tell.
        messages = [message for message in messages if message.id > mover.reached.done]
        if not messages:
            return True
    txn = mover.client.transaction(timeout_s=mover.clock.uniform(*TIMEOUT_S))
    await txn.begin()
    await mover.send_outputs(txn, messages)
    if mover.route.kind == "Exclusive":
        await mover.acknowledge_cumulative(consumer, messages, txn)
    else:
        await asyncio.gather(
            *(mover.acknowledge(consumer.acknowledge, message, txn=txn) for message in messages)
        )
    choice = mover.clock.random_bits(3)
    if choice == 0:
        return False  # left to its timeout
    if choice == 1:
        await txn.abort()
        return True
    async with asyncio.timeout(mover.clock.uniform(*GIVEN_UP_S) if choice == 2 else None):
        await txn.commit()
    mover.reached.done = messages[-1].id
    mover.reached.unsettled.clear()
    return True


# --- the end --------------------------------------------------------------------------------------


async def read_all(history: History, client: Client, topic: str, environment: Environment) -> None:
    """Everything in a topic, into the history. What several readers in a row do not get is not
    there."""
    longest: list[tuple[Place, str]] = []
    attempts = 0
    while attempts < READ_ATTEMPTS:
        found: list[tuple[Place, str]] = []
        try:
            reader = await client.create_reader(topic, start_message_id=EARLIEST)
            while await reader.has_message_available():
                message = await reader.receive(timeout_s=10)
                found.append((place_of(message), value_of(message)))
            await reader.close()
            longest = found
            break
        except ALLOWED:
            attempts = 1 if len(found) > len(longest) else attempts + 1
            longest = max(longest, found, key=len)
            await asyncio.sleep(environment.clock.uniform(*PAUSE_S))
    history.final_read(topic, longest)


async def read_cursor(
    history: History, client: Client, route: Route, environment: Environment
) -> None:
    """All that a new consumer of a subscription gets, into the history."""
    session = history.subscribe(route.source, route.subscription)
    try:
        async with asyncio.timeout(DRAINED_S):
            consumer = await until_done(
                environment,
                lambda: client.subscribe(
                    route.source, route.subscription, type=route.kind, initial_position="Earliest"
                ),
            )
    except TimeoutError:
        raise AssertionError(
            f"{route.source}: subscription {route.subscription} takes no consumer"
        ) from None
    found: dict[str, None] = {}
    try:
        while True:
            message = await consumer.receive(timeout_s=QUIET_S)
            session.receive(place_of(message), value_of(message))
            found[value_of(message)] = None
    except TimeoutError:
        pass
    await consumer.close()
    history.final_cursor(route.source, route.subscription, found)

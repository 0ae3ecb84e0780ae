"""The clients of the tracer scenarios.

Owns: producers, consumers, a seeker, readers and a creator of topics, all on the real client, and
what they find out about the cluster. Imports: the kernel's history, magnetar.client. Invariants: a
client records a request before it sends it, and an answer when it gets it; errors that the
protocol allows are survived, any other ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from magnetar.client import EARLIEST, Client, Consumer, Message, MessageId
from magnetar.errors import MagnetarError
from tests.simulation.kernel.history import History, LogEntry, Position
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer_cluster import SERVICE_URL

T = TypeVar("T")
PADDING_BYTES = (0, 0, 200, 3000)
ALLOWED = (MagnetarError, TimeoutError)
SESSION_MESSAGES = 15
READ_ATTEMPTS = 4
"""Readers in a row, in a healthy cluster, that get no further: each has as long as an operation
of a client or a message may take."""
DRAINED_S = 40.0
"""How long a subscription of a healthy cluster may refuse its consumer."""


def client_of(environment: Environment) -> Client:
    return Client(
        SERVICE_URL,
        network=environment.network,
        clock=environment.clock,
        operation_timeout_s=8,
        keep_alive_s=3,
    )


async def until_done(environment: Environment, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again and again."""
    while True:
        try:
            return await attempt()
        except ALLOWED:
            await asyncio.sleep(environment.clock.uniform(0.1, 0.5))


def position_of(message: Message) -> Position:
    return Position(message.id.ledger, message.id.entry, message.id.batch_index)


def payload_of(producer: str, number: int, padding: int) -> bytes:
    return f"{producer} {number} ".encode() + b"x" * padding


def entry_of(message: Message) -> LogEntry:
    producer, number, _ = message.value.split(b" ")
    return LogEntry(position_of(message), producer.decode(), int(number), message.value)


# --- publishing -----------------------------------------------------------------------------------


async def produce(history: History, topic: str, environment: Environment) -> None:
    """Publish numbered messages, a few at a time, permanently."""
    client = client_of(environment)
    name = f"{environment.name}-{environment.life}"
    producer = await until_done(
        environment, lambda: client.create_producer(topic, name=name, send_timeout_s=60)
    )
    number = 0
    while True:
        pending = []
        for _ in range(1 + environment.clock.random_bits(2)):
            payload = payload_of(name, number, PADDING_BYTES[environment.clock.random_bits(2)])
            send = history.send(topic, name, number, payload)
            pending.append((send, producer.send_nowait(payload)))
            number += 1
        for send, future in pending:
            try:
                position = await future
            except MagnetarError:
                send.failed()
            else:
                send.acknowledged(Position(position.ledger, position.entry, position.batch_index))
        await asyncio.sleep(environment.clock.uniform(0.1, 0.9))


async def create_topics(history: History, topics: list[str], environment: Environment) -> None:
    """Begin a new topic every few seconds, with one message each."""
    client = client_of(environment)
    while True:
        await asyncio.sleep(environment.clock.uniform(1.0, 4.0))
        topic = f"persistent://public/default/late-{len(topics)}"
        topics.append(topic)
        await publish_one(history, client, topic, f"creator-{len(topics)}", environment)


async def publish_one(
    history: History, client: Client, topic: str, name: str, environment: Environment
) -> None:
    """One message, acknowledged."""
    producer = await until_done(
        environment, lambda: client.create_producer(topic, name=name, send_timeout_s=60)
    )
    send = history.send(topic, name, 0, payload_of(name, 0, 0))
    position = await producer.send(send.payload)
    # -1:-1: it was repeated after a reconnect, and deduplication knew it
    repeated = position.ledger < 0
    send.acknowledged(
        None if repeated else Position(position.ledger, position.entry, position.batch_index)
    )
    await producer.close()


# --- subscriptions --------------------------------------------------------------------------------


async def consume(history: History, topic: str, kind: str, environment: Environment) -> None:
    """Receive, and acknowledge with confirmation, in short sessions: what was confirmed must not
    come in a later one."""
    client = client_of(environment)
    while True:
        session = history.session(environment.name, "subscription", topic)
        try:
            consumer = await client.subscribe(
                topic, "subscription", type=kind, initial_position="Earliest", receiver_queue=20
            )
            for _ in range(SESSION_MESSAGES):
                message = await consumer.receive(timeout_s=4)
                session.received(position_of(message), message.value)
                cumulative = kind == "Exclusive" and environment.clock.random_bits(2) == 0
                if cumulative or environment.clock.random_bits(2):
                    acknowledgement = session.ack(position_of(message), cumulative=cumulative)
                    await (
                        consumer.acknowledge_cumulative(message)
                        if cumulative
                        else consumer.acknowledge(message)
                    )
                    acknowledgement.confirmed()
            await consumer.close()
        except ALLOWED:
            await asyncio.sleep(environment.clock.uniform(0.1, 0.5))


class Seeker:
    """Moves a subscription that is never acknowledged to and fro: after a confirmed seek it must
    begin exactly there, whichever broker serves it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.confirmed = 0
        self._seen: list[MessageId] = []
        self._allowed: set[MessageId] = set()

    async def run(self, environment: Environment) -> None:
        """Subscribe, look where it begins, read on, seek, look again."""
        client = client_of(environment)
        while True:
            try:
                consumer = await client.subscribe(
                    self.topic, "seeking", initial_position="Earliest", receiver_queue=20
                )
                await self._one_session(consumer, environment)
                await consumer.close()
            except ALLOWED:
                await asyncio.sleep(environment.clock.uniform(0.1, 0.5))

    async def _one_session(self, consumer: Consumer, environment: Environment) -> None:
        await self._receive_first(consumer)
        for _ in range(environment.clock.random_bits(3)):
            message = await consumer.receive(timeout_s=4)
            if message.id > max(self._seen):
                self._seen.append(message.id)
        target = self._seen[environment.clock.random_bits(16) % len(self._seen)]
        if self._allowed:  # an answer that is lost leaves both possible
            self._allowed.add(target)
        await consumer.seek(target)
        self._allowed = {target}
        self.confirmed += 1
        await self._receive_first(consumer)

    async def _receive_first(self, consumer: Consumer) -> None:
        message = await consumer.receive(timeout_s=4)
        assert not self._allowed or message.id in self._allowed, (
            f"after a seek to one of {self._allowed} came {message.id}"
        )
        if not self._seen or message.id > max(self._seen):
            self._seen.append(message.id)


# --- reading --------------------------------------------------------------------------------------


class Reading:
    """Readers that begin at the first message again and again; what each of them saw, to be
    compared with the final log."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, list[Position]]] = []

    async def run(self, topics: list[str], environment: Environment) -> None:
        """One topic after the other."""
        client = client_of(environment)
        while True:
            topic = topics[environment.clock.random_bits(16) % len(topics)]
            seen: list[Position] = []
            self.runs.append((topic, seen))
            try:
                reader = await client.create_reader(
                    topic, start_message_id=EARLIEST, receiver_queue=50
                )
                last = await reader.last_message_id()
                while last.entry >= 0 and (not seen or seen[-1] < (last.ledger, last.entry, -1)):
                    seen.append(position_of(await reader.receive(timeout_s=4)))
                await reader.close()
            except ALLOWED:
                pass
            await asyncio.sleep(environment.clock.uniform(1.0, 4.0))

    def check(self, history: History) -> None:
        """Every run saw the log from its first message on, without a gap."""
        for topic, seen in self.runs:
            if topic in history.logs:
                expected = [entry.position for entry in history.logs[topic][: len(seen)]]
                assert seen == expected, (
                    f"a reader of {topic} saw {seen}, the log begins with {expected}"
                )


async def read_topic(
    client: Client, topic: str, entries: list[LogEntry] | None = None
) -> list[LogEntry]:
    """Everything from the first message to the last one there was at the beginning; `entries`
    has what came before a failure."""
    entries = [] if entries is None else entries
    reader = await client.create_reader(topic, start_message_id=EARLIEST)
    last = await reader.last_message_id()
    while last.entry >= 0 and (not entries or entries[-1].position < (last.ledger, last.entry, -1)):
        entries.append(entry_of(await reader.receive(timeout_s=10)))
    await reader.close()
    return entries


async def read_whole(environment: Environment, client: Client, topic: str) -> list[LogEntry]:
    """As `read_topic`, again and again. What several readers in a row do not get is not there:
    the history judges what is missing."""
    longest: list[LogEntry] = []
    attempts = 0
    while attempts < READ_ATTEMPTS:
        found: list[LogEntry] = []
        try:
            return await read_topic(client, topic, found)
        except ALLOWED:
            attempts = 1 if len(found) > len(longest) else attempts + 1
            longest = max(longest, found, key=len)
            await asyncio.sleep(environment.clock.uniform(0.1, 0.5))
    return longest


async def drain_subscription(
    history: History, client: Client, topic: str, kind: str, environment: Environment
) -> None:
    """Receive whatever this subscription has not delivered to anybody yet: every message must
    reach it at least once."""
    wanted = {entry.position for entry in history.logs[topic]}
    seen = {
        r.position
        for r in history.received
        if r.session.topic == topic and r.session.subscription == "subscription"
    }
    if wanted <= seen:
        return
    session = history.session("drain", "subscription", topic)
    try:
        async with asyncio.timeout(DRAINED_S):
            consumer = await until_done(
                environment,
                lambda: client.subscribe(
                    topic, "subscription", type=kind, initial_position="Earliest"
                ),
            )
    except TimeoutError:
        raise AssertionError(
            f"the subscription of {topic} never got {sorted(wanted - seen)[:5]}: it takes no "
            "consumer"
        ) from None
    while not wanted <= seen:
        try:
            message = await consumer.receive(timeout_s=15)
        except TimeoutError:
            raise AssertionError(
                f"the subscription of {topic} never got {sorted(wanted - seen)[:5]}"
            ) from None
        session.received(position_of(message), message.value)
        seen.add(position_of(message))
    await consumer.close()

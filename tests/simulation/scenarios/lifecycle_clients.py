"""The clients of the life cycle scenario.

Owns: one kind of client per promise about the incarnation of messages and topics: messages in
chunks, messages that expire, a topic whose producers are held at its quota, topics that are
terminated under their producers, and one without storage. Imports: the kernel's history, the other
scenarios' clients, magnetar.client. Invariants: as the tracer's; what a payload should be follows
from producer and number alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.client import Client, Consumer
from magnetar.client.failures import BrokerRefused
from magnetar.errors import MagnetarError, WireCode
from tests.simulation.kernel.history import History, Position
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.durable_clients import settle, subscribe_once
from tests.simulation.scenarios.tracer_clients import (
    ALLOWED,
    SESSION_MESSAGES,
    client_of,
    payload_of,
    position_of,
    publish_one,
    until_done,
)

CHUNKED_BYTES = (10, 9_000, 20_000, 300)
"""By number; a message of a broker in these worlds has 8 KiB at most."""
SHARED_MESSAGES, SHARED_QUEUE, SHARED_S = 6, 2, 30.0
"""Messages of three chunks each, more than a consumer's queue has room for: each in turn would
get a part of them."""
HELD_BYTES = 1_500
LOOSE_SENDS = 10
PAUSE_S = (0.1, 0.5)
NOTIFIED_S, UNNOTIFIED_MAX = 10.0, 3
"""When a consumer at the end of a topic must know, and how many may not before that is a broken
promise."""
LET_GO_S = 30.0
"""When a producer that was held must go on, once consumers acknowledge all there is."""


def has_ended(failure: MagnetarError | None) -> bool:
    """Whether nothing can be published to the topic any more."""
    return isinstance(failure, BrokerRefused) and failure.code is WireCode.TOPIC_TERMINATED


async def produce(
    history: History,
    topic: str,
    environment: Environment,
    *,
    size: Callable[[int], int] = lambda _number: 0,
    chunking: bool = False,
    before_send: Callable[[str, int], None] = lambda _name, _number: None,
) -> None:
    """Publish numbered messages of a size that follows from the number, once there is a
    subscription; `before_send` is called for each of them."""
    client = client_of(environment)
    await until_done(environment, lambda: subscribe_once(client, topic))
    name = f"{environment.name}-{environment.life}"
    producer = await until_done(
        environment,
        lambda: client.create_producer(topic, name=name, send_timeout_s=60, chunking=chunking),
    )
    number = 0
    while True:
        pending = []
        for _ in range(1 + environment.clock.random_bits(1)):
            send = history.send(topic, name, number, payload_of(name, number, size(number)))
            before_send(name, number)
            pending.append((send, producer.send_nowait(send.payload)))
            number += 1
        for send, receipt in pending:
            await settle(send, receipt)
            if chunking:
                send.position = (
                    # of chunks that had to be sent twice the message may be the first ones; that it
                    # is there is what counts
                    None
                )
        await asyncio.sleep(environment.clock.uniform(0.1, 0.8))


def chunked_size(number: int) -> int:
    return CHUNKED_BYTES[number % len(CHUNKED_BYTES)]


async def share_chunks(client: Client, topic: str, environment: Environment) -> None:
    """Of two consumers at work, on a topic of their own where nothing goes wrong, one gets each
    message whole."""
    name = f"{environment.name}-sharing"
    consumers = [
        await until_done(
            environment,
            lambda: client.subscribe(topic, "sharing", type="Shared", receiver_queue=SHARED_QUEUE),
        )
        for _ in range(2)
    ]
    producer = await until_done(
        environment, lambda: client.create_producer(topic, name=name, chunking=True)
    )
    sent = {payload_of(name, number, max(CHUNKED_BYTES)) for number in range(SHARED_MESSAGES)}
    for payload in sorted(sent):
        await producer.send(payload)
    found: set[bytes] = set()
    complete = asyncio.Event()

    async def take(consumer: Consumer) -> None:
        while True:
            message = await consumer.receive()
            # the leader may still even out bundles: refused, it comes again
            with contextlib.suppress(*ALLOWED):
                await consumer.acknowledge(message)
                found.add(message.value)
            if found == sent:
                complete.set()

    taking = [asyncio.ensure_future(take(consumer)) for consumer in consumers]
    done, _ = await asyncio.wait([asyncio.ensure_future(complete.wait())], timeout=SHARED_S)
    for task in taking:
        task.cancel()
    await asyncio.gather(*taking, return_exceptions=True)
    assert done, (
        f"two consumers of {topic} never got {len(sent - found)} of {len(sent)} messages in chunks "
        "whole"
    )
    await asyncio.gather(producer.close(), *(consumer.close() for consumer in consumers))


async def acknowledge_all(
    history: History, topic: str, environment: Environment, *, pause_s: float
) -> None:
    """Receive and acknowledge everything, in short sessions with pauses between them, permanently;
    a consumer that is cancelled leaves."""
    async with client_of(environment) as client:
        while True:
            session = history.session(environment.name, "subscription", topic)
            try:
                consumer = await client.subscribe(
                    topic,
                    "subscription",
                    type="Shared",
                    initial_position="Earliest",
                    receiver_queue=10,
                    consumer_name=environment.name,
                )
                try:
                    for _ in range(SESSION_MESSAGES):
                        message = await consumer.receive(timeout_s=4)
                        session.received(position_of(message), message.value)
                        acknowledgement = session.ack(position_of(message))
                        await consumer.acknowledge(message)
                        acknowledgement.confirmed()
                except ALLOWED:  # left open, the consumer would hold what was delivered to it
                    await consumer.close()
                    raise
                await consumer.close()
            except ALLOWED:
                await asyncio.sleep(environment.clock.uniform(*PAUSE_S))
            await asyncio.sleep(environment.clock.uniform(0.0, pause_s))


async def check_let_go(
    history: History, client: Client, topic: str, environment: Environment
) -> None:
    """A quota holds no producer while consumers acknowledge all there is. Raises AssertionError
    if one is held."""
    consuming = asyncio.ensure_future(acknowledge_all(history, topic, environment, pause_s=0.0))
    publishing = asyncio.ensure_future(publish_one(history, client, topic, "let-go", environment))
    done, _ = await asyncio.wait([publishing], timeout=LET_GO_S)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    assert done, (
        f"{topic}: a producer is still held after {LET_GO_S} s, though consumers acknowledge "
        "everything"
    )
    await publishing


# --- topics that end ------------------------------------------------------------------------------


@dataclass(slots=True)
class Endings:
    """Topics that are begun one after another, and terminated sooner or later.

    `ended` has those whose termination was confirmed: the last position that there will ever be,
    and when (the history's clock).
    """

    history: History
    namespace: str
    topics: list[str] = field(default_factory=list)
    ended: dict[str, tuple[Position, int]] = field(default_factory=dict)
    refused: int = 0

    async def produce(self, environment: Environment) -> None:
        """Publish to a new topic until it ends, then begin the next one."""
        client = client_of(environment)
        while True:
            topic = f"{self.namespace}/ending-{len(self.topics)}"
            self.topics.append(topic)
            name = f"{environment.name}-{len(self.topics)}"
            await self._produce_to_its_end(client, topic, name, environment)

    async def _produce_to_its_end(
        self, client: Client, topic: str, name: str, environment: Environment
    ) -> None:
        number = 0
        while True:
            try:
                producer = await client.create_producer(topic, name=name, send_timeout_s=6)
            except ALLOWED as failure:
                if isinstance(failure, MagnetarError) and has_ended(failure):
                    self.refused += 1
                    return
                await asyncio.sleep(environment.clock.uniform(*PAUSE_S))
                continue
            while producer.failure is None:
                send = self.history.send(topic, name, number, payload_of(name, number, 0))
                number += 1
                await settle(send, producer.send_nowait(send.payload, sequence_id=send.sequence))
                await asyncio.sleep(environment.clock.uniform(0.05, 0.3))
            await producer.close()

    def confirmed(self, topic: str, last: Position) -> None:
        """A client got the confirmation that the topic is terminated."""
        known = self.ended.setdefault(topic, (last, self.history.tick()))
        assert known[0] == last, f"{topic} was said to end at {known[0]}, and then at {last}"


async def check_ended(
    history: History, client: Client, topic: str, environment: Environment
) -> None:
    """Nobody can publish to a topic that has ended, and a consumer that acknowledges everything
    is notified that there is no more."""

    async def refusal() -> MagnetarError:
        try:
            await client.create_producer(topic, name=f"late-{history.tick()}")
        except MagnetarError as failure:
            if not has_ended(failure):
                raise
            return failure
        raise AssertionError(f"{topic} has been terminated, and takes producers")

    left = [entry.position for entry in history.logs[topic]]
    unnotified = 0

    async def be_notified() -> None:
        nonlocal unnotified
        consumer = await client.subscribe(topic, "to the end", initial_position="Earliest")
        try:
            while left:
                message = await consumer.receive(timeout_s=5)
                await consumer.acknowledge(message)
                # else its acknowledgement was carried out before, and not confirmed
                if position_of(message) in left:
                    left.remove(position_of(message))
            try:
                async with asyncio.timeout(NOTIFIED_S):
                    while not consumer.end_of_topic:
                        await asyncio.sleep(0.1)
            except TimeoutError:
                unnotified += 1
                text = (
                    f"{topic} has ended, and {unnotified} consumers of it that acknowledged "
                    "everything were not notified"
                )
                assert unnotified < UNNOTIFIED_MAX, text
                raise
        finally:
            await consumer.close()

    await until_done(environment, refusal)
    await until_done(environment, be_notified)


# --- without storage ------------------------------------------------------------------------------


@dataclass(slots=True)
class Loose:
    """A topic without storage: what arrives was sent, and between two that stay where they are
    everything arrives."""

    topic: str
    sent: set[bytes] = field(default_factory=set)
    arrived: int = 0

    async def produce(self, environment: Environment) -> None:
        """Publish permanently; whether anybody gets it does not matter."""
        client = client_of(environment)
        name, number = f"{environment.name}-{environment.life}", 0
        producer = await until_done(
            environment, lambda: client.create_producer(self.topic, name=name, send_timeout_s=10)
        )
        while True:
            payload = payload_of(name, number, number % 50)
            self.sent.add(payload)
            number += 1
            with contextlib.suppress(*ALLOWED):
                await producer.send(payload)
            await asyncio.sleep(environment.clock.uniform(0.05, 0.4))

    async def consume(self, environment: Environment) -> None:
        """Receive permanently."""
        client = client_of(environment)
        while True:
            try:
                consumer = await client.subscribe(self.topic, "loose", type="Shared")
                for _ in range(SESSION_MESSAGES):
                    message = await consumer.receive(timeout_s=4)
                    assert message.value in self.sent, (
                        f"{self.topic}: nobody has sent {message.value!r}"
                    )
                    self.arrived += 1
                    await consumer.acknowledge(message)
                await consumer.close()
            except ALLOWED:
                await asyncio.sleep(environment.clock.uniform(*PAUSE_S))

    async def check(self, client: Client) -> None:
        """In a healthy cluster a subscriber gets what is published from then on."""
        consumer = await client.subscribe(self.topic, "prober", type="Exclusive")
        try:
            producer = await client.create_producer(self.topic)
            expected = [payload_of("prober", number, 0) for number in range(LOOSE_SENDS)]
            for payload in expected:
                await producer.send(payload)
            assert [(await consumer.receive(timeout_s=1)).value for _ in expected] == expected
            await producer.close()
        finally:
            await consumer.close()

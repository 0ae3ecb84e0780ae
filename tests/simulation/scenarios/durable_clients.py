"""The clients of the durable scenario.

Owns: one kind of client per promise beyond the tracer's: producers under deduplication that resend
what they do not know the fate of, producers that take a topic over by force, consumers that share a
topic by key or stand by, a subscription with delayed messages, and one whose topic is trimmed
behind it. Imports: the kernel's history, the tracer's clients, magnetar.client. Invariants: as the
tracer's; a resend has the bytes of the first try, because they follow from producer and number
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from magnetar.client import Client, Consumer, Message
from magnetar.errors import MagnetarError
from tests.simulation.kernel.history import History, Position, Send
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer_clients import (
    ALLOWED,
    SESSION_MESSAGES,
    client_of,
    payload_of,
    position_of,
    until_done,
)

KEYS = 6
SENDS_PER_LIFE = 12
DELAY_MS_MAX = 4000
PAUSE_S = (0.1, 0.5)


def key_of(number: int) -> str:
    """A message's key follows from its number, so a payload determines it."""
    return f"key-{number * 7 % KEYS}"


def number_of(payload: bytes) -> int:
    return int(payload.split(b" ")[1])


# --- producers ------------------------------------------------------------------------------------


async def produce_once(history: History, topic: str, environment: Environment) -> None:
    """Publish under one name permanently, in many lives: each goes on behind what the broker
    remembers, and resends what it does not."""
    client, name = client_of(environment), f"{environment.name}-once"
    following = 0
    while True:
        producer = await until_done(
            environment, lambda: client.create_producer(topic, name=name, send_timeout_s=6)
        )
        remembered = producer.last_sequence_id
        # A number that was acknowledged is remembered by each broker that serves the topic.
        number = min(following, remembered + 1)
        acknowledged = max(
            (
                send.sequence
                for send in history.sends
                if send.producer == name and send.completed and _sure(send)
            ),
            default=-1,
        )
        assert remembered >= acknowledged, (
            f"{name}: {acknowledged} was acknowledged, but the broker remembers {remembered}"
        )
        pending = []
        for _ in range(SENDS_PER_LIFE):
            if environment.clock.random_bits(3) == 0 and number:
                number -= 1  # a duplicate, on purpose
            send = history.send(topic, name, number, payload_of(name, number, (number % 5) * 100))
            pending.append((send, producer.send_nowait(send.payload, sequence_id=number)))
            number += 1
            following = max(following, number)
            if environment.clock.random_bits(1):
                await asyncio.sleep(environment.clock.uniform(0.0, 0.4))
        for send, receipt in pending:
            await settle(send, receipt)
        try:
            await producer.close()
        except ALLOWED:
            await asyncio.sleep(environment.clock.uniform(*PAUSE_S))


def _sure(send: Send) -> bool:
    return send.outcome.value == "confirmed"


async def settle(send: Send, receipt: asyncio.Future) -> None:  # type: ignore[type-arg]
    """Wait for a receipt and write down what it says."""
    try:
        position = await receipt
    except ALLOWED:
        send.failed()
    else:
        send.acknowledged(
            Position(position.ledger, position.entry, position.batch_index)
            if position.entry >= 0
            else None
        )


async def produce_by_force(history: History, topic: str, environment: Environment) -> None:
    """Take the topic over from its producer, publish until another producer takes it, under a
    new name each time."""
    client, life = client_of(environment), 0
    while True:
        life += 1
        name = f"{environment.name}-{life}"
        try:
            producer = await client.create_producer(
                topic, name=name, send_timeout_s=20, access_mode="ExclusiveWithFencing"
            )
            for number in range(2 + environment.clock.random_bits(4)):
                send = history.send(topic, name, number, payload_of(name, number, 0))
                await settle(send, producer.send_nowait(send.payload))
                if not _sure(send):
                    break
                await asyncio.sleep(environment.clock.uniform(0.0, 0.3))
            await producer.close()
        except ALLOWED:
            pass
        await asyncio.sleep(environment.clock.uniform(0.5, 3.0))


async def produce_keyed(history: History, topic: str, environment: Environment) -> None:
    """Numbered messages whose keys follow from the number, one entry each, permanently."""
    await _produce(history, topic, environment, lambda _number: None)


async def produce_subscribed(history: History, topic: str, environment: Environment) -> None:
    """As `produce_keyed`, once there is a subscription: what nobody has subscribed to may be
    trimmed unseen."""
    await until_done(environment, partial(subscribe_once, client_of(environment), topic))
    await produce_keyed(history, topic, environment)


async def subscribe_once(
    client: Client, topic: str, subscription: str = "subscription", kind: str = "Shared"
) -> None:
    """Have a subscription there, without a consumer."""
    consumer = await client.subscribe(topic, subscription, type=kind, initial_position="Earliest")
    await consumer.close()


async def produce_delayed(history: History, topic: str, environment: Environment) -> None:
    """The same, half of them not to be delivered before some seconds have passed."""

    def deliver_at(_number: int) -> int | None:
        if environment.clock.random_bits(1):
            return None
        return environment.clock.wall_ms() + int(environment.clock.uniform(0, DELAY_MS_MAX))

    await _produce(history, topic, environment, deliver_at)


async def _produce(
    history: History, topic: str, environment: Environment, deliver_at: Callable[[int], int | None]
) -> None:
    client = client_of(environment)
    name = f"{environment.name}-{environment.life}"
    producer = await until_done(
        environment, lambda: client.create_producer(topic, name=name, send_timeout_s=60)
    )
    number = 0
    while True:
        pending = []
        for _ in range(1 + environment.clock.random_bits(2)):
            send = history.send(topic, name, number, payload_of(name, number, 0))
            pending.append(
                (
                    send,
                    producer.send_nowait(
                        send.payload, key=key_of(number), deliver_at=deliver_at(number)
                    ),
                )
            )
            number += 1
        for send, receipt in pending:
            await settle(send, receipt)
        await asyncio.sleep(environment.clock.uniform(0.1, 0.6))


# --- consumers ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sharing:
    """Consumers of one subscription, and whether its order was kept.

    `group` says which messages keep an order among themselves: those of one key, or all; None where
    there is none. First deliveries of a group rise: when a consumer gets a message,
    everything before it in its group has been delivered to some consumer.
    """

    history: History
    topic: str
    kind: str
    group: Callable[[bytes], str] | None
    acknowledge_all: bool = False
    _highest: dict[str, Position] = field(default_factory=dict)
    _seen: set[Position] = field(default_factory=set)
    deliveries: int = 0

    async def consume(self, environment: Environment) -> None:
        """Receive, acknowledge or give back, in short sessions, permanently."""
        client = client_of(environment)
        while True:
            session = self.history.session(environment.name, "subscription", self.topic)
            try:
                consumer = await client.subscribe(
                    self.topic,
                    "subscription",
                    type=self.kind,
                    initial_position="Earliest",
                    receiver_queue=5,
                    consumer_name=environment.name,
                    negative_ack_delay_s=0.3,
                )
                for _ in range(SESSION_MESSAGES):
                    message = await consumer.receive(timeout_s=4)
                    session.received(position_of(message), message.value)
                    self.delivered(message)
                    await self._answer(consumer, message, session, environment)
                await consumer.close()
            except ALLOWED:
                await asyncio.sleep(environment.clock.uniform(*PAUSE_S))

    async def _answer(
        self, consumer: Consumer, message: Message, session: object, environment: Environment
    ) -> None:
        chance = environment.clock.random_bits(3)
        if self.acknowledge_all or chance > 1:
            acknowledgement = session.ack(position_of(message))  # type: ignore[attr-defined]
            await consumer.acknowledge(message)
            acknowledgement.confirmed()
        elif chance == 1:
            consumer.negative_acknowledge(message)

    def delivered(self, message: Message) -> None:
        """Compare with what was delivered before."""
        position = position_of(message)
        self.deliveries += 1
        if self.group is None or position in self._seen:
            return
        group = self.group(message.value)
        self._seen.add(position)
        highest = self._highest.get(group)
        assert highest is None or position > highest, (
            f"{self.topic}: {position} of {group!r} was delivered for the first time after "
            f"{highest}: the order of the group is broken"
        )
        self._highest[group] = position


async def publish_exclusively(
    history: History, client: Client, topic: str, name: str, environment: Environment
) -> None:
    """One message, by force."""

    async def attempt() -> None:
        producer = await client.create_producer(
            topic, name=name, send_timeout_s=20, access_mode="ExclusiveWithFencing"
        )
        send = history.send(topic, name, 0, payload_of(name, 0, 0))
        try:
            position = await producer.send(send.payload)
        except MagnetarError:
            send.failed()
            raise
        send.acknowledged(Position(position.ledger, position.entry, position.batch_index))
        await producer.close()

    await until_done(environment, attempt)

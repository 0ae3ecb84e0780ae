"""The clients of the watermark scenario.

Owns: producers that keep their promises, consumers that hold the broker to what it sends, and what
both know of one topic. Imports: the tracer's clients, magnetar.client. Invariants: as the tracer's;
a producer goes on behind the event times of its previous incarnations.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from magnetar.client import EARLIEST, Client, Consumer, Message, Producer, Reset, Transaction
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer_clients import (
    ALLOWED,
    DRAINED_S,
    SESSION_MESSAGES,
    client_of,
    payload_of,
    until_done,
)

STEP_MS = (7, 10, 13)
"""How fast the event time of each producer goes."""
JITTER_MS = 40
PRODUCERS = 2
SUBSCRIPTION = "marked"
TRANSACTION_S = 5.0
REST_S = 2.5
"""Longer than IDLE_S of a topic whose producers rest."""
IDLE_S = 1
LEAP_MS = 10_000
"""More than any producer gets ahead until another one has asserted again."""


@dataclass(slots=True)
class Marked:
    """A topic with watermarks, and all that is known of its one subscription."""

    topic: str
    kind: str
    events: dict[str, int] = field(default_factory=dict)
    """By producer: no later message of it is older."""
    joining: set[str] = field(default_factory=set)
    """Producers that may have asserted something."""
    delivered_ms: int = -1
    messages: int = 0
    watermarks: int = 0
    resets: int = 0
    committed: int = 0
    seeks: bool = False
    rests: bool = False
    sought: int = 0
    rested: int = 0

    async def consume(self, environment: Environment) -> None:
        """Receive in short sessions, acknowledge most of it, some of it without confirmation."""
        client = client_of(environment)
        while True:
            try:
                await self._session(client, environment)
            except ALLOWED:
                await asyncio.sleep(environment.clock.uniform(0.1, 0.5))

    async def _session(self, client: Client, environment: Environment) -> None:
        floor_ms = self.delivered_ms
        consumer = await client.subscribe(
            self.topic,
            SUBSCRIPTION,
            type=self.kind,
            initial_position="Earliest",
            receiver_queue=20,
            watermarks=True,
        )
        for _ in range(2 * SESSION_MESSAGES):
            received = await consumer.receive_or_watermark(timeout_s=4)
            if isinstance(received, Message):
                self.check(received, floor_ms)
                chance = environment.clock.random_bits(3)
                if chance < 4:
                    consumer.acknowledge_nowait(received)
                elif chance < 7:
                    await consumer.acknowledge(received)
                continue
            self.watermarks += 1
            if isinstance(received, Reset):
                self.resets += 1
            floor_ms = -1 if received.event_ms is None else received.event_ms
            self.delivered_ms = max(self.delivered_ms, floor_ms)
        if self.seeks and environment.clock.random_bits(1):
            await self._go_back(consumer, floor_ms)
        await consumer.close()

    async def _go_back(self, consumer: Consumer[bytes], floor_ms: int) -> None:
        """A seek to the beginning: a reset comes before anything older."""
        self.delivered_ms = -1  # also if its answer is lost
        await consumer.seek(EARLIEST)
        self.sought += 1
        for _ in range(5):
            received = await consumer.receive_or_watermark(timeout_s=4)
            if isinstance(received, Message):
                self.check(received, floor_ms)
            else:
                self.resets += isinstance(received, Reset)
                floor_ms = -1 if received.event_ms is None else received.event_ms

    def check(self, message: Message, floor_ms: int) -> None:
        """Invariant 7."""
        self.messages += 1
        event_ms = message.event_time_ms
        assert event_ms is None or event_ms >= floor_ms, (
            f"invariant 7: {self.topic}: {message.value[:40]!r} at {event_ms} came behind the "
            f"watermark {floor_ms}"
        )


async def produce_marked(marked: Marked, number: int, environment: Environment) -> None:
    """Publish permanently; event times are out of order by up to JITTER_MS, and every few messages
    it asserts what holds."""
    producer = await begin(marked, client_of(environment), environment)
    sent = 0
    while True:
        for _ in range(1 + environment.clock.random_bits(2)):
            send(marked, number, sent, producer, environment)
            sent += 1
        if environment.clock.random_bits(1):
            await attempt(producer, marked.events[environment.name])
        if marked.rests and environment.clock.random_bits(4) == 0:
            await rest(marked, producer, environment)
        await asyncio.sleep(environment.clock.uniform(0.1, 0.6))


async def rest(marked: Marked, producer: Producer[bytes], environment: Environment) -> None:
    """Be silent until it counts as idle, with everything stored that it has sent. Then it goes on
    ahead of all others: what a producer sends that comes back below the watermark is late."""
    name = environment.name
    await until_done(environment, lambda: producer.watermark(marked.events[name]))
    await asyncio.sleep(REST_S)
    marked.events[name] = max(marked.events.values()) + LEAP_MS
    await until_done(environment, lambda: producer.watermark(marked.events[name]))
    marked.rested += 1


async def produce_in_transactions(marked: Marked, number: int, environment: Environment) -> None:
    """As `produce_marked`, beside transactions that begin before an assertion, or make one, and
    end behind it, in any way."""
    client = client_of(environment)
    producer, sent = await begin(marked, client, environment), 0
    while True:
        try:
            txn = client.transaction(timeout_s=TRANSACTION_S)
            await txn.begin()
            for _ in range(1 + environment.clock.random_bits(1)):
                await next_message(marked, number, sent, producer, environment, txn)
                sent += 1
            for _ in range(environment.clock.random_bits(1)):
                send(marked, number, sent, producer, environment)
                sent += 1
            if environment.clock.random_bits(1):
                await producer.watermark(marked.events[environment.name])
            if environment.clock.random_bits(1):
                await producer.watermark(marked.events[environment.name], txn=txn)
                send(marked, number, sent, producer, environment)
                sent += 1
            await asyncio.sleep(environment.clock.uniform(0.0, 0.5))
            outcome = environment.clock.random_bits(3)
            if outcome < 5:
                await txn.commit()
                marked.committed += 1
            elif outcome < 7:
                await txn.abort()
        except ALLOWED:
            pass
        await asyncio.sleep(environment.clock.uniform(0.0, 0.4))


async def begin(marked: Marked, client: Client, environment: Environment) -> Producer[bytes]:
    """A producer that has asserted, as all others have."""
    name = environment.name
    producer = await until_done(
        environment, lambda: client.create_producer(marked.topic, name=name, send_timeout_s=60)
    )
    if name not in marked.events:
        # one that joins later may do so below the watermark
        marked.joining.add(name)
        await until_done(environment, lambda: producer.watermark(0))
        marked.events[name] = 0
    while len(marked.events) < PRODUCERS:
        await asyncio.sleep(0.05)
    return producer


def send(
    marked: Marked, number: int, sent: int, producer: Producer[bytes], environment: Environment
) -> None:
    """The next message, without waiting."""
    payload, event_ms = _following(marked, number, sent, environment)
    producer.send_nowait(payload, event_time=event_ms).add_done_callback(
        lambda receipt: receipt.cancelled() or receipt.exception()
    )


async def next_message(
    marked: Marked,
    number: int,
    sent: int,
    producer: Producer[bytes],
    environment: Environment,
    txn: Transaction,
) -> None:
    """The next message, in a transaction."""
    payload, event_ms = _following(marked, number, sent, environment)
    await producer.send(payload, event_time=event_ms, txn=txn)


def _following(
    marked: Marked, number: int, sent: int, environment: Environment
) -> tuple[bytes, int]:
    name = environment.name
    marked.events[name] += STEP_MS[number]
    event_ms = marked.events[name] + environment.clock.random_bits(16) % JITTER_MS
    return payload_of(name, sent, 0), event_ms


async def attempt(producer: Producer[bytes], event_ms: int) -> None:
    """Assert; if there is no answer, it holds all the same."""
    try:
        await producer.watermark(event_ms)
    except ALLOWED:
        return


async def settle_marks(marked: Marked, client: Client, environment: Environment) -> None:
    """Every producer asserts a last time; the watermark of the drained subscription is the
    least."""
    last = max(marked.events.values(), default=0) + JITTER_MS
    for number, name in enumerate(sorted(marked.joining)):
        producer = await until_done(
            environment,
            lambda name=name: client.create_producer(  # type: ignore[misc]
                marked.topic, name=name, send_timeout_s=60
            ),
        )
        await producer.watermark(last + number)
        await producer.close()
    floor_ms = marked.delivered_ms
    try:
        async with asyncio.timeout(DRAINED_S):
            consumer = await until_done(
                environment,
                lambda: client.subscribe(
                    marked.topic, SUBSCRIPTION, type=marked.kind, watermarks=True
                ),
            )
            # one that counts as idle by then does not hold the others
            most = last + len(marked.joining) - 1 if marked.rests else last
            while marked.joining and (consumer.last_watermark or 0) < last:
                received = await consumer.receive_or_watermark()
                if isinstance(received, Message):
                    marked.check(received, floor_ms)
                    consumer.acknowledge_nowait(received)
                else:
                    marked.watermarks += 1
                    assert (received.event_ms or 0) <= most, (received, most)
            await consumer.close()
    except TimeoutError:
        raise AssertionError(
            f"invariant 7: the watermark of {marked.topic} never became {last}, the least that "
            "was asserted"
        ) from None

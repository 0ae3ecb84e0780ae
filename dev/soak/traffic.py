"""Clients that publish and consume all the while: the official Python client and our own.

Owns: which topics there are and who uses them; producers and consumers that note what they were
promised; reading everything back. Imports: pulsar (official client), magnetar.client, history.
Invariants: a send never times out, so each has an outcome once the cluster is healthy; every
subscription is there before the first message; a consumer's session begins, for the history, before
it asks to subscribe.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pulsar

from dev.soak.client_thread import ClientThread
from dev.soak.history import Message, SubscriptionHistory, TopicHistory, Where
from magnetar.client import Batching, Client, Consumer, MessageId, Producer
from magnetar.client import Message as Received
from magnetar.errors import MagnetarError

KINDS = ("Exclusive", "Shared", "Failover", "Key_Shared")
ORDERED = frozenset({"Exclusive", "Failover"})
OFFICIAL_KINDS = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
NAMESPACES = {"soak-once": True, "soak-plain": False}
"""Namespaces of the soak, and whether they deduplicate."""
PLAIN_TOPICS, PARTITIONED_TOPICS, PARTITIONS = 5, 1, 3
KEYS = 16
PADDING = b" " * 300
PENDING_MAX = 500
BATCH_DELAY_MS = 20
OPERATION_TIMEOUT_S = 30
CUMULATIVE_EVERY = 10
SESSION_S_MIN, SESSION_S_MAX = 8.0, 30.0
READ_TIMEOUT_MS = 10_000
RETRY_S = 0.2
QUIET_S = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with one topic."""

    history: TopicHistory
    batching: bool


def plan_topics(languages: Sequence[str] = ()) -> list[Plan]:
    """Topics of both namespaces: plain and partitioned, each with one producer, and with two
    subscriptions, one of each Python client.

    For each of `languages` there is one more topic per namespace, which the client of that language
    publishes to.
    """
    plans = []
    for namespace, deduplicated in NAMESPACES.items():
        clients = [
            "official" if number % 2 == 0 else "own"
            for number in range(PLAIN_TOPICS + PARTITIONED_TOPICS)
        ]
        for number, client in enumerate(
            [*clients[:PLAIN_TOPICS], *languages, *clients[PLAIN_TOPICS:]]
        ):
            partitions = (
                tuple(range(PARTITIONS)) if number >= PLAIN_TOPICS + len(languages) else (-1,)
            )
            history = TopicHistory(
                f"persistent://public/{namespace}/topic-{number}", deduplicated, partitions, client
            )
            kinds = [KINDS[(number + turn) % len(KINDS)] for turn in range(2)]
            history.subscriptions = [
                SubscriptionHistory(f"{client}-{kind}", kind, kind in ORDERED)
                for client, kind in zip(("official", "own"), kinds, strict=True)
            ]
            # A batch has one key for all of its messages: not for Key_Shared.
            plans.append(Plan(history, batching="Key_Shared" not in kinds and number % 3 != 0))
    return plans


def parse(value: bytes) -> Message:
    """Which message this is."""
    producer, number = value.split()[:2]
    return producer.decode(), int(number)


def compose(producer: str, number: int) -> bytes:
    return f"{producer} {number}".encode() + PADDING


def where_of(identifier: pulsar.MessageId) -> Where:
    return identifier.partition(), (
        identifier.ledger_id(),
        identifier.entry_id(),
        identifier.batch_index(),
    )


def where_of_own(identifier: MessageId) -> Where:
    return identifier.partition, (identifier.ledger, identifier.entry, identifier.batch_index)


class OfficialTraffic:
    """The official Python client's part."""

    def __init__(self, service_url: str, plans: list[Plan], rate: float, log_path: Path) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log_path))
        self._client = pulsar.Client(
            service_url, operation_timeout_seconds=OPERATION_TIMEOUT_S, logger=logger
        )
        self._plans, self._rate = plans, rate
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def subscribe(self) -> None:
        for plan in self._plans:
            subscription = plan.history.subscriptions[0]
            for _ in range(1 if subscription.kind == "Exclusive" else 2):
                self._client.subscribe(
                    plan.history.name,
                    subscription.name,
                    consumer_type=OFFICIAL_KINDS[subscription.kind],
                    initial_position=pulsar.InitialPosition.Earliest,
                    message_listener=self._listener(subscription),
                )

    @staticmethod
    def _listener(
        subscription: SubscriptionHistory,
    ) -> Callable[[pulsar.Consumer, pulsar.Message], None]:
        def take(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            # This client does not wait for the broker's word on acknowledgements: none of them
            # counts as confirmed.
            subscription.deliver(where_of(message.message_id()), parse(message.data()), 0.0)
            with contextlib.suppress(pulsar.PulsarException):
                consumer.acknowledge(message)

        return take

    def publish(self) -> None:
        for plan in self._plans:
            if plan.history.client == "official":
                producer = self._client.create_producer(
                    plan.history.name,
                    producer_name=producer_name(plan),
                    send_timeout_millis=0,
                    block_if_queue_full=True,
                    max_pending_messages=PENDING_MAX,
                    batching_enabled=plan.batching,
                    batching_max_publish_delay_ms=BATCH_DELAY_MS,
                )
                thread = threading.Thread(
                    target=self._send, args=(plan.history, producer), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _send(self, history: TopicHistory, producer: pulsar.Producer) -> None:
        name, number = producer.producer_name(), 0
        while not self._stopping.wait(1 / self._rate):
            message = (name, number)
            number += 1
            history.sent[name] = number

            def answered(
                result: pulsar.Result, identifier: pulsar.MessageId, message: Message = message
            ) -> None:
                if result == pulsar.Result.Ok:
                    history.receipt(message, where_of(identifier), time.monotonic())
                else:
                    history.failed.append(f"{message}: {result}")

            producer.send_async(compose(*message), answered, partition_key=str(number % KEYS))
        producer.flush()

    def stop_publishing(self) -> None:
        """Send nothing more; receipts may still come."""
        self._stopping.set()

    def read_back(self, history: TopicHistory) -> None:
        """Everything the topic holds, into the history."""
        for partition in history.partitions:
            name = history.name if partition < 0 else f"{history.name}-partition-{partition}"
            reader = self._client.create_reader(name, pulsar.MessageId.earliest)
            entries = history.stored[partition] = []
            while reader.has_message_available():
                message = reader.read_next(READ_TIMEOUT_MS)
                entries.append((where_of(message.message_id())[1], parse(message.data())))
            reader.close()

    def close(self) -> None:
        self._client.shutdown()


def producer_name(plan: Plan) -> str:
    """What a topic's only producer calls itself."""
    return f"{plan.history.client}-of-{plan.history.name.rpartition('/')[2]}"


class OwnTraffic(ClientThread):
    """Our own client's part, on an event loop in a thread."""

    def __init__(self, service_url: str, plans: list[Plan], rate: float, seed: int) -> None:
        super().__init__("own clients")
        self._service_url, self._plans, self._rate = service_url, plans, rate
        self._chance = random.Random(f"{seed}/sessions")
        self.trouble: list[str] = []

    def subscribe(self) -> None:
        self.call(self._subscribe())

    async def _subscribe(self) -> None:
        self._client = Client(self._service_url, operation_timeout_s=OPERATION_TIMEOUT_S)
        began = []
        for plan in self._plans:
            for number in range(1 if plan.history.subscriptions[1].kind == "Exclusive" else 2):
                ready = self._loop.create_future()
                began.append(ready)
                self._consuming.append(
                    self._loop.create_task(self._consume(plan.history, number, ready))
                )
        await asyncio.gather(*began)

    def publish(self) -> None:
        self.call(self._publish())

    async def _publish(self) -> None:
        assert self._client is not None
        for plan in self._plans:
            if plan.history.client == "own":
                producer = await self._client.create_producer(
                    plan.history.name,
                    producer_name(plan),
                    send_timeout_s=None,
                    # more than `_send` leaves pending: nothing waits, so nothing overtakes
                    pending_max=2 * PENDING_MAX,
                    batching=Batching(linger_s=BATCH_DELAY_MS / 1000) if plan.batching else None,
                )
                self._publishing.append(self._loop.create_task(self._send(plan.history, producer)))

    async def _send(self, history: TopicHistory, producer: Producer) -> None:
        number, pending = 0, set[asyncio.Task[None]]()
        while not self._publish_until.is_set():
            await asyncio.sleep(1 / self._rate)
            if len(pending) >= PENDING_MAX:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            message = (producer.name, number)
            number += 1
            history.sent[producer.name] = number
            task = self._loop.create_task(self._send_one(history, producer, message))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)

    async def _send_one(self, history: TopicHistory, producer: Producer, message: Message) -> None:
        try:
            identifier = await producer.send(compose(*message), key=str(message[1] % KEYS))
        except MagnetarError as error:
            history.failed.append(f"{message}: {error!r}")
        else:
            history.receipt(message, where_of_own(identifier), time.monotonic())

    async def _consume(
        self, history: TopicHistory, number: int, ready: asyncio.Future[None]
    ) -> None:
        """One consumer after another of the same subscription, each for a while."""
        assert self._client is not None
        subscription = history.subscriptions[1]
        while not self._consume_until.is_set():
            began = time.monotonic()
            try:
                consumer = await self._client.subscribe(
                    history.name,
                    subscription.name,
                    type=subscription.kind,
                    initial_position="Earliest",
                    consumer_name=f"own-{number}",
                )
            except MagnetarError as error:
                if not ready.done():
                    ready.set_exception(error)
                    return
                self.trouble.append(f"{subscription.name}: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            if not ready.done():
                ready.set_result(None)
            try:
                await self._session(consumer, subscription, began)
            except MagnetarError as error:
                self.trouble.append(f"{subscription.name}: {error}")
            with contextlib.suppress(MagnetarError):
                await consumer.close()

    async def _session(
        self, consumer: Consumer, subscription: SubscriptionHistory, began: float
    ) -> None:
        until = began + self._chance.uniform(SESSION_S_MIN, SESSION_S_MAX)
        waiting: list[Received] = []
        while time.monotonic() < until and not self._consume_until.is_set():
            try:
                message = await consumer.receive(timeout_s=0.5)
            except TimeoutError:
                continue
            subscription.deliver(where_of_own(message.id), parse(message.value), began)
            waiting.append(message)
            try:
                if subscription.kind != "Exclusive":
                    await self._acknowledge(consumer, subscription, waiting)
                elif len(waiting) >= CUMULATIVE_EVERY:
                    await self._acknowledge_cumulatively(consumer, subscription, waiting)
            except MagnetarError as error:
                # What was not confirmed comes again: to this consumer, or to the next one of the
                # subscription.
                self.trouble.append(f"{subscription.name}: acknowledgement: {error}")
            waiting.clear() if subscription.kind != "Exclusive" or len(
                waiting
            ) >= CUMULATIVE_EVERY else None

    @staticmethod
    async def _acknowledge(
        consumer: Consumer, subscription: SubscriptionHistory, messages: list[Received]
    ) -> None:
        for message in messages:
            await consumer.acknowledge(message)
            subscription.confirmed[where_of_own(message.id)] = time.monotonic()

    @staticmethod
    async def _acknowledge_cumulatively(
        consumer: Consumer, subscription: SubscriptionHistory, messages: list[Received]
    ) -> None:
        last = {message.id.partition: message for message in messages}
        for partition, newest in last.items():
            await consumer.acknowledge_cumulative(newest)
            confirmed = time.monotonic()
            for message in messages:
                if message.id.partition == partition and message.id <= newest.id:
                    subscription.confirmed[where_of_own(message.id)] = confirmed

    def stop_publishing(self) -> None:
        self._loop.call_soon_threadsafe(self._publish_until.set)

    def stop_consuming(self) -> None:
        """End all consumers."""

        async def end() -> None:
            self._consume_until.set()
            await asyncio.gather(*self._consuming)

        self.call(end())

    def look_again(self) -> None:
        """Every subscription of ours once more by a new consumer: it may get only what was never
        confirmed."""

        async def look(history: TopicHistory) -> None:
            assert self._client is not None
            subscription, began = history.subscriptions[1], time.monotonic()
            consumer = await self._client.subscribe(
                history.name, subscription.name, type=subscription.kind
            )
            with contextlib.suppress(TimeoutError):
                while True:
                    message = await consumer.receive(timeout_s=QUIET_S)
                    subscription.deliver(where_of_own(message.id), parse(message.value), began)
            await consumer.close()

        async def everywhere() -> None:
            await asyncio.gather(*(look(plan.history) for plan in self._plans))

        self.call(everywhere())

"""An ordinary workload beside a hostile client: modest, even in pace, and checked to the last
message.

Owns: `PacedTraffic`: producers and consumers of our client, what they were promised (in histories)
and how long everything took. Imports: magnetar.client, history. Runs on an event loop in a thread
of its own. Invariants: one producer per topic, which numbers its messages; messages of others (a
hostile client may publish here) are acknowledged and counted, never judged; latencies are taken of
ordinary messages only, a message that comes twice counting once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dev.soak.client_thread import ClientThread
from dev.soak.history import Message, SubscriptionHistory, TopicHistory, Violation, violations
from dev.soak.traffic import KINDS, ORDERED, compose, where_of_own
from magnetar.client import Batching, Client, Consumer, Producer
from magnetar.errors import MagnetarError

PARTITIONS = 3
BATCH_LINGER_S = 0.01
KEYS = 16
PENDING_MAX = 2000
LATE_S = 5.0
"""A message that comes so long after its acknowledgement was confirmed was not on its way then."""
OPERATION_TIMEOUT_S = 30.0
RETRY_S = 0.2
QUIET_S = 3.0
TRANSACTION_MESSAGES = 3
IDLE = "idle"
"""A subscription without a consumer until the end: what expires or is dropped too early is
missing there."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How long one message took; moments by the monotonic clock."""

    at: float
    """When it was sent."""
    seconds: float


class PacedTraffic(ClientThread):
    """Producers and consumers of a namespace; call `start` first and `close` last."""

    def __init__(self, connect: Callable[[], Client], namespace: str, rate: float) -> None:
        """`connect` makes the client, on the loop of the clients."""
        super().__init__("ordinary clients")
        self._connect, self._rate = connect, rate
        self._sent_at: dict[tuple[str, int], float] = {}
        self.topics = [
            TopicHistory(
                f"persistent://{namespace}/{kind.lower()}", deduplicated=True, client="own"
            )
            for kind in KINDS
        ]
        self.topics.append(
            TopicHistory(f"persistent://{namespace}/parts", True, tuple(range(PARTITIONS)), "own")
        )
        self.transactional = TopicHistory(
            f"persistent://{namespace}/transactions", deduplicated=True, client="own"
        )
        for topic, kind in zip(self.topics, [*KINDS, "Shared"], strict=True):
            topic.subscriptions = [
                SubscriptionHistory(f"ordinary-{kind}", kind, kind in ORDERED),
                SubscriptionHistory(IDLE, "Failover", True),
            ]
        self.transactional.subscriptions = [
            SubscriptionHistory("ordinary-Shared", "Shared", ordered=False)
        ]
        self.receipts: list[Sample] = []
        self.deliveries: list[Sample] = []
        self.commits: list[Sample] = []
        self.strangers = 0
        """Messages of others that came to ordinary consumers."""
        self.aborted: set[Message] = set()
        self.trouble: list[str] = []

    @property
    def all_topics(self) -> list[TopicHistory]:
        return [*self.topics, self.transactional]

    def start(self) -> None:
        """Make all subscriptions, then begin to publish."""
        self.call(self._start())

    async def _start(self) -> None:
        self._client = self._connect()
        for topic in self.all_topics:
            for subscription in topic.subscriptions:
                consumer = await self._subscribe(topic, subscription)
                if subscription.name == IDLE:
                    await consumer.close()
                else:
                    self._consuming.append(
                        self._loop.create_task(self._consume(topic, subscription, consumer))
                    )
        for number, topic in enumerate(self.topics):
            batching = Batching(linger_s=BATCH_LINGER_S) if number % 2 else None
            producer = await self._client.create_producer(
                topic.name,
                _name(topic),
                send_timeout_s=None,
                pending_max=2 * PENDING_MAX,
                batching=batching,
            )
            self._publishing.append(self._loop.create_task(self._publish(topic, producer)))
        producer = await self._client.create_producer(
            self.transactional.name, _name(self.transactional), send_timeout_s=None
        )
        self._publishing.append(self._loop.create_task(self._publish_in_transactions(producer)))

    async def _subscribe(self, topic: TopicHistory, subscription: SubscriptionHistory) -> Consumer:
        return await self.client.subscribe(
            topic.name, subscription.name, type=subscription.kind, initial_position="Earliest"
        )

    # --- publishing -------------------------------------------------------------------------------

    async def _publish(self, topic: TopicHistory, producer: Producer) -> None:
        number, pending = 0, set[asyncio.Task[None]]()
        due = self._loop.time()
        while not self._publish_until.is_set():
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if len(pending) >= PENDING_MAX:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            number += 1
            task = self._loop.create_task(self._send(topic, producer, number - 1))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)

    async def _send(self, topic: TopicHistory, producer: Producer, number: int) -> None:
        message = (producer.name, number)
        topic.sent[producer.name] = number + 1
        began = self._sent_at[message] = time.monotonic()
        try:
            identifier = await producer.send(compose(*message), key=str(number % KEYS))
        except MagnetarError as error:
            topic.failed.append(f"{message}: {error!r}")
            return
        ended = time.monotonic()
        topic.receipt(message, where_of_own(identifier), ended)
        self.receipts.append(Sample(began, ended - began))

    async def _publish_in_transactions(self, producer: Producer) -> None:
        """A few messages per transaction; every fifth transaction is aborted. Committed ones
        count as acknowledged."""
        topic, number, turn = self.transactional, 0, 0
        while not self._publish_until.is_set():
            await asyncio.sleep(TRANSACTION_MESSAGES / self._rate)
            messages = [(producer.name, number + offset) for offset in range(TRANSACTION_MESSAGES)]
            number, turn = number + TRANSACTION_MESSAGES, turn + 1
            topic.sent[producer.name] = number
            began = time.monotonic()
            txn = self.client.transaction()
            try:
                await txn.begin()
                await asyncio.gather(
                    *(producer.send(compose(*message), txn=txn) for message in messages)
                )
                if turn % 5 == 0:
                    await txn.abort()
                    self.aborted.update(messages)
                    topic.failed += [f"{message}: aborted" for message in messages]
                else:
                    await txn.commit()
            except MagnetarError as error:
                # Not a loss: nothing was promised. It must not have taken place in part, though:
                # `judge_transactions`.
                topic.failed += [f"{message}: {error!r}" for message in messages]
                self.trouble.append(f"transaction: {error}")
                continue
            if turn % 5:
                self.commits.append(Sample(began, time.monotonic() - began))
                for message in messages:
                    topic.receipt(message, (-1, (-1, -1, -1)), time.monotonic())

    # --- consuming --------------------------------------------------------------------------------

    async def _consume(
        self, topic: TopicHistory, subscription: SubscriptionHistory, consumer: Consumer
    ) -> None:
        while True:
            try:
                await self._session(topic, subscription, consumer)
                await consumer.close()
                return
            except MagnetarError as error:
                self.trouble.append(f"{topic.name} {subscription.name}: {error}")
                await asyncio.sleep(RETRY_S)
                with suppress(MagnetarError):
                    await consumer.close()
                    consumer = await self._subscribe(topic, subscription)

    async def _session(
        self, topic: TopicHistory, subscription: SubscriptionHistory, consumer: Consumer
    ) -> None:
        while not self._consume_until.is_set():
            try:
                received = await consumer.receive(timeout_s=0.5)
            except TimeoutError:
                continue
            now, message = time.monotonic(), self._ordinary(topic, received.data)
            if message is not None:
                if message not in subscription.distinct and message in self._sent_at:
                    sent = self._sent_at[message]
                    self.deliveries.append(Sample(sent, now - sent))
                subscription.deliver(where_of_own(received.id), message, now - LATE_S)
            try:
                await consumer.acknowledge(received)
            except MagnetarError as error:  # it comes again, then
                self.trouble.append(f"{topic.name} {subscription.name}: acknowledgement: {error}")
                continue
            if message is not None:
                subscription.confirmed[where_of_own(received.id)] = time.monotonic()

    def _ordinary(self, topic: TopicHistory, data: bytes) -> Message | None:
        """Which message of the workload this is; None for one of another client."""
        parts = data.split(None, 2)
        if (
            len(parts) >= 2
            and parts[0].decode(errors="replace") == _name(topic)
            and parts[1].isdigit()
        ):
            return _name(topic), int(parts[1])
        self.strangers += 1
        return None

    # --- the end ----------------------------------------------------------------------------------

    def stop_publishing(self) -> None:
        """Send nothing more, and wait until everything is answered. Raises TimeoutError."""

        async def end() -> None:
            self._publish_until.set()
            await asyncio.gather(*self._publishing)

        self.call(end())

    def settled(self, patience_s: float) -> list[str]:
        """Stop publishing, have everything delivered and read it back; what could not be done.
        The histories are complete then."""
        problems = []
        try:
            self.stop_publishing()
        except TimeoutError:
            problems.append("sends of ordinary clients are not answered")
        deadline = time.monotonic() + patience_s
        while not self.caught_up() and time.monotonic() < deadline:
            time.sleep(0.1)
        try:
            self.read_back()
        except (
            Exception
        ) as error:  # of a reader or consumer: whatever it is, the topic cannot be read
            problems.append(f"topics cannot be read back: {error!r}")
        return problems + self.judge_transactions()

    def violations(self) -> list[Violation]:
        """What contradicts the promises; a send that failed within a transaction promised
        nothing."""
        found = violations(self.all_topics)
        return [
            violation
            for violation in found
            if violation.kind != "send failed" or violation.topic != self.transactional.name
        ]

    def read_back(self) -> None:
        """Everything the topics hold, into the histories; then everything that the idle
        subscriptions have."""

        async def read(topic: TopicHistory) -> None:
            for partition in topic.partitions:
                name = topic.name if partition < 0 else f"{topic.name}-partition-{partition}"
                entries = topic.stored[partition] = []
                async for where, message in self._everything(topic, name):
                    entries.append((where, message))

        async def take(topic: TopicHistory) -> None:
            for subscription in topic.subscriptions:
                if subscription.name == IDLE:
                    consumer = await self._subscribe(topic, subscription)
                    with suppress(TimeoutError):
                        while True:
                            received = await consumer.receive(timeout_s=QUIET_S)
                            if (message := self._ordinary(topic, received.data)) is not None:
                                subscription.deliver(where_of_own(received.id), message, 0.0)
                    await consumer.close()

        async def everywhere() -> None:
            await asyncio.gather(*(read(topic) for topic in self.all_topics))
            await asyncio.gather(*(take(topic) for topic in self.all_topics))

        self.call(everywhere(), 600.0)

    async def _everything(self, topic: TopicHistory, name: str) -> Any:
        from magnetar.client import EARLIEST

        reader = await self.client.create_reader(name, EARLIEST)
        try:
            while True:
                received = await reader.receive(timeout_s=QUIET_S)
                if (message := self._ordinary(topic, received.data)) is not None:
                    yield where_of_own(received.id)[1], message
        except TimeoutError:
            return
        finally:
            await reader.close()

    def caught_up(self) -> bool:
        """Whether every subscription with a consumer has got every message that was
        acknowledged."""
        return all(
            subscription.name == IDLE or subscription.distinct >= set(topic.receipts)
            for topic in self.all_topics
            for subscription in topic.subscriptions
        )

    def judge_transactions(self) -> list[str]:
        """What was aborted and is there all the same."""
        stored = {
            message for entries in self.transactional.stored.values() for _, message in entries
        }
        seen = stored | {
            message
            for subscription in self.transactional.subscriptions
            for message in subscription.distinct
        }
        return [f"aborted and visible: {message}" for message in sorted(self.aborted & seen)]


def _name(topic: TopicHistory) -> str:
    """What a topic's only ordinary producer calls itself."""
    return f"ordinary-of-{topic.name.rpartition('/')[2]}"

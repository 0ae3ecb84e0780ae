"""What the incarnation of a message adds to the traffic of a soak: chunks, delays, dead letters, a
time to live.

Owns: `LifeTraffic`: producers and consumers of our client on topics of their own, their histories,
and the checks that those have no word for. Imports: magnetar.client, history, traffic. Runs on an
event loop in a thread of its own. Invariants: every topic deduplicates; a message that is due for
the dead letters is refused each time; a message counts as confirmed only by the broker's answer;
what expires is judged by messages that nobody has consumed, and by young ones only.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from dev.soak.client_thread import ClientThread
from dev.soak.history import Message, SubscriptionHistory, TopicHistory
from dev.soak.traffic import OPERATION_TIMEOUT_S, PADDING, RETRY_S, compose, parse, where_of_own
from magnetar.client import EARLIEST, Client, Consumer, DeadLetterPolicy, Producer
from magnetar.errors import MagnetarError

TTL_S = 15
NAMESPACES = {"soak-life": {}, "soak-mortal": {"message_ttl_in_seconds": TTL_S}}
"""And the policies of each beside those of all soaks."""
CHUNKED, DELAYED, REFUSED, MORTAL = (
    "persistent://public/soak-life/chunked",
    "persistent://public/soak-life/delayed",
    "persistent://public/soak-life/refused",
    "persistent://public/soak-mortal/mortal",
)
RATE_MAX = 4.0
"""Messages a second; large ones cost as much as thousands."""
CHUNKED_BYTES, CHUNKED_EVERY = 1_300_000, 4
"""More than brokers of a soak take in one message."""
DELAY_S_MAX, DELAYED_EVERY = 5.0, 2
REFUSED_EVERY, REDELIVERIES_MAX, NACK_DELAY_S = 7, 2, 0.2
PENDING_MAX = 100
LETTERS_S, EXPIRED_S = 60.0, 60.0
"""In a healthy cluster: until every refused message is a dead letter; until what is too old is
gone."""
QUIET_S = 3.0
YOUNG = 20


def is_refused(number: int) -> bool:
    """Whether consumers refuse the message of this number, always."""
    return number % REFUSED_EVERY == 0


class LifeTraffic(ClientThread):
    """Call `start` first, `close` last; `stop_publishing`, then `finish` once the cluster is
    healthy."""

    def __init__(self, service_url: str, rate: float) -> None:
        super().__init__("life of messages")
        self._service_url, self._rate = service_url, min(rate, RATE_MAX)
        self.topics = [
            TopicHistory(name, deduplicated=True, client="life")
            for name in (CHUNKED, DELAYED, REFUSED)
        ]
        for topic, kinds in zip(
            self.topics,
            (("Failover", "Shared"), ("Shared", "Key_Shared"), ("Shared",)),
            strict=True,
        ):
            topic.subscriptions = [
                SubscriptionHistory(f"life-{kind}", kind, kind == "Failover") for kind in kinds
            ]
        self.letters: set[Message] = set()
        self.expired = 0
        self.trouble: list[str] = []

    def start(self) -> None:
        """Subscribe everywhere, then publish."""
        self.call(self._start())

    async def _start(self) -> None:
        self._client = Client(self._service_url, operation_timeout_s=OPERATION_TIMEOUT_S)
        for topic in self.topics:
            for subscription in topic.subscriptions:
                consumer = await self._subscribe(topic, subscription)
                self._consuming.append(
                    self._loop.create_task(self._consume(topic, subscription, consumer))
                )
        await (await self._client.subscribe(MORTAL, "nobody", initial_position="Earliest")).close()
        for topic in self.topics:
            producer = await self._client.create_producer(
                topic.name,
                _name(topic.name),
                send_timeout_s=None,
                chunking=True,
                pending_max=2 * PENDING_MAX,
            )
            self._publishing.append(self._loop.create_task(self._publish(topic, producer)))
        mortal = await self._client.create_producer(MORTAL, _name(MORTAL), send_timeout_s=None)
        self._publishing.append(self._loop.create_task(self._publish_mortal(mortal)))

    async def _subscribe(self, topic: TopicHistory, subscription: SubscriptionHistory) -> Consumer:
        letters = (
            DeadLetterPolicy(REDELIVERIES_MAX, initial_subscription="letters")
            if topic.name == REFUSED
            else None
        )
        return await self.client.subscribe(
            topic.name,
            subscription.name,
            type=subscription.kind,
            initial_position="Earliest",
            dead_letter=letters,
            negative_ack_delay_s=NACK_DELAY_S,
        )

    # --- publishing -------------------------------------------------------------------------------

    async def _publish(self, topic: TopicHistory, producer: Producer) -> None:
        number, pending = 0, set[asyncio.Task[None]]()
        while not self._publish_until.is_set():
            await asyncio.sleep(1 / self._rate)
            if len(pending) >= PENDING_MAX:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            number += 1
            topic.sent[producer.name] = number
            task = self._loop.create_task(self._send(topic, producer, number - 1))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)

    async def _send(self, topic: TopicHistory, producer: Producer, number: int) -> None:
        message = (producer.name, number)
        large = topic.name == CHUNKED and number % CHUNKED_EVERY == 0
        data = compose(*message).ljust(CHUNKED_BYTES) if large else compose(*message)
        due = None
        if topic.name == DELAYED and number % DELAYED_EVERY == 0:
            due = int((time.time() + DELAY_S_MAX * (number % 10) / 10) * 1000)
        try:
            identifier = await producer.send(data, key=str(number % 16), deliver_at=due)
        except MagnetarError as error:
            topic.failed.append(f"{message}: {error!r}")
            return
        # Of chunks that had to be sent twice the message may be the first ones: that it is there is
        # what counts.
        where = where_of_own(identifier) if topic.name != CHUNKED else (-1, (-1, -1, -1))
        topic.receipt(message, where, time.monotonic())

    async def _publish_mortal(self, producer: Producer) -> None:
        while not self._publish_until.is_set():
            await asyncio.sleep(1 / self._rate)
            with suppress(MagnetarError):
                await producer.send(PADDING)

    # --- consuming --------------------------------------------------------------------------------

    async def _consume(
        self, topic: TopicHistory, subscription: SubscriptionHistory, consumer: Consumer
    ) -> None:
        while not self._consume_until.is_set():
            try:
                await self._session(topic, subscription, consumer)
            except MagnetarError as error:
                self.trouble.append(f"{topic.name} {subscription.name}: {error}")
                await asyncio.sleep(RETRY_S)
                with suppress(MagnetarError):
                    await consumer.close()
                    consumer = await self._subscribe(topic, subscription)
        with suppress(MagnetarError):
            await consumer.close()

    async def _session(
        self, topic: TopicHistory, subscription: SubscriptionHistory, consumer: Consumer
    ) -> None:
        while not self._consume_until.is_set():
            try:
                received = await consumer.receive(timeout_s=0.5)
            except TimeoutError:
                continue
            message = parse(received.data)
            subscription.deliver(where_of_own(received.id), message, 0.0)
            if topic.name == REFUSED and is_refused(message[1]):
                consumer.negative_acknowledge(received)
                continue
            try:
                await consumer.acknowledge(received)
            except MagnetarError as error:  # it comes again, then
                self.trouble.append(f"{topic.name} {subscription.name}: acknowledgement: {error}")

    # --- the end ----------------------------------------------------------------------------------

    def stop_publishing(self) -> None:
        self._loop.call_soon_threadsafe(self._publish_until.set)

    def finish(self) -> list[str]:
        """In a healthy cluster, when everything is delivered: what is wrong with dead letters
        and expiry, in sentences."""

        async def look() -> list[str]:
            await asyncio.gather(*self._publishing)
            return [*await self._check_letters(), *await self._check_expiry()]

        return list(self.call(look(), LETTERS_S + EXPIRED_S + TTL_S + 60.0))

    async def _check_letters(self) -> list[str]:
        """Every refused message has become a dead letter, and no other has."""
        (topic,) = (topic for topic in self.topics if topic.name == REFUSED)
        wanted = {message for message in topic.receipts if is_refused(message[1])}
        reader = await self.client.create_reader(
            f"{REFUSED}-{topic.subscriptions[0].name}-DLQ", EARLIEST
        )
        deadline = self._loop.time() + LETTERS_S
        while self._loop.time() < deadline and not wanted <= self.letters:
            with suppress(TimeoutError):
                self.letters.add(parse((await reader.receive(timeout_s=1.0)).data))
        await reader.close()
        found = [
            f"refused and no dead letter: {message}" for message in sorted(wanted - self.letters)
        ]
        return found + [
            f"a dead letter that nobody refused: {message}"
            for message in sorted(self.letters)
            if not is_refused(message[1])
        ]

    async def _check_expiry(self) -> list[str]:
        """What is young is delivered; what nobody has consumed in time is not delivered any
        more."""
        producer = await self.client.create_producer(MORTAL, send_timeout_s=30)
        young = [f"young {number}".encode() for number in range(YOUNG)]
        for data in young:
            await producer.send(data)
        await producer.close()
        got = await self._until_quiet(set(young))
        found = [f"gone before its time: {data!r}" for data in young if data not in got]
        deadline = self._loop.time() + TTL_S + EXPIRED_S
        left: set[bytes] = set(young)
        while left and self._loop.time() < deadline:
            await asyncio.sleep(1.0)
            left = await self._until_quiet(set())
        self.expired = len(got) if not left else 0
        return found + (
            [f"{len(left)} messages are delivered {EXPIRED_S:.0f} s after their time"]
            if left
            else []
        )

    async def _until_quiet(self, wanted: set[bytes]) -> set[bytes]:
        """What a consumer that acknowledges nothing gets, until it has what is wanted or nothing
        more comes."""
        consumer = await self.client.subscribe(MORTAL, "nobody", initial_position="Earliest")
        found: set[bytes] = set()
        with suppress(TimeoutError):
            while not wanted or not wanted <= found:
                found.add((await consumer.receive(timeout_s=QUIET_S)).data)
        await consumer.close()
        return found


def _name(topic: str) -> str:
    """What a topic's only producer calls itself."""
    return f"life-of-{topic.rpartition('/')[2]}"

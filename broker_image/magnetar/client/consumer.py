"""Consumers and readers.

Owns: what applications hold to receive with, over all partitions of a topic, or of several.
Imports: receiving, growth, asyncio. Invariants: messages of one partition come in order; an
acknowledgement goes to the partition its message came from; a message taken by a receiver that is
cancelled at that moment is not lost (taking it is the last step).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol

from magnetar.client.dead_letters import DeadLetters
from magnetar.client.failures import AlreadyClosed
from magnetar.client.growth import Growth
from magnetar.client.inbox import Inbox
from magnetar.client.messages import EARLIEST, LATEST, Message, MessageId
from magnetar.client.receiving import PartitionConsumer
from magnetar.client.schemas import T
from magnetar.client.transactions import Transaction
from magnetar.client.watermarks import Watermarks, WatermarkView
from magnetar.errors import InvalidRequest
from magnetar.watermarks.generator import Reset, Watermark
from magnetar.wire.commands import Position


class Subscribed(NamedTuple):
    """One topic of a consumer: its partitions, to which `growth` adds, and where its dead
    letters go."""

    topic: str
    partitions: list[PartitionConsumer]
    growth: Growth
    dead_letters: DeadLetters | None = None


class Matching(Protocol):
    """What follows a pattern of topics."""

    async def look(self) -> None: ...
    async def stop(self) -> None: ...


class _Receiver(Generic[T]):
    """Receives what its partitions put into one inbox."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._view: WatermarkView | None = None

    @property
    def _partitions(self) -> Sequence[PartitionConsumer]:
        raise NotImplementedError

    async def receive(self, timeout_s: float | None = None) -> Message[T]:
        """The next message. Raises TimeoutError after `timeout_s`, AlreadyClosed or the final
        refusal when there will be none."""
        if timeout_s is None:
            return await self._inbox.take()
        async with asyncio.timeout(timeout_s):
            return await self._inbox.take()

    async def receive_or_watermark(
        self, timeout_s: float | None = None
    ) -> Message[T] | Watermark | Reset:
        """As `receive`, released by the watermark as well: of changes that came at once it gets
        the last. Raises InvalidRequest without `watermarks`."""
        if self._view is None:
            self._view = WatermarkView(self._watermarks)
        if timeout_s is None:
            return await self._inbox.take_with(self._view)
        async with asyncio.timeout(timeout_s):
            return await self._inbox.take_with(self._view)

    def watermarks(self) -> WatermarkView:
        """For `async for`: the watermark, then its changes; slow loops see the last one. `Reset`:
        the subscription was moved back, and older messages follow. Raises InvalidRequest without
        `watermarks`."""
        return WatermarkView(self._watermarks)

    @property
    def last_watermark(self) -> int | None:
        """No message that is not acknowledged has an earlier event time; None before it is known
        of all partitions. Raises InvalidRequest without `watermarks`."""
        return self._watermarks.last_ms

    @property
    def late_messages(self) -> int:
        """Messages taken that were older than the watermark: their producers broke a promise, or
        joined late. Raises InvalidRequest without `watermarks`."""
        return self._watermarks.late

    @property
    def _watermarks(self) -> Watermarks:
        if self._inbox.watermarks is None:
            raise InvalidRequest("it takes no watermarks; make it with watermarks=True")
        return self._inbox.watermarks

    async def __aiter__(self) -> AsyncIterator[Message[T]]:
        """Messages until it is closed."""
        while True:
            try:
                message = await self._inbox.take()
            except AlreadyClosed:
                return
            yield message

    async def last_message_id(self) -> MessageId:
        """Id of the topic's last message, (-1, -1) when it is empty. Raises InvalidRequest for a
        partitioned topic, or several."""
        last, _ = await _only(self._partitions, "last_message_id").last_message_id()
        return last


class Consumer(_Receiver[T]):
    """Receives from a topic, partitioned or not, or from several. Made by `Client.subscribe`."""

    def __init__(
        self,
        subscribed: Sequence[Subscribed],
        inbox: Inbox,
        on_closed: Callable[[Consumer[T]], None],
        matching: Matching | None = None,
    ) -> None:
        """`matching` changes `subscribed`, if a pattern names the topics."""
        assert all(found.partitions for found in subscribed), (
            "a topic has at least one partition to receive from"
        )
        self._subscribed, self._matching = subscribed, matching
        self._by_name: dict[str, PartitionConsumer] = {}
        super().__init__(inbox)
        self._on_closed = on_closed

    @property
    def topics(self) -> tuple[str, ...]:
        """Those it receives from now."""
        return tuple(found.topic for found in self._subscribed)

    @property
    def topic(self) -> str:
        """All of them, as one text."""
        return ", ".join(self.topics)

    async def look_for_topics(self) -> None:
        """Look for topics that match its pattern now, beside the periodic look."""
        if self._matching is not None:
            await self._matching.look()

    @property
    def _partitions(self) -> Sequence[PartitionConsumer]:
        if len(self._subscribed) == 1:
            return self._subscribed[0].partitions
        return [partition for found in self._subscribed for partition in found.partitions]

    @property
    def active(self) -> bool:
        """Whether a Failover subscription delivers to this consumer, for any partition; true
        until the broker says otherwise."""
        return any(partition.active is not False for partition in self._partitions)

    @property
    def one_by_one(self) -> bool:
        """Whether single messages are redelivered (Shared, Key_Shared), else everything
        unacknowledged."""
        return any(partition.one_by_one for partition in self._partitions)

    @property
    def end_of_topic(self) -> bool:
        """Whether the topic is terminated and everything was delivered."""
        partitions = self._partitions
        return bool(partitions) and all(partition.end_of_topic for partition in partitions)

    async def batch_receive(
        self, messages_max: int = 100, timeout_s: float | None = None
    ) -> list[Message[T]]:
        """What is here, at most `messages_max`; waits up to `timeout_s` for the first, and
        answers [] if none came."""
        try:
            messages = [await self.receive(timeout_s)]
        except TimeoutError:
            return []
        while len(messages) < messages_max and (message := self._inbox.take_nowait()) is not None:
            messages.append(message)
        return messages

    async def acknowledge(
        self, message: Message[T] | MessageId, *, txn: Transaction | None = None
    ) -> None:
        """Acknowledge and wait until it is durable; with `txn` it takes place when that transaction
        commits.

        Raises ConnectionLost when the outcome is unknown, TransactionConflict if another
        transaction has acknowledged the message.
        """
        partition, message_id = self._origin(message)
        if txn is None:
            await partition.acknowledger.acknowledge(message_id)
            return
        await _acknowledge_in(txn, partition, message_id, cumulative=False)

    def acknowledge_nowait(self, message: Message[T] | MessageId) -> None:
        """Acknowledge without confirmation: cheaper, and if it is lost the message comes again."""
        partition, message_id = self._origin(message)
        partition.acknowledger.acknowledge_nowait(message_id)

    async def acknowledge_cumulative(
        self, message: Message[T] | MessageId, *, txn: Transaction | None = None
    ) -> None:
        """As `acknowledge`, for the message and all before it in its partition; not for Shared
        and Key_Shared subscriptions."""
        partition, message_id = self._origin(message)
        if partition.one_by_one:
            raise InvalidRequest(
                f"{self.topic}: cumulative acknowledgement needs an Exclusive or Failover "
                "subscription"
            )
        if txn is None:
            await partition.acknowledger.acknowledge_cumulative(message_id)
            return
        await _acknowledge_in(txn, partition, message_id, cumulative=True)

    def negative_acknowledge(self, message: Message[T] | MessageId) -> None:
        """Have the message delivered again after the subscription's negative-ack delay or
        back-off (which knows a Message's redeliveries)."""
        partition, message_id = self._origin(message)
        partition.negative_acknowledge(
            message_id, message.redelivery_count if isinstance(message, Message) else 0
        )

    def redeliver(self, messages: Iterable[Message[T] | MessageId]) -> None:
        """Have messages delivered again now; Exclusive and Failover subscriptions deliver
        everything unacknowledged again, in order."""
        entries: dict[PartitionConsumer, set[Position]] = {}
        for message in messages:
            partition, message_id = self._origin(message)
            entries.setdefault(partition, set()).add(message_id.position)
        for partition, positions in entries.items():
            partition.redeliver(sorted(positions))

    def redeliver_unacknowledged(self) -> None:
        """Have everything unacknowledged redelivered."""
        for partition in self._partitions:
            partition.redeliver_unacknowledged()

    async def seek(self, target: MessageId | int) -> None:
        """Continue from a message id (inclusive) or a publish time in milliseconds, which holds for
        all topics.

        An id needs a plain topic, save EARLIEST and LATEST, or names its topic: then the others go
        on where they are.
        """
        if isinstance(target, MessageId) and target.topic:
            partition, target = self._origin(target)
            await partition.seek(target)
        else:
            await _seek(self._partitions, target)

    async def unsubscribe(self) -> None:
        """Delete the subscription; the consumer is closed."""
        await self._stop_growing()
        await asyncio.gather(*(partition.unsubscribe() for partition in self._partitions))
        self._on_closed(self)

    async def close(self) -> None:
        """Leave the subscription, which stays; idempotent."""
        self._on_closed(self)
        await self._stop_growing()
        await asyncio.gather(*(partition.close() for partition in self._partitions))
        await asyncio.gather(
            *(
                found.dead_letters.close()
                for found in self._subscribed
                if found.dead_letters is not None
            )
        )
        if self._matching is not None:  # whose topics fail for themselves only
            self._inbox.fail(AlreadyClosed("the consumer is closed; subscribe again"))

    async def _stop_growing(self) -> None:
        if self._matching is not None:
            await self._matching.stop()
        await asyncio.gather(*(found.growth.stop() for found in self._subscribed))

    def _origin(self, message: Message[T] | MessageId) -> tuple[PartitionConsumer, MessageId]:
        message_id = message.id if isinstance(message, Message) else message
        if len(self._subscribed) > 1 or self._matching is not None:
            return self._origin_by_name(message_id), message_id
        if len(self._partitions) == 1:
            return self._partitions[0], message_id
        if not 0 <= message_id.partition < len(self._partitions):
            raise InvalidRequest(
                f"{self.topic}: message id {message_id} names no partition of "
                f"{len(self._partitions)}"
            )
        return self._partitions[message_id.partition], message_id

    def _origin_by_name(self, message_id: MessageId) -> PartitionConsumer:
        found = self._by_name.get(message_id.topic)
        if found is None:  # of another consumer, or of a partition that has come since
            self._by_name = {partition.topic: partition for partition in self._partitions}
            found = self._by_name.get(message_id.topic)
        if found is None:
            named = (
                f"topic {message_id.topic}, which is none of {self.topic}"
                if message_id.topic
                else "no topic"
            )
            raise InvalidRequest(
                f"message id {message_id} names {named}; pass a message or an id that this "
                "consumer has received"
            )
        return found


class Reader(_Receiver[T]):
    """Reads a topic from a position of its own, without a durable subscription. Made by
    `Client.create_reader`."""

    def __init__(
        self,
        topic: str,
        partitions: list[PartitionConsumer],
        inbox: Inbox,
        growth: Growth,
        on_closed: Callable[[Reader[T]], None],
    ) -> None:
        assert partitions, "a topic has at least one partition to read"
        super().__init__(inbox)
        self.topic = topic
        self._attached = partitions
        self._growth = growth
        self._on_closed = on_closed

    @property
    def _partitions(self) -> Sequence[PartitionConsumer]:
        return self._attached

    async def has_message_available(self) -> bool:
        """Whether `receive` would find a message that is in the topic now."""
        if self._inbox.peek() is not None:
            return True
        return any(await asyncio.gather(*(_has_more(partition) for partition in self._partitions)))

    async def seek(self, target: MessageId | int) -> None:
        """Continue from a message id (inclusive; a plain topic only, save EARLIEST and LATEST)
        or a publish time in milliseconds."""
        await _seek(self._partitions, target)

    async def close(self) -> None:
        """Stop reading; idempotent."""
        self._on_closed(self)
        await self._growth.stop()
        await asyncio.gather(*(partition.close() for partition in self._partitions))


async def _acknowledge_in(
    txn: Transaction, partition: PartitionConsumer, message_id: MessageId, *, cumulative: bool
) -> None:
    async with txn.acknowledging(partition.topic, partition.subscription) as txn_id:
        # after an abort the broker begins again at the first of them: what waits here comes behind
        # it
        if not partition.one_by_one:
            txn.on_aborted(partition, partition.redeliver_unacknowledged)
        await partition.acknowledger.acknowledge_in(txn_id, message_id, cumulative=cumulative)


async def _has_more(partition: PartitionConsumer) -> bool:
    """Whether a partition has messages behind the last one taken from it."""
    last, mark_delete = await partition.last_message_id()
    if last.entry < 0:
        return False
    taken = partition.reached
    if taken is not None:
        return (last.ledger, last.entry, last.batch_index) > (
            taken.ledger,
            taken.entry,
            taken.batch_index,
        )
    return mark_delete is None or last.position > mark_delete


async def _seek(partitions: Sequence[PartitionConsumer], target: MessageId | int) -> None:
    if isinstance(target, MessageId) and target not in (EARLIEST, LATEST):
        await _only(partitions, "seek to a message id").seek(target)
        return
    await asyncio.gather(*(partition.seek(target) for partition in partitions))


def _only(partitions: Sequence[PartitionConsumer], what: str) -> PartitionConsumer:
    if len(partitions) != 1:
        raise InvalidRequest(
            f"{what} needs a topic without partitions; name one, such as {partitions[0].topic}"
        )
    return partitions[0]

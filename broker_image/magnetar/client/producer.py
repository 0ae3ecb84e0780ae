"""Producers.

Owns: what applications hold to send with, and which partition each message goes to. Imports:
sending, growth, schemas. Invariant: messages with a key always go to the partition that Pulsar's
clients choose with the same hash; their order holds per partition.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeAlias, TypedDict, Unpack

from magnetar.client.growth import Growth
from magnetar.client.messages import MessageId
from magnetar.client.outgoing import Outgoing
from magnetar.client.schemas import Schema, T
from magnetar.client.sending import PartitionProducer, Receipt
from magnetar.client.transactions import Transaction
from magnetar.clock import Clock
from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.hashes import java_string_hash, murmur3


class KeyHash(enum.Enum):
    """How a key chooses its partition; all producers of a topic must agree. JAVA is the Java
    client's default."""

    JAVA = "java"
    MURMUR3 = "murmur3"


class Routing(enum.Enum):
    """Where messages without a key go: round, one batch to each partition, or all to one
    partition, chosen when the producer is made."""

    ROUND_ROBIN = "RoundRobin"
    SINGLE = "Single"


Router: TypeAlias = Callable[[str | None, int], int]
"""(key, number of partitions) -> partition, for those who want to choose themselves."""


DELIVER_AFTER_S_MAX = 10 * 365 * 86_400


class MessageOptions(TypedDict, total=False):
    """What a message may have besides its value; None as if left out. `event_time` and `deliver_at`
    are milliseconds since the epoch, `deliver_after` seconds from now."""

    key: str | None
    ordering_key: bytes | None
    properties: Mapping[str, str] | None
    event_time: int | None
    sequence_id: int | None
    deliver_at: int | None
    deliver_after: float | None


class Route:
    """Which partition each message goes to."""

    def __init__(self, key_hash: KeyHash, routing: Routing | Router, clock: Clock) -> None:
        self._key_hash = key_hash
        self._routing = routing
        self._turn = clock.random_bits(31) if routing is Routing.SINGLE else 0

    def choose(self, key: str | None, partitions: Sequence[PartitionProducer]) -> PartitionProducer:
        """The partition of a message. Raises InvalidRequest if the application's router names
        none."""
        if not isinstance(self._routing, Routing):
            chosen = self._routing(key, len(partitions))
            if not 0 <= chosen < len(partitions):
                raise InvalidRequest(
                    f"router chose partition {chosen} of {len(partitions)}; it must name one of "
                    "them, from 0 on"
                )
            return partitions[chosen]
        if key is not None:
            position = (
                java_string_hash(key) if self._key_hash is KeyHash.JAVA else murmur3(key.encode())
            )
            return partitions[position % len(partitions)]
        current = partitions[self._turn % len(partitions)]
        # fill one batch before going on
        if self._routing is Routing.ROUND_ROBIN and not current.batch_open:
            self._turn += 1
            current = partitions[self._turn % len(partitions)]
        return current


class Producer(Generic[T]):
    """Sends to a topic, partitioned or not. Made by `Client.create_producer`."""

    def __init__(
        self,
        topic: str,
        partitions: list[PartitionProducer],
        schema: Schema[T],
        route: Route,
        growth: Growth,
        on_closed: Callable[[Producer[T]], None],
        clock: Clock,
    ) -> None:
        assert partitions, "a topic has at least one partition to send to"
        self.topic = topic
        self._partitions = partitions
        self._schema = schema
        self._route = route
        self._growth = growth
        self._on_closed, self._clock = on_closed, clock

    @property
    def name(self) -> str:
        """The name given, or the one the broker chose."""
        return self._partitions[0].name

    @property
    def failure(self) -> MagnetarError | None:
        """Why a partition takes nothing any more: the final refusal, or AlreadyClosed. None
        while all do."""
        return next(
            (partition.failure for partition in self._partitions if partition.failure is not None),
            None,
        )

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id used, or the one the broker remembered; -1 for none."""
        return max(partition.last_sequence_id for partition in self._partitions)

    async def send(
        self,
        value: T | None,
        *,
        txn: Transaction | None = None,
        **options: Unpack[MessageOptions],
    ) -> MessageId:
        """Send and wait until the message is durable; waits first while too much is pending.
        `value` None is a tombstone.

        With `txn` no consumer sees it before that transaction commits, and its final id is given
        then, not here. With `deliver_at` (milliseconds since the epoch) or `deliver_after`
        (seconds) Shared and Key_Shared subscriptions get it no earlier.

        Cancelled while it waits for room, it sends nothing; cancelled later, the message is sent
        all the same, and the outcome is unknown; a transaction then aborts. The id of a message that deduplication knew already is (-1,
        -1). Raises SendTimeout when the outcome is unknown, else the refusal.
        """
        message = self._outgoing(value, **options)
        partition = self._route.choose(message.key, self._partitions)
        if txn is None:
            return await partition.send(message)
        async with txn.publishing(partition.topic) as txn_id:
            return await partition.send(replace(message, txn=txn_id))

    def send_nowait(self, value: T | None, **options: Unpack[MessageOptions]) -> Receipt:
        """Queue a message outside of transactions; the future is its receipt. Raises
        LimitExceeded while too much is pending."""
        message = self._outgoing(value, **options)
        return self._route.choose(message.key, self._partitions).send_nowait(message)

    async def watermark(self, event_time: int, *, txn: Transaction | None = None) -> None:
        """Assert that no message sent from now on has an event time (ms since the epoch) before
        this one; durable on all partitions when this returns. It waits for the receipts of what was
        sent before.

        With `txn` it takes effect when that commits. Raises NotAllowed where the policy
        `watermarks` is off, SendTimeout when the outcome is unknown, else the refusal.
        """
        await self._assert(event_time, txn)

    async def idle(self, *, txn: Transaction | None = None) -> None:
        """As `watermark`: this producer does not hold watermarks back until its next
        assertion."""
        await self._assert(None, txn)

    async def _assert(self, event_ms: int | None, txn: Transaction | None) -> None:
        await asyncio.gather(
            *(_assert_on(partition, event_ms, txn) for partition in self._partitions)
        )

    async def flush(self) -> None:
        """Wait for the receipts of everything sent so far. Raises the first failure."""
        await asyncio.gather(*(partition.flush() for partition in self._partitions))

    async def close(self) -> None:
        """Flush and leave; idempotent."""
        self._on_closed(self)
        await self._growth.stop()
        await asyncio.gather(*(partition.close() for partition in self._partitions))

    def _outgoing(
        self,
        value: T | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        deliver_after: float | None = None,
    ) -> Outgoing:
        if deliver_after is not None:
            deliver_at = _moment(self._clock, deliver_at, deliver_after)
        return Outgoing(
            None if value is None else self._schema.encode(value),
            -1 if sequence_id is None else sequence_id,
            key,
            ordering_key,
            properties or {},
            event_time,
            deliver_at,
        )


def _moment(clock: Clock, deliver_at: int | None, seconds: float) -> int:
    """When a message is due that is to be delivered so much later. Raises InvalidRequest."""
    if deliver_at is not None or not 0 <= seconds <= DELIVER_AFTER_S_MAX:
        raise InvalidRequest(
            f"deliver_after={seconds}: give 0 to {DELIVER_AFTER_S_MAX} seconds, and no deliver_at "
            "beside it"
        )
    return clock.wall_ms() + round(1000 * seconds)


async def _assert_on(
    partition: PartitionProducer, event_ms: int | None, txn: Transaction | None
) -> None:
    if txn is None:
        await partition.assertions.set(event_ms)
        return
    async with txn.publishing(partition.topic) as txn_id:
        await partition.assertions.set(event_ms, txn_id)

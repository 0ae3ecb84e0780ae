"""Producers.

Owns: what applications hold to send with, and which partition each message goes to. Imports: sending, wire.
Invariant: messages with a key always go to the partition that Pulsar's clients choose with the same hash; their order holds per partition.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from magnetar.client.messages import MessageId
from magnetar.client.outgoing import Outgoing
from magnetar.client.sending import PartitionProducer, Receipt
from magnetar.client.transactions import Transaction
from magnetar.hashes import java_string_hash, murmur3


class KeyHash(enum.Enum):
    """How a key chooses its partition; all producers of a topic must agree. JAVA is the Java client's default."""

    JAVA = "java"
    MURMUR3 = "murmur3"


class Producer:
    """Sends to a topic, partitioned or not. Made by `Client.create_producer`."""

    def __init__(
        self, topic: str, partitions: Sequence[PartitionProducer], key_hash: KeyHash, on_closed: Callable[[Producer], None]
    ) -> None:
        assert partitions, "a topic has at least one partition to send to"
        self.topic = topic
        self._partitions = partitions
        self._key_hash = key_hash
        self._turn = 0
        self._on_closed = on_closed

    @property
    def name(self) -> str:
        """The name given, or the one the broker chose."""
        return self._partitions[0].name

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id used, or the one the broker remembered; -1 for none."""
        return max(partition.last_sequence_id for partition in self._partitions)

    async def send(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Send and wait until the message is durable; waits first while too much is pending. `value` None is a tombstone.

        With `txn` nobody sees it before that transaction commits, and its final id is given then, not here. With `deliver_at` (milliseconds
        since the epoch) Shared and Key_Shared subscriptions get it no earlier. The id of a message that deduplication knew already is
        (-1, -1). Raises SendTimeout when the outcome is unknown, else the refusal.
        """
        message = _outgoing(value, key, ordering_key, properties, event_time, sequence_id, deliver_at)
        partition = self._partition_of(key)
        if txn is None:
            return await partition.send(message)
        async with txn.publishing(partition.topic) as txn_id:
            return await partition.send(replace(message, txn=txn_id))

    def send_nowait(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
    ) -> Receipt:
        """Queue a message outside of transactions; the future is its receipt. Raises LimitExceeded while too much is pending."""
        message = _outgoing(value, key, ordering_key, properties, event_time, sequence_id, deliver_at)
        return self._partition_of(key).send_nowait(message)

    async def flush(self) -> None:
        """Wait for the receipts of everything sent so far. Raises the first failure."""
        await asyncio.gather(*(partition.flush() for partition in self._partitions))

    async def close(self) -> None:
        """Flush and leave; idempotent."""
        self._on_closed(self)
        await asyncio.gather(*(partition.close() for partition in self._partitions))

    def _partition_of(self, key: str | None) -> PartitionProducer:
        if key is not None:
            position = java_string_hash(key) if self._key_hash is KeyHash.JAVA else murmur3(key.encode())
            return self._partitions[position % len(self._partitions)]
        current = self._partitions[self._turn % len(self._partitions)]
        if not current.batch_open:  # fill one batch before going on
            self._turn += 1
            current = self._partitions[self._turn % len(self._partitions)]
        return current


def _outgoing(
    value: bytes | None,
    key: str | None,
    ordering_key: bytes | None,
    properties: Mapping[str, str] | None,
    event_time: int | None,
    sequence_id: int | None,
    deliver_at: int | None,
) -> Outgoing:
    return Outgoing(value, -1 if sequence_id is None else sequence_id, key, ordering_key, properties or {}, event_time, deliver_at)

"""Messages and their ids, as applications see them.

Owns: `MessageId`, `Message`, and their form on the wire. Imports: wire, schemas. Invariant: ids of
one partition compare in log order, batch index included; EARLIEST is before and LATEST after every
id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple

from magnetar.client.failures import Undecodable
from magnetar.client.schemas import BYTES, Schema, T
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import Position, message_id_data, position_of

WORD_BITS = 64


class MessageId(NamedTuple):
    """Where a message is. `batch_index` is -1 unless it came in a batch of `batch_size`;
    `partition` is -1 for a plain topic.

    `topic` is its topic, a partition by its own name, if a consumer of several topics received it,
    else "".
    """

    ledger: int
    entry: int
    batch_index: int = -1
    partition: int = -1
    batch_size: int = 0
    topic: str = ""

    @property
    def position(self) -> Position:
        return Position(self.ledger, self.entry)

    def to_wire(self) -> api.MessageIdData:
        """Without an ack set."""
        if self.batch_index < 0:
            return message_id_data(self.position, self.partition)
        return message_id_data(
            self.position, self.partition, self.batch_index, batch_size=self.batch_size
        )

    def __str__(self) -> str:
        """`ledger:entry:partition`, and `:batch_index` for a message of a batch, as Pulsar's
        tools write it."""
        text = f"{self.ledger}:{self.entry}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    @staticmethod
    def from_wire(data: api.MessageIdData) -> MessageId:
        position = position_of(data)
        return MessageId(
            position.ledger, position.entry, data.batch_index, data.partition, data.batch_size
        )


EARLIEST = MessageId(-1, -1)
LATEST = MessageId((1 << 63) - 1, (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """A received message: `data` as it came, `value` as the consumer's schema reads it. Times are
    milliseconds since the epoch.

    `null_value` marks a tombstone: its data are empty, and under a schema it has no value. `index`,
    the message's number in its topic, and `broker_publish_time_ms`, when the broker took it, are
    None unless the broker is set to give them.
    """

    id: MessageId
    topic: str
    data: bytes
    schema: Schema[T]
    null_value: bool
    key: str | None
    ordering_key: bytes | None
    properties: Mapping[str, str]
    publish_time_ms: int
    event_time_ms: int | None
    sequence_id: int
    producer_name: str
    redelivery_count: int
    index: int | None = None
    broker_publish_time_ms: int | None = None
    schema_version: bytes = b""

    @property
    def value(self) -> T:
        """What was sent. Raises Undecodable if the data do not fit the schema."""
        if self.null_value and self.schema is not BYTES:
            raise Undecodable(f"message {self.id} is a tombstone; look at null_value before value")
        return self.schema.decode(self.data)


def ack_words(remaining: int, size: int) -> list[int]:
    """A bit mask of unacknowledged messages as the wire's signed 64-bit words, lowest first."""
    words = [remaining >> at & ((1 << WORD_BITS) - 1) for at in range(0, size, WORD_BITS)]
    return [word - (1 << WORD_BITS) if word >> (WORD_BITS - 1) else word for word in words]


def ack_mask(words: list[int]) -> int:
    """The inverse of `ack_words`."""
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & ((1 << WORD_BITS) - 1)) << (index * WORD_BITS)
    return mask

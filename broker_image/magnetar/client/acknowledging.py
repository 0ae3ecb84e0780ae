"""Which messages of which entries are acknowledged.

Owns: the ids that an ACK carries, for whole entries and for parts of batches. Imports: messages,
wire. Source: Pulsar's protocol: an ack_set has bit 1 for every message of the batch that is *not*
acknowledged; the broker ANDs the sets it gets. Invariant: a batch whose last message is
acknowledged is acknowledged whole, without an ack_set, so that brokers without batch-index
acknowledgement still delete it.
"""

from __future__ import annotations

from magnetar.client.messages import MessageId, ack_words
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import Position, message_id_data

BATCHES_TRACKED_MAX = 100_000
BATCHES_ENDED_MAX = 1000
"""Batches acknowledged whole that are remembered, for one whose acknowledgement is sent again."""


class BatchAcknowledgements:
    """The unacknowledged messages of batches received by one consumer since it attached."""

    def __init__(self) -> None:
        self._remaining: dict[Position, int] = {}
        self._ended: dict[Position, None] = {}

    def forget(self) -> None:
        """Everything unacknowledged is redelivered."""
        self._remaining.clear()
        self._ended.clear()

    def individual(self, message_id: MessageId) -> api.MessageIdData:
        if message_id.batch_index < 0:
            return message_id_data(message_id.position, message_id.partition)
        if message_id.position in self._ended:
            return self._of_batch(message_id, 0)
        everything = (1 << message_id.batch_size) - 1
        remaining = self._remaining.get(message_id.position, everything) & ~(
            1 << message_id.batch_index
        )
        return self._of_batch(message_id, remaining)

    def cumulative(self, message_id: MessageId) -> api.MessageIdData:
        if message_id.batch_index < 0:
            return message_id_data(message_id.position, message_id.partition)
        passed = (1 << (message_id.batch_index + 1)) - 1
        everything = (1 << message_id.batch_size) - 1
        self._remaining = {
            position: mask
            for position, mask in self._remaining.items()
            if position >= message_id.position
        }
        return self._of_batch(
            message_id, self._remaining.get(message_id.position, everything) & ~passed
        )

    def _of_batch(self, message_id: MessageId, remaining: int) -> api.MessageIdData:
        if not remaining:
            self._remaining.pop(message_id.position, None)
            self._ended[message_id.position] = None
            if len(self._ended) > BATCHES_ENDED_MAX:
                del self._ended[next(iter(self._ended))]
            return message_id_data(message_id.position, message_id.partition)
        if len(self._remaining) >= BATCHES_TRACKED_MAX:
            # its later acks travel one by one, which the broker adds up
            self._remaining.pop(next(iter(self._remaining)))
        self._remaining[message_id.position] = remaining
        words = ack_words(remaining, message_id.batch_size)
        return message_id_data(
            message_id.position,
            message_id.partition,
            ack_set=words,
            batch_size=message_id.batch_size,
        )


def in_transaction(message_id: MessageId, *, cumulative: bool) -> api.MessageIdData:
    """The id that acknowledges a message in a transaction: of its batch just that message, or all
    up to it.

    What others acknowledge of the batch is not added: the broker would take it for this
    transaction's, and refuse it.
    """
    if message_id.batch_index < 0:
        return message_id_data(message_id.position, message_id.partition)
    everything = (1 << message_id.batch_size) - 1
    taken = (1 << (message_id.batch_index + 1)) - 1 if cumulative else 1 << message_id.batch_index
    words = ack_words(everything & ~taken, message_id.batch_size) if everything != taken else []
    return message_id_data(
        message_id.position, message_id.partition, ack_set=words, batch_size=message_id.batch_size
    )

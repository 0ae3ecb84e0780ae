"""Acknowledging what one consumer received.

Owns: `Acknowledger`: ACK commands, grouped, confirmed or in a transaction, and which entries they
name. Imports: attachment, acknowledging, chunks, unacknowledged, wire. Invariant: a message in
chunks is acknowledged with every chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from magnetar.client.acknowledging import BatchAcknowledgements, in_transaction
from magnetar.client.attachment import Attachment
from magnetar.client.chunks import ChunkPositions
from magnetar.client.dead_letters import DeadLetters
from magnetar.client.messages import MessageId
from magnetar.client.subscription_options import ConsumerOptions
from magnetar.client.unacknowledged import Actions, Unacknowledged
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.commands import Position, message_id_data

ACKS_PER_COMMAND_MAX = 1000


class Acknowledger:
    """Sends ACKs for one attached consumer. `unacknowledged`: what the application holds; `chunks`:
    which entries stand behind a message's id."""

    def __init__(
        self,
        consumer: Attachment,
        options: ConsumerOptions,
        dead_letters: DeadLetters | None,
        redeliver: Callable[[Sequence[Position]], None],
    ) -> None:
        self._consumer, self._group_s = consumer, options.ack_group_s
        self._batches, self.chunks = BatchAcknowledgements(), ChunkPositions()
        self._acks: list[api.MessageIdData] = []
        self._flush_handle: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self.unacknowledged = Unacknowledged(
            consumer.topic,
            options,
            dead_letters,
            Actions(redeliver, self._acknowledge_dead, self._settle),
        )

    def acknowledge_nowait(self, message_id: MessageId) -> None:
        """Acknowledge without confirmation; sent with others, see `ConsumerOptions.ack_group_s`.
        Lost acks mean redelivery."""
        self._soon(self._individual(message_id))
        self.chunks.pop(message_id.position)

    def settle_soon(self, positions: Iterable[Position]) -> None:
        """Acknowledge whole entries without confirmation."""
        self._soon(map(message_id_data, positions))

    def _soon(self, data: Iterable[api.MessageIdData]) -> None:
        self._acks += data
        if len(self._acks) >= ACKS_PER_COMMAND_MAX:
            self.flush()
        elif self._flush_handle is None:
            self._flush_handle = (
                self._loop.call_later(self._group_s, self.flush)
                if self._group_s
                else self._loop.call_soon(self.flush)
            )

    def flush(self) -> None:
        """Send the group that waits."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        acks, self._acks = self._acks, []
        if acks and self._consumer.connection is not None:
            self._consumer.connection.write(requests.ack(self._consumer.identity, acks))

    def discard(self, position: Position, reason: api.CommandAck.ValidationError.ValueType) -> None:
        """Acknowledge a damaged entry, with what is wrong with it."""
        if self._consumer.connection is not None:
            data = [message_id_data(position)]
            self._consumer.connection.write(
                requests.ack(self._consumer.identity, data, validation_error=reason)
            )

    async def acknowledge(self, message_id: MessageId) -> None:
        """Acknowledge and wait until that is durable. Raises ConnectionLost when the outcome is
        unknown, else the refusal."""
        await self._confirm(self._individual(message_id))
        # not before: after a refusal it is acknowledged once more, with every chunk
        self.chunks.pop(message_id.position)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """As `acknowledge`, for the message and all before it."""
        self.unacknowledged.acknowledged_through(message_id.position)
        await self._confirm([self._batches.cumulative(message_id)], cumulative=True)

    async def acknowledge_in(self, txn: TxnId, message_id: MessageId, *, cumulative: bool) -> None:
        """Acknowledge a message (or it and all before it) as part of a transaction, and wait
        until that is durable. Raises the refusal."""
        earlier = () if cumulative else self.chunks.earlier(message_id.position)
        data = [*map(message_id_data, earlier), in_transaction(message_id, cumulative=cumulative)]
        await self._confirm(data, cumulative=cumulative, txn=txn)
        if cumulative:
            self.unacknowledged.acknowledged_through(message_id.position)
        else:
            self.unacknowledged.acknowledged(message_id, whole_entry=message_id.batch_size <= 1)

    def forget_batches(self) -> None:
        """Everything unacknowledged is redelivered."""
        self._batches.forget()
        self.unacknowledged.forget()

    def forget(self) -> None:
        """As `forget_batches`, at a new attachment: the group that waits is not sent."""
        self.forget_batches()
        self._acks.clear()

    def _individual(self, message_id: MessageId) -> list[api.MessageIdData]:
        """The ids that acknowledge a message: several if it came in chunks."""
        data = self._batches.individual(message_id)
        self.unacknowledged.acknowledged(message_id, whole_entry=not data.ack_set)
        return [*map(message_id_data, self.chunks.earlier(message_id.position)), data]

    async def _settle(self, position: Position) -> None:
        """Acknowledge an entry whose messages are all dealt with."""
        await self._confirm([*map(message_id_data, self.chunks.expanded([position]))])
        self.chunks.pop(position)

    async def _acknowledge_dead(self, message_id: MessageId) -> None:
        """Acknowledge a message that is in the dead-letter topic; nothing of it is forgotten
        before that is confirmed."""
        if message_id.batch_index < 0:
            await self._settle(message_id.position)
        else:
            data = self._batches.individual(message_id)
            await self._confirm([data])
            if data.ack_set:
                return
        self.unacknowledged.acknowledged(message_id, whole_entry=True)

    async def _confirm(
        self, data: list[api.MessageIdData], *, cumulative: bool = False, txn: TxnId | None = None
    ) -> None:
        await self._consumer.request(
            lambda request_id: requests.ack(
                self._consumer.identity,
                data,
                cumulative=cumulative,
                request_id=request_id,
                txn=txn,
            )
        )

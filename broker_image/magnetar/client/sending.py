"""Producing to one partition.

Owns: sequence ids, the open batch, and the queue of entries without a receipt. Imports: attachment,
outgoing, wire. Source: Pulsar's protocol: SEND, SEND_RECEIPT, SEND_ERROR; PRODUCER with a growing
epoch replaces the producer's earlier attachment. Invariants: after a reconnect the whole queue is
sent again, in order, with the same sequence ids and bytes; receipts resolve the queue's head only;
messages and bytes waiting are limited; every future ends: with an id, a refusal, a timeout or
AlreadyClosed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from magnetar.client.assertions import Assertions
from magnetar.client.attachment import Attachment, Session
from magnetar.client.connection import Connection
from magnetar.client.failures import AlreadyClosed, BrokerRefused, SendTimeout, failure_of
from magnetar.client.messages import MessageId
from magnetar.client.outgoing import Batching, Compression, Outgoing, encode, encode_chunks
from magnetar.client.schemas import BYTES, Schema
from magnetar.errors import (
    InvalidRequest,
    LimitExceeded,
    MagnetarError,
    ProtocolError,
    Retry,
    WireCode,
)
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.commands import position_of
from magnetar.wire.frames import MESSAGE_BYTES_MAX

MESSAGES_PENDING_MAX = 1000
BYTES_PENDING_MAX = 64 * 1024 * 1024
SEND_TIMEOUT_S = 30.0
_ENDS_PRODUCER = frozenset({WireCode.TOPIC_TERMINATED, WireCode.PRODUCER_FENCED})

Receipt: TypeAlias = asyncio.Future[MessageId]


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer behaves; `send_timeout_s` None = wait without limit."""

    name: str | None = None
    batching: Batching | None = None
    compression: Compression = Compression.NONE
    send_timeout_s: float | None = SEND_TIMEOUT_S
    messages_pending_max: int = MESSAGES_PENDING_MAX
    bytes_pending_max: int = BYTES_PENDING_MAX
    access_mode: api.ProducerAccessMode.ValueType = api.Shared
    properties: Mapping[str, str] = field(default_factory=dict)
    initial_subscription: str | None = None
    schema: Schema[Any] = BYTES
    chunking: bool = False


@dataclass(slots=True)
class _Sent:
    """An entry without a receipt yet: sequence ids `first` to `last`. Of a message in chunks
    only the last has the message and its receipt."""

    first: int
    last: int
    messages: list[Outgoing]
    receipts: list[Receipt]
    frame: bytes
    deadline: float | None


class PartitionProducer(Attachment):
    """A producer of one partition, or of a topic without partitions."""

    def __init__(
        self, session: Session, topic: str, identity: int, partition: int, options: ProducerOptions
    ) -> None:
        super().__init__(session, topic, identity)
        self.name = options.name or ""
        self.partition = partition
        self.last_sequence_id = -1
        self._options = options
        self._epoch = 0
        self._known_to_broker = False
        self._topic_epoch: int | None = None
        self._schema_version = b""
        self._message_bytes_max = MESSAGE_BYTES_MAX
        self._queue: deque[_Sent] = deque()
        self._batch: list[Outgoing] = []
        self._batch_receipts: list[Receipt] = []
        self._batch_bytes = 0
        self._linger: asyncio.TimerHandle | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._messages_pending = 0
        self._bytes_pending = 0
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self.assertions = Assertions(self, session.clock, options.send_timeout_s)

    # --- for applications, through Producer

    @property
    def batch_open(self) -> bool:
        """Whether the next message joins others that wait."""
        return bool(self._batch)

    async def send(self, message: Outgoing) -> MessageId:
        """Wait for room, send, wait for the receipt; concurrent callers keep the order of their
        calls."""
        async with self._turn:
            while self._full() and self.failure is None:
                self._room.clear()
                await self._room.wait()
            receipt = self.send_nowait(message)
        return await receipt

    def send_nowait(self, message: Outgoing) -> Receipt:
        """Queue a message. Raises LimitExceeded without room, AlreadyClosed or the final refusal
        when closed.

        A negative `sequence_id` takes the next one; a repeated one is what deduplication tests
        send.
        """
        if self.failure is not None:
            raise self.failure
        if self._full():
            raise LimitExceeded(
                f"{self.topic}: {self._messages_pending} messages of {self._bytes_pending} bytes "
                "wait for receipts; use send() to wait"
            )
        if message.sequence_id < 0:
            message = replace(message, sequence_id=self.last_sequence_id + 1)
        delayed = message.deliver_at is not None
        if self._batch and (delayed or not _joins(message, self._batch[-1])):
            self._close_batch()  # it is delivered as one: a delayed message travels alone
        self.last_sequence_id = max(self.last_sequence_id, message.sequence_id)
        receipt: Receipt = self._loop.create_future()
        size = len(message.value or b"")
        self._batch.append(message)
        self._batch_receipts.append(receipt)
        self._batch_bytes += size
        self._messages_pending += 1
        self._bytes_pending += size
        batching = self._options.batching
        if (
            batching is None
            or delayed
            or len(self._batch) >= batching.messages_max
            or self._batch_bytes >= batching.bytes_max
        ):
            self._close_batch()
        elif self._linger is None:
            self._linger = self._loop.call_later(batching.linger_s, self._close_batch)
        return receipt

    async def flush(self) -> None:
        """Send the open batch and wait for every receipt asked for so far. Raises the first
        failure."""
        self._close_batch()
        receipts = [receipt for sent in self._queue for receipt in sent.receipts]
        outcomes = await asyncio.gather(*receipts, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, MagnetarError):
                raise outcome

    async def settle(self) -> None:
        """As `flush`, behind callers of `send` that wait for room; a failure is for those who sent
        the message."""
        async with self._turn:
            self._close_batch()
        receipts = [receipt for sent in self._queue for receipt in sent.receipts]
        await asyncio.gather(*receipts, return_exceptions=True)

    async def close(self) -> None:
        """Flush, then leave the broker; what has no receipt by the operation timeout fails with
        AlreadyClosed."""
        try:
            if self.failure is None:
                async with asyncio.timeout(self._session.operation_timeout_s):
                    await self.flush()
        except (MagnetarError, TimeoutError):
            pass  # every future carries its own failure
        finally:
            connection = self.connection
            await self.assertions.close()
            await self.stop()
            if connection is not None:
                connection.producers.pop(self.identity, None)
                await self._close_at(connection, partial(requests.close_producer, self.identity))
            self._fail_all(
                self.failure or AlreadyClosed(f"{self.topic}: producer {self.name} is closed")
            )

    # --- batches and the queue

    def _full(self) -> bool:
        options = self._options
        return (
            self._messages_pending >= options.messages_pending_max
            or self._bytes_pending >= options.bytes_pending_max
        )

    def _close_batch(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not self._batch:
            return
        messages, receipts = self._batch, self._batch_receipts
        self._batch, self._batch_receipts, self._batch_bytes = [], [], 0
        clock, options = self._session.clock, self._options
        entry = encode(
            messages, self.name, clock.wall_ms(), options.compression, self._schema_version
        )
        deadline = (
            None if options.send_timeout_s is None else self._loop.time() + options.send_timeout_s
        )
        first, last, txn = messages[0].sequence_id, messages[-1].sequence_id, messages[0].txn
        sent = _Sent(first, last, messages, receipts, b"", deadline)
        if len(entry) <= self._message_bytes_max:
            highest = last if len(messages) > 1 else None
            sent.frame = requests.send(
                self.identity,
                first,
                entry,
                messages=len(messages),
                highest_sequence_id=highest,
                txn=txn,
            )
            self._enqueue([sent])
            return
        try:
            if not options.chunking or len(messages) > 1:
                raise InvalidRequest(
                    f"{self.topic}: entry of {len(entry)} bytes exceeds the limit of "
                    f"{self._message_bytes_max}"
                )
            limit, version = self._message_bytes_max, self._schema_version
            entries = encode_chunks(
                messages[0], self.name, clock.wall_ms(), options.compression, version, limit
            )
        except InvalidRequest as refusal:
            self._settle(sent)
            _fail_receipts(receipts, refusal)
            return
        frames = [
            requests.send(self.identity, first, entry, txn=txn, chunk=True) for entry in entries
        ]
        sent.frame = frames[-1]
        self._enqueue(
            [*(_Sent(first, last, [], [], frame, deadline) for frame in frames[:-1]), sent]
        )

    def _enqueue(self, entries: Sequence[_Sent]) -> None:
        self._queue.extend(entries)
        self._arm_timeout()
        if self.connection is not None:
            for sent in entries:
                self.connection.write(sent.frame)

    def _settle(self, sent: _Sent) -> None:
        """Give back the room an entry took."""
        self._messages_pending -= len(sent.messages)
        self._bytes_pending -= sum(len(message.value or b"") for message in sent.messages)
        self._room.set()

    def _arm_timeout(self) -> None:
        deadline = self._queue[0].deadline if self._queue else None
        if self._timeout is None and deadline is not None:
            self._timeout = self._loop.call_at(deadline, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timeout = None
        while self._queue and (self._queue[0].deadline or 0) <= self._loop.time():
            sent = self._queue.popleft()
            self._settle(sent)
            _fail_receipts(
                sent.receipts,
                SendTimeout(
                    f"{self.topic}: no receipt in {self._options.send_timeout_s} s; outcome unknown"
                ),
            )
        self._arm_timeout()

    def _fail_all(self, failure: MagnetarError) -> None:
        if self._linger is not None:
            self._linger.cancel()
        if self._timeout is not None:
            self._timeout.cancel()
        self._linger = self._timeout = None
        _fail_receipts(self._batch_receipts, failure)
        for sent in self._queue:
            _fail_receipts(sent.receipts, failure)
        self._batch, self._batch_receipts = [], []
        self._queue.clear()
        self._room.set()

    # --- from the connection

    def on_receipt(self, receipt: api.CommandSendReceipt) -> None:
        """SEND_RECEIPT: resolves the head; one for an entry given up before is ignored, one from
        the future is a broker's error."""
        if not self._queue or receipt.sequence_id < self._queue[0].first:
            return
        if receipt.sequence_id > self._queue[0].first:
            self._distrust(
                f"receipt for sequence {receipt.sequence_id} came before that of its predecessor"
            )
            return
        sent = self._queue.popleft()
        self._settle(sent)
        position = position_of(receipt.message_id)
        count = len(sent.messages)
        for index, future in enumerate(sent.receipts):
            if not future.done():
                in_batch = (
                    (index, self.partition, count)
                    if count > 1 and position.entry >= 0
                    else (-1, self.partition, 0)
                )
                future.set_result(MessageId(position.ledger, position.entry, *in_batch))

    def on_send_error(self, error: api.CommandSendError) -> None:
        """SEND_ERROR: a final refusal fails the entry (or the producer), anything else
        reconnects and sends again."""
        if not self._queue or error.sequence_id < self._queue[0].first:
            return
        failure = failure_of(error.error, error.message)
        if isinstance(failure, BrokerRefused) and failure.code in _ENDS_PRODUCER:
            self.failure = failure
            self._fail_all(failure)
        elif failure.retry is Retry.NEVER and error.sequence_id <= self._queue[0].last:
            while self._queue:
                sent = self._queue.popleft()
                self._settle(sent)
                _fail_receipts(sent.receipts, failure)
                if sent.messages:  # the last chunk, or the only entry
                    break
        else:
            self._distrust(f"send failed: {failure}")

    def _distrust(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.abort(ProtocolError(f"{self.topic}: {reason}; reconnecting"))

    # --- attaching

    async def _attach(self, connection: Connection) -> None:
        body = api.CommandProducer(
            topic=self.topic,
            producer_id=self.identity,
            request_id=self._session.pool.next_request_id(),
            epoch=self._epoch,
            user_provided_producer_name=self._options.name is not None,
            producer_access_mode=self._options.access_mode,
            metadata=requests.key_values(self._options.properties),
        )
        if self.name:
            body.producer_name = self.name
        if self._options.initial_subscription is not None:
            body.initial_subscription_name = self._options.initial_subscription
        schema = self._options.schema.to_wire()
        if schema is not None:
            body.schema.CopyFrom(schema)
        if self._topic_epoch is not None:
            body.topic_epoch = self._topic_epoch
        self._epoch += 1
        connection.producers[self.identity] = self
        answer = (
            await connection.request(body.request_id, requests.producer(body))
        ).producer_success
        self.name = answer.producer_name
        self._topic_epoch = answer.topic_epoch if answer.HasField("topic_epoch") else None
        self._schema_version = answer.schema_version
        self._message_bytes_max = connection.message_bytes_max
        if not self._known_to_broker:
            # Not "the first attempt": that one may have been lost on its way, and numbers would
            # begin again.
            self._known_to_broker, self.last_sequence_id = True, answer.last_sequence_id
        for sent in self._queue:
            connection.write(sent.frame)
        self.assertions.repeat()

    def _release(self, connection: Connection) -> None:
        connection.producers.pop(self.identity, None)
        connection.write(
            requests.close_producer(self.identity, self._session.pool.next_request_id())
        )

    def _on_failed(self, failure: MagnetarError) -> None:
        self._fail_all(failure)


def _joins(message: Outgoing, last: Outgoing) -> bool:
    """Whether a message may follow another in a batch: sequence ids increase there, and all
    belong to one transaction."""
    return message.sequence_id > last.sequence_id and message.txn == last.txn


def _fail_receipts(receipts: Iterable[Receipt], failure: MagnetarError) -> None:
    for receipt in receipts:
        if not receipt.done():
            receipt.set_exception(failure)

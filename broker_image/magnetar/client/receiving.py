"""Consuming from one partition.

Owns: permits, redelivery and seeking of one consumer. Imports: attachment, inbox, copies,
incoming, acknowledger, wire. Source: Pulsar's protocol: SUBSCRIBE, FLOW,
ACK, REDELIVER, SEEK, 2.1, 2.2, 2.5, 2.6. Invariants: permits given and not used never exceed the
receive queue; after a reconnect nothing received before is handed out (the broker sends it again),
nor what waits of an entry that is redelivered; messages of an older consumer epoch are dropped; a
reader goes on behind the last message taken.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from magnetar.client.acknowledger import Acknowledger
from magnetar.client.attachment import Attachment, Session
from magnetar.client.chunks import CHUNKED_BYTES_MAX, Assembler, Chunk, Whole
from magnetar.client.connection import Connection
from magnetar.client.copies import Copies
from magnetar.client.dead_letters import DeadLetters
from magnetar.client.inbox import Inbox
from magnetar.client.incoming import Damaged, open_chunked, open_entry
from magnetar.client.messages import Message, MessageId
from magnetar.client.subscription_options import ConsumerOptions
from magnetar.client.writer_schemas import WriterSchemas
from magnetar.errors import MagnetarError, NotAllowed
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.commands import EARLIEST, LATEST, Position, message_id_data, position_of
from magnetar.wire.watermarks import event_ms_of

_log = logging.getLogger(__name__)


class PartitionConsumer(Attachment):
    """A consumer of one partition, or of a topic without partitions."""

    def __init__(
        self,
        session: Session,
        topic: str,
        identity: int,
        inbox: Inbox,
        options: ConsumerOptions,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(session, topic, identity)
        self.active: bool | None = None
        self.end_of_topic = False
        self.last_taken: MessageId | None = None
        self._inbox = inbox
        self._options = options
        self._start = options.start
        self._start_inclusive = options.start_inclusive
        self._epoch = 0
        self._unused = 0
        self._waiting = 0
        self._copies = Copies()
        self._seeking = False
        self._assembler = Assembler()
        self.acknowledger = Acknowledger(self, options, dead_letters, self._redeliver)
        self._unacknowledged = self.acknowledger.unacknowledged
        self._chunks = self.acknowledger.chunks
        self._writers = WriterSchemas(
            topic, options.schema, self.request, inbox.look_again, session.clock
        )
        self._watermarks = inbox.watermarks
        if self._watermarks is not None:
            self._watermarks.add(topic)

    @property
    def reached(self) -> MessageId | None:
        """The last message taken, or where a reader starts if that names a message it excludes."""
        if self.last_taken is not None:
            return self.last_taken
        start = self._start
        return (
            None
            if start is None or self._start_inclusive or start.position in (EARLIEST, LATEST)
            else start
        )

    @property
    def subscription(self) -> str:
        return self._options.subscription

    @property
    def one_by_one(self) -> bool:
        """Whether the broker redelivers single messages (else it rewinds to the first
        unacknowledged one)."""
        return self._options.one_by_one

    # --- redelivery

    def negative_acknowledge(self, message_id: MessageId, redeliveries: int) -> None:
        """Have the message's entry delivered again after its delay."""
        self._unacknowledged.refuse(message_id, redeliveries)

    def redeliver(self, positions: Sequence[Position]) -> None:
        """Have entries delivered again now, or everything unacknowledged where the broker does
        not redeliver single ones."""
        self._unacknowledged.drop(positions)
        self._redeliver(positions)

    def _redeliver(self, positions: Sequence[Position]) -> None:
        if not self.one_by_one:
            self.redeliver_unacknowledged()
        elif self.connection is not None:
            self._assembler.come_again()
            if self._waiting:
                self._copies.come_again(positions)
            self.connection.write(
                requests.redeliver(
                    self.identity, [*map(message_id_data, self._chunks.expanded(positions))]
                )
            )

    def redeliver_unacknowledged(self) -> None:
        """Have everything unacknowledged redelivered, in order."""
        self._copies.all_come_again()
        self._assembler.clear()
        self.acknowledger.forget_batches()
        returned, self._waiting = self._waiting, 0
        connection = self.connection
        if connection is None:
            return
        if self.one_by_one:
            connection.write(requests.redeliver(self.identity))
        else:
            self._epoch += 1
            connection.write(requests.redeliver(self.identity, consumer_epoch=self._epoch))
        self._grant(connection, returned)

    # --- positions

    async def last_message_id(self) -> tuple[MessageId, Position | None]:
        """Id of the topic's last message ((-1, -1) when empty), and up to where this
        subscription is acknowledged."""
        answer = await self.request(partial(requests.last_message_id, self.identity))
        response = answer.get_last_message_id_response
        found = response.HasField("consumer_mark_delete_position")
        return MessageId.from_wire(response.last_message_id), position_of(
            response.consumer_mark_delete_position
        ) if found else None

    async def seek(self, target: MessageId | int) -> None:
        """Continue from a message id (inclusive) or a publish time in milliseconds; the broker
        closes the consumer, which reattaches by itself.

        Raises ConnectionLost when the outcome is unknown, else the refusal, after which everything
        unacknowledged is redelivered.
        """
        before = self._start, self._start_inclusive, self.last_taken
        if isinstance(target, MessageId):
            seek = partial(requests.seek, self.identity, message_id=target.to_wire())
            if not self._options.durable:
                self._start, self._start_inclusive = target, True
        else:
            seek = partial(requests.seek, self.identity, publish_time_ms=target)
        self.last_taken = None
        self._seeking = True
        self._copies.all_come_again()  # messages under way were read before the seek
        try:
            await self.request(seek)
        except MagnetarError:
            self._start, self._start_inclusive, self.last_taken = before
            self.redeliver_unacknowledged()
            raise
        finally:
            self._seeking = False

    async def unsubscribe(self) -> None:
        """Delete the subscription on the broker, then stop. Raises its refusal."""
        await self.request(partial(requests.unsubscribe, self.identity))
        if self.connection is not None:
            self.connection.consumers.pop(self.identity, None)
        await self._end()

    async def close(self) -> None:
        """Leave the subscription; idempotent."""
        self.acknowledger.flush()
        connection = self.connection
        await self._end()
        if connection is not None:
            connection.consumers.pop(self.identity, None)
            await self._close_at(connection, partial(requests.close_consumer, self.identity))

    async def _end(self) -> None:
        await self._unacknowledged.close()
        await self._writers.close()
        await self.stop()
        if self.failure is not None:
            self._inbox.fail(self.failure)

    # --- from the connection and the inbox

    def on_message(self, message: api.CommandMessage, entry: bytes) -> None:
        """MESSAGE: into the inbox, unless it belongs to an epoch before the last redelivery."""
        copy = self._copies.arrived()
        opened = open_entry(self.topic, message, entry, self._options.schema)
        if isinstance(opened, Chunk):
            whole = self._assembled(
                opened, position_of(message.message_id), again=message.redelivery_count > 0
            )
            if whole is None:
                self._use(1)
                return
            self._chunks.add(position_of(message.message_id), whole.earlier)
            opened = open_chunked(self.topic, message, opened, whole.payload, self._options.schema)
        if isinstance(opened, Damaged):
            position = position_of(message.message_id)
            _log.error("topic %s: entry %s is damaged: %s", self.topic, position, opened.detail)
            self.acknowledger.discard(position, opened.reason)
            self._use(opened.message_count)
            return
        if message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch:
            self._use(opened.skipped + len(opened.messages))
            return
        if self._seeking:
            # read before the seek; its permits end with this attachment
            self._waiting += opened.skipped + len(opened.messages)
            return
        if self._waiting and (message.redelivery_count or message.ack_set):
            self._copies.came_again(position_of(message.message_id))
        if self._unacknowledged.is_dead(opened.messages):
            self._unacknowledged.bury(position_of(message.message_id), opened.messages)
            self._use(opened.skipped + len(opened.messages))
            return
        skipped = opened.skipped
        for item in opened.messages:
            if _precedes(item.id, self._start, inclusive=self._start_inclusive):
                skipped += 1
            else:
                self._waiting += 1
                if self._options.topic_in_ids:
                    item = replace(item, id=item.id._replace(topic=self.topic))
                self._inbox.put(self, copy, item)
        self._use(skipped)

    def _assembled(self, chunk: Chunk, position: Position, *, again: bool) -> Whole | None:
        too_large = self._assembler.too_large
        whole = self._assembler.add(chunk, position)
        if self._assembler.too_large > too_large:
            _log.error(
                "topic %s: the message of chunk %s has more than %d bytes",
                self.topic,
                position,
                CHUNKED_BYTES_MAX,
            )
        repeated, self._assembler.repeated = self._assembler.repeated, []
        if repeated and not again:  # what comes again may do so without its beginning
            self.acknowledger.settle_soon(repeated)
        given_up, self._assembler.given_up = self._assembler.given_up, []
        if given_up:
            _log.warning(
                "topic %s: %d chunks of unfinished messages were given up",
                self.topic,
                len(given_up),
            )
            self._come_back_to(given_up)
        return whole

    def _come_back_to(self, given_up: Sequence[Position]) -> None:
        """Have the chunks of dropped messages redelivered, later: while as many are unfinished they
        would be dropped again.

        Where the broker redelivers everything or nothing they wait, unacknowledged, for the next
        attachment: a redelivery would never reach the messages behind them.
        """
        if self.one_by_one:
            for position in given_up:
                self._unacknowledged.refuse(MessageId(*position), 0)

    def on_taken(self, copy: int, message: Message[Any]) -> None:
        """The application has the message: its permit is free again."""
        self._copies.passed(copy)
        self.last_taken = message.id
        self._unacknowledged.taken(message)
        self._waiting -= 1
        self._use(1)

    def readable(self, message: Message[Any]) -> Message[Any] | None:
        """As `Source.readable`."""
        return self._writers.applied(message)

    def leaves_out(self, copy: int, message: Message[Any]) -> bool:
        """As `Source.leaves_out`; its permit is free again, if it is not free already."""
        if not self._copies.comes_again(copy, message.id.position):
            return False
        if self._copies.counted(copy):
            self._waiting -= 1
            self._use(1)
        return True

    def on_active_change(self, active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE of a Failover subscription."""
        self.active = active

    def on_end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC: the topic is terminated and everything was delivered."""
        self.end_of_topic = True
        if self._watermarks is not None:
            self._watermarks.remove(self.topic)

    def on_watermark(self, watermark: api.CommandWatermark) -> None:
        """WATERMARK: no message behind those that were sent before it is older."""
        generation = watermark.term, watermark.resets
        self._inbox.put_watermark(self.topic, event_ms_of(watermark), generation)

    def _use(self, messages: int) -> None:
        """Permits of messages that left the inbox; given again at half the queue."""
        self._unused += messages
        if (
            self._unused >= max(1, self._options.receiver_queue // 2)
            and self.connection is not None
        ):
            returned, self._unused = self._unused, 0
            self._grant(self.connection, returned)

    def _grant(self, connection: Connection, messages: int) -> None:
        if messages > 0:
            connection.write(requests.flow(self.identity, messages))

    # --- attaching

    async def _attach(self, connection: Connection) -> None:
        options = self._options
        body = api.CommandSubscribe(
            topic=self.topic,
            subscription=options.subscription,
            subType=requests.SubType.Value(options.kind.value),
            consumer_id=self.identity,
            request_id=self._session.pool.next_request_id(),
            consumer_name=options.name or "",
            priority_level=options.priority_level,
            durable=options.durable,
            read_compacted=options.read_compacted,
            initialPosition=api.CommandSubscribe.InitialPosition.Value(
                options.initial_position.value
            ),
            consumer_epoch=self._epoch,
            metadata=requests.key_values(options.properties),
        )
        schema = options.schema.to_wire()
        if schema is not None:
            body.schema.CopyFrom(schema)
        if not options.durable and self.last_taken is not None:
            self._start, self._start_inclusive = self.last_taken, False
        if self._start is not None:
            body.start_message_id.CopyFrom(self._start.to_wire())
        self._copies.all_come_again()
        self._assembler.clear()
        self.acknowledger.forget()
        # The answer may still be on its way from a broker that the topic has left; what comes from
        # here on was read after the seek.
        self._seeking = False
        if options.watermarks:
            if not connection.takes_watermarks:
                raise NotAllowed(
                    f"{self.topic}: its broker serves no watermarks; subscribe without them"
                )
            body.watermarks = True
        connection.consumers[self.identity] = self
        await connection.request(body.request_id, requests.subscribe(body))
        self._unused = self._waiting = 0
        self._grant(connection, options.receiver_queue)

    def _release(self, connection: Connection) -> None:
        connection.consumers.pop(self.identity, None)
        connection.write(
            requests.close_consumer(self.identity, self._session.pool.next_request_id())
        )

    def _on_failed(self, failure: MagnetarError) -> None:
        self._inbox.fail(failure)


def _precedes(message_id: MessageId, start: MessageId | None, *, inclusive: bool) -> bool:
    """Whether a message is before where a reader starts: the broker starts with the whole entry of
    the start id, and a batch at its first message."""
    if start is None or start.position in (EARLIEST, LATEST):
        return False
    reached = (message_id.ledger, message_id.entry, message_id.batch_index)
    first = (start.ledger, start.entry, start.batch_index)
    if start.batch_index < 0:  # names the whole entry
        reached, first = (*reached[:2], -1), (*first[:2], -1)
    return reached < first if inclusive else reached <= first

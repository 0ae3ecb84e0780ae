"""Producers and consumers of one connection.

Owns: `ProducerSession` and `ConsumerSession`: what binds a client's numeric id on a connection to a
topic or a subscription. Imports: ports, wire builders, transactions. Invariants: a session belongs
to one connection and one topic; a closed session sends nothing more; a producer's answers leave in
the order of its SENDs, errors among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from magnetar.broker.ports import ClientConnection, SendRun, ServedTopic
from magnetar.broker.transactions.sending import publish_in_transaction
from magnetar.errors import InvalidRequest, WireCode
from magnetar.hosting.rates import RateMeter
from magnetar.wire import commands, runs, watermarks

CONSUMER_COUNTERS = 6
"""What `statistics.consumer_rates` measures of one consumer."""

if TYPE_CHECKING:
    from magnetar.broker.topics.subscription_host import SubscriptionHost
    from magnetar.broker.topics.topic_host import TopicHost
    from magnetar.errors import MagnetarError
    from magnetar.hosting.advertised import Successor
    from magnetar.names import TopicName
    from magnetar.topics.producers import Grant

ACTIVE_CONSUMER_CHANGE_SINCE = 12
"""Protocol version."""
DEAF_TO_END_OF_TOPIC = ("Pulsar-CPP", "Pulsar-Go")
"""Clients (4.2 and 0.19) that take REACHED_END_OF_TOPIC for an unknown command and close the
connection, again and again."""
DEAF_AFTER_REFUSED_SEND = ("Pulsar-Go",)
"""Clients (0.19) that forget which producer an id belongs to once a SEND of it was refused with
NotAllowed or TopicTerminated: it gets no answers any more. At any other code they reconnect and
send the same again."""
WORTH_SENDING_AGAIN = frozenset({WireCode.PERSISTENCE, WireCode.CHECKSUM})
"""Refusals that the same SEND may not meet the next time."""


class ProducerRates(NamedTuple):
    """Per second; `chunks` are parts of messages, `dropped` are messages beyond what a connection
    may have on its way without storage."""

    messages: float
    bytes: float
    chunks: float
    dropped: float


@dataclass(slots=True, eq=False)
class ProducerSession:
    """One producer. `pending` counts SENDs whose answer is not out yet; `sends_chunks` is whether
    it has sent a part of a message, `used` whether it has sent anything.

    `waits` is called when it must queue for exclusive access.
    """

    connection: ClientConnection
    producer_id: int
    name: str
    epoch: int
    topic: TopicHost
    closed: bool = False
    schema_version: bytes = b""
    sends_chunks: bool = False
    chunks_in: int = 0
    pending: int = 0
    topic_epoch: int | None = None
    waits: Callable[[], None] | None = None
    used: bool = False
    encoded_name: bytes = b""
    metadata: Mapping[str, str] | None = None
    messages_in: int = 0
    bytes_in: int = 0
    messages_dropped: int = 0
    connected_ms: int = 0
    _meter: RateMeter | None = None
    _leaving: bool = False
    _granted: asyncio.Future[Grant] | None = None

    def __post_init__(self) -> None:
        self.encoded_name = self.name.encode()
        self.connected_ms = self.topic.context.clock.wall_ms()

    @property
    def topic_name(self) -> TopicName:
        return self.topic.name

    def publish(self, run: SendRun) -> None:
        """Give a run of SENDs to the topic; the entries are copied before this returns."""
        self.used = True
        if run.txn is None:
            self.topic.publish(self, run)
        else:
            publish_in_transaction(self.topic, self, run, run.txn)
        if self.topic.throttles is not None:
            self.topic.throttles.published(self, run)

    def rates(self) -> ProducerRates:
        """Since the last request, or over a moment."""
        now = self.topic.context.clock.monotonic()
        counts = (self.messages_in, self.bytes_in, self.chunks_in, self.messages_dropped)
        if self._meter is None:
            self._meter = RateMeter(now, len(counts), counts)
        return ProducerRates(*self._meter.rates(now, counts))

    def detach(self) -> None:
        self.topic.publishing.detach(self)

    # --- waiting for exclusive access -------------------------------------------------------------

    async def wait_for_grant(self) -> Grant:
        """Wait for exclusive access. Raises what `refuse` was given."""
        self._granted = asyncio.get_running_loop().create_future()
        if self.waits is not None:
            self.waits()
        return await self._granted

    def grant(self, grant: Grant) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(grant)

    def refuse(self, error: MagnetarError) -> None:
        """The wait for exclusive access has failed."""
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(error)

    # --- answers ----------------------------------------------------------------------------------

    def durable(self, ledger: int, first_entry: int, run: SendRun) -> None:
        """Entries first_entry.. are on stable storage under this owner's claim: send their
        receipts, in order."""
        self.pending -= len(run.sequences)
        if not self.closed:
            self.connection.queue(
                runs.send_receipts(
                    self.producer_id, ledger, first_entry, run.sequences, run.highest
                )
            )

    def answer(self, frame: bytes) -> None:
        """Answer a SEND that is not stored, behind the answers to all SENDs before it."""
        if self.pending:
            self.answer_behind(frame)
        elif not self.closed:
            self.connection.queue(frame)

    def answer_behind(self, frame: bytes) -> None:
        """Answer a SEND behind everything on its way to storage, other sessions' SENDs
        included."""
        self.pending += 1
        self.topic.after_appends(lambda: self._answer_now(frame))

    def _answer_now(self, frame: bytes) -> None:
        self.pending -= 1
        if not self.closed:
            self.connection.queue(frame)

    def refuse_sends(self, run: SendRun, error: MagnetarError) -> None:
        """Answer SENDs with an error at once, before the answers to those before them: these may
        have to wait for long.

        Every client reconnects and sends again after an error that is not about the message.
        """
        self.topic.count_refused(len(run))
        for last in run.tops:
            self.connection.queue(
                commands.send_error(self.producer_id, last, error.wire_code, str(error))
            )

    def refuse_send(self, sequence: int, code: WireCode, text: str) -> None:
        """Refuse a SEND for what it says, behind the answers to those before it.

        A producer of a client that would go deaf, or send the same again and again, is closed
        instead, with all SENDs behind it; its next PRODUCER is refused with `text`.
        """
        self.topic.count_refused(1)
        if code not in WORTH_SENDING_AGAIN and self.connection.client_version.startswith(
            DEAF_AFTER_REFUSED_SEND
        ):
            self.connection.sessions.refuse_producer_once(self.producer_id, text)
            self.close_by_broker(None)
        else:
            self.answer(commands.send_error(self.producer_id, sequence, code, text))

    @property
    def leaving(self) -> bool:
        return self.closed or self._leaving

    def close_by_broker(self, successor: Successor | None) -> None:
        """Have the client reconnect, at the successor's address if known (PIP-307), after the
        receipts of what is under way.

        One whose PRODUCER is not answered yet is only marked `closed`.
        """
        if self.closed or self._leaving:
            return
        known = self.connection.sessions.producers.get(self.producer_id) is self
        self.connection.sessions.forget_producer(self)
        if not known:
            self.closed = True
            return
        frame = commands.close_producer(
            self.producer_id, *_addresses(self.connection, self.topic, successor)
        )
        self._leaving = True
        if self.pending and not self.topic.fenced:
            self.topic.after_appends(lambda: self._leave(frame))
        else:
            self._leave(frame)

    def _leave(self, frame: bytes) -> None:
        if not self.closed:
            self.connection.queue(frame)
            self.closed = True
            if not self.used:
                self.connection.sessions.early_producer_closes.add(self.producer_id, frame)


@dataclass(slots=True, eq=False)
class ConsumerSession:
    """One consumer, and counters of what it was sent and has acknowledged. `closed`: it is sent
    nothing more. `used`: its client has sent a FLOW."""

    connection: ClientConnection
    consumer_id: int
    name: str
    subscription: SubscriptionHost
    read_compacted: bool = field(kw_only=True)
    sends_epoch: bool = field(kw_only=True)
    takes_watermarks: bool = field(kw_only=True, default=False)
    takes_any_schema: bool = field(kw_only=True, default=False)
    closed: bool = False
    used: bool = False
    notified_end_of_topic: bool = False
    entries_out: int = 0
    bytes_out: int = 0
    chunks_out: int = 0
    messages_redelivered: int = 0
    entries_acknowledged: int = 0
    metadata: Mapping[str, str] | None = None
    first_flow_ms: int = 0
    flow_ms: int = 0
    first_sent_ms: int = 0
    sent_ms: int = 0
    acknowledged_ms: int = 0
    partition: int = field(init=False)
    connected_ms: int = field(init=False)
    meter: RateMeter = field(init=False)
    _watermark_unsent: tuple[int | None, int, int] | None = None

    def __post_init__(self) -> None:
        topic = self.subscription.topic
        clock, self.partition = topic.context.clock, topic.partition
        self.connected_ms = clock.wall_ms()
        self.meter = RateMeter(clock.monotonic(), CONSUMER_COUNTERS)

    @property
    def topic_name(self) -> TopicName:
        return self.subscription.topic.name

    @property
    def subscription_name(self) -> str:
        return self.subscription.core.name

    def flow(self, permits: int) -> None:
        self.used = True
        self.flow_ms = self.subscription.topic.context.clock.wall_ms()
        self.first_flow_ms = self.first_flow_ms or self.flow_ms
        self.subscription.core.flow(self, permits)
        self.subscription.schedule()

    def pause(self) -> None:
        """Its peer does not read."""
        self.subscription.core.pause(self)

    def resume(self) -> None:
        self.subscription.core.resume(self)
        self.subscription.schedule()
        unsent, self._watermark_unsent = self._watermark_unsent, None
        if unsent is not None:
            self.send_watermark(*unsent)

    def detach(self) -> None:
        self.subscription.detach(self)

    def part(self, successor: Successor | None) -> None:
        """Have the client reconnect, at the successor's address if known (PIP-307), before any
        message that is not written yet.

        Its acknowledgements are taken until `close_by_broker`: they may have been sent before.
        """
        if not self.closed:
            self.closed = True
            addresses = _addresses(self.connection, self.subscription.topic, successor)
            frame = commands.close_consumer(self.consumer_id, *addresses)
            self.connection.queue(frame)
            if not self.used:
                self.connection.sessions.early_consumer_closes.add(self.consumer_id, frame)

    def close_by_broker(self, successor: Successor | None) -> None:
        """As `part`; later acknowledgements are not taken."""
        self.part(successor)
        self.connection.sessions.forget_consumer(self)

    def notify_active(self, active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE, to a client that knows it."""
        if not self.closed and self.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_SINCE:
            self.connection.queue(commands.active_consumer_change(self.consumer_id, active=active))

    def send_watermark(self, event_ms: int | None, term: int, resets: int) -> None:
        """WATERMARK; a peer that does not read gets the last one when it does."""
        if not self.connection.writable:
            self._watermark_unsent = event_ms, term, resets
        elif not self.closed:
            self.connection.queue(watermarks.watermark(self.consumer_id, event_ms, term, resets))

    def end_of_topic(self) -> None:
        """Notify the client once that the topic has ended, unless it would close the connection."""
        if not self.notified_end_of_topic and not self.connection.client_version.startswith(
            DEAF_TO_END_OF_TOPIC
        ):
            self.notified_end_of_topic = True
            self.connection.queue(commands.reached_end_of_topic(self.consumer_id))


def producer_of(connection: ClientConnection, producer_id: int) -> ProducerSession | None:
    """The producer of this id. Every producer of a broker's connections is a session."""
    return cast("ProducerSession | None", connection.sessions.producers.get(producer_id))


def consumer_of(connection: ClientConnection, consumer_id: int) -> ConsumerSession | None:
    """The consumer of this id. Every consumer of a broker's connections is a session."""
    return cast("ConsumerSession | None", connection.sessions.consumers.get(consumer_id))


def attached_consumer(connection: ClientConnection, consumer_id: int) -> ConsumerSession:
    """As `consumer_of`. Raises InvalidRequest if there is none."""
    session = consumer_of(connection, consumer_id)
    if session is None:
        raise InvalidRequest("Consumer not found")
    return session


def _addresses(
    connection: ClientConnection, topic: ServedTopic, successor: Successor | None
) -> tuple[str | None, str | None]:
    """The successor's address for this client, plain or by TLS as it came here; neither if the
    client must look the topic up."""
    url = (
        topic.context.listeners.after_transfer(connection.listener, successor)
        if successor is not None
        else None
    )
    return (None, url) if connection.tls else (url, None)

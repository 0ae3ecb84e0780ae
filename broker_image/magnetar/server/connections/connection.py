"""One client connection.

Owns: the transport, the hot path of SEND, the dispatch of commands to the service, gathered writes, back-pressure in both directions.
Imports: wire, server siblings.
Invariants: every frame of a read is handled before the next read; one write carries everything queued in one turn of the loop; a request that
waits does not hold up later ones; nothing is read from a peer whose publishes outrun the disk; a malformed frame ends only this connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import structlog

from magnetar import __version__
from magnetar.errors import ChecksumMismatch, LimitExceeded, ProtocolError, UnsupportedCommand, WireCode
from magnetar.metadata.records import OVER_TLS
from magnetar.server.commands.acknowledgements import acknowledge_span
from magnetar.server.connections.connection_table import ConnectionTable
from magnetar.server.connections.heartbeat import Heartbeat
from magnetar.server.connections.in_flight import InFlight
from magnetar.server.connections.send_group import SendGroup
from magnetar.server.connections.sessions import ConsumerSession, ProducerSession
from magnetar.server.connections.slow_peer import SlowPeer
from magnetar.server.network.tls import common_name
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, runs
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer, verify_entry
from magnetar.wire.frames import InboundBuffer

if TYPE_CHECKING:
    from magnetar.security.authorization import Principal
    from magnetar.server.commands.topic_watchers import TopicWatcher
    from magnetar.server.network.listeners import Listeners, Successor

log = structlog.get_logger(__name__)
Type = api.BaseCommand.Type

SEND, ACK, FLOW = int(Type.SEND), int(Type.ACK), int(Type.FLOW)
"""Of the hot path; looking one up in the enum costs more than comparing it."""

ACK_SPAN_BYTES_MIN = 60
"""Shorter ones, of a few entries, are parsed: that is as fast."""
SERVER_VERSION = f"Pulsar Server4.2.4 (Magnetar {__version__})"
LARGE_PIECE_BYTES = 4096
"""Mean size of what is queued from which on it is written without joining it."""
FORGOTTEN_SENDS_S = 30.0
"""SENDs for a producer that the broker closed are on their way for about as long; they are dropped without a word."""


class Service(Protocol):
    """What answers the commands of connections: a broker, or a transaction coordinator."""

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        """Answer one command, now or later."""
        ...

    def disk_is_behind(self) -> bool:
        """Whether so much waits for a flush that publishers must be held up."""
        ...

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        """Call `resume` once it does not any more."""
        ...


class Connection(asyncio.BufferedProtocol):
    """asyncio's side of one client."""

    def __init__(self, table: ConnectionTable, service: Callable[[], Service], listener: str | None = None) -> None:
        """`listener`: whose port this is, `over_tls` one of TLS; None = the main one. It becomes the one that a LOOKUP names."""
        self._table, self._service_of, self.listener = table, service, listener
        self.tls = listener is not None and listener.endswith(OVER_TLS)
        self.settings = table.settings
        self._inbound = InboundBuffer(self.settings.max_message_bytes)
        self._out: list[Buffer] = []
        self._flush_scheduled = False
        self._connected = False
        self._closing = False
        self._requests: dict[asyncio.Task[None], None] = {}
        self._forgotten: dict[int, float] = {}
        self._reading_paused = self._requests_held = False
        self._transport: asyncio.Transport | None = None
        self.producers: dict[int, ProducerSession] = {}
        self.consumers: dict[int, ConsumerSession] = {}
        self.watchers: dict[int, TopicWatcher] = {}
        self.in_flight = InFlight()
        self.slow, self._heartbeat = SlowPeer(self), Heartbeat(self)
        self.pending_producers: dict[int, asyncio.Task[Any]] = {}
        self._withheld: dict[int, tuple[str, float]] = {}
        self.pending_consumers: dict[int, int] = {}
        self.writable = True
        self.client_version = self.peer = self.common_name = ""
        self.protocol_version = 0
        self.principal: Principal | None = None

    # --- asyncio ---------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.settings.write_buffer_bytes_max)
        self.peer = str(self._transport.get_extra_info("peername"))
        self.common_name = common_name(self._transport) if self.tls else ""
        try:
            self._table.add(self)
        except LimitExceeded as error:
            log.warning("connection.refused", peer=self.peer, reason=str(error))
            self._transport.abort()
            return
        self._heartbeat.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._table.remove(self)
        self._heartbeat.end()
        self.slow.end()
        self._drop_sessions()
        if exc is not None:
            log.debug("connection.lost", peer=self.peer, error=repr(exc))

    def _drop_sessions(self) -> None:
        """Everything that came by this connection is gone, at once."""
        for task in list(self._requests):
            task.cancel()
        producers, self.producers = self.producers, {}
        consumers, self.consumers = self.consumers, {}
        watchers, self.watchers = self.watchers, {}
        steps: list[Callable[[], None]] = [watcher.stop for watcher in watchers.values()]
        for producer in producers.values():
            producer.closed = True
            steps.append(partial(producer.topic.publishing.detach, producer))
        for consumer in consumers.values():
            consumer.closed = True
            steps.append(partial(consumer.subscription.detach, consumer))
        for step in steps:
            try:
                step()
            except Exception:  # none of the others may stay behind: an exclusive one would keep its successor out for ever
                log.exception("connection.session_not_dropped", peer=self.peer)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbound.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._heartbeat.heard()
        try:
            self._handle_frames(nbytes)
        except ProtocolError as error:
            log.warning("connection.protocol_error", peer=self.peer, error=str(error))
            self.close()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False
        self.slow.begin()
        for consumer in self.consumers.values():
            consumer.subscription.core.pause(consumer)

    def resume_writing(self) -> None:
        self.writable, held = True, self.slow.holds
        self.slow.end()
        if held and self.listens:
            self._resume_reading()
        for consumer in self.consumers.values():
            consumer.subscription.core.resume(consumer)
            consumer.subscription.schedule()

    # --- reading ---------------------------------------------------------------------------------------------------------------

    def _handle_frames(self, nbytes: int) -> None:
        frames = self._inbound.advance(nbytes)
        if self._hold_back():
            return  # the frames stay in the buffer until the disk has caught up
        data = self._inbound.data
        group: SendGroup | None = None
        for start, body, end in frames:
            if self._closing:
                return
            kind = commands.peek_type(data, start, body)
            if kind == SEND:
                group = self._collect_send(group, start, body, end)
                continue
            if group is not None:
                group.publish()
                group = None
            if kind != ACK or body - start < ACK_SPAN_BYTES_MIN or not self._acknowledged(start, body):
                self._handle_command(start, body)
                if self._requests_held:
                    return  # the rest stays in the buffer until some of them are answered
        if group is not None and not self._closing:
            group.publish()

    @property
    def listens(self) -> bool:
        """Whether what the peer says is read; while it is not, silence tells nothing about the peer."""
        return not (self._reading_paused or self._requests_held or self.slow.holds)

    def _hold_back(self) -> bool:
        """Stop reading while the disk is behind; True if it is."""
        if not self.listens:
            return True
        if not self._connected or not self._table.ready.is_set():
            return False
        service = self._service_of()
        if not service.disk_is_behind():
            return False
        self._reading_paused = True
        assert self._transport is not None
        self._transport.pause_reading()
        service.when_disk_catches_up(self._resume_reading)
        return True

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def hold_reading(self) -> None:
        """Read nothing more until the peer has read."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if self._transport is None or self._closing or self._transport.is_closing():
            return
        if self.listens:
            self._transport.resume_reading()
            self.buffer_updated(0)  # and what came meanwhile counts as heard, though it is yet to be read

    def _collect_send(self, group: SendGroup | None, start: int, body: int, end: int) -> SendGroup | None:
        """Add one SEND to the group, publishing the group first if it is another producer's."""
        producer_id, sequence, count, highest, most, least, _chunk, _marker = runs.parse_send(self._inbound.data, start, body)
        session = self.producers.get(producer_id)
        if session is None:
            if not self._was_closed_by_us(producer_id):
                raise ProtocolError(f"SEND for producer {producer_id}, which does not exist on this connection; create it first")
            return group
        txn = None if most is None and least is None else TxnId(most or 0, least or 0)
        if group is not None and (group.session is not session or group.txn != txn):
            group.publish()
            group = None
        refused = self._refuse_send(body, end)
        if refused is not None:
            if group is not None:
                group.publish()
            session.refuse_send(max(sequence, highest), *refused)
            return None
        if group is None:
            group = SendGroup(session, txn)
        if group.bytes + end - body > self.settings.publish_bytes_max:
            group.publish()
            group = SendGroup(session, txn)
        group.add(self._inbound.view[body:end], max(1, count), sequence, highest)
        group.add_following(self._inbound, start, body, end, self.settings)
        return group

    def _refuse_send(self, body: int, end: int) -> tuple[WireCode, str] | None:
        """Why one SEND is not taken, or None."""
        if end - body > self.settings.entry_bytes_max:
            return WireCode.NOT_ALLOWED, f"Exceed maximum message size of {self.settings.max_message_bytes} bytes"
        try:
            verify_entry(self._inbound.view[body:end])
        except ChecksumMismatch as error:
            return error.wire_code, str(error)
        return None

    def _acknowledged(self, start: int, body: int) -> bool:
        """Take an ACK of consecutive entries; False if it is any other, which is left to the service."""
        span = runs.parse_ack_span(self._inbound.data, start, body)
        if span is None or not self._connected:
            return False
        acknowledge_span(self, span)
        return True

    def _was_closed_by_us(self, producer_id: int) -> bool:
        until = self._forgotten.get(producer_id)
        return until is not None and asyncio.get_running_loop().time() < until

    def _handle_command(self, start: int, body: int) -> None:
        try:
            command = commands.decode_command(self._inbound.data, start, body)
        except UnsupportedCommand as error:
            log.debug("connection.unknown_command", peer=self.peer, error=str(error))
            return
        kind = command.type
        if not self._connected:
            if kind in (Type.PING, Type.PONG):
                return  # out of turn, but harmless
            if kind != Type.CONNECT:
                raise ProtocolError("the first command must be CONNECT")
            self._handshake(command.connect)
        elif kind == Type.PING:
            self.queue(commands.PONG)
        elif kind == Type.PONG:
            return
        elif kind == Type.CONNECT:
            raise ProtocolError("CONNECT was sent twice")
        elif kind == Type.AUTH_RESPONSE and self._table.handshakes is not None:
            self._table.handshakes.renew(self, command.auth_response)
        elif kind == FLOW:
            self._flow(command.flow)
        elif not self._table.ready.is_set():
            self.spawn(self._when_ready(command))
        else:
            self._service_of().handle(self, command)

    async def _when_ready(self, command: api.BaseCommand) -> None:
        await self._table.ready.wait()
        self._service_of().handle(self, command)

    def _handshake(self, connect: api.CommandConnect) -> None:
        self.client_version = connect.client_version[:200]
        self.protocol_version = min(commands.PROTOCOL_VERSION, connect.protocol_version)
        if self._table.handshakes is not None and not self._table.handshakes.admit(self, connect):
            return
        self._connected = True
        self.queue(commands.connected(SERVER_VERSION, self.protocol_version, self.settings.max_message_bytes))

    def _flow(self, flow: api.CommandFlow) -> None:
        consumer = self.consumers.get(flow.consumer_id)
        if consumer is not None and flow.messagePermits:
            consumer.subscription.core.flow(consumer, flow.messagePermits)
            consumer.subscription.schedule()

    # --- requests that wait ----------------------------------------------------------------------------------------------------

    def spawn(self, request: Coroutine[Any, Any, None]) -> None:
        """Run a request beside the others of this connection; it ends with the connection.

        While too many wait for an answer (a bundle that changes hands has them all wait) nothing more is read: nobody is refused or dropped.
        """
        task = asyncio.create_task(request)
        self._requests[task] = None
        task.add_done_callback(self._request_done)
        if len(self._requests) >= self.settings.requests_per_connection_max and not self._requests_held:
            self._requests_held = True
            log.info("connection.many_requests", peer=self.peer, limit=self.settings.requests_per_connection_max)
            self.hold_reading()

    def _request_done(self, task: asyncio.Task[None]) -> None:
        self._requests.pop(task, None)
        if self._requests_held and len(self._requests) <= self.settings.requests_per_connection_max // 2:
            self._requests_held = False
            if not self._reading_paused:
                self._resume_reading()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("connection.request_failed", peer=self.peer, error=repr(error), exc_info=error)
            self.close()

    # --- writing ---------------------------------------------------------------------------------------------------------------

    def queue(self, data: bytes | memoryview) -> None:
        """Send after everything queued before, together with whatever else this turn of the loop brings."""
        if self._closing:
            return
        self._out.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def queue_messages(
        self,
        session: ConsumerSession,
        ledger: int,
        entry_ids: Sequence[int],
        entries: Sequence[memoryview],
        redelivery_counts: Sequence[int] | None,
        ack_sets: Sequence[Sequence[int]] | None,
        epoch: int,
    ) -> None:
        """Queue entries of one ledger, whose ids rise, as MESSAGE commands."""
        if self._closing or session.closed:
            return
        self._out += runs.scattered_message_frames(
            session.consumer_id,
            ledger,
            entry_ids,
            entries,
            partition=session.partition,
            redelivery_counts=redelivery_counts,
            ack_sets=ack_sets,
            consumer_epoch=epoch if session.sends_epoch else None,
        )
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is None or self._closing or self._transport.is_closing():
            self._out.clear()
            return
        out, self._out = self._out, []
        # Small pieces are joined: a copy costs less than a vector each. Large entries go out from where they are.
        if len(out) == 1:
            self._transport.write(out[0])
        elif sum(map(len, out)) < LARGE_PIECE_BYTES * len(out):
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    # --- sessions --------------------------------------------------------------------------------------------------------------

    def handed_over(self, listeners: Listeners, successor: Successor | None) -> tuple[str | None, str | None]:
        """The successor's address for this client, plain or by TLS as it came here; neither if the client must look the topic up."""
        url = listeners.handed_over(self.listener, successor) if successor is not None else None
        return (None, url) if self.tls else (url, None)

    def ignore_producer(self, session: ProducerSession) -> None:
        """A producer is being closed: drop it here; its late SENDs are ignored for a while."""
        if self.producers.get(session.producer_id) is session:
            del self.producers[session.producer_id]
        now = asyncio.get_running_loop().time()
        self._forgotten = {producer: until for producer, until in self._forgotten.items() if until > now}
        self._forgotten[session.producer_id] = now + FORGOTTEN_SENDS_S

    def withhold(self, producer_id: int, text: str) -> None:
        """Have the next PRODUCER of that id refused with `text`; of more of them than there may be producers the first is forgotten."""
        self._withheld.pop(producer_id, None)
        self._withheld[producer_id] = text, asyncio.get_running_loop().time() + FORGOTTEN_SENDS_S
        if len(self._withheld) > self.settings.producers_per_connection_max:
            del self._withheld[next(iter(self._withheld))]

    def withheld(self, producer_id: int) -> str | None:
        """What a PRODUCER of that id is refused with, once, and only if it comes about as soon as a client does that was closed."""
        text, until = self._withheld.pop(producer_id, ("", 0.0))
        return text if asyncio.get_running_loop().time() < until else None

    def forget_producer(self, session: ProducerSession) -> None:
        """A producer is closed: drop it here and on its topic."""
        self.ignore_producer(session)
        session.topic.publishing.detach(session)

    def forget_consumer(self, session: ConsumerSession) -> None:
        """A consumer is closed: drop it here and on its subscription."""
        if self.consumers.get(session.consumer_id) is session:
            del self.consumers[session.consumer_id]
        session.subscription.detach(session)

    # --- end -------------------------------------------------------------------------------------------------------------------

    async def is_alive(self) -> bool:
        """Whether the peer says anything within `liveness_check_s` of a PING. A dead one is closed and its sessions are gone then."""
        if await self._heartbeat.answers():
            return True
        self.abort()
        self._heartbeat.answer()
        self._drop_sessions()
        return False

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._transport is not None and not self._closing:
            self._flush()
            self._closing = True
            self._transport.close()

    @property
    def connected(self) -> bool:
        """Whether the handshake is over."""
        return self._connected

    @property
    def closed(self) -> bool:
        """Whether this connection sends nothing any more."""
        return self._closing

    def abort(self) -> None:
        """Close at once; nothing queued is sent."""
        self._closing = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

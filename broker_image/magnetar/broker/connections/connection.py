"""One client connection.

Owns: the transport, the loop over the frames of a read, the dispatch of commands to the service,
gathered writes, back-pressure in both directions. Imports: wire, siblings. Invariants: every frame
of a read is handled before the next read; one write carries everything queued in one turn of the
loop; a request that waits does not delay later ones; nothing is read from a peer whose publishes
outrun the disk; a malformed frame ends only this connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog

from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.broker.connections.heartbeat import Heartbeat
from magnetar.broker.connections.in_flight import InFlight
from magnetar.broker.connections.intake import DISK, REQUESTS, TURN, Intake
from magnetar.broker.connections.outbound import Outbound
from magnetar.broker.connections.receive_room import Room
from magnetar.broker.connections.send_group import SendCollector, SendGroup
from magnetar.broker.connections.session_table import SessionTable
from magnetar.broker.connections.slow_peer import SlowPeer
from magnetar.broker.ports import AttachedConsumer, CommandService
from magnetar.errors import LimitExceeded, ProtocolError, UnsupportedCommand
from magnetar.hosting.peer_budget import peer_group
from magnetar.hosting.tls import PeerCertificate, peer_certificate
from magnetar.metadata.records import OVER_TLS
from magnetar.wire import commands, runs
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer
from magnetar.wire.frames import InboundBuffer
from magnetar.wire.large_commands import LARGE_BYTES, LISTS, check_fields, list_parts

if TYPE_CHECKING:
    from magnetar.security.authorization import Principal

log = structlog.get_logger(__name__)
Type = api.BaseCommand.Type

SEND, ACK, FLOW = int(Type.SEND), int(Type.ACK), int(Type.FLOW)
"""Of the hot path; looking one up in the enum costs more than comparing it."""

ENTRY_METADATA_SINCE = 18
"""Protocol version."""
ACK_SPAN_BYTES_MIN = 60
"""Shorter ones, of a few entries, are parsed: that is as fast."""
TURN_COST_MAX, TURN_REST_S = 16 << 10, 0.001
"""The most that the commands of one connection may cost before other connections get their turn, a
few milliseconds: each costs its size twice, and one of the constants below. Before its next turn, a
connection that does not publish rests: requests of others take several turns of the loop."""
SEND_COST, COMMAND_COST, GROUP_COST, REQUEST_COST = 8, 96, 256, 1024
"""What handling one costs besides: a SEND, a command, a group of SENDs of one producer, and a
request that gets a task of its own."""
CONNECT_BYTES_MAX = 64 * 1024
"""Largest frame before CONNECT was accepted: memory that a peer without credentials may hold."""


class Connection(asyncio.BufferedProtocol):
    """asyncio's side of one client."""

    def __init__(
        self,
        table: ConnectionTable,
        service: Callable[[], CommandService],
        listener: str | None = None,
    ) -> None:
        """`listener`: the port's listener, `over_tls` for TLS; None = the main one. A LOOKUP may
        change it."""
        self._table, self._service_of, self.listener = table, service, listener
        self.tls = listener is not None and listener.endswith(OVER_TLS)
        self.settings = table.settings
        self._inbound = InboundBuffer(CONNECT_BYTES_MAX)
        self._outbound = Outbound(self.settings.write_buffer_bytes_max)
        self._intake, self._in_flight = Intake(), InFlight()
        self.sessions = SessionTable(
            self.settings.producers_per_connection_max, self.settings.consumers_per_connection_max
        )
        self._sends = SendCollector(self, self._inbound, self.sessions, self.settings)
        self._requests: dict[asyncio.Task[None], None] = {}
        self._transport: asyncio.Transport | None = None
        self._flush_scheduled = False
        self.connected = self.closed = False
        """Whether CONNECT was accepted, and whether nothing is sent any more."""
        self.writable = True
        self._room = Room(table.rooms, self, self._inbound)
        self.slow, self.heartbeat = SlowPeer(self, self._outbound), Heartbeat(self, self._room)
        self.client_version = self.peer = self.group = ""
        self.certificate = PeerCertificate()
        self.protocol_version = 0
        self.takes_entry_metadata = False
        self.principal: Principal | None = None

    # --- asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbound.begin(self._transport)
        self._intake.begin(self._transport)
        peername = self._transport.get_extra_info("peername")
        self.peer, self.group = str(peername), peer_group(peername)
        self.certificate = peer_certificate(self._transport) if self.tls else PeerCertificate()
        try:
            self._table.add(self)
        except LimitExceeded as error:
            log.warning("connection.refused", peer=self.peer, reason=str(error))
            self._transport.abort()
            return
        self.heartbeat.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._table.remove(self)
        self.heartbeat.end()
        self._room.end()
        self.slow.end()
        self._drop_sessions()
        if exc is not None:
            log.debug("connection.lost", peer=self.peer, error=repr(exc))

    def _drop_sessions(self) -> None:
        for task in list(self._requests):
            task.cancel()
        self.sessions.drop(self.peer)

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._room.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heartbeat.received()
        try:
            self._handle_frames(nbytes)
            if not self.closed:
                self._room.settle(nbytes)
        except ProtocolError as error:
            log.warning("connection.protocol_error", peer=self.peer, error=str(error))
            self.close()
        except Exception as error:
            self._table.surprises.note("connections", error, peer=self.peer)
            self.abort()

    def pause_writing(self) -> None:
        self._outbound.full = True
        self._weigh()

    def resume_writing(self) -> None:
        self._outbound.full = False
        self._flush()

    def _weigh(self) -> None:
        """Stop messages to a peer that does not read, until most of what is queued was read."""
        if self.writable and self._outbound.too_much:
            self.writable = False
            self.slow.begin()
            for consumer in self.sessions.consumers.values():
                consumer.pause()
        elif not self.writable and self._outbound.little:
            self.writable = True
            self.slow.end()
            for consumer in self.sessions.consumers.values():
                consumer.resume()

    # --- reading ----------------------------------------------------------------------------------

    def _handle_frames(self, nbytes: int) -> None:
        frames = self._inbound.advance(nbytes)
        if self._must_wait():
            return  # the frames stay in the buffer
        data, connected, left = self._inbound.data, self.connected, TURN_COST_MAX
        group: SendGroup | None = None
        for start, body, end in frames:
            if self.closed:
                return
            kind, large = commands.peek_type(data, start, body), body - start > LARGE_BYTES
            if large and kind not in LISTS:
                check_fields(data, start, body)
            if kind == SEND:
                collected = self._sends.add(group, start, body, end)
                left -= SEND_COST if collected is group else GROUP_COST
                group = collected
                if left > 0:
                    continue
            if group is not None:
                group.publish()
                group = None
            if large and kind in LISTS and self._take_list(start, body):
                return
            if kind == SEND:
                pass
            elif (
                kind != ACK
                or not ACK_SPAN_BYTES_MIN <= body - start <= LARGE_BYTES
                or not self._acknowledged(start, body)
            ):
                waiting = len(self._requests)
                self._handle_command(start, body)
                left -= 2 * (body - start) + (
                    COMMAND_COST if len(self._requests) == waiting else REQUEST_COST
                )
            else:
                left -= COMMAND_COST + (body - start >> 3)
            if self._intake.held & REQUESTS:
                return  # the rest stays in the buffer until some of them are answered
            if self.connected is not connected:
                self._handle_frames(0)  # larger frames are allowed now
                return
            if left <= 0 and not self.closed:
                self.hold_reading(TURN)
                asyncio.get_running_loop().call_later(
                    0 if kind == SEND else TURN_REST_S, self.resume_reading, TURN
                )
                return
        if group is not None and not self.closed:
            group.publish()

    def _take_list(self, start: int, body: int) -> bool:
        """Take an ACK or REDELIVER of very many ids, part by part; False if it is to be decoded
        at once."""
        data = bytes(self._inbound.view[start:body])
        served = self.connected and self._table.ready.is_set()
        parts = list_parts(data, 0, len(data)) if served else None
        if parts is None:
            check_fields(data, 0, len(data))
        else:
            self.spawn_in_order(self._service_of().take_list(self, parts))
        return parts is not None

    def spawn_in_order(self, request: Coroutine[Any, Any, None]) -> None:
        """Run a request in turns with other connections; commands behind it wait until it has
        ended."""
        self.hold_reading(TURN)
        self.spawn(request).add_done_callback(lambda _task: self.resume_reading(TURN))

    def hold_reading(self, reason: int) -> None:
        """Read nothing more until `resume_reading` for this reason."""
        self._intake.hold(reason)

    def resume_reading(self, reason: int) -> None:
        """Read again, unless another reason is left; buffered bytes count as received now."""
        if self._intake.release(reason) and not self.closed:
            self._inbound.excuse()
            self.buffer_updated(0)

    @property
    def listens(self) -> bool:
        """Whether the peer is read; while it is not, silence says nothing about it."""
        return not self._intake.held

    def _must_wait(self) -> bool:
        """Stop reading while the disk is behind; True if nothing may be handled now."""
        if self._intake.held:
            return True
        if not self.connected or not self._table.ready.is_set():
            return False
        if not (service := self._service_of()).disk_is_behind():
            return False
        self.hold_reading(DISK)
        service.when_disk_catches_up(partial(self.resume_reading, DISK))
        return True

    def _acknowledged(self, start: int, body: int) -> bool:
        """Take an ACK of consecutive entries; False if it is any other, which is left to the
        service."""
        span = runs.parse_ack_span(self._inbound.data, start, body)
        if span is None or not self.connected:
            return False
        self._service_of().acknowledge_span(self, span)
        return True

    def _handle_command(self, start: int, body: int) -> None:
        try:
            command = commands.decode_command(self._inbound.data, start, body)
        except UnsupportedCommand as error:
            log.debug("connection.unknown_command", peer=self.peer, error=str(error))
            return
        kind = command.type
        if not self.connected:
            if kind in (Type.PING, Type.PONG):
                return  # out of turn, but harmless
            if kind != Type.CONNECT:
                raise ProtocolError("the first command must be CONNECT")
            self._handshake(command.connect)
        elif kind == Type.PING:
            self.queue(commands.PONG)
        elif kind == Type.PONG:
            self.heartbeat.ponged()
        elif kind == Type.CONNECT:
            raise ProtocolError("CONNECT was sent twice")
        elif kind == Type.AUTH_RESPONSE and self._table.handshakes is not None:
            self._table.handshakes.renew(self, command.auth_response)
        elif kind == FLOW:
            again = self.sessions.flow(command.flow.consumer_id, command.flow.messagePermits)
            if again is not None:
                self.queue(again)
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
        self.takes_entry_metadata = (
            self.protocol_version >= ENTRY_METADATA_SINCE
            and connect.feature_flags.supports_broker_entry_metadata
        )
        if self._table.handshakes is not None and not self._table.handshakes.admit(self, connect):
            return
        self.connected = True
        self._inbound.allow(self.settings.max_message_bytes)
        self._table.admitted(self)
        self.heartbeat.admitted()
        self.queue(
            commands.connected(
                commands.SERVER_VERSION,
                self.protocol_version,
                self.settings.max_message_bytes,
                watermarks=connect.feature_flags.supports_watermarks,
            )
        )

    # --- requests that wait -----------------------------------------------------------------------

    def spawn(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a request beside the others of this connection; it ends with the connection.

        While too many wait for an answer (during a transfer of their bundle all do) nothing
        more is read: no request is refused or dropped.
        """
        task = asyncio.create_task(request)
        self._requests[task] = None
        task.add_done_callback(self._request_done)
        limit = self.settings.requests_per_connection_max
        if len(self._requests) >= limit and not self._intake.held & REQUESTS:
            log.info("connection.many_requests", peer=self.peer, limit=limit)
            self.hold_reading(REQUESTS)
        return task

    def _request_done(self, task: asyncio.Task[None]) -> None:
        self._requests.pop(task, None)
        if len(self._requests) <= self.settings.requests_per_connection_max // 2:
            self.resume_reading(REQUESTS)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._table.surprises.note("connections", error, peer=self.peer)
            self.close()

    # --- writing ----------------------------------------------------------------------------------

    def queue(self, data: bytes | memoryview) -> None:
        """Send behind everything queued before; one write takes what a turn of the loop queues."""
        if self.closed:
            return
        self._outbound.add(data)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def queue_messages(self, session: AttachedConsumer, frames: Sequence[Buffer]) -> None:
        """Queue MESSAGE commands of one consumer: header, entry, header, entry, ..."""
        if not self.closed and not session.closed:
            self._outbound.add_messages(session, frames)
            self._schedule_flush()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is None or self.closed or self._transport.is_closing():
            self._outbound.clear()
            return
        self._outbound.write(self._transport)
        if self._outbound.full or not self.writable:
            self._weigh()

    def admit_in_flight(self, count: int, limit: int) -> int:
        """How many of `count` messages without storage may be on their way."""
        return self._in_flight.admit(count, limit)

    # --- end --------------------------------------------------------------------------------------

    async def is_alive(self) -> bool:
        """Whether the peer sends anything within `liveness_check_s` of a PING. A dead one is
        aborted and its sessions are dropped."""
        if await self.heartbeat.answers():
            return True
        self.abort()
        self.heartbeat.answer()
        self._drop_sessions()
        return False

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._transport is not None and not self.closed:
            self._outbound.write_all(self._transport)
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once; nothing queued is sent."""
        self.closed = True
        self._outbound.clear()
        if self._transport is not None:
            self._transport.abort()

"""One connection to one broker.

Owns: handshake, requests and their answers, keep-alive, and dispatch to producers and
consumers. Imports: wire, failures, asyncio. Opened through `Network` by `pool`.
Invariants: every request ends (answer, error or ConnectionLost); when the connection ends,
everything attached to it is notified once; PING is answered at once, and a peer silent for a whole
keep-alive interval after a PING is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from magnetar import __version__
from magnetar.client.failures import ConnectionLost, failure_in, failure_of
from magnetar.errors import ProtocolError, UnsupportedCommand
from magnetar.wire import commands, frames, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer

CLIENT_VERSION = f"Magnetar-Python-{__version__}"
KEEP_ALIVE_S = 30.0
CLOSE_TLS_S = 2.0
"""How long the end of a connection by TLS may take."""
ANSWERS_PENDING_MAX = 50_000

Answer: TypeAlias = api.BaseCommand
Type = api.BaseCommand.Type
_log = logging.getLogger(__name__)


class CoordinatorLink(Protocol):
    """A transaction coordinator's client, as its connection sees it."""

    def on_detached(self, assigned_url: str | None) -> None: ...


class ProducerLink(CoordinatorLink, Protocol):
    """A producer, as its connection sees it."""

    def on_receipt(self, receipt: api.CommandSendReceipt) -> None: ...
    def on_send_error(self, error: api.CommandSendError) -> None: ...


class ConsumerLink(CoordinatorLink, Protocol):
    """A consumer, as its connection sees it."""

    def on_message(self, message: api.CommandMessage, entry: bytes) -> None: ...
    def on_active_change(self, active: bool) -> None: ...
    def on_end_of_topic(self) -> None: ...
    def on_watermark(self, watermark: api.CommandWatermark) -> None: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """What CONNECT and AUTH_RESPONSE authenticate with; method "" = nothing. A callable `data` is
    called each time.

    `original` is the role that a proxy or a process of the cluster speaks for.
    """

    method: str = ""
    data: bytes | Callable[[], bytes] = b""
    original: str = ""

    def now(self) -> bytes:
        return self.data() if callable(self.data) else self.data


class Connection(asyncio.BufferedProtocol):
    """A protocol of `Network.connect`; use it after `await connection.ready`."""

    def __init__(
        self,
        credentials: Credentials,
        proxy_to: str | None = None,
        keep_alive_s: float = KEEP_ALIVE_S,
        *,
        tls: bool = False,
    ) -> None:
        self._credentials, self._tls = credentials, tls
        self._proxy_to = proxy_to
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._buffer = frames.InboundBuffer()
        self._transport: asyncio.Transport | None = None
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._received = True
        self._failure: BaseException | None = None
        self._handlers = self._dispatch_table()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ready.add_done_callback(_retrieved)
        self.closed = False
        self._gone = asyncio.Event()
        self.message_bytes_max = frames.MESSAGE_BYTES_MAX
        self.takes_watermarks = False
        self.producers: dict[int, ProducerLink] = {}
        self.consumers: dict[int, ConsumerLink] = {}
        self.coordinators: dict[int, CoordinatorLink] = {}

    # --- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert transport is not None
        self._transport = transport  # type: ignore[assignment]  # the network hands out stream transports
        who = self._credentials
        hello = requests.connect(
            CLIENT_VERSION,
            commands.PROTOCOL_VERSION,
            auth_method=who.method,
            auth_data=who.now(),
            proxy_to=self._proxy_to,
            original=who.original,
        )
        self.write(hello)
        self._timer = self._loop.call_later(self._keep_alive_s, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._received = True
        try:
            for start, body, end in self._buffer.advance(nbytes):
                self._receive(start, body, end)
        except ProtocolError as failure:
            self.abort(failure)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._end(self._failure or exc)

    # --- for producers, consumers and the pool

    def write(self, frame: Buffer) -> None:
        """Send a frame; dropped if the connection is closing, of whose end everything attached is
        notified."""
        if self._transport is not None and not self.closed:
            self._transport.write(frame)

    async def request(self, request_id: int, frame: bytes) -> Answer:
        """Send a request and wait for the answer with its id. Raises the error it answers with,
        ConnectionLost if none comes."""
        assert request_id not in self._answers, "request ids are unique within a client"
        assert len(self._answers) < ANSWERS_PENDING_MAX, "callers bound their requests"
        if self.closed:
            raise ConnectionLost("connection is closed; the request was not sent")
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answers[request_id] = answer
        self.write(frame)
        try:
            return await answer
        finally:
            self._answers.pop(request_id, None)

    def abort(self, failure: BaseException | None = None) -> None:
        """Drop the connection; everything attached reconnects."""
        if self.closed:
            return
        self._failure = failure
        if self._transport is not None:
            self._transport.abort()
        self._end(failure)

    def close(self) -> None:
        """Close after what was written has left."""
        if self._transport is not None and not self.closed:
            self._transport.close()
        self._end(None)

    async def wait_closed(self) -> None:
        """After `close`: return once the transport is gone. TLS ends by an exchange, which an event
        loop that closes before its end would cut off."""
        if self._transport is None or not self._tls:
            return
        try:
            async with asyncio.timeout(CLOSE_TLS_S):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    # --- inside

    def _end(self, failure: BaseException | None) -> None:
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        lost = ConnectionLost(
            f"connection to the broker ended{f': {failure}' if failure else ''}; outcome unknown, "
            "try again"
        )
        lost.__cause__ = failure
        if not self.ready.done():
            self.ready.set_exception(lost)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(lost)
        self._answers.clear()
        attached: list[CoordinatorLink] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.coordinators.values(),
        ]
        self.producers.clear()
        self.consumers.clear()
        self.coordinators.clear()
        for link in attached:
            link.on_detached(None)

    def _tick(self) -> None:
        if not self._received or not self.ready.done():
            self.abort(ConnectionLost(f"broker was silent for {self._keep_alive_s} s"))
            return
        self._received = False
        self.write(commands.PING)
        self._timer = self._loop.call_later(self._keep_alive_s, self._tick)

    def _receive(self, start: int, body: int, end: int) -> None:
        try:
            command = commands.decode_command(self._buffer.data, start, body)
        except UnsupportedCommand:
            _log.info("a command of %d bytes that is not known was ignored", body - start)
            return
        if command.type == Type.MESSAGE:
            consumer = self.consumers.get(command.message.consumer_id)
            if consumer is not None:
                consumer.on_message(command.message, bytes(self._buffer.view[body:end]))
            return
        handler = self._handlers.get(command.type)
        if handler is not None:
            handler(command)
        else:
            field = getattr(command, commands.FIELD_OF_TYPE[command.type])
            self._answer(getattr(field, "request_id", None), command)

    def _dispatch_table(self) -> dict[int, Callable[[api.BaseCommand], None]]:
        return {
            Type.CONNECTED: self._on_connected,
            Type.ERROR: self._on_error,
            Type.PING: lambda _: self.write(commands.PONG),
            Type.PONG: lambda _: None,
            Type.SEND_RECEIPT: self._on_receipt,
            Type.SEND_ERROR: self._on_send_error,
            Type.PRODUCER_SUCCESS: self._on_producer_success,
            Type.LOOKUP_RESPONSE: self._on_found,
            Type.PARTITIONED_METADATA_RESPONSE: self._on_found,
            Type.GET_TOPICS_OF_NAMESPACE_RESPONSE: self._on_listed,
            Type.GET_SCHEMA_RESPONSE: self._on_schema,
            Type.ACK_RESPONSE: self._on_response,
            Type.TC_CLIENT_CONNECT_RESPONSE: self._on_response,
            Type.NEW_TXN_RESPONSE: self._on_response,
            Type.ADD_PARTITION_TO_TXN_RESPONSE: self._on_response,
            Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: self._on_response,
            Type.END_TXN_RESPONSE: self._on_response,
            Type.CLOSE_PRODUCER: self._on_close_producer,
            Type.CLOSE_CONSUMER: self._on_close_consumer,
            Type.ACTIVE_CONSUMER_CHANGE: self._on_active_change,
            Type.REACHED_END_OF_TOPIC: self._on_end_of_topic,
            Type.WATERMARK: self._on_watermark,
            Type.AUTH_CHALLENGE: self._on_challenge,
        }

    def _answer(self, request_id: int | None, answer: Answer | Exception) -> None:
        """Resolve a request; answers to requests that were given up are dropped."""
        waiting = self._answers.get(request_id) if request_id is not None else None
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _on_connected(self, command: api.BaseCommand) -> None:
        if command.connected.HasField("max_message_size"):
            self.message_bytes_max = command.connected.max_message_size
        self.takes_watermarks = command.connected.feature_flags.supports_watermarks
        if not self.ready.done():
            self.ready.set_result(None)

    def _on_error(self, command: api.BaseCommand) -> None:
        failure = failure_of(command.error.error, command.error.message)
        if not self.ready.done():
            self.ready.set_exception(failure)
            self.abort(failure)
        else:
            self._answer(command.error.request_id, failure)

    def _on_receipt(self, command: api.BaseCommand) -> None:
        producer = self.producers.get(command.send_receipt.producer_id)
        if producer is not None:
            producer.on_receipt(command.send_receipt)

    def _on_send_error(self, command: api.BaseCommand) -> None:
        producer = self.producers.get(command.send_error.producer_id)
        if producer is not None:
            producer.on_send_error(command.send_error)

    def _on_producer_success(self, command: api.BaseCommand) -> None:
        # Not ready = queued for exclusive access: the real answer follows under the same request
        # id.
        if command.producer_success.producer_ready:
            self._answer(command.producer_success.request_id, command)

    def _on_found(self, command: api.BaseCommand) -> None:
        """A response that names its failure by its kind."""
        found = getattr(command, commands.FIELD_OF_TYPE[command.type])
        failed = found.response == found.Failed
        self._answer(
            found.request_id, failure_of(found.error, found.message) if failed else command
        )

    def _on_listed(self, command: api.BaseCommand) -> None:
        self._answer(command.get_topics_of_namespace_response.request_id, command)

    def _on_schema(self, command: api.BaseCommand) -> None:
        found = command.get_schema_response
        failed = found.HasField("error_code")
        self._answer(
            found.request_id,
            failure_of(found.error_code, found.error_message) if failed else command,
        )

    def _on_response(self, command: api.BaseCommand) -> None:
        """A response that carries its own error."""
        response = getattr(command, commands.FIELD_OF_TYPE[command.type])
        failed = response.HasField("error")
        self._answer(response.request_id, failure_in(response) if failed else command)

    def _on_close_producer(self, command: api.BaseCommand) -> None:
        producer = self.producers.pop(command.close_producer.producer_id, None)
        if producer is not None:
            producer.on_detached(self._assigned(command.close_producer))

    def _on_close_consumer(self, command: api.BaseCommand) -> None:
        consumer = self.consumers.pop(command.close_consumer.consumer_id, None)
        if consumer is not None:
            consumer.on_detached(self._assigned(command.close_consumer))

    def _assigned(self, closed: api.CommandCloseProducer | api.CommandCloseConsumer) -> str | None:
        """The successor's address, the TLS one on a TLS connection."""
        return (
            closed.assignedBrokerServiceUrlTls if self._tls else closed.assignedBrokerServiceUrl
        ) or None

    def _on_active_change(self, command: api.BaseCommand) -> None:
        consumer = self.consumers.get(command.active_consumer_change.consumer_id)
        if consumer is not None:
            consumer.on_active_change(command.active_consumer_change.is_active)

    def _on_end_of_topic(self, command: api.BaseCommand) -> None:
        consumer = self.consumers.get(command.reached_end_of_topic.consumer_id)
        if consumer is not None:
            consumer.on_end_of_topic()

    def _on_watermark(self, command: api.BaseCommand) -> None:
        consumer = self.consumers.get(command.watermark.consumer_id)
        if consumer is not None:
            consumer.on_watermark(command.watermark)

    def _on_challenge(self, _command: api.BaseCommand) -> None:
        who = self._credentials
        self.write(
            requests.auth_response(CLIENT_VERSION, commands.PROTOCOL_VERSION, who.method, who.now())
        )


def _retrieved(future: asyncio.Future[Any]) -> None:
    """All waiters may have left when a connection fails; that is no error of its own."""
    if not future.cancelled():
        future.exception()

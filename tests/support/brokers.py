"""Brokers and raw peers for the tests of the server.

Owns: a real broker in this process on a store in memory, a volume in a temporary directory and real
sockets; and `Peer`, which speaks the protocol frame by frame, so that a test sees exactly what a
client sees.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from magnetar.balance.settings import BALANCE
from magnetar.broker.incarnation import Broker
from magnetar.clock import SystemClock
from magnetar.hosting.advertised import ListenerOptions
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.security.authentication import Authenticator
from magnetar.hosting.settings import BrokerSettings
from magnetar.hosting.tls import TlsPort
from magnetar.hosting.usage import ProcessUsage
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.leases import LeaseKeeper
from magnetar.metadata.store import MetadataStore
from magnetar.network import AsyncioNetwork
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.volume import Volume
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import encode_entry
from magnetar.wire.frames import HEADER_BYTES, encode_command

CLOCK = SystemClock()
HOST = "127.0.0.1"
TOPIC = "persistent://public/default/t"
ANSWER_TIMEOUT_S = 120.0
QUIET_S = 0.05
Type = api.BaseCommand.Type
STILL = replace(BALANCE, shedding=False)
"""Load balancing that moves nothing."""
LIVELY = replace(BALANCE, plan_interval_s=0.1)
"""Load balancing that plans ten times a second."""
SETTINGS = BrokerSettings(
    log_file_bytes=24 << 20,
    park_timeout_s=20.0,
    drain_timeout_s=30.0,
    ack_write_delay_s=0.01,
    lease_ttl_s=30.0,
)
"""The lease is long: a machine that is busy with other things must not end it."""


def entry(payload: bytes, sequence: int = 0, **metadata: Any) -> bytes:
    """An entry as a client sends it."""
    return encode_entry(
        api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **metadata),
        payload,
    )


async def read_command(reader: asyncio.StreamReader) -> tuple[api.BaseCommand, bytes]:
    """The next frame: command and body."""
    header = await reader.readexactly(HEADER_BYTES)
    total, size = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")
    rest = await reader.readexactly(total - 4)
    return api.BaseCommand.FromString(rest[:size]), rest[size:]


class Peer:
    """One connection; requests number themselves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._request = 0

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def next_request(self) -> int:
        self._request += 1
        return self._request

    async def receive(self) -> tuple[api.BaseCommand, bytes]:
        """The next frame. Raises IncompleteReadError when the broker has closed the connection."""
        return await asyncio.wait_for(read_command(self.reader), ANSWER_TIMEOUT_S)

    async def answer(self, kind: int | None = None) -> api.BaseCommand:
        """The next command, which must be of type `kind` if given."""
        command, _ = await self.receive()
        assert kind is None or command.type == kind, command
        return command

    async def is_quiet(self) -> bool:
        """Whether the broker says nothing for a moment, with everything sent before handled (it
        answers PING in order)."""
        self.write(command_frame("ping"))
        await self.answer(Type.PONG)
        try:
            await asyncio.wait_for(self.reader.readexactly(1), QUIET_S)
        except TimeoutError:
            return True
        return False

    async def closed_by_broker(self) -> bool:
        """Whether the connection ends (frames before that are skipped)."""
        try:
            while True:
                await self.receive()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return True

    async def ask(self, field: str, **values: Any) -> api.BaseCommand:
        """Send the request whose sub-message is `field`, and return the answer."""
        self.write(command_frame(field, request_id=self.next_request(), **values))
        return await self.answer()

    async def lookup(self, topic: str = TOPIC) -> str:
        """Have the topic's bundle assigned, as every client does first; the owner's address."""
        answer = await self.ask("lookup", topic=topic)
        assert answer.lookup_response.response == api.CommandLookupTopicResponse.Connect, answer
        return answer.lookup_response.brokerServiceUrl

    async def produce(
        self, producer_id: int = 1, topic: str = TOPIC, **values: Any
    ) -> api.CommandProducerSuccess:
        """Create a producer."""
        answer = await self.ask("producer", topic=topic, producer_id=producer_id, **values)
        assert answer.type == Type.PRODUCER_SUCCESS, answer
        return answer.producer_success

    async def send(
        self, payload: bytes, sequence: int = 0, producer_id: int = 1
    ) -> tuple[int, int]:
        """Publish one message; its (ledger, entry)."""
        self.write(requests.send(producer_id, sequence, entry(payload, sequence)))
        receipt = (await self.answer(Type.SEND_RECEIPT)).send_receipt
        assert receipt.sequence_id == sequence, receipt
        return receipt.message_id.ledgerId, receipt.message_id.entryId

    async def subscribe(
        self, consumer_id: int = 1, topic: str = TOPIC, **values: Any
    ) -> api.BaseCommand:
        """SUBSCRIBE (by default Exclusive, from the beginning); the answer."""
        options: dict[str, Any] = {
            "subscription": "s",
            "subType": 0,
            "initialPosition": 1,
            "consumer_name": f"c{consumer_id}",
        }
        return await self.ask(
            "subscribe", **{**options, "topic": topic, "consumer_id": consumer_id, **values}
        )

    async def message(self) -> tuple[api.CommandMessage, bytes]:
        """The next MESSAGE and its entry."""
        command, body = await self.receive()
        assert command.type == Type.MESSAGE, command
        return command.message, body

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Answer PINGs, as a client does that is idle, and expect nothing else."""

        async def answer_pings() -> None:
            while True:
                await self.answer(Type.PING)
                self.write(command_frame("pong"))

        answering = asyncio.create_task(answer_pings())
        try:
            yield
        finally:
            answering.cancel()
            await asyncio.wait([answering])
            if not answering.cancelled():
                answering.result()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return  # the broker was faster


def command_frame(field: str, **values: Any) -> bytes:
    """The frame of a command given by the name of its sub-message."""
    command = api.BaseCommand(type=Type.Value(field.upper()))
    body = getattr(command, field)
    body.SetInParent()
    for name, value in values.items():
        if isinstance(value, list):
            getattr(body, name).extend(value)
        elif isinstance(value, Message):
            getattr(body, name).CopyFrom(value)
        else:
            setattr(body, name, value)
    return encode_command(command)


@asynccontextmanager
async def open_peer(
    broker: Broker, *, handshake: bool = True, port: int = 0, receive_buffer_bytes: int = 0
) -> AsyncIterator[Peer]:
    """A connection to `broker`, by its main port unless `port` is given.

    `receive_buffer_bytes` limits what the kernel takes for the peer. It is set before the
    connection is made: a window that shrinks later makes both kernels drop what is under way.
    """
    connecting = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY by this number
    if receive_buffer_bytes:
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connecting.setblocking(False)
    address = HOST, port or int(broker.service_url.rpartition(":")[2])
    try:
        await asyncio.get_running_loop().sock_connect(connecting, address)
    except OSError:
        connecting.close()
        raise
    peer = Peer(*await asyncio.open_connection(sock=connecting))
    try:
        if handshake:
            peer.write(requests.connect("test", 21))
            await peer.answer(Type.CONNECTED)
        yield peer
    finally:
        await peer.close()


class Node:
    """A broker process without the process: incarnations of one name over one store and volume."""

    def __init__(
        self,
        store: MetadataStore,
        volume: Volume,
        name: str,
        settings: BrokerSettings,
        listeners: ListenerOptions = ListenerOptions(),  # noqa: B008 - frozen
        security: Authenticator | None = None,
        tls: TlsPort | None = None,
        http_url: str = f"http://{HOST}:0",
    ) -> None:
        self.store, self.volume, self.name, self.settings, self.listeners = (
            store,
            volume,
            name,
            settings,
            listeners,
        )
        self.security, self.tls, self.http_url = security, tls, http_url

    async def start(self) -> Broker:
        """A new incarnation, ready."""
        ports = ProcessPorts(
            clock=CLOCK,
            network=AsyncioNetwork(),
            volume=self.volume,
            store=self.store,
            lease=lambda on_lost: LeaseKeeper(
                self.store, CLOCK, self.settings.lease_ttl_s, on_lost
            ),
            usage=ProcessUsage(),
            security=self.security,
            tls=self.tls,
        )
        broker = Broker(
            ports,
            ProcessIdentity(self.name, HOST, HOST, 0, self.http_url, self.listeners),
            self.settings,
        )
        try:
            await broker.start()
        except BaseException:
            await broker.close()
            raise
        return broker


@asynccontextmanager
async def volume_in(directory: Path) -> AsyncIterator[PosixVolume]:
    volume = PosixVolume(directory)
    try:
        yield volume
    finally:
        await volume.close()


@asynccontextmanager
async def running_broker(
    directory: Path,
    *,
    store: MetadataStore | None = None,
    name: str = "broker-0",
    listeners: ListenerOptions = ListenerOptions(),  # noqa: B008 - frozen
    security: Authenticator | None = None,
    tls: TlsPort | None = None,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """One broker, alone in its cluster unless `store` is shared."""
    async with volume_in(directory) as volume:
        own = store or MemoryStore(CLOCK)
        broker = await Node(
            own, volume, name, replace(SETTINGS, **settings), listeners, security, tls
        ).start()
        try:
            yield broker
        finally:
            await broker.close()
            if store is None:
                await own.close()


@asynccontextmanager
async def connected_peer(directory: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Peer]]:
    """A broker that owns TOPIC's bundle, and one peer that has shaken hands."""
    async with running_broker(directory, **settings) as broker, open_peer(broker) as peer:
        await peer.lookup()
        yield broker, peer

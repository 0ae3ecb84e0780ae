"""Streams in memory and a scripted broker: the client's tests run both ends in one loop, without
sockets.

The network is a real fake of `magnetar.network.Network`: it obeys asyncio's BufferedProtocol
contract (get_buffer, buffer_updated, then eof or connection_lost) and delivers in order, in pieces,
on later turns of the loop. The broker is built on `magnetar.wire`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from magnetar.wire import commands, requests, runs
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import verify_entry
from magnetar.wire.commands import FIELD_OF_TYPE, Position, Type
from magnetar.wire.frames import InboundBuffer

P = TypeVar("P", bound=asyncio.BufferedProtocol)
PIECE_BYTES = 700


class MemoryTransport(asyncio.Transport):
    """One end of a stream; what is written arrives at the other end's protocol."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.peer: MemoryTransport | None = None
        self.closing = False
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing:
            self._loop.call_soon(self._deliver, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _deliver(self, data: bytes) -> None:
        peer = self.peer
        assert peer is not None
        rest = memoryview(data)
        while rest and not peer.closing:
            room = memoryview(peer.protocol.get_buffer(-1))
            count = min(len(room), len(rest), PIECE_BYTES)
            room[:count] = rest[:count]
            rest = rest[count:]
            peer.protocol.buffer_updated(count)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)
            if self.peer is not None:
                self._loop.call_soon(self.peer.close)  # after what was written before

    def abort(self) -> None:
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return "memory" if name == "peername" else default


class MemoryNetwork:
    """Brokers by (host, port)."""

    def __init__(self) -> None:
        self.brokers: dict[tuple[str, int], Callable[[], asyncio.BufferedProtocol]] = {}
        self.connected: list[tuple[str, int]] = []

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Any:
        self.brokers[host, port] = factory

    async def connect(self, host: str, port: int, factory: Callable[[], P]) -> P:
        await asyncio.sleep(0)
        if (host, port) not in self.brokers:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        self.connected.append((host, port))
        protocol = factory()
        near, far = MemoryTransport(protocol), MemoryTransport(self.brokers[host, port]())
        near.peer, far.peer = far, near
        far.protocol.connection_made(far)
        protocol.connection_made(near)
        return protocol


class Session(asyncio.BufferedProtocol):
    """The broker's end of one connection."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.transport: asyncio.Transport | None = None
        self._buffer = InboundBuffer(capacity=4096)
        broker.sessions.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for start, body, end in self._buffer.advance(nbytes):
            command = commands.decode_command(self._buffer.data, start, body)
            self.broker.receive(self, command, bytes(self._buffer.view[body:end]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.transport = None

    def write(self, data: bytes) -> None:
        assert self.transport is not None, "the script writes to a connection that has ended"
        self.transport.write(data)

    def drop(self) -> None:
        """Break the connection."""
        assert self.transport is not None
        self.transport.abort()


class ScriptedBroker:
    """Answers every request with success and stores every SEND; tests override single commands
    in `script`."""

    def __init__(self, network: MemoryNetwork, host: str, port: int = 6650) -> None:
        self.url = f"pulsar://{host}:{port}"
        self.sessions: list[Session] = []
        self.received: list[tuple[str, Any]] = []
        self.stored: list[tuple[int, bytes]] = []
        self.script: dict[str, Callable[[Session, Any], bytes | None]] = {}
        self.partitions = 0
        self._arrived = asyncio.Event()
        network.brokers[host, port] = lambda: Session(self)

    def of(self, name: str) -> list[Any]:
        """All received commands of a kind."""
        return [command for kind, command in self.received if kind == name]

    async def arrival(self, name: str, count: int = 1) -> Any:
        """Wait until `count` commands of a kind have arrived; returns the last of them."""
        async with asyncio.timeout(120):
            while len(self.of(name)) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.of(name)[count - 1]

    def receive(self, session: Session, command: api.BaseCommand, body: bytes) -> None:
        name = FIELD_OF_TYPE[command.type]
        field = getattr(command, name)
        self.received.append((name, field))
        self._arrived.set()
        if name == "send":
            verify_entry(body)
            if name not in self.script:
                self.stored.append((field.sequence_id, body))
        answer = (
            self.script[name](session, field) if name in self.script else self.answer(name, field)
        )
        if answer is not None:
            session.write(answer)

    def answer(self, name: str, field: Any) -> bytes | None:
        """What a healthy broker with every topic says."""
        answers: dict[str, Callable[[], bytes]] = {
            "connect": lambda: commands.connected("Pulsar Server4.2.4", 21, 100_000),
            "ping": lambda: commands.PONG,
            "partitioned_metadata": lambda: commands.partitioned_metadata(
                field.request_id, self.partitions
            ),
            "lookup": lambda: commands.lookup_connect(field.request_id, self.url),
            "producer": lambda: commands.producer_success(
                field.request_id, field.producer_name or "made-up"
            ),
            "send": lambda: runs.send_receipts(
                field.producer_id, 7, len(self.stored) - 1, [field.sequence_id]
            ),
        }
        if name in answers:
            return answers[name]()
        if name == "ack":
            return (
                commands.ack_response(field.consumer_id, field.request_id)
                if field.HasField("request_id")
                else None
            )
        if name in ("subscribe", "close_producer", "close_consumer", "unsubscribe", "seek"):
            return commands.success(field.request_id)
        return None

    def deliver(
        self, consumer_id: int, entries: list[bytes], first_entry: int = 0, **options: Any
    ) -> None:
        """MESSAGE frames on the newest connection."""
        for buffer in runs.scattered_message_frames(
            consumer_id, 7, range(first_entry, first_entry + len(entries)), entries, **options
        ):
            self.sessions[-1].write(bytes(buffer))


__all__ = ["MemoryNetwork", "Position", "ScriptedBroker", "Session", "Type", "requests"]

"""One connection of the bare protocol, for scenarios.

Owns: `Peer`: sends frames, waits for the answer of a request, collects what the broker pushes.
Imports: magnetar.wire. Invariants: a broker's PING is answered at once; a closed connection ends
every wait with Gone; frames keep the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from google.protobuf.message import Message

from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer
from magnetar.wire.frames import encode_command, encode_with_body, frame_of

HOST = "127.0.0.1"
PROTOCOL_VERSION = 21
ANSWER_S = 120.0
Type = api.BaseCommand
Wanted = Callable[[api.BaseCommand, Message], bool]


class Gone(Exception):
    """The broker closed the connection, or did not answer in time."""


class Peer:
    """A connected client; `pushed` has what came without being asked for, each with its entry."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: list[tuple[Wanted, asyncio.Future[api.BaseCommand]]] = []
        self.pushed: list[tuple[api.BaseCommand, bytes]] = []
        self.last_frame_at = time.monotonic()
        self.closed = False
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, port: int) -> Peer:
        """Connect and shake hands as an ordinary client of this protocol version."""
        peer = cls(*await asyncio.open_connection(HOST, port))
        hello = api.CommandConnect(
            client_version="magnetar-differential", protocol_version=PROTOCOL_VERSION
        )
        hello.feature_flags.supports_auth_refresh = True
        hello.feature_flags.supports_broker_entry_metadata = True
        hello.feature_flags.supports_topic_watchers = True
        await peer.ask(hello, lambda command, _: command.type in (Type.CONNECTED, Type.ERROR))
        return peer

    async def ask(
        self, body: Message, wanted: Wanted | None = None, entry: Buffer | None = None
    ) -> api.BaseCommand:
        """Send a command; its answer: what `wanted` accepts, else what has its request id. Raises
        Gone."""
        if wanted is None:
            number = body.request_id  # type: ignore[attr-defined]

            def wanted(_: api.BaseCommand, answer: Message) -> bool:
                return bool(getattr(answer, "request_id", None) == number)

        future: asyncio.Future[api.BaseCommand] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, future))
        try:
            self.send(body, entry)
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError:
            raise Gone("no answer") from None
        finally:
            self._waiting = [item for item in self._waiting if item[1] is not future]

    def send(self, body: Message, entry: Buffer | None = None) -> None:
        """Send a command that gets no answer. Raises Gone."""
        if self.closed:
            raise Gone("closed")
        if entry is None:
            self._writer.write(frame_of(body))
        else:
            assert isinstance(body, api.CommandSend)
            command = api.BaseCommand(type=Type.SEND, send=body)
            self._writer.write(encode_with_body(command, entry))

    async def close(self) -> None:
        """Drop the connection silently."""
        self._task.cancel()
        self._writer.transport.abort()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                total = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(total)
                end = 4 + int.from_bytes(frame[:4], "big")
                self._take(commands.decode_command(frame, 4, end), frame[end:])
        self.closed = True
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(Gone("closed"))

    def _take(self, command: api.BaseCommand, entry: bytes) -> None:
        if command.type == Type.PING:
            self._writer.write(
                encode_command(api.BaseCommand(type=Type.PONG, pong=api.CommandPong()))
            )
            return
        self.last_frame_at = time.monotonic()
        body = getattr(command, commands.FIELD_OF_TYPE[command.type])
        for wanted, future in self._waiting:
            if not future.done() and wanted(command, body):
                future.set_result(command)
                return
        self.pushed.append((command, entry))

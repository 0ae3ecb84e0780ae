"""A connection without manners, and what attacks share.

Owns: `RawConnection` (frames in and out, no state of a client), `Target` (whom to attack), finding
a topic's broker. Imports: magnetar.wire. Invariants: everything that waits has a deadline; `close`
never waits for the peer.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import ssl
import struct
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Type = api.BaseCommand.Type
PATIENCE_S = 20.0
"""For one answer. A broker that takes longer has failed the peer, not the soak: the ordinary
workload is the judge."""
READ_BYTES = 1 << 18
SOURCE = ("127.0.0.66", 0)
"""Where hostile connections come from: not the address of the ordinary clients, whose share of
what brokers budget by address is their own."""
FRAME_BYTES_MAX = 5 * 1024 * 1024
"""The largest command: what the broker announces as its largest message, and what a frame has on
top, less the head."""
_SIZES = struct.Struct(">II")


class Gone(Exception):
    """The broker closed the connection, or did not answer in time; the text says which."""


@dataclass(frozen=True, slots=True)
class Access:
    """A server with TLS and tokens. Ports without TLS are 0 if there are none."""

    plain: int
    tls: int
    http: int
    https: int
    authority: str
    """File of the authority that signed its certificate."""
    token: str
    """Of a role that may use the attacker's own namespaces, and nothing else."""
    wrong: dict[str, tuple[str, str]]
    """Credentials that must not be good for anything: method and token, by name."""

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority)


@dataclass(slots=True)
class Target:
    """Whom to attack. Names are full topic names; `victims` are topics that ordinary clients use
    as well."""

    http_urls: Sequence[str]
    coordinators: Sequence[tuple[str, int]]
    namespace: str
    rest_namespace: str
    """Another of its own, whose policies it changes."""
    topic: str
    """Of its own, with many small entries in it."""
    victims: Sequence[str]
    chance: random.Random
    access: Access | None = None
    """How to get to a server with security; None: the servers have none."""
    scale: float = 1.0
    """Of how many things such attacks take."""
    counter: int = 0
    notes: list[str] = field(default_factory=list)

    def fresh(self, kind: str) -> str:
        """A name that was not used before."""
        self.counter += 1
        return f"{kind}-{self.counter}-{self.chance.getrandbits(32):08x}"

    @property
    def secured(self) -> Access:
        assert self.access is not None, "this attack is on a server with security"
        return self.access

    def scaled(self, count: int) -> int:
        return max(1, round(count * self.scale))

    def fresh_topic(self) -> str:
        return f"persistent://{self.namespace}/{self.fresh('own')}"

    def any_topic(self) -> str:
        """One of its own, or one that others use."""
        return self.chance.choice([self.topic, self.topic, *self.victims])


def _broker_of(http_urls: Sequence[str], topic: str) -> tuple[str, int]:
    path = quote(topic.removeprefix("persistent://"))
    last = "no broker answers"
    for url in http_urls:
        try:
            answer = http_answer(url, "GET", f"/lookup/v2/topic/persistent/{path}", None, {})
            found = urlsplit(json.loads(answer.body)["nativeUrl"])
            return found.hostname or "", found.port or 0
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            last = repr(error)
    raise Gone(f"lookup of {topic}: {last}")


async def broker_of(target: Target, topic: str) -> tuple[str, int]:
    """Host and port of the broker that serves a topic. Raises Gone."""
    return await asyncio.to_thread(_broker_of, target.http_urls, topic)


class RawConnection:
    """Bytes to a broker, and its commands back. Answers PING, nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._request = 0

    @classmethod
    async def open(
        cls, address: tuple[str, int], tls: ssl.SSLContext | None = None
    ) -> RawConnection:
        """Connected, without a handshake of the protocol. Raises Gone."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(
                    *address, limit=READ_BYTES, local_addr=SOURCE, ssl=tls
                )
        except (OSError, TimeoutError) as error:
            raise Gone(f"connect: {error!r}") from error
        return cls(reader, writer)

    def request_id(self) -> int:
        self._request += 1
        return self._request

    async def shake_hands(self, method: str = "", shown: str = "") -> None:
        """CONNECT, with credentials if a method is named. Raises Gone if it is refused."""
        data = shown.encode() if method else None
        await self.send(
            requests.connect(
                "hostile", commands.PROTOCOL_VERSION, auth_method=method, auth_data=data
            )
        )
        await self.until(Type.CONNECTED)

    async def send(
        self, data: bytes | bytearray | memoryview, *, patience_s: float = PATIENCE_S
    ) -> None:
        """Bytes as they are; returns when the kernel has taken most of them. Raises Gone."""
        try:
            self.writer.write(data)
            async with asyncio.timeout(patience_s):
                await self.writer.drain()
        except TimeoutError as error:
            raise Gone("the broker reads no more") from error
        except OSError as error:
            raise Gone(f"send: {error!r}") from error

    async def receive(self, patience_s: float = PATIENCE_S) -> api.BaseCommand:
        """The broker's next command but PING. Raises Gone."""
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    total, size = _SIZES.unpack(await self._reader.readexactly(_SIZES.size))
                    rest = await self._reader.readexactly(total - 4)
                    command = api.BaseCommand.FromString(rest[:size])
                    if command.type != Type.PING:
                        return command
                    self.writer.write(commands.PONG)
        except TimeoutError as error:
            raise Gone("no answer") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone("closed by the broker") from error

    async def until(self, *kinds: int, patience_s: float = PATIENCE_S) -> api.BaseCommand:
        """The first command of one of these kinds. Raises Gone."""
        async with asyncio.timeout(patience_s + 1.0):
            while True:
                command = await self.receive(patience_s)
                if command.type in kinds:
                    return command

    async def answers(self, count: int, *kinds: int, patience_s: float = PATIENCE_S) -> str:
        """Wait for so many commands of these kinds; how many came, in words. Does not raise."""
        came = 0
        with suppress(Gone, TimeoutError):
            async with asyncio.timeout(patience_s):
                while came < count:
                    came += (await self.receive(patience_s)).type in kinds
        return "answered" if came == count else f"answered in part, {came} of {count}"

    async def pong(self, patience_s: float = PATIENCE_S) -> str:
        """PING; "answered" when everything before it is done."""
        await self.send(commands.PING, patience_s=patience_s)
        await self.until(Type.PONG, patience_s=patience_s)
        return "answered"

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def connection(target: Target, topic: str = "") -> AsyncIterator[RawConnection]:
    """A connection after the handshake, to the broker that serves a topic (its own one by
    default)."""
    opened = await RawConnection.open(await broker_of(target, topic or target.topic))
    try:
        await opened.shake_hands()
        yield opened
    finally:
        opened.close()


async def subscribe(
    raw: RawConnection,
    topic: str,
    name: str,
    *,
    kind: int = api.CommandSubscribe.Shared,
    consumer: int = 1,
    earliest: bool = True,
) -> str:
    """SUBSCRIBE and wait; "" or the refusal."""
    position = api.CommandSubscribe.Earliest if earliest else api.CommandSubscribe.Latest
    body = api.CommandSubscribe(
        topic=topic,
        subscription=name,
        subType=kind,  # type: ignore[arg-type]
        consumer_id=consumer,
        request_id=raw.request_id(),
        consumer_name=f"hostile-{consumer}",
        initialPosition=position,
    )
    await raw.send(requests.subscribe(body))
    answer = await raw.until(Type.SUCCESS, Type.ERROR)
    return answer.error.message if answer.type == Type.ERROR else ""


async def produce(raw: RawConnection, topic: str, *, producer: int = 1, name: str = "") -> str:
    """PRODUCER and wait; "" or the refusal."""
    body = api.CommandProducer(topic=topic, producer_id=producer, request_id=raw.request_id())
    if name:
        body.producer_name = name
    await raw.send(requests.producer(body))
    answer = await raw.until(Type.PRODUCER_SUCCESS, Type.ERROR)
    return answer.error.message if answer.type == Type.ERROR else ""


async def entry_ids(raw: RawConnection, consumer: int, permits: int) -> list[tuple[int, int]]:
    """Ledger and entry of so many messages, as the broker delivers them."""
    await raw.send(requests.flow(consumer, permits))
    found: list[tuple[int, int]] = []
    with suppress(Gone, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < permits:
                command = await raw.receive(3.0)
                if command.type == Type.MESSAGE:
                    found.append(
                        (command.message.message_id.ledgerId, command.message.message_id.entryId)
                    )
    return found


async def unsubscribe(raw: RawConnection, consumer: int = 1) -> None:
    """Take the subscription away again, so that nothing is kept for it."""
    with suppress(Gone, TimeoutError):
        await raw.send(requests.unsubscribe(consumer, raw.request_id()))
        await raw.until(Type.SUCCESS, Type.ERROR)


class HttpAnswer(NamedTuple):
    """What came of one request."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def http_answer(
    url: str,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    patience_s: float = PATIENCE_S,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """One REST request. Raises OSError, HTTPException."""
    where = urlsplit(url)
    host = where.hostname or ""
    if tls is None:
        opened = http.client.HTTPConnection(
            host, where.port, timeout=patience_s, source_address=SOURCE
        )
    else:
        opened = http.client.HTTPSConnection(
            host, where.port, timeout=patience_s, source_address=SOURCE, context=tls
        )
    try:
        opened.request(method, path, body=body, headers=headers)
        answer = opened.getresponse()
        return HttpAnswer(answer.status, answer.getheaders(), answer.read())
    finally:
        opened.close()


def http_call(
    url: str,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    patience_s: float = PATIENCE_S,
) -> str:
    """One REST request; the status, or why there is none."""
    try:
        return str(http_answer(url, method, path, body, headers, patience_s).status)
    except Exception as error:  # whatever comes of such requests is a result
        return type(error).__name__

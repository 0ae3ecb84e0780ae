"""Admin requests from broker to broker.

Owns: HTTP exchanges over the broker's network. Imports: h11, metadata, network, names, errors. Why
no HTTP client library: uvicorn brings h11, and connections go through the broker's `Network` and
TLS. Invariants: one request per connection, which the peer closes; an answer is bounded in size and
time; a refusal keeps its reason and its status; a redirect is followed to a registered broker only,
so no other server sees the cluster's tokens.
"""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote, urlsplit

import h11

from magnetar.errors import (
    AuthenticationFailed,
    InUse,
    InvalidRequest,
    MagnetarError,
    NotAllowed,
    NotAuthorized,
    ServiceNotReady,
    TopicNotFound,
    UnsupportedCommand,
)
from magnetar.metadata import keys
from magnetar.metadata.records import IncarnationRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.network import Network, connect_over
from magnetar.security.authorization import INTERNAL_METHOD

if TYPE_CHECKING:
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.hosting.tls import TlsPort

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 16 << 20
READ_BYTES = 64 << 10
REDIRECTS_MAX = 3
TEMPORARY_REDIRECT = 307
REFUSALS: Mapping[int, type[MagnetarError]] = {
    400: InvalidRequest,
    401: AuthenticationFailed,
    403: NotAuthorized,
    404: TopicNotFound,
    405: UnsupportedCommand,
    409: NotAllowed,
    412: InUse,
}


@dataclass(frozen=True, slots=True)
class _Answer:
    """`location`: where a redirect leads; None if it is none."""

    status: int
    location: str | None
    body: bytes


class _Exchange(asyncio.BufferedProtocol):
    """One request, and what the peer sends until it closes."""

    def __init__(self) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._http = h11.Connection(h11.CLIENT)
        self._buffer = bytearray(READ_BYTES)
        self._received = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it

    def get_buffer(self, _sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received += self._buffer[:nbytes]
        if len(self._received) > ANSWER_BYTES_MAX and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if exc is not None:
            self.done.set_exception(
                ServiceNotReady(f"the connection to a broker broke: {exc}; try again")
            )
        else:
            self.done.set_result(bytes(self._received))

    def send(self, request: h11.Request, data: bytes) -> None:
        assert self.transport is not None
        parts = (request, *([h11.Data(data=data)] if data else ()), h11.EndOfMessage())
        self.transport.write(b"".join(self._http.send(part) or b"" for part in parts))

    def parsed(self, received: bytes) -> _Answer:
        """The answer in what the peer sent. Raises h11.RemoteProtocolError if it is cut off."""
        self._http.receive_data(received)
        if received:
            self._http.receive_data(b"")
        status, location, body = 0, None, bytearray()
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
                if status == TEMPORARY_REDIRECT:
                    found = dict(event.headers).get(b"location")
                    location = found.decode("latin-1") if found is not None else None
            elif isinstance(event, h11.Data):
                body += event.data
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("no answer")
        return _Answer(status, location, bytes(body))


class Caller(Protocol):
    """The broker that asks, by its context."""

    @property
    def store(self) -> MetadataStore:
        """Which brokers there are."""
        ...

    @property
    def network(self) -> Network:
        """How others are reached."""
        ...

    @property
    def tls(self) -> TlsPort | None:
        """How others are reached by https."""
        ...

    @property
    def security(self) -> Authenticator | None:
        """Makes the tokens that others ask for; None: they ask for none."""
        ...


async def ask_peer(
    caller: Caller, http_url: str, method: str, topic: TopicName, suffix: str, body: Any = None
) -> Any:
    """The JSON answer of another broker to `method` on a topic's admin path, None if it has none.

    Raises as `ask_broker`.
    """
    path = f"/admin/v2/{topic.domain}/{quote(topic.tenant)}/{quote(topic.namespace)}/{quote(topic.local, safe='')}{suffix}"
    return await ask_broker(caller, http_url, method, path, body)


async def ask_broker(
    caller: Caller,
    http_url: str,
    method: str,
    path: str,
    body: Any = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The JSON answer of another broker to `method` on `path`, None if it has none; `body` is sent
    as JSON unless it is None.

    Where the broker says that another one is to be asked, that one is. Raises what the peer refused
    with, ServiceNotReady if it cannot be reached.
    """
    data = b"" if body is None else json.dumps(body).encode()
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(REDIRECTS_MAX):
                answer = await _exchange(caller, http_url, method, path, data)
                if answer.location is None:
                    return _decoded(answer, http_url)
                http_url, path = await _followed(caller, http_url, answer.location)
    except (OSError, TimeoutError) as error:
        raise ServiceNotReady(
            f"broker {http_url} does not answer: {error or 'no answer in time'}; try again"
        ) from error
    raise ServiceNotReady(
        f"{path} was sent on {REDIRECTS_MAX} times, and is to be asked of {http_url} now; try again"
    )


async def _exchange(caller: Caller, http_url: str, method: str, path: str, data: bytes) -> _Answer:
    """What a broker answers to one request. Raises OSError, ServiceNotReady."""
    where = urlsplit(http_url)
    headers = [("Host", where.netloc), ("Connection", "close"), ("Content-Length", str(len(data)))]
    if caller.security is not None:
        headers.append(("Authorization", f"{INTERNAL_METHOD} {caller.security.internal_token()}"))
    request = h11.Request(
        method=method, target=quote(path, safe=string.punctuation), headers=headers
    )
    tls = caller.tls.to_peers() if where.scheme == "https" and caller.tls is not None else None
    exchange = await connect_over(
        caller.network, where.hostname or "", where.port or 80, _Exchange, tls
    )
    assert exchange.transport is not None
    try:
        exchange.send(request, data)
        received = await exchange.done
    finally:
        exchange.transport.close()
    try:
        return exchange.parsed(received)
    except h11.RemoteProtocolError as error:
        raise ServiceNotReady(
            f"broker {http_url} closed the connection before its answer; try again"
        ) from error


async def _followed(caller: Caller, http_url: str, location: str) -> tuple[str, str]:
    """The address of a registered broker, and the path, that `location` names. Raises
    ServiceNotReady for any other, StoreError."""
    where = urlsplit(location)
    base = f"{where.scheme}://{where.netloc}"
    for item in (await caller.store.range(keys.INCARNATIONS)).items:
        record = IncarnationRecord.decode(item.value)
        if base in (record.http_url, record.http_url_tls):
            return base, f"{where.path}?{where.query}" if where.query else where.path
    raise ServiceNotReady(
        f"broker {http_url} sends us to {base[:200]!r}, which is no live broker; try again"
    )


def _decoded(answer: _Answer, http_url: str) -> Any:
    """The JSON body of an answer, None if it is empty. Raises what it says, ServiceNotReady."""
    try:
        value = json.loads(answer.body) if answer.body else None
    except ValueError as error:
        raise ServiceNotReady(
            f"broker {http_url} answered with something that is not JSON; try again"
        ) from error
    if answer.status >= 300:
        answered = value if isinstance(value, dict) else {}
        raise REFUSALS.get(answer.status, ServiceNotReady)(
            str(answered.get("reason") or f"it answered with {answer.status}"),
            f"broker {http_url} says so: {answered['remedy']}" if answered.get("remedy") else "",
        )
    return value

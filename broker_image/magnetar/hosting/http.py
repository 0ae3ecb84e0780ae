"""The HTTP listener.

Owns: running the FastAPI application on the broker's event loop, and the time and room that its
peers have. Imports: uvicorn, h11, peer_budget. Invariants: the listener ends with the broker and
takes no signal handlers of its own (the process owns them); a connection that is not being
answered, idle or in the middle of a request, makes room for a new one, so that a probe is always
answered; a request's head, its body and the reading of its answer have a time limit each; of all
peers' requests one begins in each turn of the loop, so that messages pass between two.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import h11
import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from magnetar.errors import LimitExceeded
from magnetar.hosting.audit import AuditTrail
from magnetar.hosting.descriptors import HTTP_CONNECTIONS_MAX
from magnetar.hosting.peer_budget import PeerBudget, peer_group
from magnetar.hosting.tls import PeerCertificate, TlsListener, TlsPort, is_tls, peer_certificate

log = structlog.get_logger(__name__)

KEEP_ALIVE_S = 30
HEAD_S = 10.0
"""Time for the head of a request, from its first byte; for the first one from the connection's
begin."""
BODY_S = 60.0
"""Time for the whole body of a request."""
STALL_S = 60.0
"""Time in which a peer that reads no more must read again."""
SLICE_BYTES = 1 << 10
"""Of what a peer has sent, what one turn of the loop looks at: it may be a chunk of one byte
after the other."""
CERTIFICATE = "magnetar.certificate"
"""Key of an ASGI scope: the client's `PeerCertificate`, if the connection is one by TLS."""
BACKLOG_MAX = 128
PROBES = frozenset({"/live", "/ready"})
"""Cheap, and a broker that does not answer them is restarted: they begin at once."""


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers: SIGTERM means drain here, and only the process may
    decide when it is over."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """One connection. By TLS its requests know what certificate the client has shown."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, budget: PeerBudget[_Protocol]
    ) -> None:
        super().__init__(config, state, {})
        self._budget = budget
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._phase: Any = h11.IDLE
        self._unread = memoryview(b"")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            dropped = self._budget.admit(self, peer_group(transport.get_extra_info("peername")))
        except LimitExceeded as error:
            log.warning("http.refused", peer=str(self.client), reason=str(error))
            transport.abort()
            return
        if dropped is not None:
            dropped.transport.abort()
        self._within(HEAD_S)
        if is_tls(transport):
            self.app = _knowing(self.app, peer_certificate(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._budget.forget(self)
        self._within(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # a turn for it is on its way, and the application has resumed reading before it
        if self._unread:
            self._unread = memoryview(bytes(self._unread) + data)
            self.transport.pause_reading()
        else:
            self._unread = memoryview(data)
            self._take_slice()

    def _take_slice(self, *, paused: bool = False) -> None:
        part, self._unread = self._unread[:SLICE_BYTES], self._unread[SLICE_BYTES:]
        if self.transport.is_closing():
            self._unread = memoryview(b"")
            return
        super().data_received(bytes(part))
        self._follow()
        if self._unread:
            self.transport.pause_reading()
            self.loop.call_soon(partial(self._take_slice, paused=True))
        elif paused and not self.flow.read_paused:
            self.transport.resume_reading()

    def on_response_complete(self) -> None:
        self._budget.spare(self)
        self._phase = h11.IDLE
        super().on_response_complete()  # may take the next request, which has come already
        self._follow(begun=bool(self.conn.trailing_data[0]))

    def _follow(self, *, begun: bool = True) -> None:
        """Set the time limit of what is awaited now. `begun`: a part of a request has come, if
        only of its head."""
        phase, before = self.conn.their_state, self._phase
        self._phase = phase
        if phase is h11.IDLE:
            if begun and self._deadline is None:
                self._within(HEAD_S)
        elif phase is h11.SEND_BODY:
            if before is not phase:
                self._within(BODY_S)
        elif before is not phase and not self.transport.is_closing():
            self._within(None)
            self._budget.keep(self)

    def _within(self, seconds: float | None) -> None:
        """End the connection after this time, unless another limit is set before; None: no
        limit."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = (
            self.loop.call_later(seconds, self._too_slow) if seconds is not None else None
        )

    def _too_slow(self) -> None:
        log.info("http.too_slow", peer=str(self.client))
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(STALL_S, self._too_slow)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()


class OneInTurn:
    """ASGI middleware: of all requests that have come, one begins in each turn of the loop."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] not in PROBES:
            await self._turn.acquire()
            asyncio.get_running_loop().call_soon(self._turn.release)
        await self._application(scope, receive, send)


def _knowing(application: Any, certificate: PeerCertificate) -> Any:
    """The application, whose requests carry the client's certificate."""

    async def known(scope: Any, receive: Any, send: Any) -> None:
        scope[CERTIFICATE] = certificate
        await application(scope, receive, send)

    return known


class HttpListener:
    """Serves one application until closed."""

    def __init__(
        self,
        application: FastAPI,
        host: str,
        port: int,
        *,
        connections_max: int = HTTP_CONNECTIONS_MAX,
    ) -> None:
        self._host, self._port = host, port
        self._budget: PeerBudget[_Protocol] = PeerBudget(
            "http connections",
            most=connections_max,
            group_max=max(1, connections_max // 2),
            unknown_max=connections_max,
        )
        config = uvicorn.Config(
            OneInTurn(AuditTrail(application)),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            server_header=False,
            http=self._protocol,  # type: ignore[arg-type]  # any factory will do
            ws="none",
        )
        self._server = _EmbeddedServer(config)
        self._task: asyncio.Task[None] | None = None
        self._secure: TlsListener | None = None

    async def open_tls(self, admission: TlsPort, port: int) -> int:
        """Serve the same application by TLS; the port bound. After `open`. Raises OSError."""

        self._secure = await admission.listen(self._host, port, self._protocol)
        return self._secure.port

    def _protocol(self, **_: Any) -> _Protocol:
        """One for a new connection, plain or by TLS."""
        return _Protocol(self._server.config, self._server.server_state, self._budget)

    async def open(self, *, plain: bool = True) -> int:
        """Bind and serve; the port bound, 0 if there is to be none without TLS. Raises OSError
        naming the address if it is taken."""
        listening = []
        if plain:
            listening.append(socket.create_server((self._host, self._port), backlog=BACKLOG_MAX))
            listening[0].setblocking(False)
        self._task = asyncio.create_task(self._server.serve(listening), name="http")
        return int(listening[0].getsockname()[1]) if plain else 0

    async def close(self) -> None:
        if self._secure is not None:
            self._secure.close()
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

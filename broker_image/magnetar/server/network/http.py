"""The HTTP listener.

Owns: running the FastAPI application on the broker's event loop. Imports: uvicorn, admin.
Invariants: the listener ends with the broker, takes no signal handlers of its own (the process owns them) and limits what a peer may send.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from magnetar.server.network.tls import TlsDoor, TlsListener, common_name

KEEP_ALIVE_S = 30
COMMON_NAME = "magnetar.common_name"
"""Key of an ASGI scope: the common name of the verified certificate of the client, "" without one."""
CONNECTIONS_MAX = 1000
BACKLOG_MAX = 128


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers: SIGTERM means drain here, and only the process may decide when it is over."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _TlsProtocol(H11Protocol):
    """One connection by TLS, whose requests know what certificate the client has shown."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        application, name = self.app, common_name(transport)

        async def known(scope: Any, receive: Any, send: Any) -> None:
            scope[COMMON_NAME] = name
            await application(scope, receive, send)

        self.app = known


class HttpListener:
    """Serves one application until closed."""

    def __init__(self, application: FastAPI, host: str, port: int) -> None:
        self._host, self._port = host, port
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            server_header=False,
        )
        self._server = _EmbeddedServer(config)
        self._task: asyncio.Task[None] | None = None
        self._secure: TlsListener | None = None

    async def open_tls(self, door: TlsDoor, port: int) -> int:
        """Serve the same application by TLS; the port bound. After `open`. Raises OSError."""

        def accept() -> asyncio.BaseProtocol:
            return _TlsProtocol(self._server.config, self._server.server_state, {})

        self._secure = await door.listen(self._host, port, accept)
        return self._secure.port

    async def open(self, *, plain: bool = True) -> int:
        """Bind and serve; the port bound, 0 if there is to be none without TLS. Raises OSError naming the address if it is taken."""
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

"""The HTTP listener.

Owns: running the FastAPI application on the broker's event loop. Imports: uvicorn, admin.
Invariants: the listener ends with the broker, takes no signal handlers of its own (the process owns them) and limits what a peer may send.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

KEEP_ALIVE_S = 30
CONNECTIONS_MAX = 1000
BACKLOG_MAX = 128


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers: SIGTERM means drain here, and only the process may decide when it is over."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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

    async def open(self) -> int:
        """Bind and serve; the port bound. Raises OSError naming the address if it is taken."""
        listening = socket.create_server((self._host, self._port), backlog=BACKLOG_MAX)
        listening.setblocking(False)
        self._task = asyncio.create_task(self._server.serve([listening]), name="http")
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

"""Connections between processes.

Owns: the interface through which server and client open and accept byte streams, and its asyncio
implementation. Imports: asyncio, socket, ssl. The simulation passes a network of its own whose
transports offer the methods named here. Invariant: protocols see asyncio's `BufferedProtocol`
contract and nothing else, so real and simulated streams are interchangeable.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

BACKLOG_MAX = 1024
ACCEPTED_IN_TURN = 4
ACCEPT_RETRY_S = 0.1

P = TypeVar("P", bound=asyncio.BufferedProtocol)


class Listener(Protocol):
    """An open listening port."""

    @property
    def port(self) -> int:
        """The port actually bound (useful after asking for port 0)."""
        ...

    def close(self) -> None:
        """Stop accepting; connections that are open stay open."""
        ...


class Network(Protocol):
    """Opens and accepts byte streams.

    Transports handed to protocols offer, of `asyncio.Transport`: write, writelines, close, abort,
    is_closing, pause_reading, resume_reading, set_write_buffer_limits, get_write_buffer_size,
    get_extra_info("peername").
    """

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener:
        """Accept connections on host:port (0 = any free port). Raises OSError if the address
        cannot be bound."""
        ...

    async def connect(self, host: str, port: int, factory: Callable[[], P]) -> P:
        """Open a connection; returns the protocol after its connection_made. Raises OSError if
        refused or unreachable."""
        ...


async def connect_over(
    network: Network, host: str, port: int, factory: Callable[[], P], tls: ssl.SSLContext | None
) -> P:
    """Open a connection by TLS; without a context a plain one of `network`. Raises OSError (a
    refused handshake is one)."""
    if tls is None:
        return await network.connect(host, port, factory)
    _, protocol = await asyncio.get_running_loop().create_connection(
        factory, host, port, ssl=tls, server_hostname=host
    )
    return protocol


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on host:port (0 = any free port) and does not block. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG_MAX)
    listening.setblocking(False)
    return listening


class _AsyncioListener:
    """Accepts a few connections in a turn of the loop, however many have come: others have their
    turns between them."""

    def __init__(
        self, listening: socket.socket, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> None:
        self._listening, self._factory = listening, factory
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._begin()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        elif self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
        self._listening.close()

    def _begin(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_IN_TURN):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files
                self._loop.call_exception_handler(
                    {"message": "socket.accept() failed; trying again", "exception": error}
                )
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._begin)
                return
            task = self._loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._factory, accepted)
        except OSError:  # the peer has gone already
            accepted.close()


class AsyncioNetwork:
    """TCP through the running event loop."""

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener:
        return _AsyncioListener(listening_socket(host, port), factory)

    async def connect(self, host: str, port: int, factory: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(factory, host, port)
        return protocol

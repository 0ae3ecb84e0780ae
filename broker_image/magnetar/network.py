"""Connections between processes.

Owns: the interface through which server and client open and accept byte streams, and its asyncio implementation.
Imports: asyncio, ssl. The simulation passes a network of its own whose transports offer the methods named here.
Invariant: protocols see asyncio's `BufferedProtocol` contract and nothing else, so real and simulated streams are interchangeable.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

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

    Transports handed to protocols offer, of `asyncio.Transport`: write, writelines, close, abort, is_closing, pause_reading,
    resume_reading, set_write_buffer_limits, get_write_buffer_size, get_extra_info("peername").
    """

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]) -> Listener:
        """Accept connections on host:port (0 = any free port). Raises OSError if the address cannot be bound."""
        ...

    async def connect(self, host: str, port: int, factory: Callable[[], P]) -> P:
        """Open a connection; returns the protocol after its connection_made. Raises OSError if refused or unreachable."""
        ...


async def connect_over(network: Network, host: str, port: int, factory: Callable[[], P], tls: ssl.SSLContext | None) -> P:
    """Open a connection by TLS; without a context a plain one of `network`. Raises OSError (a refused handshake is one)."""
    if tls is None:
        return await network.connect(host, port, factory)
    _, protocol = await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls, server_hostname=host)
    return protocol


class _AsyncioListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()


class AsyncioNetwork:
    """TCP through the running event loop."""

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]) -> Listener:
        loop = asyncio.get_running_loop()
        return _AsyncioListener(await loop.create_server(factory, host or None, port, backlog=1024))

    async def connect(self, host: str, port: int, factory: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(factory, host, port)
        return protocol

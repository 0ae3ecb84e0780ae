"""Admin requests from broker to broker: the answer, a refusal with its reason, a peer that is not there or says something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from magnetar.errors import InUse, MagnetarError, ServiceNotReady, TopicNotFound
from magnetar.names import TopicName
from magnetar.network import AsyncioNetwork
from magnetar.server.administration.peers import ask_peer

TOPIC = TopicName.parse("persistent://public/default/a b-partition-1")


async def _with_peer(answer: bytes, ask: Callable[[str], Awaitable[Any]]) -> tuple[Any, bytes]:
    """What `ask` made of a peer that answers so, and what the peer was asked."""
    asked = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        return await ask(f"http://127.0.0.1:{port}"), asked
    finally:
        server.close()
        await server.wait_closed()


class Caller:
    """A broker whose cluster asks for no tokens."""

    network = AsyncioNetwork()
    security = tls = None


def exchange(answer: bytes) -> tuple[Any, bytes]:
    async def ask(url: str) -> Any:
        return await ask_peer(Caller(), url, "POST", TOPIC, "/terminate")

    return asyncio.run(_with_peer(answer, ask))


def test_a_request_names_the_topic_and_its_answer_comes_back() -> None:
    """The name is encoded once; no content is None."""
    found, asked = exchange(b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"ledgerId":3}')
    assert found == {"ledgerId": 3}
    assert asked.startswith(b"POST /admin/v2/persistent/public/default/a%20b-partition-1/terminate HTTP/1.1\r\n")
    assert exchange(b"HTTP/1.1 204 No Content\r\n\r\n")[0] is None


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b'HTTP/1.1 404 Not Found\r\n\r\n{"reason":"gone"}', TopicNotFound, "gone"),
        (b'HTTP/1.1 412 Precondition Failed\r\n\r\n{"reason":"clients"}', InUse, "clients"),
        (b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"reason":"later"}', ServiceNotReady, "later"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", ServiceNotReady, "not JSON"),
        (b"HTTP/1.1 200", ServiceNotReady, "before its answer"),
        (b"", ServiceNotReady, "before its answer"),
    ],
)
def test_a_refusal_keeps_its_status_and_reason(answer: bytes, error: type[MagnetarError], text: str) -> None:
    with pytest.raises(error, match=text):
        exchange(answer)


def test_a_peer_that_is_gone_is_not_ready() -> None:
    async def main() -> None:
        await ask_peer(Caller(), "http://127.0.0.1:1", "GET", TOPIC, "/stats")

    with pytest.raises(ServiceNotReady, match="does not answer"):
        asyncio.run(main())


def test_the_loop_of_a_real_broker_carries_it_too() -> None:
    """uvloop's transports are none of asyncio's classes."""

    async def ask(url: str) -> Any:
        return await ask_peer(Caller(), url, "PUT", TOPIC, "/subscription/s", {"ledgerId": 3})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found, asked = runner.run(_with_peer(b"HTTP/1.1 204 No Content\r\n\r\n", ask))
    assert found is None
    assert b"Content-Length: 15\r\n" in asked

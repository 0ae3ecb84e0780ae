"""Admin requests from broker to broker: the answer, a refusal with its reason, a peer that is
not there or says something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from magnetar.broker.administration.peers import ask_peer
from magnetar.errors import InUse, MagnetarError, ServiceNotReady, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import IncarnationRecord
from magnetar.names import TopicName
from magnetar.network import AsyncioNetwork
from tests.support.brokers import CLOCK

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
    store = MemoryStore(CLOCK)


async def exchange(answer: bytes) -> tuple[Any, bytes]:
    async def ask(url: str) -> Any:
        return await ask_peer(Caller(), url, "POST", TOPIC, "/terminate")

    return await _with_peer(answer, ask)


async def test_a_request_names_the_topic_and_its_answer_comes_back() -> None:
    """The name is encoded once; no content is None."""
    found, asked = await exchange(b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"ledgerId":3}')
    assert found == {"ledgerId": 3}
    assert asked.startswith(
        b"POST /admin/v2/persistent/public/default/a%20b-partition-1/terminate HTTP/1.1\r\n"
    )
    assert (await exchange(b"HTTP/1.1 204 No Content\r\n\r\n"))[0] is None


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
async def test_a_refusal_keeps_its_status_and_reason(
    answer: bytes, error: type[MagnetarError], text: str
) -> None:
    with pytest.raises(error, match=text):
        await exchange(answer)


async def test_nobody_but_a_registered_broker_is_asked_after_a_redirect() -> None:
    """An address in a redirect may be forged: an unknown one is refused, and nothing is sent there.
    A broker that redirects in circles is asked a bounded number of times."""
    visited = 0

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visited
        visited += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            f"HTTP/1.1 307 Temporary Redirect\r\nLOCATION: {stranger_url}/again\r\n\r\n".encode()
        )
        writer.close()

    stranger = await asyncio.start_server(listen, "127.0.0.1", 0)
    stranger_url = f"http://127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
    moved = (
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: "
        f"{stranger_url}/admin/v2/x?y=1\r\ncontent-length: 0\r\n\r\n"
    ).encode()

    async def ask(url: str) -> Any:
        return await ask_peer(Caller(), url, "PUT", TOPIC, "/unload")

    with pytest.raises(ServiceNotReady, match="which is no live broker"):
        await _with_peer(moved, ask)
    assert visited == 0
    record = IncarnationRecord("broker-1", "pulsar://127.0.0.1:1", stranger_url, 0, "1")
    await Caller.store.put(keys.incarnation("broker-1.1"), record.encode())
    with pytest.raises(ServiceNotReady, match="sent on 3 times"):
        await _with_peer(moved, ask)
    assert visited == 2
    stranger.close()
    await stranger.wait_closed()


async def test_a_peer_that_is_gone_is_not_ready() -> None:
    async def main() -> None:
        await ask_peer(Caller(), "http://127.0.0.1:1", "GET", TOPIC, "/stats")

    with pytest.raises(ServiceNotReady, match="does not answer"):
        await main()


def test_the_loop_of_a_real_broker_carries_it_too() -> None:
    """uvloop's transports are none of asyncio's classes."""

    async def ask(url: str) -> Any:
        return await ask_peer(Caller(), url, "PUT", TOPIC, "/subscription/s", {"ledgerId": 3})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found, asked = runner.run(_with_peer(b"HTTP/1.1 204 No Content\r\n\r\n", ask))
    assert found is None
    assert b"Content-Length: 15\r\n" in asked

"""The HTTP listener against peers that are slow, or many: real sockets on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from structlog.testing import capture_logs
from uvicorn.protocols.http.h11_impl import H11Protocol

from magnetar.hosting import http
from magnetar.hosting.http import HttpListener, OneInTurn
from magnetar.rest.answers import add_refusals

HOST = "127.0.0.1"
GET = b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = GET[:20]
POST = b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def small_application() -> FastAPI:
    app = FastAPI()

    @app.get("/ready", response_class=PlainTextResponse)
    async def ready() -> str:
        return "yes"

    @app.post("/length", response_class=PlainTextResponse)
    async def length(request: Request) -> str:
        return str(len(await request.body()))

    @app.get("/large", response_class=PlainTextResponse)
    async def large() -> str:
        return "x" * (64 << 20)

    return app


@asynccontextmanager
async def listening(
    connections_max: int = 1000, application: FastAPI | None = None
) -> AsyncIterator[int]:
    listener = HttpListener(
        application or small_application(), HOST, 0, connections_max=connections_max
    )
    port = await listener.open()
    try:
        yield port
    finally:
        await listener.close()


async def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.timeout(120):
        await scenario()


async def opened(port: int, data: bytes = b"") -> Streams:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    return reader, writer


async def answer(streams: Streams, data: bytes = GET) -> bytes:
    """What follows the head of the answer to a request."""
    reader, writer = streams
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"200 OK" in head, head
    [size] = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.startswith(b"content-length")
    ]
    return await reader.readexactly(size)


async def ends(streams: Streams) -> bool:
    """Whether the server has ended the connection, or does."""
    try:
        return await streams[0].read() == b""
    except ConnectionError:
        return True
    finally:
        streams[1].close()


async def test_requests_of_many_peers_begin_one_in_a_turn_and_probes_at_once() -> None:
    """What is asked of REST, by however many connections, leaves the loop to others between any
    two requests."""

    async def scenario() -> None:
        turn, begun = 0, dict[str, list[int]]()

        async def note(scope: Any, _receive: Any, _send: Any) -> None:
            begun.setdefault(scope["path"], []).append(turn)

        application = OneInTurn(note)
        paths = ["/x"] * 10 + ["/ready"] * 3
        asked = [asyncio.ensure_future(application({"path": path}, None, None)) for path in paths]
        asked[5].cancel()
        async with asyncio.timeout(120):
            while len(begun.get("/x", ())) < 9:
                await asyncio.sleep(0)
                turn += 1
        assert len(set(begun["/x"])) == 9
        assert len(set(begun["/ready"])) == 1
        await application({"path": "/x"}, None, None)
        assert len(begun["/x"]) == 10

    await run(scenario)


@pytest.mark.parametrize("begun", [b"", HALF, POST + b"12345"])
async def test_unfinished_requests_keep_no_one_from_an_answer(begun: bytes) -> None:
    """As many as may be open are: a probe from the same address is answered, for the oldest of
    them."""

    async def scenario() -> None:
        async with listening(connections_max=20) as port:
            slow = [await opened(port, begun) for _ in range(30)]
            for _ in range(3):
                probe = await opened(port)
                assert await answer(probe) == b"yes"
                probe[1].close()
            for streams in slow[:20]:
                assert await ends(streams)
            for _, writer in slow[20:]:
                writer.close()

    await run(scenario)


@pytest.mark.parametrize(
    ("limit", "begun"),
    [
        ("HEAD_S", b""),
        ("HEAD_S", HALF),
        ("HEAD_S", GET + HALF),
        ("BODY_S", POST),
        ("BODY_S", GET + POST + b"1"),
    ],
)
async def test_every_part_of_a_request_has_a_time_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str, begun: bytes
) -> None:
    """Also of one that stands behind another on the same connection."""
    monkeypatch.setattr(http, limit, 0.2)

    async def scenario() -> None:
        async with listening() as port:
            reader, writer = await opened(port, begun)
            if begun.startswith(GET):
                await reader.readuntil(b"yes")
            assert await ends((reader, writer))

    await run(scenario)


async def test_a_connection_that_is_kept_alive_is_answered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No time limit is left of a request that was answered."""
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    monkeypatch.setattr(http, "BODY_S", 0.2)

    async def scenario() -> None:
        async with listening() as port:
            streams = await opened(port)
            for _ in range(3):
                assert await answer(streams) == b"yes"
                assert await answer(streams, POST + b"0123456789") == b"10"
                await asyncio.sleep(0.3)  # longer than either limit
            streams[1].close()

    await run(scenario)


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_large_request_is_read_in_turns(
    monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """However many chunks it has, a turn of the loop looks at so many bytes at most; pieces that
    come concurrently keep their order."""
    looked_at: list[int] = []
    receive = H11Protocol.data_received

    def received(protocol: H11Protocol, data: bytes) -> None:
        looked_at.append(len(data))
        receive(protocol, data)

    monkeypatch.setattr(H11Protocol, "data_received", received)
    chunks = 50_000
    request = (
        b"POST /length HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * chunks
        + b"0\r\n\r\n"
    )

    async def scenario() -> None:
        async with listening() as port:
            streams = await opened(port)
            size = len(request) // pieces + 1
            for start in range(0, len(request) - size, size):
                streams[1].write(request[start : start + size])
                await asyncio.sleep(0)
            assert await answer(streams, request[size * (pieces - 1) :]) == str(chunks).encode()
            assert await answer(streams) == b"yes"
            streams[1].close()

    await run(scenario)
    assert max(looked_at) <= http.SLICE_BYTES
    assert sum(looked_at) == len(request) + len(GET)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_mistake_of_ours() -> None:
    """Nothing is logged as one, and the next request is answered."""
    left, asked = asyncio.Event(), small_application()
    add_refusals(asked)

    @asked.post("/left")
    async def leaving(request: Request) -> None:
        try:
            await request.body()
        finally:
            left.set()

    async def scenario() -> None:
        async with listening(application=asked) as port:
            _, writer = await opened(port, POST.replace(b"/length", b"/left") + b"123")
            await writer.drain()
            writer.close()
            await left.wait()
            probe = await opened(port)
            assert await answer(probe) == b"yes"
            probe[1].close()

    with capture_logs() as logged:
        await run(scenario)
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == []


async def test_a_peer_that_reads_no_answer_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "STALL_S", 0.2)

    async def scenario() -> None:
        async with listening() as port:
            reader, writer = await asyncio.open_connection(HOST, port, limit=1024)
            writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.5)  # longer than the limit
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(64 << 20)
            writer.close()

    await run(scenario)

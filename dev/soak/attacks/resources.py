"""What a peer may use up on a server with TLS and tokens.

Owns: attacks on connections, handshakes, half requests, transactions, memory and reading. Imports:
magnetar.wire, raw. Invariants: bounded in number and time (the constants); everything that was
opened is closed in the end, and what was begun is ended.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from http.client import HTTPException, LineTooLong
from typing import Any

from dev.server_process import HOST
from dev.soak.attacks.raw import Gone, RawConnection, Target, Type, http_answer, produce
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import encode_entry

SOURCES = ("127.0.0.66", "127.0.0.67", "127.0.0.68", "127.0.0.69")
CONNECTS, OPEN_MAX = 20_500, 3000
"""Connections that never say CONNECT, and how many of them the attacker holds at once."""
HALF_REQUESTS = 1001
HANDSHAKES, HANDSHAKES_A_SECOND = 2000, 250
EARLY_BYTES, EARLY_CONNECTIONS = 5 << 20, 60
TRANSACTIONS, TRANSACTIONS_RUN = 100_000, 500
DAY_MS = 24 * 3600 * 1000
JOINS = 300
READERS, ENTRIES, ENTRY_BYTES = 20, 400, 20_000
REQUESTS_UNREAD = 200
HELD_S = 3.0
CONNECT_S = 10.0
BOMB_BYTES = 64 << 20
"""Of zeros, the most that a message may unpack into."""
LARGEST, EXAMINED_AT_ONCE = 3, 8
"""Which of the entries unpacks into most, from 1, and by how many it is looked at."""
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(24)
HALF_HEADS = (
    b"GET /ready HTTP/1.1\r\nHost: x",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
    b"GET /admin/v2/tenants HTTP/1.1\r\nAuthorization: Bearer ",
    b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
    b"POST /internal/v1/store/get HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
)


async def _silent(port: int, said: bytes = b"", source: str = SOURCES[0]) -> socket.socket | None:
    """A connection that has said so much; None if it did not come to be."""
    opened = socket.socket()
    opened.setblocking(False)
    # no port waits for a peer that was left
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        opened.bind((source, 0))
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(opened, (HOST, port))
        if said:
            opened.send(said)
    except OSError:  # TimeoutError is one
        opened.close()
        return None
    return opened


@asynccontextmanager
async def secured(target: Target, topic: str = "") -> AsyncIterator[RawConnection]:
    """A connection by TLS as the attacker's own role, after a look-up of a topic if one is
    named. Raises Gone."""
    access = target.secured
    raw = await RawConnection.open((HOST, access.tls), access.context())
    try:
        await raw.shake_hands("token", access.token)
        if topic:
            await raw.send(requests.lookup(raw.request_id(), topic, authoritative=False))
            await raw.until(Type.LOOKUP_RESPONSE)
        yield raw
    finally:
        raw.close()


async def connections_without_connect(target: Target) -> str:
    """More than the process may open files, from four addresses; the oldest of them are let go
    as new ones come."""
    access, made, count = target.secured, 0, target.scaled(CONNECTS)
    with ExitStack() as held:
        for number in range(count):
            if number % OPEN_MAX == OPEN_MAX - 1:
                held.pop_all().close()
            opened = await _silent(
                access.plain or access.tls, source=SOURCES[number % len(SOURCES)]
            )
            if opened is not None:
                held.enter_context(opened)
                made += 1
        await asyncio.sleep(HELD_S)
    return "connected" if made == count else "connected in part"


async def half_requests(target: Target) -> str:
    """Requests to REST, metrics and probes that are never finished; by TLS where that is the
    only way."""
    access = target.secured
    with ExitStack() as held:
        for number in range(target.scaled(HALF_REQUESTS)):
            head = HALF_HEADS[number % len(HALF_HEADS)]
            if access.http:
                if (opened := await _silent(access.http, head)) is not None:
                    held.enter_context(opened)
                continue
            with suppress(Gone):
                raw = await RawConnection.open((HOST, access.https), access.context())
                held.callback(raw.close)
                await raw.send(head)
        await asyncio.sleep(HELD_S)
    return "held"


async def half_handshakes(target: Target) -> str:
    """The first half of a ClientHello, from one address, at a steady pace."""
    access, due = target.secured, asyncio.get_running_loop().time()
    with ExitStack() as held:
        for number in range(target.scaled(HANDSHAKES)):
            due += 1 / HANDSHAKES_A_SECOND
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            opened = await _silent((access.tls, access.https)[number % 2], HALF_HELLO)
            if opened is not None:
                held.enter_context(opened)
    return "held"


async def bytes_before_connect(target: Target) -> str:
    """Frames of the greatest size before CONNECT, one connection after another; the broker takes
    64 KiB and closes."""
    access, taken = target.secured, 0
    frame = (
        EARLY_BYTES.to_bytes(4, "big")
        + (EARLY_BYTES - 4).to_bytes(4, "big")
        + bytes(EARLY_BYTES - 4)
    )
    for _ in range(target.scaled(EARLY_CONNECTIONS)):
        with suppress(Gone):
            raw = await RawConnection.open(
                (HOST, access.plain or access.tls), None if access.plain else access.context()
            )
            try:
                await raw.send(frame)
                await raw.receive()
                taken += 1
            finally:
                raw.close()
    if taken:
        target.notes.append(f"{taken} frames of {EARLY_BYTES} bytes before CONNECT were answered")
    return "closed"


# --- transactions ---------------------------------------------------------------------------------


async def long_transactions(target: Target) -> str:
    """NEW_TXN with an incarnation of a day, far more than one role may have; then topics and
    subscriptions of others in one of them."""
    async with secured(target) as raw:
        await raw.send(requests.coordinator_connect(raw.request_id(), 0))
        await raw.until(Type.TC_CLIENT_CONNECT_RESPONSE)
        begun, count = list[TxnId](), target.scaled(TRANSACTIONS)
        try:
            for _ in range(0, count, TRANSACTIONS_RUN):
                await raw.send(
                    b"".join(
                        requests.new_txn(raw.request_id(), 0, DAY_MS)
                        for _ in range(TRANSACTIONS_RUN)
                    )
                )
                for _ in range(TRANSACTIONS_RUN):
                    answer = (await raw.until(Type.NEW_TXN_RESPONSE)).new_txn_response
                    if not answer.HasField("error"):
                        begun.append(TxnId(answer.txnid_most_bits, answer.txnid_least_bits))
            if len(begun) > TRANSACTIONS // 2:
                target.notes.append(f"one role has {len(begun)} transactions open")
            await _join_others(target, raw, begun[0] if begun else TxnId(0, 0))
        finally:  # a deadline may be over by now; what is left open the run aborts as an administrator
            for start in range(0, len(begun), TRANSACTIONS_RUN):
                run = begun[start : start + TRANSACTIONS_RUN]
                await raw.send(
                    b"".join(requests.end_txn(raw.request_id(), txn, commit=False) for txn in run)
                )
                await raw.answers(len(run), Type.END_TXN_RESPONSE)
    return "ended"


async def _join_others(target: Target, raw: RawConnection, txn: TxnId) -> None:
    """Name what the role may not use: each must be refused, whether it is there or not."""
    names = (
        *target.victims,
        "persistent://public/ordinary/absent",
        "persistent://absent/ns/t",
        f"{target.topic}/_txnlog",
        "x" * 5000,
    )
    frames = []
    for _ in range(JOINS):
        name = target.chance.choice(names)
        if target.chance.random() < 0.5:
            frames.append(requests.add_partitions_to_txn(raw.request_id(), txn, [name]))
        else:
            frames.append(
                requests.add_subscription_to_txn(raw.request_id(), txn, name, "ordinary-Shared")
            )
    await raw.send(b"".join(frames))
    for _ in frames:
        answer = await raw.until(
            Type.ADD_PARTITION_TO_TXN_RESPONSE, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE
        )
        body: Any = getattr(answer, commands.FIELD_OF_TYPE[answer.type])
        if not body.HasField("error"):
            target.notes.append(f"{Type.Name(answer.type)}: a participant of others was taken")


# --- reading --------------------------------------------------------------------------------------


async def _publish(target: Target, topic: str, entries: Sequence[bytes]) -> int:
    """Entries of the attacker's own; how many were taken. Raises Gone."""
    async with secured(target, topic) as raw:
        if refusal := await produce(raw, topic):
            raise Gone(refusal)
        await raw.send(
            b"".join(requests.send(1, number, entry) for number, entry in enumerate(entries))
        )
        return sum(
            [
                (await raw.until(Type.SEND_RECEIPT, Type.SEND_ERROR)).type == Type.SEND_RECEIPT
                for _ in entries
            ]
        )


def _entry(payload: bytes, **metadata: Any) -> bytes:
    return encode_entry(
        api.MessageMetadata(producer_name="hostile", sequence_id=0, publish_time=1, **metadata),
        payload,
    )


async def slow_readers(target: Target) -> str:
    """Consumers with permits without end, and REST clients with hundreds of requests, that read
    nothing."""
    access, topic = target.secured, target.fresh_topic()
    await _publish(target, topic, [_entry(bytes(ENTRY_BYTES))] * ENTRIES)
    held: list[RawConnection] = []
    try:
        for number in range(target.scaled(READERS)):
            reader = await RawConnection.open((HOST, access.tls), access.context())
            held.append(reader)
            await reader.shake_hands("token", access.token)
            reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
            body = api.CommandSubscribe(
                topic=topic,
                subscription=f"slow-{number}",
                subType=api.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=1,
                durable=False,
                initialPosition=api.CommandSubscribe.Earliest,
            )
            await reader.send(requests.subscribe(body) + requests.flow(1, 1 << 30))
            asking = await RawConnection.open((HOST, access.https), access.context())
            held.append(asking)
            asking.writer.transport.pause_reading()  # type: ignore[attr-defined]
            asking.writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * REQUESTS_UNREAD)
        await asyncio.sleep(HELD_S)
    finally:
        for raw in held:
            raw.close()
    return "held"


def bombs() -> list[bytes]:
    """Entries that are small, and announce or hold much; and properties that would be headers of
    their own."""
    zeros = zlib.compress(bytes(BOMB_BYTES), 9)
    inject = [
        api.KeyValue(key="x\r\nX-Injected: yes\r\n\r\n<b>", value="y"),
        api.KeyValue(key="y", value="z\r\nSet-Cookie: hostile=1\r\n\r\n<b>"),
        api.KeyValue(key="\x00\n\r", value="\u2028\x85"),
        api.KeyValue(key="", value=""),
    ]
    many = [api.KeyValue(key=f"key-{number}", value="v" * 100) for number in range(5000)]
    return [
        _entry(b"plain", properties=inject),
        _entry(b"many", properties=many),
        *(
            _entry(zeros, compression=api.ZLIB, uncompressed_size=size)
            for size in (BOMB_BYTES, 10, 0, (1 << 32) - 1)
        ),
        *(
            _entry(b"\xff" * 200, compression=kind, uncompressed_size=(1 << 32) - 1)
            for kind in (api.LZ4, api.ZSTD, api.SNAPPY)
        ),
        _entry(
            b"\xff\xff\xff\xff\x0f" + bytes(100),
            compression=api.SNAPPY,
            uncompressed_size=(1 << 31) - 1,
        ),
        _entry(
            zeros, compression=api.ZLIB, uncompressed_size=BOMB_BYTES, num_messages_in_batch=1000
        ),
        _entry(
            b"\x00\x00\x00\x04\xff\xff\xff\xff",
            num_messages_in_batch=(1 << 31) - 1,
            properties=inject,
        ),
    ]


async def examinations(target: Target) -> str:
    """Messages that are bombs or would inject headers, looked at over REST by each of the ways
    to look at one; the largest by many at once."""
    access, topic = target.secured, target.fresh_topic()
    taken = await _publish(target, topic, bombs())
    path = f"/admin/v2/{topic.replace('://', '/')}"
    await _asked(target, "PUT", f"{path}/subscription/peeked", b'"earliest"')
    for number in range(1, taken + 1):
        await _asked(
            target,
            "GET",
            f"{path}/examinemessage?initialPosition=earliest&messagePosition={number}",
        )
        await _asked(target, "GET", f"{path}/subscription/peeked/position/{number}")
    largest = f"{path}/examinemessage?initialPosition=earliest&messagePosition={LARGEST}"
    await asyncio.gather(*(_asked(target, "GET", largest) for _ in range(EXAMINED_AT_ONCE)))
    head = (
        f"GET {largest} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nAuthorization: Bearer "
        f"{access.token}\r\n\r\n"
    ).encode()
    held: list[RawConnection] = []
    try:
        for _ in range(target.scaled(READERS)):
            reader = await RawConnection.open((HOST, access.https), access.context())
            held.append(reader)
            reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await reader.send(head)
        await asyncio.sleep(HELD_S)
    finally:
        for raw in held:
            raw.close()
    await _asked(target, "DELETE", f"{path}/subscription/peeked")
    return "examined"


async def _asked(target: Target, method: str, path: str, body: bytes | None = None) -> None:
    """One request whose answer must be bounded, without headers of the attacker's and no error
    of the server's."""
    access = target.secured
    url, context, headers = (
        f"https://{HOST}:{access.https}",
        access.context(),
        {"Authorization": f"Bearer {access.token}"},
    )
    try:
        answer = await asyncio.to_thread(http_answer, url, method, path, body, headers, tls=context)
    except LineTooLong:
        return  # properties of more than 64 KiB, which this client does not take
    except (OSError, HTTPException) as error:
        target.notes.append(f"{method} {path}: {error!r}")
        return
    injected = [name for name, _ in answer.headers if name.lower() in ("x-injected", "set-cookie")]
    if injected or answer.status >= 500 or len(answer.body) > BOMB_BYTES:
        target.notes.append(
            f"{method} {path}: {answer.status}, {len(answer.body)} bytes, headers {injected}: "
            f"{answer.body[:100]!r}"
        )


ATTACKS = (
    connections_without_connect,
    half_requests,
    half_handshakes,
    bytes_before_connect,
    long_transactions,
    slow_readers,
    examinations,
)

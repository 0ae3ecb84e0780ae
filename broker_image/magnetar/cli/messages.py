"""`magnetar produce` and `magnetar consume`.

Owns: reading messages from arguments or standard input, their rate, and printing what is received.
Imports: client. Invariants: `produce` reports a message only after its receipt, and has at most
PENDING_MAX on their way; `consume` acknowledges a message only after it has been printed, and waits
for the broker's confirmation before it exits.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.cli.access import Access
from magnetar.cli.failures import CommandFailed, Unreachable
from magnetar.cli.screen import OutputFormat, Screen
from magnetar.client import Client, Consumer, Message
from magnetar.client.failures import ConnectionLost
from magnetar.client.pool import parse_service_url
from magnetar.clock import SystemClock

PENDING_MAX = 1000
READ_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 5.0
REMEDY = "is the server running, and is --service-url (or MAGNETAR_SERVICE_URL) right?"
TYPES = {
    "exclusive": "Exclusive",
    "shared": "Shared",
    "failover": "Failover",
    "key_shared": "Key_Shared",
}


@dataclass(frozen=True, slots=True)
class Publishing:
    """What to publish. `messages` None: the lines of standard input. `rate` in messages per
    second, 0 = as fast as receipts come."""

    topic: str
    messages: list[str] | None
    key: str | None
    properties: Mapping[str, str]
    count: int
    rate: float


@dataclass(frozen=True, slots=True)
class Consuming:
    """What to receive. `count` 0 = without end; `timeout_s` 0 = wait without limit for the next
    message."""

    topic: str
    subscription: str
    kind: str
    earliest: bool
    count: int
    timeout_s: float
    acknowledge: bool


def run_produce(access: Access, service_url: str, screen: Screen, publishing: Publishing) -> None:
    """Publish, and wait until everything is durable."""
    sent = asyncio.run(_reached(service_url, lambda url: _produce(access.client(url), publishing)))
    screen.done(
        f"{sent} message{'s' if sent != 1 else ''} published and durable",
        topic=publishing.topic,
        messages=sent,
    )


async def _reached(service_url: str, work: Callable[[str], Coroutine[Any, Any, int]]) -> int:
    """`work` with the addresses that answer first, unless none of them listens: a client would try for
    half a minute."""
    answering, failures = [], []
    for endpoint in parse_service_url(service_url):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.close()
            answering.append(str(endpoint))
        except OSError as error:  # a TimeoutError as well
            failures.append(
                f"{endpoint}: {os.strerror(error.errno) if error.errno else 'no answer in time'}"
            )
    if not answering:
        raise Unreachable(f"no answer from {', '.join(failures)}", REMEDY)
    try:
        return await work(f"{service_url.partition('://')[0]}://{','.join(answering)}")
    except ConnectionLost as error:
        raise Unreachable(f"{service_url}: {error}", REMEDY) from error


async def _produce(opened: Client, publishing: Publishing) -> int:
    async with opened as client:
        producer = await client.create_producer(publishing.topic)
        pending: list[asyncio.Future[Any]] = []
        sent = 0
        async for text in _paced(_texts(publishing), publishing.rate):
            message = producer.send(
                text.encode(errors="surrogateescape"),
                key=publishing.key,
                properties=publishing.properties,
            )
            pending.append(asyncio.ensure_future(message))
            sent += 1
            if len(pending) >= PENDING_MAX:
                await asyncio.gather(*pending)
                pending.clear()
        await asyncio.gather(*pending)
        await producer.close()
        return sent


async def _texts(publishing: Publishing) -> AsyncIterator[str]:
    """What to publish, one by one."""
    if publishing.messages is None and publishing.count == 1:
        async for line in _lines():
            yield line
        return
    known = (
        publishing.messages
        if publishing.messages is not None
        else [line async for line in _lines()]
    )
    for _ in range(publishing.count):
        for text in known:
            yield text


async def _lines() -> AsyncIterator[str]:
    """Lines of standard input as they come, read in a thread, so that receipts are handled while it
    waits."""
    rest, descriptor = b"", sys.stdin.fileno()
    while data := await asyncio.to_thread(os.read, descriptor, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="surrogateescape").removesuffix("\r")
    if rest:
        yield rest.decode(errors="surrogateescape")


async def _paced(texts: AsyncIterator[str], rate: float) -> AsyncIterator[str]:
    """`texts`, at most `rate` a second on average."""
    clock = SystemClock()
    started, number = clock.monotonic(), 0
    async for text in texts:
        if rate and (ahead := started + number / rate - clock.monotonic()) > 0:
            await asyncio.sleep(ahead)
        number += 1
        yield text


def run_consume(access: Access, service_url: str, screen: Screen, consuming: Consuming) -> None:
    """Print messages until there were enough. Raises CommandFailed if they do not come in time."""
    received = asyncio.run(
        _reached(service_url, lambda url: _consume(access.client(url), screen, consuming))
    )
    if received < consuming.count:
        raise CommandFailed(
            f"{received} of {consuming.count} messages came before {consuming.timeout_s:g} s "
            "passed without one",
            f"`magnetar subscriptions stats {consuming.topic} {consuming.subscription}` shows the "
            "backlog; --timeout 0 waits without limit",
        )


async def _consume(opened: Client, screen: Screen, consuming: Consuming) -> int:
    async with opened as client:
        consumer = await client.subscribe(
            consuming.topic,
            consuming.subscription,
            type=TYPES[consuming.kind],
            initial_position="Earliest" if consuming.earliest else "Latest",
        )
        try:
            return await _receive(consumer, screen, consuming)
        finally:
            await consumer.close()


async def _receive(consumer: Consumer, screen: Screen, consuming: Consuming) -> int:
    received = 0
    while consuming.count == 0 or received < consuming.count:
        try:
            message = await consumer.receive(consuming.timeout_s or None)
        except TimeoutError:
            break
        screen.line(line_of(message, screen.output))
        if consuming.acknowledge:
            await consumer.acknowledge(message)
        received += 1
    return received


def value_of(message: Message) -> dict[str, Any]:
    """A message for scripts; what is not UTF-8 in its value is replaced, and `value_hex` has the
    bytes then."""
    text = message.value.decode(errors="replace")
    found: dict[str, Any] = {
        "id": str(message.id),
        "topic": message.topic,
        "key": message.key,
        "value": None if message.null_value else text,
        "properties": dict(message.properties),
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "producer": message.producer_name,
        "sequence_id": message.sequence_id,
        "redelivery_count": message.redelivery_count,
    }
    return found if text.encode() == message.value else {**found, "value_hex": message.value.hex()}


def line_of(message: Message, output: OutputFormat) -> str:
    """One line, whatever the format: messages are a stream."""
    if output is not OutputFormat.TABLE:
        return json.dumps(value_of(message))
    key = f" key={message.key}" if message.key else ""
    properties = "".join(f" {name}={value}" for name, value in sorted(message.properties.items()))
    return (
        f"{message.id}{key}{properties} "
        f"{'(tombstone)' if message.null_value else message.value.decode(errors='replace')}"
    )

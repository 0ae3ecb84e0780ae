"""`magnetar produce` and `magnetar consume`.

Owns: reading messages from arguments or standard input, and printing what is received. Imports: client.
Invariants: `produce` reports a message only after its receipt; `consume` acknowledges a message only after it has been printed, and waits for the
broker's confirmation before it exits.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable

from magnetar.client import Client, Message

PENDING_MAX = 1000
TYPES = {"exclusive": "Exclusive", "shared": "Shared"}


def run_produce(service_url: str, topic: str, messages: list[str] | None, key: str | None) -> None:
    """Publish `messages`, or every line of standard input."""
    asyncio.run(_produce(service_url, topic, messages if messages is not None else (line.rstrip("\n") for line in sys.stdin), key))


async def _produce(service_url: str, topic: str, lines: Iterable[str], key: str | None) -> None:
    async with Client(service_url) as client:
        producer = await client.create_producer(topic)
        pending: list[asyncio.Future[object]] = []
        count = 0
        for line in lines:
            pending.append(asyncio.ensure_future(producer.send(line.encode(), key=key)))
            count += 1
            if len(pending) >= PENDING_MAX:
                await asyncio.gather(*pending)
                pending.clear()
        await asyncio.gather(*pending)
        await producer.close()
    print(f"{count} message{'s' if count != 1 else ''} published and durable")


def run_consume(service_url: str, topic: str, subscription: str, count: int, kind: str, earliest: bool, as_json: bool) -> None:
    """Print `count` messages (0 = until interrupted)."""
    asyncio.run(_consume(service_url, topic, subscription, count, kind, earliest, as_json))


async def _consume(service_url: str, topic: str, subscription: str, count: int, kind: str, earliest: bool, as_json: bool) -> None:
    async with Client(service_url) as client:
        consumer = await client.subscribe(
            topic, subscription, type=TYPES[kind], initial_position="Earliest" if earliest else "Latest"
        )
        received = 0
        while count == 0 or received < count:
            message = await consumer.receive()
            print(_line(message, as_json), flush=True)
            await consumer.acknowledge(message)
            received += 1
        await consumer.close()


def _line(message: Message, as_json: bool) -> str:
    if as_json:
        return json.dumps(
            {
                "id": str(message.id),
                "key": message.key,
                "value": (message.value or b"").decode(errors="replace"),
                "properties": dict(message.properties),
                "publish_time_ms": message.publish_time_ms,
                "producer": message.producer_name,
            }
        )
    key = f" key={message.key}" if message.key else ""
    return f"{message.id}{key} {message.value.decode(errors='replace')}"

"""Many requests, and many connections.

Owns: attacks by number: look-ups, watchers, consumers, connections, half frames, slow reading.
Imports: magnetar.wire, raw. Invariants: bounded in number (the constants), and everything that was
made is closed in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from dev.soak.attacks.raw import (
    Gone,
    RawConnection,
    Target,
    Type,
    broker_of,
    connection,
    produce,
    subscribe,
    unsubscribe,
)
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import encode_command

SubType = api.CommandSubscribe.SubType
REQUESTS = 3000
WATCHERS = 120
CONSUMERS = 300
NAMES = 300
"""Look-ups of names that do not exist: clients may create topics."""
CONNECTIONS = 150
HALF_FRAMES = 40
SLOW_S = 8.0
HELD_S = 3.0
FLOWS = 50_000
DRIP_BYTES = 60
PATTERNS = (
    "(a*)*b",
    "(.*)*(.*)*x",
    "([a-z]+)+$",
    ".*" * 24,
    "(" * 50,
    "[" * 50,
    "a{1000}{1000}",
    "\\",
    "",
    "(?:(?:a+)+)+$",
    "x*" * 2_000_000,
)


def _topics_of_namespace(target: Target, request: int, pattern: str) -> bytes:
    body = api.CommandGetTopicsOfNamespace(
        request_id=request,
        namespace=target.namespace,
        topics_pattern=pattern,
        mode=api.CommandGetTopicsOfNamespace.ALL,
    )
    return encode_command(
        api.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=body)
    )


async def patterns(target: Target) -> str:
    """Patterns that take other engines permanently, in lists and watchers."""
    async with connection(target) as raw:
        chosen = [target.chance.choice(PATTERNS[:-1]) for _ in range(100)] + [PATTERNS[-1]]
        await raw.send(
            b"".join(_topics_of_namespace(target, raw.request_id(), pattern) for pattern in chosen)
        )
        said = await raw.answers(len(chosen), Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, Type.ERROR)
        watchers = [
            encode_command(
                api.BaseCommand(
                    type=Type.WATCH_TOPIC_LIST,
                    watch_topic_list=api.CommandWatchTopicList(
                        request_id=raw.request_id(),
                        watcher_id=number,
                        namespace=target.namespace,
                        topics_pattern=target.chance.choice(PATTERNS[:-1]),
                    ),
                )
            )
            for number in range(WATCHERS)
        ]
        await raw.send(b"".join(watchers))
        return (
            f"{said}, watchers "
            f"{await raw.answers(WATCHERS, Type.WATCH_TOPIC_LIST_SUCCESS, Type.ERROR)}"
        )


async def requests_at_once(target: Target) -> str:
    """Thousands of one request in one write, answers read afterwards."""
    topic = target.any_topic()
    async with connection(target, topic) as raw:
        await subscribe(raw, topic, target.fresh("hostile"))
        kinds: dict[str, Callable[[], bytes]] = {
            "last message id": lambda: requests.last_message_id(1, raw.request_id()),
            "lookup": lambda: requests.lookup(raw.request_id(), topic, authoritative=False),
            "partitions": lambda: requests.partitioned_metadata(
                raw.request_id(), topic, create=False
            ),
            "topics": lambda: _topics_of_namespace(target, raw.request_id(), ".*"),
            "statistics": lambda: encode_command(
                api.BaseCommand(
                    type=Type.CONSUMER_STATS,
                    consumer_stats=api.CommandConsumerStats(
                        request_id=raw.request_id(), consumer_id=1
                    ),
                )
            ),
            "subscribe again": lambda: requests.subscribe(
                api.CommandSubscribe(
                    topic=topic,
                    subscription="hostile-x",
                    subType=SubType.Shared,
                    consumer_id=9,
                    request_id=raw.request_id(),
                )
            ),
            "producer again": lambda: requests.producer(
                api.CommandProducer(topic=topic, producer_id=9, request_id=raw.request_id())
            ),
            "schema": lambda: encode_command(
                api.BaseCommand(
                    type=Type.GET_SCHEMA,
                    get_schema=api.CommandGetSchema(request_id=raw.request_id(), topic=topic),
                )
            ),
            "PING": lambda: commands.PING,
        }
        name, make = target.chance.choice(list(kinds.items()))
        await raw.send(b"".join(make() for _ in range(REQUESTS)))
        outcome = await raw.pong()
        await unsubscribe(raw)
        return f"{name}: {outcome}"


async def unknown_names(target: Target) -> str:
    """Look-ups and partition counts of names that do not exist, long and broken ones among them."""
    async with connection(target) as raw:
        frames = []
        for _ in range(NAMES):
            name = target.chance.choice(
                (
                    target.fresh_topic(),
                    target.fresh_topic() + "-partition-7",
                    "persistent://",
                    "x" * 30_000,
                    "a/b/c/d/e",
                    "",
                )
            )
            frames.append(
                requests.lookup(raw.request_id(), name, authoritative=target.chance.random() < 0.5)
            )
            frames.append(requests.partitioned_metadata(raw.request_id(), name, create=False))
        await raw.send(b"".join(frames))
        return await raw.pong()


async def flows(target: Target) -> str:
    """Permits without end, of a consumer that does not read for a while."""
    async with connection(target) as raw:
        await subscribe(raw, target.topic, target.fresh("hostile"))
        await raw.send(requests.flow(1, (1 << 32) - 1) * FLOWS)
        await asyncio.sleep(HELD_S)
        outcome = await raw.pong()
        await unsubscribe(raw)
        return outcome


async def many_consumers(target: Target) -> str:
    """Hundreds of consumers of one subscription that come and go, over messages that they do not
    acknowledge."""
    kind = target.chance.choice((1, 2, 3))
    topic, name = target.any_topic(), target.fresh("hostile")
    async with connection(target, topic) as raw:
        frames = []
        for number in range(CONSUMERS):
            body = api.CommandSubscribe(
                topic=topic,
                subscription=name,
                subType=kind,  # type: ignore[arg-type]
                consumer_id=number,
                request_id=raw.request_id(),
                consumer_name=f"hostile-{number}",
                initialPosition=api.CommandSubscribe.Earliest,
            )
            frames += [requests.subscribe(body), requests.flow(number, 100)]
        await raw.send(b"".join(frames))
        said = await raw.answers(CONSUMERS, Type.SUCCESS, Type.ERROR)
        await raw.send(
            b"".join(
                requests.close_consumer(number, raw.request_id()) for number in range(CONSUMERS - 1)
            )
        )
        await raw.pong()
        await unsubscribe(raw, CONSUMERS - 1)
        return said


async def sticky_ranges(target: Target) -> str:
    """Key_Shared with hundreds of thousands of ranges, and with ranges that overlap."""
    async with connection(target) as raw:
        said = ""
        for step in (2, 1, 0):
            body = api.CommandSubscribe(
                topic=target.topic,
                subscription=target.fresh("hostile"),
                subType=SubType.Key_Shared,
                consumer_id=step,
                request_id=raw.request_id(),
            )
            body.keySharedMeta.keySharedMode = api.STICKY
            count = 30_000 if step else 300_000
            body.keySharedMeta.hashRanges.extend(
                api.IntRange(start=step * n % 65536, end=step * n % 65536) for n in range(count)
            )
            await raw.send(requests.subscribe(body))
            answer = await raw.until(Type.SUCCESS, Type.ERROR)
            said += f" {Type.Name(answer.type)}"
            await unsubscribe(raw, step)
        return said.strip()


async def connection_storm(target: Target) -> str:
    """Connections that come and go: some say nothing, some greet in another protocol, some leave
    in the middle of the handshake."""
    address = await broker_of(target, target.any_topic())
    greetings = (
        b"",
        requests.connect("hostile", commands.PROTOCOL_VERSION),
        requests.connect("x" * 100_000, -5),
        requests.connect("hostile", 1 << 30)[:9],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"\xff" * 64,
        commands.PING * 100,
        requests.flow(1, 1),
    )

    async def one() -> None:
        with suppress(Gone):
            raw = await RawConnection.open(address)
            with suppress(Gone):
                await raw.send(target.chance.choice(greetings))
                await asyncio.sleep(target.chance.uniform(0, 0.3))
            raw.close()

    for _ in range(CONNECTIONS // 25):
        await asyncio.gather(*(one() for _ in range(25)))
    return "closed"


async def half_frames(target: Target) -> str:
    """Frames of the greatest size that are never finished, on many connections; then one byte at
    a time."""
    address = await broker_of(target, target.any_topic())
    held = []
    try:
        for _ in range(HALF_FRAMES):
            raw = await RawConnection.open(address)
            held.append(raw)
            await raw.shake_hands()
            size = 5 * 1024 * 1024
            await raw.send(
                size.to_bytes(4, "big")
                + (size - 4).to_bytes(4, "big")
                + bytes(target.chance.choice((1, 1000, 200_000)))
            )
        drip = requests.connect("hostile", commands.PROTOCOL_VERSION)[:DRIP_BYTES]
        raw = await RawConnection.open(address)
        held.append(raw)
        for at in range(len(drip)):
            await raw.send(drip[at : at + 1])
            await asyncio.sleep(0.01)
        await asyncio.sleep(HELD_S)
        return "held"
    finally:
        for raw in held:
            raw.close()


async def slow_reading(target: Target) -> str:
    """Everything of a topic, and thousands of answers, are asked for and not read for a while."""
    topic = target.any_topic()
    async with connection(target, topic) as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = api.CommandSubscribe(
            topic=topic,
            subscription=(name := target.fresh("hostile")),
            subType=SubType.Exclusive,
            consumer_id=1,
            request_id=1,
            initialPosition=api.CommandSubscribe.Earliest,
        )
        await raw.send(requests.subscribe(body) + requests.flow(1, 1 << 30))
        with suppress(Gone):
            for _ in range(REQUESTS // 100):
                frames = b"".join(
                    _topics_of_namespace(target, raw.request_id(), ".*") for _ in range(100)
                )
                await raw.send(frames, patience_s=1.0)
        await asyncio.sleep(SLOW_S)
    async with connection(target, topic) as raw:
        await subscribe(raw, topic, name, kind=0)
        await unsubscribe(raw)
    return "held"


async def producers_at_once(target: Target) -> str:
    """Producers of one name, of all access modes, that come and go."""
    topic, name = target.fresh_topic(), target.fresh("hostile")
    async with connection(target, topic) as raw:
        frames = []
        for number in range(CONSUMERS):
            body = api.CommandProducer(
                topic=topic, producer_id=number, request_id=raw.request_id(), epoch=number
            )
            if number % 2:
                body.producer_name = name
            body.producer_access_mode = target.chance.choice(api.ProducerAccessMode.values())
            frames.append(requests.producer(body))
            if target.chance.random() < 0.3:
                frames.append(
                    requests.close_producer(target.chance.randrange(CONSUMERS), raw.request_id())
                )
        await raw.send(b"".join(frames))
        outcome = await raw.pong()
        await produce(raw, target.fresh_topic(), producer=CONSUMERS)
        return outcome


ATTACKS = (
    patterns,
    requests_at_once,
    unknown_names,
    flows,
    many_consumers,
    sticky_ranges,
    connection_storm,
    half_frames,
    slow_reading,
    producers_at_once,
)

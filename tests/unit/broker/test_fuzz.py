"""Random peers against a real broker, through the real connection: whatever they send, nobody else
is harmed and nothing is left behind.

Messages are made from the protocol's own description (every field of every command, with values
that tend to hit something), strung together to sessions, and damaged at the byte level; a transport
that only remembers stands in for the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from magnetar.broker.connections.connection import Connection
from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.publish_times import first_published_at
from magnetar.broker.upkeep.expiry import expire
from magnetar.errors import ServiceNotReady
from magnetar.metadata.records import LogPosition
from magnetar.names import TopicName
from magnetar.storage.checkpoint import CheckpointEncoder
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import encode_entry
from magnetar.wire.frames import encode_command, encode_with_body
from tests.support.brokers import CLOCK, Type, entry, running_broker
from tests.support.transports import Transport, feed

EXAMPLES = int(os.environ.get("MAGNETAR_FUZZ_EXAMPLES", "150"))
"""A share for every run; thousands for a hunt."""
SETTLE_TURNS = 20
PERMITS = 100_000
TOPICS = [
    "fuzz",
    "persistent://public/default/fuzz-watched",
    "persistent://public/default/fuzz-partition-0",
    "non-persistent://public/default/fuzz",
    "x://y",
    "a/b/c",
    "",
    "t\x00",
    "p" * 2000,
]
IDS = st.sampled_from([0, 1, 2, 2**31, 2**63, 2**64 - 1])
SIGNED = st.sampled_from([-1, 0, 1, 2, 7, -(2**31), 2**31 - 1])
TEXTS = st.sampled_from(
    [
        "",
        "s",
        "c",
        "public/default",
        "no/where",
        "pulsar.dedup",
        ".*",
        "(a+)+b",
        "\u00e4\U0001f600",
        "x" * 300,
    ]
)
NOT_TEXT = b"no/\xffhere"
"""Takes the place of `no/where`: of proto2 strings nobody else checks that they are UTF-8."""
BYTES = st.sampled_from([b"", b"\x00" * 8, b"x", b"\xff" * 40])


def value(field: Any, depth: int) -> st.SearchStrategy[Any]:
    """Values of one field that tend to meet something."""
    if field.message_type is not None:
        return message(GetMessageClass(field.message_type), depth + 1)
    if field.name == "topic":
        return st.sampled_from(TOPICS)
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return st.sampled_from([known.number for known in field.enum_type.values])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return TEXTS if field.type == FieldDescriptor.TYPE_STRING else BYTES
    if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64):
        return SIGNED
    if kind == FieldDescriptor.CPPTYPE_UINT32:
        return st.sampled_from([0, 1, 2, 1000, 2**32 - 1])
    if kind == FieldDescriptor.CPPTYPE_UINT64:
        return IDS
    return st.floats(allow_nan=True)


def message(kind: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any message of one kind, with every required field."""

    @st.composite
    def build(draw: st.DrawFn) -> Message:
        made: Message = kind()
        for field in made.DESCRIPTOR.fields:
            if field.is_repeated:
                if depth < 2:
                    getattr(made, field.name).extend(
                        draw(st.lists(value(field, depth), max_size=2))
                    )
            elif field.is_required or (depth < 3 and draw(st.booleans())):
                drawn = draw(value(field, depth))
                if field.message_type is not None:
                    getattr(made, field.name).CopyFrom(drawn)
                else:
                    setattr(made, field.name, drawn)
        return made

    return build()


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An entry with any metadata and a checksum that is right: only what it says may be wrong."""
    metadata = draw(message(api.MessageMetadata))
    return encode_entry(metadata, draw(st.sampled_from([b"", b"x", bytes(40)])))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A well-formed frame of any command, with a body where there may be one."""
    name = draw(st.sampled_from(sorted(commands.FIELD_OF_TYPE.values())))
    command = api.BaseCommand(type=Type.Value(name.upper()))
    field = command.DESCRIPTOR.fields_by_name[name]
    assert field.message_type is not None
    getattr(command, name).CopyFrom(draw(message(GetMessageClass(field.message_type))))
    getattr(command, name).SetInParent()
    if name == "send" or draw(st.integers(0, 9)) == 0:
        return encode_with_body(
            command,
            draw(
                st.sampled_from(
                    [
                        b"",
                        b"\x0e\x01",
                        b"\x0e\x02\xff",
                        entry(b"x"),
                        entry(b"y") + b"z",
                        b"\xff" * 50,
                    ]
                )
                | bodies()
            ),
        )
    return encode_command(command)


WATCHED = "persistent://public/default/fuzz-watched"
"""A topic on which a well-behaved subscription is, and that SENDs of the producers 0 and 1
reach."""
SET_UP = [
    requests.producer(api.CommandProducer(topic="fuzz", producer_id=1, request_id=1)),
    requests.producer(api.CommandProducer(topic=WATCHED, producer_id=0, request_id=10)),
    requests.subscribe(
        api.CommandSubscribe(
            topic="fuzz",
            subscription="s",
            subType=api.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=2,
        )
    ),
    requests.producer(api.CommandProducer(topic=TOPICS[2], producer_id=2, request_id=3)),
    requests.subscribe(
        api.CommandSubscribe(
            topic=TOPICS[2],
            subscription="s",
            subType=api.CommandSubscribe.Exclusive,
            consumer_id=2,
            request_id=4,
        )
    ),
    requests.flow(1, 1000),
    requests.send(1, 0, entry(b"m")),
]


PAIR = [api.KeyValue(key="no/where", value="no/where")]
NAMED = [
    requests.subscribe(
        api.CommandSubscribe(
            topic="fuzz",
            subscription=subscription,
            subType=kind,
            consumer_id=3,
            request_id=9,
            consumer_name="no/where",
            metadata=PAIR,
            subscription_properties=PAIR,
        )
    )
    for subscription, kind in (
        ("no/where", api.CommandSubscribe.Failover),
        ("s", api.CommandSubscribe.Shared),
    )
] + [
    requests.producer(
        api.CommandProducer(
            topic="fuzz", producer_id=3, request_id=9, producer_name="no/where", metadata=PAIR
        )
    )
]


@st.composite
def misspelt(draw: st.DrawFn) -> bytes:
    """A command that would be carried out, but for one of its strings, which is no text."""
    frame = draw(st.sampled_from(NAMED))
    parts = frame.split(b"no/where")
    broken = draw(st.integers(1, len(parts) - 1))
    return b"no/where".join(parts[:broken]) + NOT_TEXT + b"no/where".join(parts[broken:])


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with a few flipped, cut, repeated or put in."""
    broken = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(broken) - 1)))
        action = draw(st.sampled_from(["flip", "cut", "put", "repeat", "size"]))
        if action == "flip" and broken:
            broken[at] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut":
            del broken[at : at + draw(st.integers(1, 20))]
        elif action == "put":
            broken[at:at] = draw(st.binary(max_size=10))
        elif action == "repeat":
            broken[at:at] = broken[at : at + 30]
        elif action == "size" and len(broken) >= 8:
            broken[0:8] = draw(st.integers(0, 2**64 - 1)).to_bytes(8, "big")
    return bytes(broken)


@st.composite
def sessions(draw: st.DrawFn) -> bytes:
    """What a peer sends, most often after a handshake and something to hit."""
    parts = (
        [requests.connect("fuzz", draw(st.sampled_from([0, 12, 21, 99])))]
        if draw(st.integers(0, 9))
        else []
    )
    parts += SET_UP if draw(st.booleans()) else []
    parts += [draw(misspelt())] if draw(st.integers(0, 4)) == 0 else []
    for frame in draw(st.lists(frames(), min_size=1, max_size=8)):
        parts.append(draw(damaged(frame)) if draw(st.integers(0, 3)) == 0 else frame)
    return b"".join(parts)


class World:
    """A broker with a loop of its own, which each example drives for a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self.loop, self.broker = loop, broker
        self.failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: self.failures.append(context))

    def connect(self) -> tuple[Connection, Transport]:
        connection, transport = self.broker._accept(), Transport()
        connection.connection_made(transport)
        return connection, transport

    async def settle(self) -> None:
        """Let what can happen happen."""
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        await self.broker.context.log.barrier()
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One broker for all examples, as a real one has all kinds of peers."""
    directory: Path = tmp_path_factory.mktemp("fuzz")
    with asyncio.Runner() as runner:
        context = running_broker(
            directory, park_timeout_s=0.1, liveness_check_s=0.1, producers_per_connection_max=20
        )
        broker = runner.run(context.__aenter__())
        made = World(runner.get_loop(), broker)
        runner.run(warm_up(made))
        yield made
        runner.run(context.__aexit__(None, None, None))


async def warm_up(world: World) -> None:
    """Have the bundles of the topics assigned, however long that takes, so that most sessions
    reach them."""
    for topic in map(TopicName.parse, TOPICS[:3]):
        bundle = await world.broker.ownership.bundle_of(topic)
        async with asyncio.timeout(120):
            while str(bundle) not in world.broker.ownership.owned:
                with contextlib.suppress(ServiceNotReady):
                    await world.broker.ownership.resolve(bundle)
                await asyncio.sleep(0.01)


async def play(world: World, session: bytes, pieces: list[int]) -> None:
    connection, transport = world.connect()
    neighbour, line = world.connect()
    feed(neighbour, line, requests.connect("neighbour", 21))
    at = 0
    for size in [*pieces, len(session)]:
        feed(connection, transport, session[at : at + size])
        at += size
        await asyncio.sleep(0)
    await world.settle()
    answered = transport.commands()  # parses: whatever was sent is made of whole frames
    assert len(answered) < 2000
    connection.connection_lost(None)
    feed(neighbour, line, commands.PING)
    await world.settle()
    assert line.kinds() == [Type.CONNECTED, Type.PONG]
    neighbour.connection_lost(None)
    assert (
        connection.sessions.producers,
        connection.sessions.consumers,
        connection.sessions.watchers,
    ) == ({}, {}, {})
    assert len(world.broker._connections) == 0
    check_can_be_written(world.broker)
    await check_topic_works(world)


async def check_topic_works(world: World) -> None:
    """A well-behaved subscription gets what a well-behaved producer sends, and its
    commands about the topic are answered."""
    topic = await world.broker.service.open_topic(TopicName.parse(WATCHED), create=True)
    if (
        topic.terminated
        or len(topic.core.producers)
        or any(known.core.connected for known in topic.subscriptions.values())
    ):
        return
    connection, transport = world.connect()
    kinds = [
        api.CommandSubscribe.Exclusive,
        api.CommandSubscribe.Shared,
        api.CommandSubscribe.Key_Shared,
    ]
    feed(connection, transport, requests.connect("well-behaved", 21))
    feed(
        connection,
        transport,
        requests.producer(api.CommandProducer(topic=WATCHED, producer_id=5, request_id=1)),
    )
    for number, kind in enumerate(kinds):
        name = f"well-behaved-{number}"
        subscribe = api.CommandSubscribe(
            topic=WATCHED,
            subscription=name,
            subType=kind,
            consumer_id=number,
            request_id=2 + number,
        )
        subscribe.initialPosition = api.CommandSubscribe.Earliest
        feed(connection, transport, requests.subscribe(subscribe))
    await until_answered(world, transport, Type.SUCCESS, len(kinds))
    feed(
        connection,
        transport,
        b"".join(requests.flow(number, PERMITS) for number in range(len(kinds))),
    )
    feed(connection, transport, requests.send(5, 0, entry(b"well-behaved")))
    await until_answered(world, transport, Type.SEND_RECEIPT, 1)
    end = topic.core.ledgers.end
    async with asyncio.timeout(120):
        while not all(
            last_delivered(transport, number) == topic.core.last_confirmed
            for number in range(len(kinds))
        ):
            await asyncio.sleep(0.001)
    feed(connection, transport, requests.last_message_id(1, 10))
    await until_answered(world, transport, Type.GET_LAST_MESSAGE_ID_RESPONSE, 1)
    for published_ms in (0, 1, CLOCK.wall_ms() + 3_600_000):
        assert 0 <= await first_published_at(topic, published_ms) <= end
    feed(connection, transport, requests.seek(1, 11, publish_time_ms=1))
    await until_answered(world, transport, Type.SUCCESS, len(kinds) + 1)
    for host in list(topic.subscriptions.values()):
        await expire(host, 0)
        assert host.core.cursor.mark_delete == end, host.core.name
    connection.connection_lost(None)
    await world.settle()


async def until_answered(world: World, transport: Transport, kind: int, count: int) -> None:
    async with asyncio.timeout(120):
        while transport.kinds().count(kind) < count:
            assert Type.ERROR not in transport.kinds(), transport.commands()
            await asyncio.sleep(0.001)
    assert world.broker.ready


def last_delivered(transport: Transport, consumer_id: int) -> tuple[int, int]:
    """The position of the last message that a consumer got."""
    messages = [command.message for command in transport.commands() if command.type == Type.MESSAGE]
    own = [found.message_id for found in messages if found.consumer_id == consumer_id]
    return (own[-1].ledgerId, own[-1].entryId) if own else (-1, -1)


def check_can_be_written(broker: Broker) -> None:
    """Nothing that a peer has left behind stands in the way of a checkpoint, nor of the next
    record of a cursor."""
    for owned in broker.ownership.owned.values():
        encoder = CheckpointEncoder(str(owned.name), owned.epoch, "b", LogPosition(0, 0))
        for name in sorted(owned.topics):
            encoder.add(name, owned.topics[name].to_state())
        owned.cursors.write_all()
        assert not [
            host
            for topic in owned.topics.values()
            for host in topic.subscriptions.values()
            if host.core.dirty
        ]


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(session=sessions(), pieces=st.lists(st.integers(1, 60), max_size=6))
@pytest.mark.slow
def test_no_peer_harms_anybody_else(world: World, session: bytes, pieces: list[int]) -> None:
    """The broker stays up, no exception escapes, a neighbour is served, and the connection
    leaves no session behind."""
    with structlog.testing.capture_logs() as logged:
        world.loop.run_until_complete(play(world, session, pieces))
    assert world.broker.ready
    assert not [line for line in logged if line["log_level"] == "error"], logged
    assert not world.failures, world.failures
    assert not world.broker.metrics.surprises.counts
    assert not [task.get_name() for task in world.broker._tasks if task.done()], (
        "work that has to go on has ended"
    )


@pytest.mark.slow
def test_memory_does_not_follow_what_peers_announce(world: World) -> None:
    """A thousand peers that announce 5 MB frames, ask for everything and leave cost nothing once
    they are gone."""
    gc.collect()
    before = sum(isinstance(thing, Connection) for thing in gc.get_objects())

    async def visits() -> None:
        for _ in range(1000):
            connection, transport = world.connect()
            feed(
                connection,
                transport,
                requests.connect("c", 21)
                + (5 << 20).to_bytes(4, "big")
                + (100).to_bytes(4, "big")
                + b"x" * 50,
            )
            assert len(connection._inbound.data) <= 2 << 20
            connection.connection_lost(None)
        await world.settle()

    world.loop.run_until_complete(visits())
    gc.collect()
    assert sum(isinstance(thing, Connection) for thing in gc.get_objects()) <= before + 1


def session_bytes(name: str) -> bytes:
    """A session as clients have them: every command that does something, with answers that
    depend on each other."""
    topic = f"persistent://public/default/{name}"
    ids = [api.MessageIdData(ledgerId=0, entryId=0)]
    subscribe = api.CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=api.CommandSubscribe.Shared,
        consumer_id=1,
        request_id=3,
        initialPosition=api.CommandSubscribe.Earliest,
    )
    return b"".join(
        [
            requests.connect("recorded", 21),
            requests.partitioned_metadata(1, topic),
            requests.lookup(1, topic, authoritative=False),
            requests.producer(
                api.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")
            ),
            requests.subscribe(subscribe),
            commands.PING,
            requests.ack(1, ids),
            requests.redeliver(1),
            requests.close_producer(9, 4),
            requests.close_consumer(9, 5),
            requests.last_message_id(9, 6),
            commands.PONG,
        ]
    )


@pytest.mark.slow
def test_a_recorded_session_may_be_split_at_every_byte(world: World) -> None:
    """One border anywhere, and single bytes, give the answers that one read gives (they may come
    in another order)."""

    async def answers(pieces: list[int]) -> list[str]:
        connection, transport = world.connect()
        session, at = session_bytes("fuzz"), 0
        for size in [*pieces, len(session)]:
            feed(connection, transport, session[at : at + size])
            at += size
        async with asyncio.timeout(120):
            while len(transport.commands()) < 9:
                await asyncio.sleep(0)
        connection.connection_lost(None)
        await world.settle()
        return sorted(str(command) for command in transport.commands())

    async def scenario() -> None:
        expected = await answers([])
        assert len(expected) == 9
        length = len(session_bytes("fuzz"))
        for border in range(1, length):
            assert await answers([border]) == expected, border
        assert await answers([1] * length) == expected

    world.loop.run_until_complete(scenario())

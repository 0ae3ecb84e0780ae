"""What commands cost: operations counted, not time, for every command of the protocol.

A command with twice as many things in it may take little more than twice the operations, in
whatever order they come, and however much the subscription holds already. Operations are the
bytecodes of this project's own code; what lists move in C is bounded by `topics/intervals`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import magnetar
from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.intake import TURN
from magnetar.broker.incarnation import Broker
from magnetar.topics.dispatch.base import DispatchLimits
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import encode_command
from magnetar.wire.large_commands import PART_IDS_MAX
from tests.support.acknowledging import host_of
from tests.support.brokers import TOPIC, Peer, Type, entry, open_peer
from tests.support.deliveries import play
from tests.support.large_commands import PATHS, fill

FEW = 150
FEW_FIELDS = 100
"""Four times as many make no command that is large enough to be looked through first."""
GROWTH_MAX = 2.6
"""Of the operations when there is twice as much: 2 for what is linear, up to 2.3 for n log n, 4
for a square."""
CONSTANT = 20_000
"""Operations that have nothing to do with the size: the loop, timers, a flush."""
QUIET = 4_000
"""Operations of a round in which nothing happens but a PING and a look at the log."""
AT_REST: dict[str, Any] = {
    "keep_alive_s": 3600,
    "maintenance_s": 3600,
    "metadata_backup_interval_s": 86_400,
    "topic_check_s": 3600,
    "load_report_s": 600,
    "claim_check_s": 60,
    "lease_ttl_s": 60,
}
"""What a broker does by itself is not counted."""
HOME = str(Path(magnetar.__file__).parent)
EXCLUSIVE, SHARED, KEY_SHARED = (
    int(api.CommandSubscribe.Exclusive),
    int(api.CommandSubscribe.Shared),
    int(api.CommandSubscribe.Key_Shared),
)

ORDERS: dict[str, Callable[[list[int]], list[int]]] = {
    "sorted": lambda numbers: numbers,
    "reversed": lambda numbers: numbers[::-1],
    "random": lambda numbers: random.Random(1).sample(numbers, len(numbers)),
    "alternating": lambda numbers: [
        number for pair in zip(numbers, numbers[::-1], strict=True) for number in pair
    ][: len(numbers)],
    "duplicates": lambda numbers: numbers[: max(1, len(numbers) // 10)] * 10,
}


class Operations:
    """Counts the bytecodes of the project while `counting`."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
            if not frame.f_code.co_filename.startswith(HOME):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return on_event

        def on_event(_frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "opcode":
                self.count += 1
            return on_event

        before = sys.gettrace()
        sys.settrace(on_call)
        try:
            yield
        finally:
            sys.settrace(before)


async def operations_of(broker: Broker, peer: Peer, frames: bytes) -> int:
    """Operations until everything is handled, with what follows from it: until a PING costs no
    more than a PING."""
    counted = Operations()
    with counted.counting():
        try:
            peer.write(frames)
            quiet = 0
            while quiet < 3:
                before = counted.count
                await read_until_pong(peer)
                await broker.context.log.barrier()
                quiet = quiet + 1 if counted.count - before < QUIET else 0
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the connection was ended for it
    return counted.count


async def read_until_pong(peer: Peer) -> None:
    peer.write(commands.PING)
    while (await peer.answer()).type != Type.PONG:
        pass


def assert_linear(counts: Sequence[int], what: str) -> None:
    """`counts` for n, 2n, 4n, ..."""
    for less, more in pairwise(counts):
        assert more <= GROWTH_MAX * less + CONSTANT, (
            f"{what}: {list(counts)} operations for sizes that double"
        )


# --- lists of ids ---------------------------------------------------------------------------------


class Scene:
    """A topic whose subscription `name` has so many ids to be named, held or not, with other
    consumers beside and a past."""

    def __init__(self, broker: Broker, peer: Peer, ids: list[api.MessageIdData]) -> None:
        self.broker, self.peer, self.ids, self._consumers = broker, peer, ids, 0

    async def prepare(self, kind: int, count: int, *, delivered: bool, redelivered: bool) -> int:
        """A consumer of a new subscription; as many others as a tenth of `count` stand beside
        it. The consumer's id."""
        self._consumers += 1
        first, subscription = 1000 * self._consumers, f"s{self._consumers}"
        others = 0 if kind == EXCLUSIVE else count // 10
        for consumer in range(first, first + 1 + others):
            answer = await self.peer.subscribe(consumer, subscription=subscription, subType=kind)
            assert answer.type == Type.SUCCESS, answer
        if delivered:
            host = (await host_of(self.broker)).subscriptions[subscription]
            host.core.limit(
                DispatchLimits(
                    look_ahead_per_consumer_entries_max=100_000,
                    look_ahead_per_subscription_entries_max=100_000,
                )
            )
            self.peer.write(
                b"".join(
                    requests.flow(consumer, 2 * count)
                    for consumer in range(first, first + 1 + others)
                )
            )
            while host.core.next_read(1) is not None:
                await read_until_pong(self.peer)
            await read_until_pong(self.peer)
            for session in host.sessions() if redelivered else ():
                host.core.redeliver(session)
        return first


async def scene_of(broker: Broker, peer: Peer, count: int) -> Scene:
    await peer.produce()
    peer.write(
        b"".join(
            requests.send(1, number, entry(b"x", number, partition_key=f"k{number}"))
            for number in range(count)
        )
    )
    receipts = [
        (await peer.answer(Type.SEND_RECEIPT)).send_receipt.message_id for _ in range(count)
    ]
    return Scene(broker, peer, receipts)


def _ack(consumer: int, ids: Sequence[api.MessageIdData]) -> bytes:
    return requests.ack(consumer, ids, request_id=1)


def _ack_in_transaction(consumer: int, ids: Sequence[api.MessageIdData]) -> bytes:
    return requests.ack(consumer, ids, request_id=1, txn=TxnId(0, consumer))


def _acks_of_others(consumer: int, ids: Sequence[api.MessageIdData]) -> bytes:
    """Each in a command of its own, by a consumer that may hold none of them."""
    return b"".join(requests.ack(consumer + 1, [found]) for found in ids)


def _ack_of_messages(consumer: int, ids: Sequence[api.MessageIdData]) -> bytes:
    some = [
        api.MessageIdData(ledgerId=found.ledgerId, entryId=found.entryId, ack_set=[2], batch_size=2)
        for found in ids
    ]
    return requests.ack(consumer, some, request_id=1)


def _aborted(consumer: int, ids: Sequence[api.MessageIdData]) -> bytes:
    txn = TxnId(0, consumer)
    ended = requests.end_txn_on_subscription(
        2, txn, TOPIC, f"s{consumer // 1000}", commit=False, low_watermark=-1
    )
    return requests.ack(consumer, ids, request_id=1, txn=txn) + ended


def _redeliver(consumer: int, ids: Sequence[api.MessageIdData]) -> bytes:
    return requests.redeliver(consumer, ids)


LISTS = {
    "ack": _ack,
    "ack in a transaction": _ack_in_transaction,
    "acks for others": _acks_of_others,
    "ack of messages": _ack_of_messages,
    "ack and abort": _aborted,
    "redeliver": _redeliver,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [EXCLUSIVE, SHARED, KEY_SHARED], ids=["exclusive", "shared", "key_shared"]
)
@pytest.mark.parametrize("what", LISTS)
def test_lists_of_ids_cost_what_they_name(tmp_path: Path, kind: int, what: str) -> None:
    """Whatever their order, and whether they were delivered, or delivered again, before."""

    async def script(broker: Broker, peer: Peer) -> None:
        scene = await scene_of(broker, peer, 8 * FEW)
        for order in ORDERS if what in ("ack", "redeliver") else ("random",):
            for delivered, redelivered in ((False, False), (True, True)):
                counts = []
                for count in (FEW, 2 * FEW, 4 * FEW):
                    consumer = await scene.prepare(
                        kind, count, delivered=delivered, redelivered=redelivered
                    )
                    named = [
                        scene.ids[number] for number in ORDERS[order](list(range(0, 2 * count, 2)))
                    ]
                    counts.append(await operations_of(broker, peer, LISTS[what](consumer, named)))
                    closed = (
                        requests.close_consumer(number, 1)
                        for number in range(consumer, consumer + count // 10 + 1)
                    )
                    await operations_of(broker, peer, b"".join(closed))
                assert_linear(counts, f"{what}, {order}, delivered {delivered}")

    play(tmp_path, script, **AT_REST)


# --- every command --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(field.name for field in path))
def test_every_command_costs_what_it_holds(tmp_path: Path, path: Any) -> None:
    """Of every type that the protocol knows, in each of its fields that may be repeated."""

    async def script(broker: Broker, _peer: Peer) -> None:
        counts = []
        for count in (FEW_FIELDS, 2 * FEW_FIELDS, 4 * FEW_FIELDS):
            command = api.BaseCommand(type=path[0].number)
            fill(command, path, count)
            _complete(getattr(command, path[0].name))
            async with open_peer(broker) as peer:
                counts.append(await operations_of(broker, peer, encode_command(command)))
        assert_linear(counts, path[0].name)

    play(tmp_path, script, **AT_REST)


def _complete(message: Any) -> None:
    """Give required fields a value: what is refused for lack of one costs nothing."""
    for field in message.DESCRIPTOR.fields:
        if field.is_required and not message.HasField(field.name):
            if field.message_type is not None:
                getattr(message, field.name).SetInParent()
            elif field.enum_type is not None:
                setattr(message, field.name, field.enum_type.values[0].number)
            elif field.name in ("topic", "namespace"):
                setattr(message, field.name, TOPIC if field.name == "topic" else "public/default")
            else:
                setattr(
                    message,
                    field.name,
                    "x"
                    if field.cpp_type == field.CPPTYPE_STRING and field.type == field.TYPE_STRING
                    else b""
                    if field.type == field.TYPE_BYTES
                    else 1,
                )
        if field.message_type is not None:
            if field.is_repeated:
                for part in getattr(message, field.name):
                    _complete(part)
            elif message.HasField(field.name):
                _complete(getattr(message, field.name))


def test_every_command_is_enumerated() -> None:
    """A command that is added to the protocol, and has a list in it, is tested above without
    being named here."""
    known = {path[0].number for path in PATHS}
    assert known >= {
        Type.ACK,
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        Type.SUBSCRIBE,
        Type.PRODUCER,
        Type.LOOKUP,
        Type.SEND,
    }
    assert {field.number for field in api.BaseCommand.DESCRIPTOR.fields} - {1} == set(
        api.BaseCommand.Type.values()
    )


# --- in turns -------------------------------------------------------------------------------------


def test_a_long_list_gives_others_their_turns(tmp_path: Path) -> None:
    """No turn of the loop acknowledges more than a part of it; it is answered once, after all of
    it, and what follows it is handled behind."""

    async def script(broker: Broker, peer: Peer) -> None:
        scene = await scene_of(broker, peer, 2 * 16 * PART_IDS_MAX)
        await peer.subscribe(subType=SHARED)
        named = random.Random(1).sample(scene.ids[::2], 16 * PART_IDS_MAX)
        cursor = (await host_of(broker)).subscriptions["s"].core.cursor
        peer.write(requests.ack(1, named, request_id=7) + commands.PING)
        left = [cursor.backlog]
        while left[-1] > len(named):
            await asyncio.sleep(0)
            left.append(cursor.backlog)
        assert max(before - after for before, after in pairwise(left)) <= PART_IDS_MAX
        answers = {(await peer.answer()).type, (await peer.answer()).type}
        assert answers == {Type.ACK_RESPONSE, Type.PONG}, "one answer, and what came behind"
        assert await peer.is_quiet()

    play(tmp_path, script, **AT_REST)


def test_many_commands_of_one_read_give_others_their_turns(tmp_path: Path) -> None:
    """A megabyte of FLOWs is sixty thousand commands."""

    async def script(_broker: Broker, peer: Peer) -> None:
        turns = 0
        hold = Connection.hold_reading

        def count(connection: Connection, reason: int) -> None:
            nonlocal turns
            turns += reason == TURN
            hold(connection, reason)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "hold_reading", count)
            peer.write(requests.flow(1, 1) * 20_000 + commands.PING)
            await peer.answer(Type.PONG)
        assert turns >= 10

    play(tmp_path, script, **AT_REST)

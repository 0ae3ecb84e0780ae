"""Acknowledgements and redeliveries as large as a frame, in the worst orders.

Owns: attacks by ACK, REDELIVER and SEEK. Imports: magnetar.wire, raw.
Invariant: subscriptions are the attacker's own, and are removed in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dev.soak.attacks.raw import (
    FRAME_BYTES_MAX,
    RawConnection,
    Target,
    Type,
    connection,
    entry_ids,
    subscribe,
    unsubscribe,
)
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.varints import varint

SubType = api.CommandSubscribe.SubType
KINDS = (SubType.Exclusive, SubType.Shared, SubType.Failover, SubType.Key_Shared)
UNSIGNED_MAX = (1 << 64) - 1
HELD_MAX = 10_000
"""Messages that an attack has the broker deliver before it acknowledges them."""
SEEKS = 200
REDELIVERIES = 10


class Held(NamedTuple):
    """A subscription of the attacker's, and the ids it may name."""

    raw: RawConnection
    ledger: int
    first: int
    last: int
    """Entries from `first` to `last` of the ledger exist."""


def id_fields(ids: Iterable[tuple[int, int]], field_number: int, bytes_max: int) -> bytes:
    """As many message ids as fit, as a repeated field of that number: by hand, because hundreds
    of thousands of objects take seconds."""
    found, ledgers = bytearray(), dict[int, bytes]()
    tag = varint(field_number << 3 | 2)
    for ledger, entry in ids:
        start = ledgers.get(ledger)
        if start is None:
            start = ledgers[ledger] = b"\x08" + varint(ledger)
        body = start + b"\x10" + varint(entry)
        if len(found) + len(body) + 3 > bytes_max:
            break
        found += tag + varint(len(body)) + body
    return bytes(found)


def command_frame(kind: int, field_number: int, body: bytes) -> bytes:
    """A whole frame of a command whose sub-message is encoded already."""
    command = b"\x08" + varint(kind) + varint(field_number << 3 | 2) + varint(len(body)) + body
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def ack_frame(
    ids: Iterable[tuple[int, int]], bytes_max: int, request_id: int, txn: TxnId | None = None
) -> bytes:
    """One ACK of these ids."""
    head = api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual, request_id=request_id)
    if txn is not None:
        head.txnid_most_bits, head.txnid_least_bits = txn
    return command_frame(Type.ACK, 10, head.SerializeToString() + id_fields(ids, 3, bytes_max))


def orders(target: Target, held: Held) -> dict[str, Callable[[], Iterable[tuple[int, int]]]]:
    """Orders of ids, by name; each may be longer than what fits."""
    ledger, first, last, chance = held.ledger, held.first, held.last, target.chance

    def shuffled() -> Iterable[tuple[int, int]]:
        entries = list(range(first, last + 1))
        chance.shuffle(entries)
        return ((ledger, entry) for entry in entries)

    middle = (first + last) // 2
    return {
        "alternating": lambda: ((ledger, entry) for entry in range(first, last + 1, 2)),
        "alternating from behind": lambda: ((ledger, entry) for entry in range(last, first, -2)),
        "from behind": lambda: ((ledger, entry) for entry in range(last, first - 1, -1)),
        "shuffled": shuffled,
        "two ends": lambda: (
            (ledger, at) for step in range(middle - first) for at in (first + step, last - step)
        ),
        "one again and again": lambda: ((ledger, middle) for _ in range(1 << 19)),
        "two in turns": lambda: ((ledger, middle + 2 * (turn % 2)) for turn in range(1 << 19)),
        "beyond the end": lambda: ((ledger, last + 2 * step) for step in range(1, 1 << 19)),
        "unknown ledgers": lambda: ((chance.getrandbits(40), step) for step in range(1 << 19)),
        "largest numbers": lambda: (
            (UNSIGNED_MAX - step % 3, UNSIGNED_MAX - step) for step in range(1 << 19)
        ),
    }


async def _hold(raw: RawConnection, target: Target, topic: str, kind: int, name: str) -> Held | str:
    """Subscribe to all of a topic's entries; the refusal if there is one."""
    refusal = await subscribe(raw, topic, name, kind=kind)
    if refusal:
        return f"refused: {refusal[:60]}"
    found = await entry_ids(raw, 1, target.chance.choice((1, HELD_MAX)))
    if not found:
        return "nothing was delivered"
    await raw.send(requests.last_message_id(1, raw.request_id()))
    answer = await raw.until(Type.GET_LAST_MESSAGE_ID_RESPONSE, Type.ERROR)
    last = answer.get_last_message_id_response.last_message_id
    ledger, first = found[0]
    end = (
        last.entryId
        if last.ledgerId == ledger
        else max(entry for other, entry in found if other == ledger)
    )
    return Held(raw, ledger, first, max(first + 2, end))


async def large_ack(target: Target) -> str:
    """One ACK as large as a frame, and a second one of what is left."""
    topic, kind = target.any_topic(), target.chance.choice(KINDS)
    async with connection(target, topic) as raw:
        held = await _hold(raw, target, topic, kind, target.fresh("hostile"))
        if isinstance(held, str):
            return held
        name, order = target.chance.choice(list(orders(target, held).items()))
        await raw.send(ack_frame(order(), FRAME_BYTES_MAX, raw.request_id()))
        outcome = await raw.answers(1, Type.ACK_RESPONSE)
        await unsubscribe(raw)
        return f"{name}, {SubType.Name(kind)}: {outcome}"


async def ack_alternating(target: Target) -> str:
    """Every second entry of the whole topic in one ACK, then the other half."""
    kind = target.chance.choice(KINDS)
    async with connection(target) as raw:
        held = await _hold(raw, target, target.topic, kind, target.fresh("hostile"))
        if isinstance(held, str):
            return held
        for start in (held.first, held.first + 1):
            ids = ((held.ledger, entry) for entry in range(start, held.last + 1, 2))
            await raw.send(ack_frame(ids, FRAME_BYTES_MAX, raw.request_id()))
        outcome = await raw.answers(2, Type.ACK_RESPONSE)
        await unsubscribe(raw)
        return f"{SubType.Name(kind)}: {outcome}"


async def many_small_acks(target: Target) -> str:
    """Thousands of ACKs of one id each, every second entry, all with a request id and in one
    write."""
    async with connection(target) as raw:
        held = await _hold(
            raw, target, target.topic, target.chance.choice(KINDS), target.fresh("hostile")
        )
        if isinstance(held, str):
            return held
        entries = list(range(held.first, min(held.last, held.first + 20_000), 2))
        target.chance.shuffle(entries)
        frames = [ack_frame([(held.ledger, entry)], 100, raw.request_id()) for entry in entries]
        await raw.send(b"".join(frames))
        outcome = await raw.answers(len(frames), Type.ACK_RESPONSE)
        await unsubscribe(raw)
        return outcome


async def ack_sets(target: Target) -> str:
    """Ack sets as long as allowed and longer, of many batches."""
    words = target.chance.choice((1, 64, 4096, 4097, 100_000))
    count = max(1, FRAME_BYTES_MAX // (words * 10 + 40))
    async with connection(target) as raw:
        held = await _hold(raw, target, target.topic, SubType.Shared, target.fresh("hostile"))
        if isinstance(held, str):
            return held
        ack_set = [-1 if target.chance.random() < 0.5 else 0x5555555555555555 for _ in range(words)]
        step = target.chance.choice((1, 2))
        ids = [
            api.MessageIdData(
                ledgerId=held.ledger,
                entryId=held.first + step * number,
                ack_set=ack_set,
                batch_size=64 * words,
            )
            for number in range(min(count, (held.last - held.first) // 2))
        ]
        cumulative = target.chance.random() < 0.2
        frame = requests.ack(
            1, ids[:1] if cumulative else ids, cumulative=cumulative, request_id=raw.request_id()
        )
        await raw.send(frame)
        outcome = await raw.answers(1, Type.ACK_RESPONSE)
        await unsubscribe(raw)
        return f"{words} words: {outcome}"


async def transactional_ack(target: Target) -> str:
    """One ACK as large as a frame, in a transaction that does not exist."""
    topic = target.any_topic()
    async with connection(target, topic) as raw:
        held = await _hold(raw, target, topic, SubType.Shared, target.fresh("hostile"))
        if isinstance(held, str):
            return held
        name, order = target.chance.choice(list(orders(target, held).items()))
        txn = TxnId(target.chance.randrange(2), target.chance.getrandbits(63))
        await raw.send(ack_frame(order(), FRAME_BYTES_MAX, raw.request_id(), txn))
        outcome = await raw.answers(1, Type.ACK_RESPONSE)
        await unsubscribe(raw)
        return f"{name}: {outcome}"


async def redeliver(target: Target) -> str:
    """REDELIVER of hundreds of thousands of ids, several times; then of everything, many times."""
    topic, kind = target.any_topic(), target.chance.choice(KINDS)
    async with connection(target, topic) as raw:
        held = await _hold(raw, target, topic, kind, target.fresh("hostile"))
        if isinstance(held, str):
            return held
        name, order = target.chance.choice(list(orders(target, held).items()))
        frame = command_frame(
            Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            20,
            b"\x08\x01" + id_fields(order(), 2, FRAME_BYTES_MAX),
        )
        for _ in range(target.chance.randint(1, 3)):
            await raw.send(frame)
        await raw.send(requests.redeliver(1) * (REDELIVERIES * 20))
        outcome = await raw.pong()
        await unsubscribe(raw)
        return f"{name}, {SubType.Name(kind)}: {outcome}"


async def seeks(target: Target) -> str:
    """A storm of SEEKs in one write, which disconnect the consumer each time."""
    topic = target.any_topic()
    async with connection(target, topic) as raw:
        held = await _hold(raw, target, topic, target.chance.choice(KINDS), target.fresh("hostile"))
        if isinstance(held, str):
            return held
        frames = []
        for _ in range(SEEKS):
            request, turn = raw.request_id(), target.chance.randrange(6)
            if turn == 0:
                frames.append(
                    requests.seek(
                        1, request, message_id=commands.message_id_data(commands.EARLIEST)
                    )
                )
            elif turn == 1:
                frames.append(
                    requests.seek(1, request, message_id=commands.message_id_data(commands.LATEST))
                )
            elif turn == 2:
                moment = target.chance.choice((0, 1, 1 << 41, (1 << 63) - 1, UNSIGNED_MAX))
                frames.append(requests.seek(1, request, publish_time_ms=moment))
            elif turn == 3:
                place = commands.Position(held.ledger, target.chance.randint(held.first, held.last))
                words = [
                    target.chance.getrandbits(62) for _ in range(target.chance.choice((0, 1, 5000)))
                ]
                frames.append(
                    requests.seek(
                        1, request, message_id=commands.message_id_data(place, ack_set=words)
                    )
                )
            elif turn == 4:
                frames.append(requests.seek(1, request))
            else:
                again = api.CommandSubscribe(
                    topic=topic,
                    subscription="hostile-seeks",
                    subType=SubType.Shared,
                    consumer_id=1,
                    request_id=request,
                )
                frames.append(requests.subscribe(again))
        await raw.send(b"".join(frames))
        outcome = await raw.answers(SEEKS, Type.SUCCESS, Type.ERROR)
        await unsubscribe(raw)
        return outcome


ATTACKS = (
    large_ack,
    ack_alternating,
    many_small_acks,
    ack_sets,
    transactional_ack,
    redeliver,
    seeks,
)

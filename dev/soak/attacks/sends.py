"""Messages that no client would send.

Owns: attacks by SEND: bodies that are empty, cannot be parsed or contradict their command. Imports:
magnetar.wire, raw. Invariant: payloads begin with PAYLOAD, so that ordinary consumers of the same
topic know them.
"""

from __future__ import annotations

import random
import struct
import time

from dev.soak.attacks.raw import (
    Gone,
    RawConnection,
    Target,
    Type,
    connection,
    produce,
    subscribe,
    unsubscribe,
)
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.checksum import CHECKSUM_MAGIC, crc32c
from magnetar.wire.entries import encode_entry
from magnetar.wire.frames import encode_with_body

PAYLOAD = b"hostile "
INT_MAX, LONG_MAX, UNSIGNED_MAX = (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1
BODIES = 40
STORM = 2000
LARGE_BYTES = 4 * 1024 * 1024
DELAYED = 3000
CHUNKS = 1000
SETTLE_S = 2.0
"""Quiet after what was sent, until the peer's own subscription must have it."""


def _metadata(chance: random.Random) -> api.MessageMetadata:
    return api.MessageMetadata(
        producer_name="hostile",
        sequence_id=chance.getrandbits(20),
        publish_time=int(time.time() * 1000),
    )


def _bytes_without_sense(chance: random.Random) -> bytes:
    """Bodies that are no entries."""
    size = chance.choice((1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 64, 1000))
    checksummed = chance.randbytes(size)
    turn = chance.randrange(10)
    if turn < 3:
        return b""
    if turn < 5:
        return chance.randbytes(size)
    if turn == 5:  # a valid checksum over nonsense
        return CHECKSUM_MAGIC + struct.pack(">I", crc32c(checksummed)) + checksummed
    if turn == 6:  # a wrong one over a good entry
        return (
            CHECKSUM_MAGIC
            + struct.pack(">I", chance.getrandbits(32))
            + encode_entry(_metadata(chance), PAYLOAD)[6:]
        )
    if turn == 7:  # metadata longer than the body
        rest = (
            struct.pack(">I", chance.choice((INT_MAX, 1 << 31, 4_000_000_000, 100))) + b"\x0a\x01x"
        )
        return CHECKSUM_MAGIC + struct.pack(">I", crc32c(rest)) + rest
    if turn == 8:  # a head of broker metadata that promises more than there is
        return struct.pack(">HI", 0x0E02, chance.choice((0, 5, 1 << 31))) + chance.randbytes(size)
    return struct.pack(">I", 0) + PAYLOAD  # metadata of no bytes: required fields are missing


def _contradictory(chance: random.Random) -> bytes:
    """Entries whose metadata cannot be true."""
    metadata = _metadata(chance)
    turn = chance.randrange(14)
    if turn == 0:
        metadata.num_messages_in_batch = chance.choice((INT_MAX, 1_000_000, 2, 0, -1, -INT_MAX))
    elif turn == 1:
        metadata.uuid, metadata.num_chunks_from_msg = (
            "x" * chance.choice((0, 1, 60_000)),
            chance.choice((INT_MAX, 0, -1, 2)),
        )
        metadata.chunk_id, metadata.total_chunk_msg_size = (
            chance.choice((INT_MAX, -1, 0, 5)),
            chance.choice((INT_MAX, -1, 0)),
        )
    elif turn == 2:
        metadata.compression, metadata.uncompressed_size = (
            chance.choice(api.CompressionType.values()),
            chance.choice(((1 << 32) - 1, 0, 10)),
        )
    elif turn == 3:
        metadata.publish_time, metadata.event_time = (
            chance.choice((0, LONG_MAX, UNSIGNED_MAX)),
            UNSIGNED_MAX,
        )
    elif turn == 4:
        metadata.deliver_at_time = chance.choice((LONG_MAX, -LONG_MAX, 0, 1))
    elif turn == 5:
        metadata.sequence_id, metadata.highest_sequence_id = (
            UNSIGNED_MAX,
            chance.choice((0, LONG_MAX, UNSIGNED_MAX)),
        )
    elif turn == 6:
        metadata.marker_type = chance.choice((1, 10, 13, 20, 21, 22, INT_MAX, -1))
    elif turn == 7:
        metadata.txnid_most_bits, metadata.txnid_least_bits = (
            chance.choice((0, UNSIGNED_MAX)),
            chance.getrandbits(64),
        )
    elif turn == 8:
        metadata.partition_key, metadata.partition_key_b64_encoded = "not base64 %%%", True
    elif turn == 9:
        metadata.properties.extend([api.KeyValue(key="k" * 10, value="v" * 10)] * 50_000)
    elif turn == 10:
        metadata.compacted_batch_indexes.extend([-1, INT_MAX] * 50_000)
    elif turn == 11:
        metadata.encryption_keys.extend([api.EncryptionKeys(key="k", value=b"v" * 1000)] * 500)
    elif turn == 12:
        metadata.producer_name, metadata.replicated_from = (
            "x" * chance.choice((0, 1_000_000)),
            "elsewhere",
        )
        metadata.replicate_to.extend(["a"] * 10_000)
    else:
        metadata.ordering_key, metadata.schema_version = (
            chance.randbytes(LARGE_BYTES // 2),
            chance.randbytes(1000),
        )
    return encode_entry(metadata, PAYLOAD + chance.randbytes(chance.choice((0, 10, 1000))))


def _command(chance: random.Random, sequence: int) -> api.CommandSend:
    body = api.CommandSend(producer_id=1, sequence_id=sequence)
    turn = chance.randrange(6)
    if turn == 0:
        body.num_messages = chance.choice((INT_MAX, 0, -1, -INT_MAX, 1000))
    elif turn == 1:
        body.highest_sequence_id = chance.choice((0, LONG_MAX, UNSIGNED_MAX, max(0, sequence - 5)))
    elif turn == 2:
        body.is_chunk = True
    elif turn == 3:
        body.marker = True
    return body


async def _send_all(raw: RawConnection, bodies: list[tuple[api.CommandSend, bytes]]) -> str:
    for send, body in bodies:
        await raw.send(encode_with_body(api.BaseCommand(type=Type.SEND, send=send), body))
    return await raw.answers(len(bodies), Type.SEND_RECEIPT, Type.SEND_ERROR, patience_s=10.0)


async def _send_to(target: Target, topic: str, bodies: list[tuple[api.CommandSend, bytes]]) -> str:
    """Send one after another; a connection that is closed on the way is opened again for the
    rest."""
    outcome, connections = "answered", 0
    while bodies and connections < 20:
        connections += 1
        try:
            async with connection(target, topic) as raw:
                if refusal := await produce(raw, topic):
                    return f"refused: {refusal[:60]}"
                outcome = await _send_all(raw, bodies[:10])
                bodies = bodies[10:]
        except Gone:
            outcome, bodies = "closed", bodies[1:]
    return outcome


async def nonsense(target: Target) -> str:
    """Bodies that are no entries, then a good message: it must come to a consumer of the
    attacker's own topic."""
    chance, topic = target.chance, target.fresh_topic()
    async with connection(target, topic) as raw:
        await subscribe(raw, topic, "hostile", kind=chance.choice((0, 1, 2, 3)))
        bodies = [
            (_command(chance, number), _bytes_without_sense(chance)) for number in range(BODIES)
        ]
        outcome = await _send_to(target, topic, bodies)
        return await _still_delivers(target, raw, topic, outcome)


async def contradictions(target: Target) -> str:
    """Entries that parse and cannot be true, then a good message as in `nonsense`."""
    chance, topic = target.chance, target.fresh_topic()
    async with connection(target, topic) as raw:
        await subscribe(raw, topic, "hostile", kind=chance.choice((0, 1, 2, 3)))
        bodies = [
            (_command(chance, number), _contradictory(chance)) for number in range(BODIES // 4)
        ]
        outcome = await _send_to(target, topic, bodies)
        return await _still_delivers(target, raw, topic, outcome)


async def on_others_topics(target: Target) -> str:
    """Both kinds to a topic that ordinary clients use."""
    chance, topic = target.chance, target.chance.choice(list(target.victims))
    make = chance.choice((_bytes_without_sense, _contradictory))
    return await _send_to(
        target, topic, [(_command(chance, number), make(chance)) for number in range(BODIES // 4)]
    )


async def _still_delivers(target: Target, raw: RawConnection, topic: str, outcome: str) -> str:
    """Whether a good message comes to the subscription that was there before the others; a note
    if not."""
    last = PAYLOAD + target.fresh("last").encode()
    async with connection(target, topic) as other:
        if refusal := await produce(other, topic, name=target.fresh("hostile")):
            target.notes.append(f"{topic}: no producer after this: {refusal[:120]}")
            return outcome
        await other.send(requests.send(1, 0, encode_entry(_metadata(target.chance), last)))
        answer = await other.until(Type.SEND_RECEIPT, Type.SEND_ERROR)
        if answer.type == Type.SEND_ERROR:
            target.notes.append(
                f"{topic}: a good message is refused after this: {answer.send_error.message[:120]}"
            )
            return outcome
        wanted = answer.send_receipt.message_id
    # an entry costs what it says that it holds
    await raw.send(requests.flow(1, (1 << 32) - 1) * BODIES)
    try:
        while True:
            message = (await raw.until(Type.MESSAGE, patience_s=SETTLE_S * 5)).message
            if (message.message_id.ledgerId, message.message_id.entryId) == (
                wanted.ledgerId,
                wanted.entryId,
            ):
                break
    except (Gone, TimeoutError) as error:
        target.notes.append(
            f"{topic}: the subscription does not get a good message sent after these: {error!r}"
        )
        return f"{outcome}, STOPPED"
    await unsubscribe(raw)
    return outcome


async def storm_of_ids(target: Target) -> str:
    """Small messages whose sequence ids jump about, of many producers of one connection."""
    chance, topic = target.chance, target.any_topic()
    async with connection(target, topic) as raw:
        for producer in range(1, 21):
            await produce(raw, topic, producer=producer, name=target.fresh("hostile"))
        frames = []
        for number in range(STORM):
            sequence = chance.choice((number, 0, LONG_MAX, UNSIGNED_MAX, chance.getrandbits(64)))
            frames.append(
                requests.send(1 + number % 20, sequence, encode_entry(_metadata(chance), PAYLOAD))
            )
        await raw.send(b"".join(frames))
        return await raw.answers(STORM, Type.SEND_RECEIPT, Type.SEND_ERROR)


async def largest_messages(target: Target) -> str:
    """Messages just below and above the limit."""
    topic, chance = target.fresh_topic(), target.chance
    limit = 5 * 1024 * 1024
    sizes = [limit - 100, limit, limit + 5000]
    async with connection(target, topic) as raw:
        await produce(raw, topic)
        bodies = [
            (
                api.CommandSend(producer_id=1, sequence_id=number),
                encode_entry(_metadata(chance), PAYLOAD + bytes(size)),
            )
            for number, size in enumerate(sizes)
        ]
        return await _send_all(raw, bodies)


async def far_delays(target: Target) -> str:
    """Thousands of delayed messages, each due at another time, in no order."""
    chance, topic = target.chance, target.fresh_topic()
    now = int(time.time() * 1000)
    async with connection(target, topic) as raw:
        await subscribe(raw, topic, "hostile")
        await raw.send(requests.flow(1, 1000))
        await produce(raw, topic)
        frames = []
        for number in range(DELAYED):
            metadata = _metadata(chance)
            metadata.deliver_at_time = now + chance.choice(
                (chance.randint(0, 10_000), chance.randint(0, LONG_MAX - now))
            )
            frames.append(requests.send(1, number, encode_entry(metadata, PAYLOAD)))
        await raw.send(b"".join(frames))
        outcome = await raw.answers(DELAYED, Type.SEND_RECEIPT, Type.SEND_ERROR)
        await unsubscribe(raw)
        return outcome


async def chunks_without_end(target: Target) -> str:
    """First chunks of messages that never go on, and later chunks of messages that never began."""
    chance, topic = target.chance, target.any_topic()
    async with connection(target, topic) as raw:
        await subscribe(raw, topic, name := target.fresh("hostile"), earliest=False)
        await raw.send(requests.flow(1, 1 << 30))
        await produce(raw, topic)
        frames = []
        for number in range(CHUNKS):
            metadata = _metadata(chance)
            metadata.uuid, metadata.num_chunks_from_msg = (
                f"{name}-{number}",
                chance.choice((2, 100, INT_MAX)),
            )
            metadata.chunk_id, metadata.total_chunk_msg_size = (
                chance.choice((0, 0, 1, 7)),
                chance.choice((100, INT_MAX)),
            )
            frames.append(requests.send(1, number, encode_entry(metadata, PAYLOAD), chunk=True))
        await raw.send(b"".join(frames))
        outcome = await raw.answers(CHUNKS, Type.SEND_RECEIPT, Type.SEND_ERROR)
        await unsubscribe(raw)
        return outcome


ATTACKS = (
    nonsense,
    contradictions,
    on_others_topics,
    storm_of_ids,
    largest_messages,
    far_delays,
    chunks_without_end,
)

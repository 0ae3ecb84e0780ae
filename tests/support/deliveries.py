"""What tests of delivery ask of a broker: publishing with any metadata, flow, acknowledgements,
seeks, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry
from magnetar.wire.frames import encode_command
from tests.support.brokers import Peer, Type, connected_peer

Script = Callable[[Broker, Peer], Coroutine[Any, Any, None]]
SHARED, EXCLUSIVE = api.CommandSubscribe.Shared, api.CommandSubscribe.Exclusive
LATEST_ID = (1 << 63) - 1
NOBODY = (1 << 64) - 1
"""-1 as the wire has it."""


def play(directory: Path, script: Script, **settings: Any) -> None:
    """Run `script` with a broker that owns TOPIC's bundle, and one peer."""

    async def main() -> None:
        async with connected_peer(directory, **settings) as (broker, peer):
            await script(broker, peer)

    asyncio.run(main())


async def publish(peer: Peer, **metadata: Any) -> api.MessageIdData:
    """One entry with this metadata; its id."""
    values = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, **metadata}
    payload = b"x"
    if "num_messages_in_batch" in values:
        messages = [BatchMessage(api.SingleMessageMetadata(payload_size=1), b"x")] * values[
            "num_messages_in_batch"
        ]
        payload = encode_batch(messages)
    peer.write(
        requests.send(
            1,
            0,
            encode_entry(api.MessageMetadata(**values), payload),
            messages=values.get("num_messages_in_batch", 1),
        )
    )
    return (await peer.answer(Type.SEND_RECEIPT)).send_receipt.message_id


async def ask(peer: Peer, field: str, message: Any) -> list[api.BaseCommand]:
    """Send a request built elsewhere (messages inside messages); the answers up to the one that
    is none of the broker's own commands."""
    command = api.BaseCommand(type=Type.Value(field.upper()))
    getattr(command, field).CopyFrom(message)
    peer.write(encode_command(command))
    answers = [await peer.answer()]
    while answers[-1].type == Type.CLOSE_CONSUMER:
        answers.append(await peer.answer())
    return answers


async def seek(peer: Peer, **values: Any) -> list[int]:
    """SEEK of consumer 1; the types of the answers."""
    return [
        answer.type
        for answer in await ask(
            peer, "seek", api.CommandSeek(consumer_id=1, request_id=77, **values)
        )
    ]


async def received(peer: Peer, count: int, consumer_id: int = 1) -> list[int]:
    """Entry ids of the next messages."""
    peer.write(requests.flow(consumer_id, count))
    return [(await peer.message())[0].message_id.entryId for _ in range(count)]


async def acknowledge(
    peer: Peer, *identifiers: api.MessageIdData, consumer_id: int = 1, **values: Any
) -> api.CommandAckResponse:
    peer.write(requests.ack(consumer_id, identifiers, request_id=9, **values))
    return (await peer.answer(Type.ACK_RESPONSE)).ack_response


def redelivery(consumer_id: int, *identifiers: api.MessageIdData) -> bytes:
    body = api.CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id, message_ids=identifiers
    )
    return encode_command(
        api.BaseCommand(
            type=Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliver_unacknowledged_messages=body
        )
    )

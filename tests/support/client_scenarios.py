"""Scenarios of one client and a scripted broker.

Owns: `run`, which runs a scenario over a network in memory; entries and batches to deliver; what the
client acknowledged and asked to be redelivered. Imports: the client, the scripted broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.client import Client
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry
from tests.support.memory import MemoryNetwork, ScriptedBroker

Scenario = Callable[[ScriptedBroker, Client], Awaitable[None]]


def run(scenario: Scenario, **options: Any) -> None:
    """Run a scenario with one broker and a client of it."""

    async def body() -> None:
        network = MemoryNetwork()
        broker = ScriptedBroker(network, "a")
        async with Client(
            "pulsar://a:6650", network=network, **{"operation_timeout_s": 2, **options}
        ) as client:
            async with asyncio.timeout(120):
                await scenario(broker, client)

    asyncio.run(body())


def entry(value: bytes, **fields: Any) -> bytes:
    return encode_entry(
        api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=5, **fields), value
    )


def batch(*values: bytes, gone: tuple[int, ...] = ()) -> bytes:
    items = [
        BatchMessage(api.SingleMessageMetadata(payload_size=0, compacted_out=index in gone), value)
        for index, value in enumerate(values)
    ]
    return entry(encode_batch(items), num_messages_in_batch=len(values))


def acknowledged(ack: Any) -> list[tuple[int, list[int]]]:
    return [(item.entryId, list(item.ack_set)) for item in ack.message_id]


def redelivered(broker: ScriptedBroker) -> list[list[int]]:
    return [
        [item.entryId for item in ask.message_ids]
        for ask in broker.of("redeliver_unacknowledged_messages")
    ]

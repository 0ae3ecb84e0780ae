"""Scenarios of one client and a scripted broker.

Owns: `run`, which runs a scenario over a network in memory, in virtual time: however slow the
machine is, a timer of the client fires only when nothing else is left to do; entries and batches to
deliver; what the client acknowledged and asked to be redelivered. Imports: the client, the scripted
broker, virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.client import Client
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry
from tests.support.memory import MemoryNetwork, ScriptedBroker
from tests.support.virtual_time import VirtualClock, VirtualLoop, run_virtually

Scenario = Callable[[ScriptedBroker, Client], Awaitable[None]]
NetworkScenario = Callable[[MemoryNetwork, ScriptedBroker, Client], Awaitable[None]]


def run(scenario: Scenario, **options: Any) -> None:
    """Run a scenario with one broker and a client of it, in virtual time."""
    run_on_network(lambda _, broker, client: scenario(broker, client), **options)


def run_on_network(scenario: NetworkScenario, **options: Any) -> None:
    """The same of one that has more than that broker."""
    loop = VirtualLoop()

    async def body() -> None:
        network = MemoryNetwork()
        broker = ScriptedBroker(network, "a")
        async with Client(
            "pulsar://a:6650",
            network=network,
            clock=VirtualClock(loop),
            **{"operation_timeout_s": 2, **options},
        ) as client:
            async with asyncio.timeout(120):
                await scenario(network, broker, client)

    run_virtually(body(), loop)


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

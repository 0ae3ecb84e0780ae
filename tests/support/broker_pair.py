"""Two brokers of one process over one store, between which bundles move.

Owns: `Pair` and `pair`, which starts them, the first behind a network that can fail; settings under
which every file of messages asks for a checkpoint; a count of what the owner serves. Imports: the
brokers of the tests, the store with faults.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import (
    BundleRecord,
)
from magnetar.names import BundleName, TopicName
from magnetar.wire import requests
from tests.support.brokers import (
    CLOCK,
    SETTINGS,
    STILL,
    TOPIC,
    Node,
    Type,
    open_peer,
    running_broker,
    volume_in,
)
from tests.support.faulty_store import FaultPlan, FaultyStore
from tests.support.polling import until

LOADED = {"max_message_bytes": 128 << 10, "log_file_bytes": 1 << 20, "checkpoint_files_max": 1}
"""A megabyte of messages fills a file, and each file asks for a checkpoint."""


class Pair:
    """Two brokers over one store; the first reaches it through a network that can fail."""

    def __init__(
        self, first: Broker, second: Broker, network: FaultyStore, store: MemoryStore
    ) -> None:
        self.first, self.second, self.network, self.store = first, second, network, store

    async def bundle(self) -> BundleName:
        return await self.first.ownership.bundle_of(TopicName.parse(TOPIC))

    async def record(self) -> BundleRecord:
        """TOPIC's bundle as the store has it."""
        item = await self.store.get(keys.bundle(await self.bundle()))
        assert item is not None
        return BundleRecord.decode(item.value)

    def other(self, broker: Broker) -> Broker:
        return self.second if broker is self.first else self.first

    async def owner(self) -> Broker:
        """The broker that serves TOPIC's bundle once it has settled."""
        name = str(await self.bundle())
        await until(
            lambda: any(name in broker.ownership.owned for broker in (self.first, self.second))
        )
        return self.first if name in self.first.ownership.owned else self.second


@asynccontextmanager
async def pair(directory: Path, **settings: Any) -> AsyncIterator[Pair]:
    """Two brokers; TOPIC's bundle is served by the first. Nobody balances bundles unless the
    settings say so: the planner looks every few seconds, and a slow test lasts longer."""
    settings = {"balance": STILL, **settings}
    store = MemoryStore(CLOCK)
    network = FaultyStore(store, CLOCK, FaultPlan(), owns_inner=False)
    async with (
        volume_in(directory) as volume,
        running_broker(directory, store=store, name="second", **settings) as second,
    ):
        first = await Node(network, volume, "first", replace(SETTINGS, **settings)).start()
        try:
            found = Pair(first, second, network, store)
            await until(
                lambda: (
                    len(second.views.incarnations.items) == 2 == len(first.views.incarnations.items)
                )
            )
            await first.ownership.resolve(await found.bundle())
            if await found.owner() is second:
                await second.ownership.move(str(await found.bundle()), first.incarnation, "test")
                await until(lambda: len(first.ownership.owned) == 1)
            yield found
        finally:
            network.plan = FaultPlan()
            await first.close()
    await network.close()
    await store.close()


async def count_stored(broker: Broker) -> int:
    """Messages of TOPIC as its present owner reads them, by sequence."""
    async with open_peer(broker) as reader:
        assert (await reader.subscribe(subscription="reader", durable=False)).type == Type.SUCCESS
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        expected = topic.core.ledgers.end - topic.core.ledgers.first
        reader.write(requests.flow(1, expected))
        for _ in range(expected):
            await reader.message()
        return expected

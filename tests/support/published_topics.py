"""Two topics of one broker, what was published to them, and what the broker stored of it.

Owns: `World` and `world`, which starts it with settings under which maintenance does not wait;
`stored`, the entries of a partition as dispatch reads them, and `entries_of`, the entries that it
is compared with; `flip`, which damages a file. Imports: the brokers of the tests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.storage.manifest import (
    Manifest,
    load_manifest,
)
from magnetar.topics.dispatch.base import ReadRequest
from tests.support.brokers import (
    TOPIC,
    Peer,
    entry,
    open_peer,
    running_broker,
)


async def stored(broker: Broker, topic: str = TOPIC) -> list[bytes]:
    """Every entry of the partition, read as dispatch reads it."""
    host = await broker.service.open_topic(TopicName.parse(topic), create=False)
    found: list[bytes] = []
    at = host.core.ledgers.first
    while at < host.core.ledgers.end:
        entries, counts = await host.reader.read(ReadRequest(at, 7))
        assert len(entries) == len(counts) > 0
        found += map(bytes, entries)
        at += len(entries)
    return found


def entries_of(*bodies: tuple[bytes, int]) -> list[bytes]:
    return [entry(body, sequence) for body, sequence in bodies]


OTHER = "persistent://public/default/other"
QUICK: dict[str, Any] = {
    "checkpoint_age_s": 0.05,
    "rewrite_age_s": 0.0,
    "replaced_kept_s": 0.0,
    "maintenance_s": 3600.0,
}


@dataclass
class World:
    """A broker, a peer with one producer on each of two topics, and what was published."""

    broker: Broker
    peer: Peer
    sent: dict[str, list[bytes]]
    extra: dict[str, list[int]] = field(default_factory=dict)

    async def publish(self, topic: str, count: int) -> None:
        producer = 1 if topic == TOPIC else 2
        for _ in range(count):
            number = len(self.sent[topic])
            body = b"%d %s" % (number, topic.encode())
            await self.peer.send(body, number, producer)
            self.sent[topic].append(entry(body, number))

    async def host(self, topic: str) -> TopicHost:
        return await self.broker.service.open_topic(TopicName.parse(topic), create=False)

    async def roll(self) -> None:
        """Everything published so far is in sealed files that manifests list."""
        for topic in self.sent:
            await self.broker.service.roll(TopicName.parse(topic))

    async def round(self) -> None:
        """A round of maintenance after the chains have become old enough."""
        await self.broker.maintenance.round()
        await asyncio.sleep(0.06)
        await self.broker.maintenance.round()

    async def manifest(self, topic: str) -> Manifest:
        bundle = await self.broker.ownership.bundle_of(TopicName.parse(topic))
        return (await load_manifest(self.broker.context.store, self.broker.context.volume, bundle))[
            0
        ]

    async def files(self) -> list[str]:
        """Log files on disk, ours and others'."""
        return [
            name for name in await self.broker.context.volume.list("logs") if name.endswith(".log")
        ]

    async def publish_in(self, bundle: OwnedBundle, count: int, name: str = "also-here") -> str:
        """Publish to another topic of the same bundle; the topic."""
        numbers = itertools.count()
        topic = next(
            found
            for n in numbers
            if bundle.name.contains(
                TopicName.parse(found := f"persistent://public/default/{name}-{n}")
            )
        )
        if topic not in self.extra:
            self.extra[topic] = [10 + len(self.extra), 0]
            await self.peer.produce(self.extra[topic][0], topic)
        producer, first = self.extra[topic]
        for number in range(first, first + count):
            await self.peer.send(b"x" * 50, number, producer)
        self.extra[topic][1] += count
        return topic

    async def read_all(self, topic: str) -> list[bytes]:
        """Every entry that the topic says exists, through the catalog or whatever it remembers."""
        return await stored(self.broker, topic)


@asynccontextmanager
async def world(
    directory: Path, store: MemoryStore | None = None, **settings: Any
) -> AsyncIterator[World]:
    async with (
        running_broker(directory, store=store, **{**QUICK, **settings}) as broker,
        open_peer(broker) as peer,
    ):
        for producer, topic in ((1, TOPIC), (2, OTHER)):
            await peer.lookup(topic)
            await peer.produce(producer, topic)
        yield World(broker, peer, {TOPIC: [], OTHER: []})


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x40]))

"""A topic whose messages are all in sealed files, and compacted views of it written by hand.

Owns: `World`, which has a broker, the topic and its views; `world` makes one. Imports: the brokers
of the tests, manifests and segments. Invariant: the payload of each message is its number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.names import BundleName, TopicName
from magnetar.storage import names
from magnetar.storage.manifest import (
    Compacted,
    Manifest,
    SegmentReference,
    TopicSegments,
    commit_manifest,
)
from magnetar.storage.segments.format import Row
from magnetar.storage.segments.segment import SegmentWriter
from magnetar.wire import requests
from magnetar.wire.entries import parse_entry
from tests.support.brokers import CLOCK, TOPIC, Peer, Type, entry, open_peer, running_broker

NAME = TopicName.parse(TOPIC)


@dataclass
class World:
    """A broker whose topic holds `count` messages in one ledger, all in sealed files, the
    payload of each its number."""

    broker: Broker
    peer: Peer
    bundle: BundleName
    host: TopicHost
    ledger: int

    async def commit(self, edit: Compacted) -> None:
        """Make a compacted view the committed one, as a job does."""

        def change(manifest: Manifest) -> Manifest:
            return manifest.with_topic(TOPIC, TopicSegments(compacted=edit))

        context = self.broker.context
        await commit_manifest(context.store, context.volume, CLOCK, self.bundle, change)

    async def segment(self, stem: str, survivors: Sequence[int]) -> SegmentReference:
        """A level-1 segment with some of the entries."""
        writer = SegmentWriter({"topic": TOPIC})
        for number in survivors:
            writer.add(Row(self.ledger, number, -1, 1, 1, 1, 0, None, payload(number)))
        pieces, _ = writer.finish()
        data = b"".join(pieces)
        name = names.segment(self.bundle, stem)
        assert await self.broker.context.volume.put_if_absent(name, data)
        ends = (self.ledger, survivors[0]), (self.ledger, survivors[-1])
        return SegmentReference(name, len(data), len(survivors), len(data), *ends)

    async def compact(self, *segments: Sequence[int], horizon: int, generation: int = 1) -> None:
        """Commit a view whose segments hold the given entries."""
        written = [
            await self.segment(f"{generation}-{number}", survivors)
            for number, survivors in enumerate(segments)
        ]
        await self.commit(Compacted(generation, (self.ledger, horizon), tuple(written)))
        await self.host.bundle.catalog.refresh()

    async def read_compacted(self, count: int) -> list[int]:
        """What a read-compacted reader gets from the beginning."""
        async with open_peer(self.broker) as reader:
            answer = await reader.subscribe(
                subscription="compacted", durable=False, read_compacted=True
            )
            assert answer.type == Type.SUCCESS, answer
            reader.write(requests.flow(1, 1000))
            got = [number_of(*(await reader.message())) for _ in range(count)]
            assert await reader.is_quiet()
            return got

    async def last_entry(self, read_compacted: bool) -> int:
        """Entry id of GET_LAST_MESSAGE_ID (2^64 - 1 for none)."""
        async with open_peer(self.broker) as reader:
            await reader.subscribe(
                subscription="last", durable=False, read_compacted=read_compacted
            )
            answer = await reader.ask("get_last_message_id", consumer_id=1)
            return int(answer.get_last_message_id_response.last_message_id.entryId)


def payload(number: int) -> bytes:
    return entry(str(number).encode(), number)


def number_of(message: object, body: bytes) -> int:
    """The number in a message, whose id must be the same."""
    number = int(bytes(parse_entry(body).payload))
    assert message.message_id.entryId == number  # type: ignore[attr-defined]
    return number


@asynccontextmanager
async def world(directory: Path, count: int) -> AsyncIterator[World]:
    async with running_broker(directory) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        for number in range(count):
            peer.write(requests.send(1, number, payload(number)))
        ledgers = {
            (await peer.answer(Type.SEND_RECEIPT)).send_receipt.message_id.ledgerId
            for _ in range(count)
        }
        host = await broker.service.open_topic(NAME, create=False)
        await broker.service.roll(NAME)
        yield World(broker, peer, await broker.ownership.bundle_of(NAME), host, ledgers.pop())

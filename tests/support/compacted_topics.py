"""A real broker that compacts a topic of keyed messages.

Owns: `Keyed`, which publishes keyed messages and batches, has the topic compacted, and reads the
view as a client does; `keyed_topic` makes one. Imports: the brokers of the tests, the histories of
the Spark tests.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.storage.manifest import Compacted
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import parse_entry
from tests.spark.histories import Described, History, visible
from tests.support.brokers import TOPIC, Peer, Type, open_peer, running_broker

NAME = TopicName.parse(TOPIC)
QUICK: dict[str, Any] = {
    "trim_grace_s": 0.0,
    "retention_check_s": 86_000.0,
    "checkpoint_age_s": 0.05,
    "rewrite_age_s": 0.0,
    "replaced_kept_s": 0.0,
    "maintenance_s": 3600.0,
}
Shown = list[tuple[str | None, bytes]]


@dataclass
class Keyed:
    """A broker, a peer with a producer, and what was published."""

    broker: Broker
    peer: Peer
    history: History = field(default_factory=lambda: History(random.Random(5)))
    sequence: int = 0

    async def publish(self, *entries: Described, txn: TxnId | None = None) -> list[tuple[int, int]]:
        """Send the entries; where they are."""
        found = []
        for described in entries:
            count = max(1, parse_entry(described.data).metadata.num_messages_in_batch)
            is_chunk = described.chunk is not None
            self.peer.write(
                requests.send(
                    1, self.sequence, described.data, messages=count, chunk=is_chunk, txn=txn
                )
            )
            receipt = (await self.peer.answer(Type.SEND_RECEIPT)).send_receipt
            found.append((receipt.message_id.ledgerId, receipt.message_id.entryId))
            self.sequence += 1
        return found

    async def single(self, key: str | None, value: bytes) -> tuple[int, int]:
        return (await self.publish(self.history.single(key, value)))[0]

    async def host(self) -> TopicHost:
        return await self.broker.service.open_topic(NAME, create=False)

    async def compact(self) -> None:
        """As the broker does in its turn."""
        await self.broker.maintenance.topic_compactor.compact(await self.host())

    async def view(self) -> Compacted:
        host = await self.host()
        await host.bundle.catalog.refresh()
        view = host.bundle.known_view(host)
        assert view is not None
        return view

    async def trim(self) -> None:
        """Everything that retention lets go, at once."""
        from magnetar.broker.upkeep.expiry import trim_now

        await trim_now(await self.host())

    async def round(self) -> None:
        await self.broker.maintenance.round()

    async def read(self, **options: Any) -> Shown:
        """What a new reader of the view gets, up to the last id that it asks for."""
        return [(key, payload) for _, key, payload in await self.read_rows(**options)]

    async def read_rows(
        self, **options: Any
    ) -> list[tuple[tuple[int, int, int], str | None, bytes]]:
        """As `read`, with places."""
        rows: list[tuple[int, int, bytes]] = []
        subscription = {"subscription": f"reader-{self.sequence}", "durable": False, **options}
        async with open_peer(self.broker) as reader:
            answer = await reader.subscribe(**{"read_compacted": True, **subscription})
            assert answer.type == Type.SUCCESS, answer
            answer = await reader.ask("get_last_message_id", consumer_id=1)
            last = answer.get_last_message_id_response.last_message_id
            if last.entryId == (1 << 64) - 1:
                return []
            reader.write(requests.flow(1, 1000))
            while not rows or rows[-1][:2] < (last.ledgerId, last.entryId):
                message, body = await reader.message()
                rows.append((message.message_id.ledgerId, message.message_id.entryId, body))
        return visible(rows)


def message_id(position: tuple[int, int]) -> api.MessageIdData:
    return commands.message_id_data(commands.Position(*position), -1, None)


@asynccontextmanager
async def keyed_topic(
    directory: Path, store: MetadataStore | None = None, **settings: Any
) -> AsyncIterator[Keyed]:
    async with (
        running_broker(directory, store=store, **{**QUICK, **settings}) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        yield Keyed(broker, peer)

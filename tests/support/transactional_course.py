"""A random course of transactions of one partition beside a model of it.

Owns: `Course`, its steps at a real broker and the entries that the partition must have, and `STEPS`,
how often each step is drawn. Imports: the brokers of the tests, their transactions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.storage.restore.restoring import restore_store
from magnetar.transactions.ids import TxnId
from tests.support.brokers import CLOCK, TOPIC, Peer, entry, open_peer, running_broker, volume_in
from tests.support.published_topics import QUICK, stored
from tests.support.transacting import ended, send_in

NAME = TopicName.parse(TOPIC)
STEPS = {
    "plain": 6, "send": 14, "commit": 5, "abort": 3, "roll": 2, "tidy": 4, "checkpoint": 2, "trim": 1, "forget": 2, "crash": 1, "stop": 1, "lose": 1,
}  # fmt: skip


class Course:
    """Steps against a model: `wanted` are the partition's entries, the first `trimmed` of which
    are gone."""

    def __init__(self, directory: Path, seed: int, settings: Mapping[str, Any] = QUICK) -> None:
        """`settings` of its brokers, as they differ from those of other tests."""
        self._settings = settings
        self.directory, self.random, self.store = directory, random.Random(seed), MemoryStore(CLOCK)
        self.wanted: list[bytes] = []
        self.open: dict[TxnId, list[bytes]] = {}
        self.trimmed = self.sequence = self.number = 0
        self.stack = AsyncExitStack()
        self.broker: Broker
        self.peer: Peer

    async def begin(self) -> None:
        self.stack = AsyncExitStack()
        self.broker = await self.stack.enter_async_context(
            running_broker(self.directory, store=self.store, **self._settings)
        )
        self.peer = await self.stack.enter_async_context(open_peer(self.broker))
        await self.peer.lookup()
        await self.peer.produce(producer_name="p")

    async def host(self) -> TopicHost:
        return await self.broker.service.open_topic(NAME, create=False)

    async def step(self, kind: str) -> None:
        await getattr(self, "_" + kind)()

    def _entry(self) -> tuple[bytes, int]:
        self.sequence += 1
        return self.random.randbytes(self.random.choice((1, 50, 3000))), self.sequence

    async def _plain(self) -> None:
        body, sequence = self._entry()
        await self.peer.send(body, sequence)
        self.wanted.append(entry(body, sequence))

    async def _send(self) -> None:
        if not self.open or self.random.random() < 0.3:
            self.open[TxnId(self.random.randrange(2), self.number)] = []
            self.number += 1
        txn = self.random.choice(list(self.open))
        body, sequence = self._entry()
        await send_in(self.peer, txn, body, sequence)
        self.open[txn].append(entry(body, sequence))

    def _floor(self, txn: TxnId) -> int:
        """A low watermark that is true: half of the time none."""
        going_on = [other.least for other in (*self.open, txn) if other.most == txn.most]
        return self.random.choice((-1, min(going_on) - 1))

    async def _commit(self) -> None:
        if self.open:
            txn = self.random.choice(list(self.open))
            await ended(self.peer, txn, commit=True, low_watermark=self._floor(txn))
            self.wanted += self.open.pop(txn)

    async def _abort(self) -> None:
        if self.open:
            txn = self.random.choice(list(self.open))
            await ended(self.peer, txn, commit=False, low_watermark=self._floor(txn))
            del self.open[txn]

    async def _roll(self) -> None:
        await self.broker.service.roll(NAME)

    async def _tidy(self) -> None:
        await self.broker.maintenance.round()

    async def _checkpoint(self) -> None:
        await self.broker.ownership.checkpointer.checkpoint(str((await self.host()).bundle.name))

    async def _trim(self) -> None:
        self.trimmed = self.random.randint(self.trimmed, len(self.wanted))
        host = await self.host()
        await host.trim(host.core.ledgers.end - (len(self.wanted) - self.trimmed))

    async def _forget(self) -> None:
        """What lies in sealed files is looked up again."""
        await self._roll()
        host = await self.host()
        host.index.drop_before(host.core.ledgers.end)

    async def _crash(self) -> None:
        before = (await self.host()).to_state().transactions
        self.broker.fail("crash")
        await self.stack.aclose()
        await self.begin()
        assert (await self.host()).to_state().transactions == before

    async def _stop(self) -> None:
        await self.broker.stop()
        await self.stack.aclose()
        await self.begin()

    async def _lose(self) -> None:
        """The metadata store is lost, and rebuilt from storage."""
        self.broker.fail("crash")
        await self.stack.aclose()
        await self.store.close()
        self.store = MemoryStore(CLOCK)
        async with volume_in(self.directory) as volume:
            await restore_store(self.store, volume, CLOCK, backup=None, source="storage")
        await self.begin()

    async def check(self) -> None:
        assert await stored(self.broker) == self.wanted[self.trimmed :]

"""Any course of a topic's transactions over real storage: what is read is what was committed,
and a new owner knows what the old one knew, also over a metadata store that was lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.storage.restore.restoring import restore_store
from magnetar.transactions.ids import TxnId
from tests.support.brokers import CLOCK, TOPIC, Peer, entry, open_peer, running_broker, volume_in
from tests.support.transacting import ended, send_in
from tests.unit.broker.transactions.test_transactional_publishing import stored
from tests.unit.broker.upkeep.test_manifest_compaction import QUICK

NAME = TopicName.parse(TOPIC)
STEPS = {
    "plain": 6, "send": 14, "commit": 5, "abort": 3, "roll": 2, "tidy": 4, "checkpoint": 2, "trim": 1, "forget": 2, "crash": 1, "stop": 1, "lose": 1,
}  # fmt: skip


class Course:
    """Steps against a model: `wanted` are the partition's entries, the first `trimmed` of which
    are gone."""

    def __init__(self, directory: Path, seed: int) -> None:
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
            running_broker(self.directory, store=self.store, **QUICK)
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_what_is_read_is_what_was_committed(tmp_path: Path, seed: int) -> None:
    """Rolls, checkpoints, rewriting, collection, trimming and new owners between any two steps;
    in the end everything is the partition's own."""

    course = Course(tmp_path, seed)
    await course.begin()
    await course.step("plain")
    names, weights = list(STEPS), list(STEPS.values())
    for number, kind in enumerate(course.random.choices(names, weights, k=150)):
        await course.step(kind)
        if number % 5 == 0:
            await course.check()
    for txn in list(course.open):
        await ended(course.peer, txn, commit=False)
    await course.step("plain")
    await course.step("forget")
    for _ in range(6):
        await course.step("tidy")
        await asyncio.sleep(0.06)
    await course.check()
    host = await course.host()
    level1 = host.bundle.catalog.manifest.topic(TOPIC).level1
    assert sum(segment.entries for segment in level1) >= len(course.wanted) - course.trimmed
    await course.stack.aclose()
    await course.store.close()

"""Compaction beside a writer of transactions that never pauses: a real broker and its
maintenance, real Spark; the view is what had committed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.clock import SystemClock
from magnetar.compaction.commit import Committer
from magnetar.names import TopicName
from magnetar.storage.manifest import Compacted
from magnetar.storage.segments.segment import SegmentReader
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests
from magnetar_jobs import cluster
from magnetar_jobs.compact import Compactor, Result
from magnetar_jobs.execution import CompactionOptions
from tests.spark.histories import visible
from tests.support.brokers import TOPIC, Peer, Type, entry, open_peer, running_broker
from tests.support.transacting import ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]

NAME = TopicName.parse(TOPIC)
KEYS = 7
ALWAYS_OPEN = TxnId(9, 0)
YOUNG: dict[str, Any] = {
    "rewrite_age_s": 3600.0,
    "rewrite_garbage_share": 1.0,
    "maintenance_s": 0.2,
    "checkpoint_age_s": 1.0,
    "replaced_kept_s": 3600.0,
}
"""Files are rewritten for jobs only; a job may take its time to read what was replaced since."""


@dataclass
class Writer:
    """Plain messages and overlapping transactions, every third of which is aborted; `order` is
    what the partition is, in order."""

    peer: Peer
    order: list[tuple[str, bytes]] = field(default_factory=list)
    sequence: int = 0
    committed: int = 0
    stopped: bool = False

    async def run(self) -> None:
        await self._send("never", b"open all the time", ALWAYS_OPEN)
        before: tuple[TxnId, list[tuple[str, bytes]]] | None = None
        number = 0
        while not self.stopped:
            txn, sent = TxnId(0, number), []
            fate = b"aborted" if number % 3 == 2 else b"committed"
            for offset in range(3):
                key, payload = f"k{(number + offset) % KEYS}", b"%d %s" % (self.sequence, fate)
                await self._send(key, payload, txn)
                sent.append((key, payload))
                if before is not None and offset == 1:
                    await self._end(*before)
            plain = f"k{(number + 5) % KEYS}", b"%d plain" % self.sequence
            await self._send(*plain)
            self.order.append(plain)
            if number % 50 == 0:
                await self._send("never", b"open all the time", ALWAYS_OPEN)
            before, number = (txn, sent), number + 1
            await asyncio.sleep(0.02)

    async def _end(self, txn: TxnId, sent: list[tuple[str, bytes]]) -> None:
        commit = txn.least % 3 != 2
        await ended(self.peer, txn, commit=commit, low_watermark=-1)
        if commit:
            self.order += sent
            self.committed += 1

    async def _send(self, key: str, payload: bytes, txn: TxnId | None = None) -> None:
        self.sequence += 1
        data = entry(payload, self.sequence, partition_key=key)
        self.peer.write(
            requests.send(1, self.sequence, data, txn=txn)
            if txn is not None
            else requests.send(1, self.sequence, data)
        )
        answer = await self.peer.answer()
        assert answer.type == Type.SEND_RECEIPT, answer


async def seen(volume: PosixVolume, view: Compacted) -> dict[str | None, bytes]:
    """What a reader of the view gets, by key; every key once."""
    rows: list[tuple[int, int, bytes]] = []
    for reference in view.segments:
        data = await volume.read(reference.object, reference.offset, reference.length)
        for block in SegmentReader(
            lambda at, size, data=data: data[at : at + size], len(data), reference.object
        ).blocks():  # type: ignore[misc]
            rows += [
                (block.ledgers[row], block.entries[row], bytes(block.payload(row)))
                for row in range(block.count)
            ]
    messages = visible(rows)
    found = {key: payload for _, key, payload in messages}
    assert len(found) == len(messages)
    return found


async def compacted(broker: Broker, compactor: Compactor) -> tuple[int, Compacted]:
    """One run as the command makes it: roll, plan, compact. How many entries of the topic the
    view stands for, and the view."""
    rolled = await broker.service.roll(NAME)
    await compactor.compact(NAME, Result(), rolled)
    host = await broker.service.open_topic(NAME, create=False)
    await host.bundle.catalog.refresh()
    view = host.bundle.catalog.compacted(TOPIC)
    assert view is not None
    assert view.horizon >= rolled
    return host.core.ledgers.ordinal_after(view.horizon), view


async def test_the_view_advances_beside_transactions_that_never_pause_and_is_what_had_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs while transactions begin, commit and abort all the time, and one stays open: each
    takes in everything from before it began, is exactly the latest committed value per key up to
    its horizon, and nothing that was aborted or is open is in it."""
    monkeypatch.setattr(cluster, "PLAN_ATTEMPTS_MAX", 100)  # the broker may be slow to rewrite

    async with (
        running_broker(tmp_path, keep_alive_s=3600.0, **YOUNG) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        store, volume = broker.context.store, broker.context.volume
        assert isinstance(volume, PosixVolume)
        committer = Committer(store, volume, SystemClock(), "tests", "run/1")
        compactor = Compactor(store, volume, tmp_path, committer, spark, CompactionOptions())
        writer = Writer(peer)
        writing = asyncio.create_task(writer.run())
        while not writer.committed:
            assert not writing.done()
            await asyncio.sleep(0.01)
        reached = 0
        for _ in range(2):
            known, committed = len(writer.order), writer.committed
            end, view = await compacted(broker, compactor)
            assert not writing.done()
            assert end >= known > reached
            assert writer.committed > committed, "the writer went on concurrently"
            wanted = dict(writer.order[:end])
            assert await seen(volume, view) == wanted
            assert not any(b"aborted" in payload for payload in wanted.values())
            reached = end
        writer.stopped = True
        await writing

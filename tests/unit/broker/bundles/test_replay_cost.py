"""How much of a bundle's log a successor replays is bounded in records: counted, never timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.bundles.log_rolling import SMALL_FILE_BYTES_MAX
from magnetar.broker.bundles.recovery.bundle_recovery import BundleReplay
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.broker.bundles.recovery.replay_cost import (
    CHECKPOINT_BYTES_PER_RECORD,
    METADATA_BYTES_PER_RECORD,
    ReplayCost,
)
from magnetar.broker.incarnation import Broker
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import BundleRecord
from magnetar.names import BundleName, TopicName
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests
from tests.support.brokers import (
    CLOCK,
    SETTINGS,
    TOPIC,
    Node,
    Peer,
    Type,
    entry,
    open_peer,
    running_broker,
    volume_in,
)
from tests.support.polling import until

RECORDS_MAX = 1000
QUIET: dict[str, Any] = {"keep_alive_s": 3600.0, "maintenance_s": 3600.0}
"""Whatever writes a checkpoint is what the test has caused."""
PAYLOAD = bytes(1500)
IN_A_SMALL_FILE = 3 * SMALL_FILE_BYTES_MAX // len(PAYLOAD)
"""A checkpoint stands at the beginning of a file, which may hold so many records already."""


# --- the count ------------------------------------------------------------------------------------


class Asked:
    """A cost, and how often it has asked for a checkpoint."""

    def __init__(self, records_max: int, begun: int = 0) -> None:
        self.times = 0
        self.cost = ReplayCost(records_max, begun, self._due)

    def _due(self) -> None:
        self.times += 1

    def write(self, records: int) -> None:
        for _ in range(records):
            self.cost.add(100)


def test_a_checkpoint_is_asked_for_once_per_bound() -> None:
    """And each is followed by the next after as many records again, counted from where it was
    begun."""
    asked = Asked(100)
    asked.write(99)
    assert asked.times == 0
    asked.write(1)
    assert asked.times == 1
    begun = asked.cost.total
    asked.write(20)
    asked.cost.covered(begun, 0)
    assert asked.cost.behind == 20
    asked.write(79)
    assert asked.times == 1
    asked.write(1)
    assert asked.times == 2


def test_one_that_comes_to_nothing_is_asked_for_again_after_half_the_bound() -> None:
    asked = Asked(100)
    asked.write(100)
    for again in range(1, 5):
        asked.write(49)
        assert asked.times == again
        asked.write(1)
        assert asked.times == again + 1
    assert asked.cost.is_due


def test_one_that_took_long_is_not_followed_by_another_at_once() -> None:
    """More than the bound was written while it was: it is due, and is asked for after half the
    bound."""
    asked = Asked(100)
    asked.write(100)
    begun = asked.cost.total
    asked.write(140)
    asked.cost.covered(begun, 0)
    before = asked.times
    asked.write(49)
    assert asked.times == before
    asked.write(1)
    assert asked.times == before + 1


def test_large_checkpoints_are_written_less_often() -> None:
    asked = Asked(100)
    asked.write(100)
    asked.cost.covered(asked.cost.total, 300 * CHECKPOINT_BYTES_PER_RECORD)
    asked.write(299)
    assert asked.times == 1
    assert not asked.cost.is_due
    asked.write(1)
    assert asked.times == 2
    assert asked.cost.is_due


def test_a_record_with_much_to_parse_counts_for_more() -> None:
    asked = Asked(100)
    asked.cost.add(99 * METADATA_BYTES_PER_RECORD)
    assert asked.cost.behind == 100
    assert asked.times == 1


def test_what_recovery_has_replayed_counts_until_our_own_checkpoint() -> None:
    """A broker that dies again and again before it has written a checkpoint leaves no more than
    the bound to its next one."""
    asked = Asked(100, begun=250)
    assert asked.cost.behind == 250
    assert asked.cost.is_due
    asked.write(50)
    assert asked.times == 1


@given(
    st.integers(10, 200),
    st.lists(st.tuples(st.booleans(), st.integers(0, 40)), min_size=1, max_size=30),
)
def test_checkpoints_are_never_asked_for_more_often_than_every_half_bound(
    records_max: int, outcomes: list[tuple[bool, int]]
) -> None:
    """Whether they succeed, and however much is written concurrently; where all succeed, no more
    than that is behind beyond the bound."""
    asked = Asked(records_max)
    last, longest = 0, max(written for _, written in outcomes)
    for succeeds, written in outcomes:
        while not asked.times:
            asked.write(1)
            assert asked.cost.behind <= records_max + longest or not all(
                success for success, _ in outcomes
            )
        begun = asked.cost.total
        assert begun - last >= records_max // 2
        last, asked.times = begun, 0
        for _ in range(min(written, records_max // 2 - 1)):
            asked.write(1)
        assert not asked.times
        if succeeds:
            asked.cost.covered(begun, 0)


# --- a broker -------------------------------------------------------------------------------------


class World:
    """A broker with two producers on TOPIC, and what another one would replay if it took over
    now."""

    def __init__(self, broker: Broker, peer: Peer, bundle: BundleName) -> None:
        self.broker, self.peer, self.bundle = broker, peer, bundle
        self.sent = self.number = 0

    @property
    def owned(self) -> OwnedBundle:
        return self.broker.ownership.owned[str(self.bundle)]

    @property
    def record(self) -> BundleRecord:
        return self.broker.views.bundles.items[str(self.bundle)].record

    @property
    def checkpoints(self) -> int:
        """How many this term has pointed to."""
        pointer = self.record.checkpoint
        return 0 if pointer is None else int(pointer.object.rpartition("-")[2])

    async def publish(self, count: int) -> None:
        """Messages that are a record each, for no two neighbours are of one producer."""
        for at in range(self.sent, self.sent + count):
            self.peer.write(requests.send(1 + at % 2, at, entry(PAYLOAD, at)))
        for at in range(self.sent, self.sent + count):
            assert (await self.peer.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == at
        self.sent += count
        await self.settled()

    async def abort(self, count: int) -> None:
        """Transactions of one message, aborted: three records each."""
        numbers = [TxnId(0, at) for at in range(self.number, self.number + count)]
        for txn in numbers:
            self.peer.write(requests.send(1, txn.least, entry(PAYLOAD, txn.least), txn=txn))
        for txn in numbers:
            assert (await self.peer.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == txn.least
        for txn in numbers:
            self.peer.write(
                requests.end_txn_on_partition(
                    self.peer.next_request(), txn, TOPIC, commit=False, low_watermark=-1
                )
            )
        for _ in numbers:
            answer = await self.peer.answer(Type.END_TXN_ON_PARTITION_RESPONSE)
            assert not answer.end_txn_on_partition_response.HasField("error")
        self.number += count
        await self.settled()

    async def settled(self) -> None:
        """Until no checkpoint is being written."""
        await until(lambda: not self.broker.ownership.checkpointer.busy)

    async def replayed(self) -> BundleReplay:
        """What a successor would read: the checkpoint, and the log up to now."""
        record, log = self.record, self.broker.context.log
        await log.barrier()
        replay = BundleReplay(self.bundle, LedgerIds(1 << 40))
        await replay.load(self.broker.context, record.checkpoint)
        scans = LogScans(self.broker.context.volume)
        for term, span in zip(record.epochs, record.chain, strict=True):
            await replay.replay(
                scans, term, span if span.end is not None else replace(span, end=log.position)
            )
        return replay


@asynccontextmanager
async def world(directory: Path, **settings: Any) -> AsyncIterator[World]:
    async with running_broker(directory, **QUIET, **settings) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce(1)
        await peer.produce(2)
        yield World(broker, peer, await broker.ownership.bundle_of(TopicName.parse(TOPIC)))


Work = Callable[[World], Coroutine[Any, Any, None]]
AT_A_TIME = 150
WORK: dict[str, tuple[Work, int]] = {
    "aborted transactions": (lambda found: found.abort(AT_A_TIME), 3 * AT_A_TIME),
    "messages": (lambda found: found.publish(2 * AT_A_TIME), 2 * AT_A_TIME),
}
"""What writes records, and how many."""


@pytest.mark.parametrize("kind", WORK)
async def test_a_takeover_replays_a_bounded_number_of_records(tmp_path: Path, kind: str) -> None:
    """However many were written, of transactions or not, and nothing is lost; without the bound
    it would be all of them."""
    work, records = WORK[kind]

    async with world(tmp_path, checkpoint_records_max=RECORDS_MAX) as found:
        most = 0
        for turn in range(1, 13):
            await work(found)
            most = max(most, (await found.replayed()).records)
            assert found.owned.replay.total >= turn * records
            assert found.checkpoints <= turn * records / (RECORDS_MAX // 2)
        assert found.checkpoints >= 12 * records // (2 * RECORDS_MAX)
        assert records < most <= RECORDS_MAX + records + IN_A_SMALL_FILE
        _check(found, await found.replayed())


def _check(found: World, replay: BundleReplay) -> None:
    topic = replay.topics[TOPIC]
    assert topic.core.ledgers.end - topic.core.ledgers.first == found.sent
    aborted = topic.transactions.buffer.fences.aborted() if topic.transactions is not None else 0
    assert aborted == found.number


async def test_without_a_bound_all_is_replayed(tmp_path: Path) -> None:
    """The control of the test above."""

    async with world(tmp_path, checkpoint_records_max=100_000_000) as found:
        for _ in range(6):
            await found.abort(AT_A_TIME)
        replay = await found.replayed()
        assert found.checkpoints == 0
        assert replay.records > 6 * 3 * AT_A_TIME > RECORDS_MAX + IN_A_SMALL_FILE
        _check(found, replay)


async def test_who_asks_just_as_the_last_checkpoint_ends_gets_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that writes them has nothing left to do then, and is not gone yet."""

    async with world(tmp_path) as found:
        checkpointer, written = found.broker.ownership.checkpointer, list[str]()

        async def checkpoint(name: str) -> None:
            written.append(name)
            if name == "first":
                asyncio.get_running_loop().call_soon(checkpointer.ask, "second")

        monkeypatch.setattr(checkpointer, "checkpoint", checkpoint)
        checkpointer.ask("first")
        await until(lambda: "second" in written)
        await found.settled()


async def test_a_successor_counts_what_it_has_replayed_and_ends_a_long_chain_soon(
    tmp_path: Path,
) -> None:
    """Its own term has hardly begun, and the next owner would have to replay all that again: its
    maintenance writes a checkpoint."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        quiet = replace(SETTINGS, **QUIET)
        first = await Node(
            store, volume, "broker-0", replace(quiet, checkpoint_records_max=100_000_000)
        ).start()
        async with open_peer(first) as peer:
            await peer.lookup()
            await peer.produce(1)
            before = World(first, peer, await first.ownership.bundle_of(TopicName.parse(TOPIC)))
            for _ in range(4):
                await before.abort(AT_A_TIME)
        first.fail("killed")
        await first.close()
        second = await Node(
            store, volume, "broker-0", replace(quiet, checkpoint_records_max=RECORDS_MAX)
        ).start()
        try:
            async with open_peer(second) as peer:
                await peer.lookup()
                found = World(second, peer, before.bundle)
                await until(lambda: str(found.bundle) in second.ownership.owned)
                assert found.owned.replay.behind >= 4 * 3 * AT_A_TIME
                assert found.owned.replay.is_due
                assert found.checkpoints == 0
                await second.maintenance.round()
                assert found.checkpoints == 1
                assert not found.owned.replay.is_due
                found.number = before.number
                replay = await found.replayed()
                assert replay.records <= IN_A_SMALL_FILE
                _check(found, replay)
        finally:
            await second.close()
    await store.close()

"""Compaction of transaction logs beside a real broker: the same messages under the same ids in the
same order, whatever is open, and nothing that was aborted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.errors import ServiceNotReady
from magnetar.names import TopicName
from magnetar.storage.manifest import Manifest
from magnetar.transactions.ids import TxnId
from magnetar_jobs.transaction_log import Result
from tests.support.brokers import TOPIC, Peer, entry, open_peer, running_broker
from tests.support.log_compaction import compact_log, compactor_of
from tests.support.planned_topics import plan_of, planned
from tests.support.published_topics import OTHER, QUICK, stored
from tests.support.transacting import ended, send_in
from tests.support.transactional_course import STEPS, Course

NAME = TopicName.parse(TOPIC)
STILL = {**QUICK, "rewrite_age_s": 3600.0, "rewrite_garbage_share": 1.0}
"""Nothing is rewritten by the broker."""


async def manifest_of(broker: Broker) -> Manifest:
    host = await broker.service.open_topic(NAME, create=False)
    await host.bundle.catalog.refresh()
    return host.bundle.catalog.manifest


async def forget(broker: Broker) -> None:
    """From now on the broker finds by its manifest what lies in sealed files."""
    host = await broker.service.open_topic(NAME, create=False)
    host.index.drop_before(host.core.ledgers.end)


async def interleaved(peer: Peer, count: int, first: int = 0) -> list[bytes]:
    """Entries of `count` transactions, three each, one after the other by turns; every third is
    aborted, and the rest commit in reverse. The entries of the topic that they become."""
    sent: dict[int, list[bytes]] = {number: [] for number in range(first, first + count)}
    sequence = 1000 * (first + 1)
    for turn in range(3):
        for number in sent:
            body = b"%d of %d" % (turn, number)
            await send_in(peer, TxnId(0, number), body, sequence)
            sent[number].append(entry(body, sequence))
            sequence += 1
    wanted = []
    for number in reversed(sent):
        commit = number % 3 != 2
        await ended(peer, TxnId(0, number), commit=commit)
        wanted += sent[number] if commit else []
    return wanted


async def test_committed_entries_lie_in_segments_in_the_order_of_commits_and_aborted_ones_nowhere(
    tmp_path: Path,
) -> None:
    """Interleaved transactions and plain messages beside them: after the job no log file is
    listed, one segment has the whole topic, and readers get the same entries under the same ids."""
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        wanted = [entry(b"before", 0)]
        await peer.send(b"before", 0)
        wanted += await interleaved(peer, 9)
        await peer.send(b"behind", 1)
        wanted.append(entry(b"behind", 1))
        assert await stored(broker) == wanted
        result = await compact_log(broker, tmp_path)
        manifest = await manifest_of(broker)
        assert manifest.level0 == ()
        [segment] = manifest.topic(TOPIC).level1
        assert segment.entries == len(wanted) == result.entries_out
        assert result.bytes_void == result.bytes_in - result.bytes_out > 0
        assert manifest.topic(TOPIC).complete == segment.last
        await forget(broker)
        assert await stored(broker) == wanted
        again = await compact_log(broker, tmp_path)
        assert (again.bundles, again.segments) == (0, 0)


async def test_what_an_open_transaction_has_sent_stays_until_its_end(tmp_path: Path) -> None:
    """It has an entry in every file, between those of others. The files stay for it, what else is
    in them moves; committed later it is whole, and then the files go. Naive: a file leaves the list
    once all that has committed in it was moved."""
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        always, wanted, late = TxnId(9, 0), [], []
        for turn in range(3):
            await send_in(peer, always, b"always open", turn)
            late.append(entry(b"always open", turn))
            wanted += await interleaved(peer, 3, 3 * turn)
            result = await compact_log(broker, tmp_path)
            assert result.files_waiting == turn + 1
            assert str(always) in result.message
            assert len((await manifest_of(broker)).level0) == turn + 1
            await forget(broker)
            assert await stored(broker) == wanted
        await ended(peer, always, commit=True)
        result = await compact_log(broker, tmp_path)
        assert result.files_waiting == 0
        assert (await manifest_of(broker)).level0 == ()
        await forget(broker)
        assert await stored(broker) == wanted + late


async def test_an_end_that_is_not_in_sealed_files_does_not_count(tmp_path: Path) -> None:
    """The log is rolled before the commits, and the job takes what is sealed: it moves nothing of
    them, and a kill of the broker behind it loses nothing."""
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        await peer.send(b"plain", 0)
        for number in range(3):
            await send_in(peer, TxnId(0, number), b"x", number + 1)
        await broker.service.roll(NAME, rewrite=False)
        for number in range(3):
            await ended(peer, TxnId(0, number), commit=number != 1)
        result = Result()
        bundle = await broker.ownership.bundle_of(NAME)
        await compactor_of(broker, tmp_path).compact(bundle, frozenset({TOPIC}), result)
        assert result.files == 0
        manifest = await manifest_of(broker)
        assert len(manifest.level0) == 1
        assert [found.entries for found in manifest.topic(TOPIC).level1] == [1]
        await forget(broker)
        assert len(await stored(broker)) == 3


async def test_a_topic_of_which_nothing_can_move_is_said_to_be_complete(tmp_path: Path) -> None:
    """Its only transaction is open: what lies before its commit is known to be whole, so other jobs
    need not wait for a broker to say so."""
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        await send_in(peer, TxnId(0, 0), b"open", 0)
        await broker.service.roll(NAME, rewrite=False)
        await peer.send(b"plain", 1)
        with pytest.raises(ServiceNotReady, match="has not said yet"):
            await plan_of(broker)
        result = await compact_log(broker, tmp_path)
        assert (result.bundles, result.files, result.entries_out) == (1, 0, 0)
        assert await planned(broker, tmp_path) == 1
        assert (await compact_log(broker, tmp_path)).bundles == 0


async def test_files_go_whole_with_what_other_topics_have_in_them(tmp_path: Path) -> None:
    """A topic of the same bundle that knows no transactions lies in the same files: its entries
    move as well, into segments of their own."""
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        other = await same_bundle(broker)
        await peer.lookup(other)
        await peer.produce(2, other)
        for number in range(4):
            await peer.send(b"of the other", number, producer_id=2)
            await send_in(peer, TxnId(0, number), b"x", number)
        for number in range(4):
            await ended(peer, TxnId(0, number), commit=number % 2 == 0)
        before = await stored(broker, other)
        result = await compact_log(broker, tmp_path)
        manifest = await manifest_of(broker)
        assert (result.files, manifest.level0) == (1, ())
        assert [found.entries for found in manifest.topic(other).level1] == [4]
        assert [found.entries for found in manifest.topic(TOPIC).level1] == [2]
        shared = {found.object for name in (TOPIC, other) for found in manifest.topic(name).level1}
        assert len(shared) == 1
        host = await broker.service.open_topic(TopicName.parse(other), create=False)
        host.index.drop_before(host.core.ledgers.end)
        assert await stored(broker, other) == before


async def same_bundle(broker: Broker) -> str:
    """A topic that falls into the same bundle as TOPIC."""
    bundle = await broker.ownership.bundle_of(NAME)
    names = (TopicName.parse(f"{OTHER}-{number}") for number in range(1000))
    return str(next(name for name in names if bundle.contains(name)))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [STILL, QUICK], ids=["alone", "beside the broker's own"])
@pytest.mark.parametrize("seed", range(3))
async def test_any_course_of_transactions_and_jobs_keeps_the_topic(
    tmp_path: Path, seed: int, settings: dict[str, float]
) -> None:
    """Transactions, rolls, the broker's own rewriting, trimming, kills and lost stores, with jobs
    at any moment: readers see the topic of the model after each, through the files alone, and what
    jobs of other kinds would read is a beginning of it without a gap."""
    course = Course(tmp_path, seed, settings)
    await course.begin()
    await course.step("plain")
    names, weights = [*STEPS, "job"], [*STEPS.values(), 5]
    moved = 0
    for kind in course.random.choices(names, weights, k=100):
        if kind != "job":
            await course.step(kind)
            continue
        moved += (await compact_log(course.broker, tmp_path)).entries_out
        await course.step("forget")
        await course.check()
        with contextlib.suppress(ServiceNotReady):  # nothing has moved yet
            await planned(course.broker, tmp_path)
    assert moved > 0
    await course.check()
    await course.stack.aclose()
    await course.store.close()

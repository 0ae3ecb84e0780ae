"""What jobs find of messages that transactions have published, in files that a real broker
wrote: a beginning of the topic without a gap, which grows while transactions are open and others
commit."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.incarnation import Broker
from magnetar.errors import ServiceNotReady
from magnetar.names import TopicName
from magnetar.storage.manifest import Manifest, commit_manifest
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.transactions.ids import TxnId
from magnetar_jobs import cluster, compact
from tests.support.brokers import TOPIC, open_peer, running_broker
from tests.support.planned_topics import plan_of, planned
from tests.support.published_topics import QUICK
from tests.support.rest import Process
from tests.support.transacting import ended, send_in
from tests.support.transactional_course import STEPS, Course

NAME = TopicName.parse(TOPIC)
YOUNG = {**QUICK, "rewrite_age_s": 3600.0, "rewrite_garbage_share": 1.0}
"""Nothing is rewritten for its age, and only what is all dead for what is dead in it."""


async def rounds(broker: Broker, count: int = 3) -> None:
    """Maintenance, with chains old enough to be ended."""
    for _ in range(count):
        await broker.maintenance.round()
        await asyncio.sleep(0.06)


async def test_a_compaction_waits_until_the_broker_has_said_how_far_it_is(tmp_path: Path) -> None:
    """A marker's entries lie between others in position, and in other files: none is passed
    over; a manifest that does not say it is refused."""

    async with running_broker(tmp_path, **QUICK) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        for number in range(4):
            await send_in(peer, TxnId(0, 0), b"x", number)
        await broker.service.roll(NAME)
        for number in range(4, 7):
            await peer.send(b"x", number)
        with pytest.raises(ServiceNotReady, match="has not said yet"):
            await plan_of(broker)
        await rounds(broker)
        await ended(peer, TxnId(0, 0), commit=True)
        await peer.send(b"x", 7)
        await broker.service.roll(NAME)
        await rounds(broker)
        assert await planned(broker, tmp_path) == 8
        host = await broker.service.open_topic(NAME, create=False)
        assert host.bundle.catalog.manifest.level0 == ()


async def test_what_was_published_before_a_marker_is_never_behind_the_horizon_unseen(
    tmp_path: Path,
) -> None:
    """The marker is in the log's open file, with plain entries before it; its entries are in an
    old one, due to be rewritten at once. Naive: a segment with them takes the horizon past what
    no sealed file has."""

    async with running_broker(tmp_path, **QUICK) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        await peer.send(b"sealed", 0)
        await send_in(peer, TxnId(0, 0), b"committed", 1)
        await broker.service.roll(NAME)
        for number in range(2, 5):
            await peer.send(b"in the open file", number)
        await ended(peer, TxnId(0, 0), commit=True)
        await rounds(broker)
        assert await planned(broker, tmp_path) == 1
        await broker.service.roll(NAME)
        await rounds(broker)
        assert await planned(broker, tmp_path) == 5


async def test_a_roll_has_young_files_rewritten_for_the_job_that_asked_and_an_open_transaction_holds_only_its_own(
    tmp_path: Path,
) -> None:
    """Transactions never stop, one is open all the time and has entries in every file: each roll
    and the round after it make everything visible that was committed before; the files stay for
    the open transaction alone, and go with its end."""

    async with running_broker(tmp_path, **YOUNG) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        always, number, committed = TxnId(9, 0), 0, 0
        for turn in range(4):
            await send_in(peer, always, b"always open", number)
            await peer.send(b"plain", number + 1)
            for offset, commit in ((2, True), (4, False), (6, True)):
                txn = TxnId(0, 3 * turn + offset)
                await send_in(peer, txn, b"of a short one", number + offset)
                await peer.send(b"alongside", number + offset + 1)
                await ended(peer, txn, commit=commit)
            number, committed = number + 8, committed + 6
            await broker.service.roll(NAME)
            await broker.maintenance.round()
            assert await planned(broker, tmp_path) == committed
        host = await broker.service.open_topic(NAME, create=False)
        manifest = host.bundle.catalog.manifest
        assert len(manifest.level0) == 4
        await broker.maintenance.round()
        assert host.bundle.catalog.manifest == manifest, (
            "what was rewritten is not rewritten again, nor the manifest for nothing"
        )
        await ended(peer, always, commit=True)
        await broker.service.roll(NAME)
        await rounds(broker, 2)
        assert await planned(broker, tmp_path) == committed + 4
        assert host.bundle.catalog.manifest.level0 == ()


def test_a_run_that_leaves_something_behind_names_the_place() -> None:
    result = compact.Result()
    result.leave_behind(None)
    assert result.message == ""
    result.leave_behind((17, 4))
    assert "1 of its topics" in result.message
    assert "behind 17:4" in result.message


async def test_a_job_waits_for_what_it_has_rolled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round of maintenance after the roll makes it whole; a broker that does not come to it
    holds the job up for a while only."""
    monkeypatch.setattr(cluster, "PLAN_RETRY_S", 0.01)

    async with running_broker(tmp_path, **YOUNG) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        store, volume = broker.context.store, broker.context.volume
        assert isinstance(volume, PosixVolume)
        await peer.send(b"x", 0)
        await send_in(peer, TxnId(0, 1), b"stays open", 1)
        await broker.service.roll(NAME)
        await broker.maintenance.round()
        await send_in(peer, TxnId(0, 0), b"x", 2)
        await ended(peer, TxnId(0, 0), commit=True)
        await peer.send(b"x", 3)
        rolled = await broker.service.roll(NAME)
        explained = await BrokerAdministration(Process(tmp_path, broker)).explanations.explain(
            NAME, None
        )
        assert explained["manifest"]["complete_to"] == f"{rolled[0]}:0"
        assert f"all that they have published up to {rolled[0]}:0 is in segments" in " ".join(
            explained["summary"]
        )
        late = await compact.plan_up_to(store, volume, NAME, rolled)
        assert (late.horizon, late.complete) == ((rolled[0], 0), (rolled[0], 0))
        assert not late.reaches(rolled)
        monkeypatch.setattr(cluster, "PLAN_ATTEMPTS_MAX", 1 << 30)
        waiting = asyncio.create_task(compact.plan_up_to(store, volume, NAME, rolled))
        await broker.maintenance.round()
        async with asyncio.timeout(120):
            whole = await waiting
        assert whole.horizon == rolled
        assert whole.reaches(rolled)


async def test_a_topic_that_uses_transactions_no_more_is_compacted_as_any_other(
    tmp_path: Path,
) -> None:
    """Once no file has a sidecar's entries nothing bounds a plan, and it goes up to what was
    sealed last, silently of the broker."""

    async with running_broker(tmp_path, **QUICK) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        await send_in(peer, TxnId(0, 0), b"x", 0)
        await ended(peer, TxnId(0, 0), commit=True)
        await broker.service.roll(NAME)
        await rounds(broker)
        await peer.send(b"x", 1)
        await broker.service.roll(NAME)
        plan = await plan_of(broker)
        assert plan.complete is None
        assert await planned(broker, tmp_path) == 2


async def test_a_manifest_that_an_older_broker_has_left_behind_is_no_horizon(
    tmp_path: Path,
) -> None:
    """Before: a manifest said nothing of it. Such a one is refused while files hold a sidecar's
    entries, and the next roll has it said."""

    async with running_broker(tmp_path, **YOUNG) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        await send_in(peer, TxnId(0, 0), b"x", 0)
        await send_in(peer, TxnId(0, 1), b"x", 1)
        await ended(peer, TxnId(0, 0), commit=True)
        await broker.service.roll(NAME)
        await broker.maintenance.round()
        assert await planned(broker, tmp_path) == 1
        context, bundle = broker.context, await broker.ownership.bundle_of(NAME)

        def forget(manifest: Manifest) -> Manifest:
            return manifest.with_topic(
                TOPIC, dataclasses.replace(manifest.topic(TOPIC), complete=None)
            )

        await commit_manifest(context.store, context.volume, context.clock, bundle, forget)
        with pytest.raises(ServiceNotReady, match="has not said yet"):
            await plan_of(broker)
        await peer.send(b"x", 2)
        await broker.service.roll(NAME)
        await broker.maintenance.round()
        assert await planned(broker, tmp_path) == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_at_any_moment_a_plan_holds_a_beginning_without_a_gap(
    tmp_path: Path, seed: int
) -> None:
    """Any course of transactions, rolls, rewriting, trimming, kills and lost stores: what a job
    finds up to its horizon is what readers see."""

    course = Course(tmp_path, seed)
    await course.begin()
    await course.step("plain")
    names, weights = list(STEPS), list(STEPS.values())
    most = 0
    for kind in course.random.choices(names, weights, k=150):
        await course.step(kind)
        try:
            most = max(most, await planned(course.broker, tmp_path))
        except ServiceNotReady:
            continue
    assert most > 0
    await course.step("plain")
    for _ in range(3):
        await course.step("roll")
        await course.step("tidy")
        await asyncio.sleep(0.06)
    assert await planned(course.broker, tmp_path) == len(course.wanted) - course.trimmed
    await course.stack.aclose()
    await course.store.close()

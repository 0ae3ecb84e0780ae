"""Compaction of transaction logs, killed at every step and beside the work of others: readers have
the old layout or the new one, and nothing is lost. Naive variants are caught."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.compaction.intents import Conflict
from magnetar.errors import CorruptData, ServiceNotReady
from magnetar.metadata import keys
from magnetar.metadata.records import IntentRecord
from magnetar.names import BundleName, TopicName, sidecar_of
from magnetar.storage import names
from magnetar.storage.manifest import Manifest
from magnetar.topics.ledger_ids import ledger_of, sidecar_ledger
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Append, Commit
from magnetar_jobs.sealed_logs import SealedChain
from magnetar_jobs.topic_states import BundleStates, Fate, Found, TopicState
from magnetar_jobs.transaction_log import KIND, LogCompactor, Result
from magnetar_jobs.transaction_log_plan import published_end
from tests.support.brokers import TOPIC, Peer, entry, open_peer, running_broker
from tests.support.interruptions import Beside, Countdown, Killed, Mortal
from tests.support.log_compaction import compact_log, compactor_of
from tests.support.planned_topics import planned
from tests.support.published_topics import QUICK, stored
from tests.support.transacting import ended, send_in
from tests.support.transactional_course import STEPS, Course

NAME = TopicName.parse(TOPIC)
STILL = {**QUICK, "rewrite_age_s": 3600.0, "rewrite_garbage_share": 1.0}


async def published(peer: Peer) -> list[bytes]:
    """Two transactions between plain messages, and one that stays open; the topic's entries."""
    await peer.lookup()
    await peer.produce()
    await peer.send(b"plain", 0)
    for number in range(6):
        await send_in(peer, TxnId(0, number % 3), b"%d" % number, number + 1)
    await ended(peer, TxnId(0, 1), commit=True)
    await ended(peer, TxnId(0, 0), commit=False)
    return [entry(b"plain", 0), entry(b"1", 2), entry(b"4", 5)]


async def through_files(broker: Broker) -> list[bytes]:
    """The topic, found by the newest manifest."""
    host = await broker.service.open_topic(NAME, create=False)
    await host.bundle.catalog.refresh()
    host.index.drop_before(host.core.ledgers.end)
    return await stored(broker)


async def manifest_of(broker: Broker) -> Manifest:
    host = await broker.service.open_topic(NAME, create=False)
    await host.bundle.catalog.refresh()
    return host.bundle.catalog.manifest


async def intents_of(broker: Broker) -> list[tuple[str, IntentRecord]]:
    items = (await broker.context.store.range(keys.INTENTS)).items
    return [
        (item.key.removeprefix(keys.INTENTS), IntentRecord.decode(item.value)) for item in items
    ]


async def compact_once(compactor: LogCompactor, broker: Broker) -> Result:
    result = Result()
    bundle = await broker.ownership.bundle_of(NAME)
    await compactor.compact(bundle, frozenset({TOPIC}), result)
    return result


async def test_killed_at_any_step_it_leaves_the_old_layout_or_the_new_one(tmp_path: Path) -> None:
    """Before and behind every call to store and volume, its commit among them. What is left is an
    intent and files that carry its name, which the collector takes; the open transaction then ends
    as ever, and the next run does what the killed one has not done."""
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        wanted = await published(peer)
        await broker.service.roll(NAME, rewrite=False)
        store, volume = broker.context.store, broker.context.volume
        steps, outcomes, old = 0, set[str](), await manifest_of(broker)
        while True:
            countdown = Countdown(steps)
            whole = compactor_of(broker, tmp_path, run=f"run/{steps}")
            intents = dataclasses.replace(
                whole.intents, store=Mortal(store, countdown), volume=Mortal(volume, countdown)
            )
            mortal = LogCompactor(
                Mortal(store, countdown), Mortal(volume, countdown), intents, whole.writing
            )
            try:
                await compact_once(mortal, broker)
            except Killed:
                steps += 1
            else:
                break
            found = await manifest_of(broker)
            changed = found.topic(TOPIC).level1 != old.topic(TOPIC).level1
            outcomes.add("new" if changed else "old")
            left = await intents_of(broker)
            assert len(left) <= 1
            assert not (changed and left), "the commit takes the intent with it"
            listed = {segment.object for segment in found.topic(TOPIC).level1}
            for name in await volume.list(names.segments_of(found_bundle(found))):
                assert name in listed or any(known in name for known, _ in left)
            assert await through_files(broker) == wanted
            for known, record in left:  # as the collector does, once the run is over
                assert record.kind == KIND
                await store.delete(keys.intent(known))
                for name in await volume.list(names.segments_of(found_bundle(found))):
                    if known in name:
                        await volume.remove(name)
            if changed:
                break
        assert steps > 10
        assert outcomes == {"old", "new"}
        await compact_log(broker, tmp_path)
        assert await through_files(broker) == wanted
        await ended(peer, TxnId(0, 2), commit=True)
        assert await through_files(broker) == [*wanted, entry(b"2", 3), entry(b"5", 6)]
        await compact_log(broker, tmp_path)
        assert (await manifest_of(broker)).level0 == ()
        assert await through_files(broker) == [*wanted, entry(b"2", 3), entry(b"5", 6)]


def found_bundle(manifest: Manifest) -> BundleName:
    return BundleName.parse(manifest.bundle)


async def test_a_rewrite_by_the_broker_at_the_same_time_is_planned_again(tmp_path: Path) -> None:
    """Its round began before the intent: the commit that comes second changes nothing, its files
    go, and the next plan finds nothing left to do."""
    async with running_broker(tmp_path, **QUICK) as broker, open_peer(broker) as peer:
        wanted = await published(peer)
        await broker.service.roll(NAME, rewrite=False)
        rounds = 0

        async def round_once() -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                await broker.maintenance.round()

        whole = compactor_of(broker, tmp_path)
        compactor = dataclasses.replace(whole, intents=Beside(whole.intents, round_once))
        result = await compact_once(compactor, broker)
        assert (result.bundles, result.segments) == (0, 0)
        assert rounds == 2
        assert await intents_of(broker) == []
        manifest = await manifest_of(broker)
        listed = {segment.object for segment in manifest.topic(TOPIC).level1}
        assert set(await broker.context.volume.list("segments")) == listed
        assert await through_files(broker) == wanted


async def test_while_a_job_works_the_broker_leaves_the_lists_alone(tmp_path: Path) -> None:
    """Between the intent and the commit a round of the broker changes nothing that would make the
    job fail."""
    async with running_broker(tmp_path, **QUICK) as broker, open_peer(broker) as peer:
        wanted = await published(peer)
        await broker.service.roll(NAME, rewrite=False)
        calls = 0

        async def round_behind_the_intent() -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                await broker.maintenance.round()

        whole = compactor_of(broker, tmp_path)
        compactor = dataclasses.replace(
            whole, intents=Beside(whole.intents, round_behind_the_intent)
        )
        result = await compact_once(compactor, broker)
        assert (result.bundles, result.entries_out) == (1, 3)
        assert await through_files(broker) == wanted


async def test_a_run_that_others_are_always_faster_than_gives_up(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        await published(peer)
        await broker.service.roll(NAME, rewrite=False)

        class Refused:
            async def commit(self, *_arguments: Any) -> Any:
                raise Conflict("always")

        compactor = dataclasses.replace(compactor_of(broker, tmp_path), intents=Refused())
        with pytest.raises(Conflict, match="always"):
            await compact_once(compactor, broker)


async def test_a_damaged_entry_is_named_and_copied_nowhere(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
        await published(peer)
        await broker.service.roll(NAME, rewrite=False)
        [file] = (await manifest_of(broker)).level0
        path = tmp_path / names.log_file(file.incarnation, file.file)
        index = await (await host_of(broker)).bundle.catalog.index(file)
        run = index.runs(sidecar_of(TOPIC))[1]
        data = bytearray(path.read_bytes())
        data[run.offset + run.lengths[0] - 1] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptData, match="restore"):
            await compact_log(broker, tmp_path)
        assert await intents_of(broker) == []
        assert await broker.context.volume.list("segments") == []


async def host_of(broker: Broker) -> Any:
    return await broker.service.open_topic(NAME, create=False)


# --- naive variants -------------------------------------------------------------------------------


async def course_with_an_open_transaction(directory: Path) -> None:
    """A transaction is open while the job runs, and commits after it: it is there, whole."""
    async with running_broker(directory, **STILL) as broker, open_peer(broker) as peer:
        wanted = await published(peer)
        await compact_log(broker, directory)
        await ended(peer, TxnId(0, 2), commit=True)
        assert await through_files(broker) == [*wanted, entry(b"2", 3), entry(b"5", 6)]


async def test_a_transaction_that_ends_after_the_job_is_whole(tmp_path: Path) -> None:
    await course_with_an_open_transaction(tmp_path)


async def test_naive_what_has_not_committed_yet_is_taken_for_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant that ignores the oldest unfinished transaction takes its file off the list: what it
    commits later cannot be read."""
    fate = BundleStates.fate

    def naive(states: BundleStates, topic: str, position: tuple[int, int]) -> Found:
        found = fate(states, topic, position)
        return Found(Fate.VOID) if found.fate is Fate.WAITS else found

    monkeypatch.setattr(BundleStates, "fate", naive)
    with pytest.raises(CorruptData, match="is in no file"):
        await course_with_an_open_transaction(tmp_path)


async def test_naive_entries_move_in_the_order_in_which_they_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant that gives entries their places by the order of the sidecar changes what an id
    means, or who is aborted."""
    fate = BundleStates.fate
    taken: dict[str, int] = {}

    def naive(states: BundleStates, topic: str, position: tuple[int, int]) -> Found:
        found = fate(states, topic, position)
        if found.fate is not Fate.COMMITTED:
            return found
        taken[topic] = taken.get(topic, 0) + 1
        return Found(Fate.COMMITTED, (found.target[0], taken[topic]))

    async def course() -> None:
        async with running_broker(tmp_path, **STILL) as broker, open_peer(broker) as peer:
            await peer.lookup()
            await peer.produce()
            await peer.send(b"plain", 0)
            for number in range(4):
                await send_in(peer, TxnId(0, number % 2), b"%d" % number, number + 1)
            for number in (1, 0):
                await ended(peer, TxnId(0, number), commit=True)
            before = await stored(broker)
            await compact_log(broker, tmp_path)
            assert await through_files(broker) == before

    monkeypatch.setattr(BundleStates, "fate", naive)
    with pytest.raises(AssertionError):
        await course()


# --- what sealed files do not say -----------------------------------------------------------------

EPOCH = 7
LEDGER = ledger_of(EPOCH, 0)
SIDECAR = sidecar_ledger(LEDGER)
BUNDLE = BundleName.parse("public/default/0x00000000_0xffffffff")


def sent(txn: TxnId, first: int, count: int) -> Append:
    return Append(txn, "p", (SIDECAR, first), count, first, 10, count, (-1, -1), 0)


def states_with(state: TopicState, rest: int) -> BundleStates:
    return BundleStates(BUNDLE, SealedChain((), rest, 3), {TOPIC: state})


def test_an_entry_whose_record_of_belonging_may_follow_waits() -> None:
    """Its bytes are at the end of the last sealed file, and the record that names its transaction
    would be in the next one. Once its term is over there is none: it belongs to nobody."""
    state = TopicState(TOPIC)
    state.change(sent(TxnId(0, 0), 0, 2))
    place = (SIDECAR, 2)
    assert states_with(state, EPOCH).fate(TOPIC, place).fate is Fate.WAITS
    assert states_with(state, EPOCH + 1).fate(TOPIC, place).fate is Fate.VOID
    assert states_with(state, EPOCH).fate(TOPIC, (SIDECAR, 1)).fate is Fate.WAITS
    state.change(Commit(TxnId(0, 0), 0, (LEDGER, 0), ((SIDECAR, 0, 2),), 0))
    found = states_with(state, EPOCH).fate(TOPIC, (SIDECAR, 1))
    assert found == Found(Fate.COMMITTED, (LEDGER, 1))


def test_a_commit_behind_what_no_sealed_file_has_waits_for_it() -> None:
    """A checkpoint may know more than sealed files do: plain entries, and a commit behind them. The
    end of what is known to be there is before these entries."""
    state = TopicState(TOPIC)
    state.change(sent(TxnId(0, 0), 0, 2))
    state.ledgers.extend(LEDGER, 0, 3)
    state.change(Commit(TxnId(0, 0), 0, (LEDGER, 3), ((SIDECAR, 0, 2),), 0))
    assert published_end(state, {}, ()) == 0
    first = TopicState(TOPIC)
    first.change(sent(TxnId(0, 0), 0, 2))
    first.change(Commit(TxnId(0, 0), 0, (LEDGER, 0), ((SIDECAR, 0, 2),), 0))
    first.ledgers.extend(LEDGER, 2, 1)
    assert published_end(first, {}, ()) == 2


# --- any course -----------------------------------------------------------------------------------

WORK = ("plain", "send", "commit", "abort", "roll", "tidy", "checkpoint", "trim")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_others_do_while_a_job_works_the_topic_stays(
    tmp_path: Path, seed: int
) -> None:
    """Transactions, rolls, checkpoints, trims and the broker's own rewriting between the plan and
    the intent, and between writing and the commit."""
    course = Course(tmp_path, seed, QUICK)
    await course.begin()
    await course.step("plain")

    async def work() -> None:
        for kind in course.random.choices(WORK, k=course.random.randint(0, 4)):
            await course.step(kind)

    names_of, weights = [*STEPS, "job"], [*STEPS.values(), 8]
    conflicts = jobs = 0
    for kind in course.random.choices(names_of, weights, k=100):
        if kind != "job":
            await course.step(kind)
            continue
        jobs += 1
        await course.broker.service.roll(NAME, rewrite=False)
        whole = compactor_of(course.broker, tmp_path)
        compactor = dataclasses.replace(whole, intents=Beside(whole.intents, work))
        try:
            await compact_once(compactor, course.broker)
        except Conflict:
            conflicts += 1
        host = await course.host()
        await host.bundle.catalog.refresh()
        await course.step("forget")
        await course.check()
        with contextlib.suppress(ServiceNotReady):
            await planned(course.broker, tmp_path)
    assert jobs > conflicts
    await course.stack.aclose()
    await course.store.close()

"""Which files a plan takes: a beginning of the topic's history without a gap, whichever process has
sealed what, and whatever changes while it is made."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from magnetar.errors import CorruptData, ServiceNotReady
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    LogPosition,
    LogRange,
    NamespaceRecord,
)
from magnetar.metadata.store import KeyValue
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.seals import publish_seal, read_seal
from magnetar.storage.manifest import commit_manifest
from magnetar.topics.ledger_ids import epoch_of
from magnetar_jobs import cluster
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.cluster import roll_owner
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import BEFORE_ALL
from magnetar_jobs.planning import CompactionPlan, plan_topic
from tests.spark.histories import Described, History
from tests.spark.topics import CLOCK, TOPIC, StoredTopic


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with StoredTopic(tmp_path / "volume") as stored:
        yield stored


@pytest.fixture
def history() -> History:
    return History(random.Random(7))


def planned(topic: StoredTopic, bundle: BundleName | None = None) -> CompactionPlan:
    return topic.run(plan_topic(topic.store, topic.volume, bundle or topic.bundle, TOPIC))


def taken(topic: StoredTopic, plan: CompactionPlan) -> list[tuple[int, int]]:
    """(ledger, entry) of everything in the plan, in order; its horizon is the last of them."""
    found: list[tuple[int, int]] = []
    for group in plan.groups:
        for rows in read_group(topic.directory, str(TOPIC), group, Bounds()):
            found += zip(rows.ledgers.tolist(), rows.entries.tolist(), strict=True)
    assert plan.horizon == max(found, default=BEFORE_ALL)
    return found


def places(entries: list[Described]) -> list[tuple[int, int]]:
    return [(described.ledger, described.entry) for described in entries]


def unseal(topic: StoredTopic, incarnation: str, number: int) -> int:
    """Take the file back to before its owner sealed it; its length."""

    async def work() -> int:
        length = await read_seal(topic.volume, incarnation, number)
        assert length is not None
        await topic.volume.remove(names.sealed(incarnation, number))
        await topic.volume.remove(names.index(incarnation, number))
        await topic.store.delete(keys.log_file(incarnation, number))
        return length

    return topic.run(work())


def change_record(topic: StoredTopic, change: Callable[[BundleRecord], BundleRecord]) -> None:
    async def work() -> None:
        item = await topic.store.get(keys.bundle(topic.bundle))
        assert item is not None
        await topic.store.put(item.key, change(BundleRecord.decode(item.value)).encode())

    topic.run(work())


def after_the_record_was_read(
    topic: StoredTopic, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Awaitable[object]]
) -> None:
    """Once, between a plan's reading of the bundle's record and whatever it does next."""
    get, due = topic.store.get, True

    async def got(key: str) -> KeyValue | None:
        nonlocal due
        item = await get(key)
        if due and key == keys.bundle(topic.bundle):
            due = False
            await change()
        return item

    monkeypatch.setattr(topic.store, "get", got)


def test_nothing_behind_a_file_that_a_former_owner_has_not_sealed_counts(
    topic: StoredTopic, history: History
) -> None:
    """Naive: the successor's file is sealed and has its key, so it is taken, and the horizon
    jumps over what was acknowledged before."""
    old = [history.single("a", b"1"), history.single("a", b"2")]
    history.roll()
    new = history.single("b", b"3")
    former = topic.write(old[:1], old[1:], listed="chain")
    topic.write([new], listed="chain")
    length = unseal(topic, former, 1)
    assert taken(topic, planned(topic)) == places(old[:1])
    topic.run(publish_seal(topic.volume, former, 1, length))
    assert taken(topic, planned(topic)) == places([*old, new])


def test_a_bundle_on_its_way_to_another_broker_is_waited_for(
    topic: StoredTopic, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naive: without an owner there is nothing more to seal, so that a job succeeds and has left
    out what was acknowledged before it began."""
    former = topic.write([history.single("a", b"1")], listed="chain")
    length = unseal(topic, former, 0)
    change_record(topic, lambda found: dataclasses.replace(found, state=BundleState.ASSIGNING))
    monkeypatch.setattr(cluster, "ROLL_RETRY_S", 0.0)
    with pytest.raises(ServiceNotReady, match=f"{former}.* is not sealed; start a broker"):
        topic.run(roll_owner(topic.store, topic.volume, TOPIC))
    sleep, looks = cluster.asyncio.sleep, 0

    async def sealed_in_between(seconds: float) -> None:
        nonlocal looks
        looks += seconds > 0
        if looks == 1:
            await publish_seal(topic.volume, former, 0, length)
        await sleep(0)

    monkeypatch.setattr(cluster, "ROLL_RETRY_S", 1e-9)
    monkeypatch.setattr(cluster.asyncio, "sleep", sealed_in_between)
    assert topic.run(roll_owner(topic.store, topic.volume, TOPIC)) == BEFORE_ALL
    assert looks == 1


def test_a_term_that_begins_while_the_plan_is_made_is_left_to_the_next_one(
    topic: StoredTopic, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle moves behind the record that was read, and its new owner's first file is sealed
    before its former owner's last one."""
    old = [history.single("a", b"1"), history.single("a", b"2")]
    history.roll()
    new = history.single("b", b"3")
    former = topic.write(old[:1], old[1:], listed="chain")
    unseal(topic, former, 1)
    record = BundleRecord.decode(topic.run(topic.store.get(keys.bundle(topic.bundle))).value)  # type: ignore[union-attr]
    change_record(
        topic,
        lambda found: dataclasses.replace(
            found, chain=(dataclasses.replace(found.chain[0], end=None),)
        ),
    )

    async def move() -> None:
        await topic.store.put(keys.bundle(topic.bundle), record.encode())
        await topic._write([[new]], "chain")

    after_the_record_was_read(topic, monkeypatch, move)
    assert taken(topic, planned(topic)) == places(old[:1])


def test_a_key_alone_brings_nothing_in(topic: StoredTopic, history: History) -> None:
    """Of an earlier incarnation of its namespace, say: no term of the bundle as it is now has
    written that file."""
    topic.write([history.single("a", b"1")], listed="keys")
    history.roll()
    topic.write([history.single("b", b"2")], listed="chain")
    assert taken(topic, planned(topic)) == places(history.entries[1:])


def test_what_was_taken_in_and_is_not_listed_any_more_does_not_come_back_from_the_chain(
    topic: StoredTopic, history: History
) -> None:
    entries = [history.single("a", b"1"), history.single("a", b"2")]
    topic.write(entries[:1], entries[1:], listed="chain")
    reached = (epoch_of(history.ledger), 1)
    topic.run(
        commit_manifest(
            topic.store,
            topic.volume,
            CLOCK,
            topic.bundle,
            lambda found: dataclasses.replace(found, covered=reached),
        )
    )
    assert taken(topic, planned(topic)) == places(entries[1:])


def test_a_term_that_wrote_nothing_holds_nobody_up(topic: StoredTopic, history: History) -> None:
    """Its owner died before its first file was durable, or began nothing in it; the files may be
    gone."""
    for start, end in (
        (LogPosition(0, FILE_HEADER_BYTES),) * 2,
        (LogPosition(3, 9000), LogPosition(3, 9000)),
    ):
        topic.run(topic.extend_chain([(0, LogRange("gone", start, end))]))
    topic.write([history.single("a", b"1")], listed="chain")
    topic.run(
        topic.extend_chain(
            [(8, LogRange("idle", LogPosition(0, 0), LogPosition(0, FILE_HEADER_BYTES)))]
        )
    )
    history.roll()
    topic.write([history.single("b", b"2")], listed="chain")
    assert taken(topic, planned(topic)) == places(history.entries)


def test_a_file_of_the_chain_that_is_gone_stops_the_plan(
    topic: StoredTopic, history: History
) -> None:
    """Given up between the look at its seal and the reading of its index. Naive: it is passed
    over, for no manifest lists it."""
    former = topic.write([history.single("a", b"1")], listed="chain")
    history.roll()
    topic.write([history.single("b", b"2")], listed="chain")
    for name in (names.log_file(former, 0), names.index(former, 0)):
        topic.run(topic.volume.remove(name))
    with pytest.raises(CorruptData, match="in its bundle's chain, and missing"):
        planned(topic)


async def divide_namespace(topic: StoredTopic) -> None:
    """As the transaction of a split does: the topic's bundle is none of its namespace any more."""
    bundle = topic.bundle
    item = await topic.store.get(keys.namespace(bundle.namespace))
    assert item is not None
    before = NamespaceRecord.decode(item.value)
    boundaries = tuple(sorted({*before.boundaries, (bundle.low + bundle.high) // 2}))
    await topic.store.put(item.key, dataclasses.replace(before, boundaries=boundaries).encode())


def test_a_bundle_of_a_namespace_that_was_made_again_has_nothing_yet(topic: StoredTopic) -> None:
    """Its record still says that its incarnation before is over: nobody has asked for it since,
    and a run over it has nothing to do."""
    before = BundleRecord(BundleState.DELETED, 7, reason="its namespace was deleted")
    topic.run(topic.store.put(keys.bundle(topic.bundle), before.encode()))
    found = planned(topic)
    assert (found.news, found.groups) == (False, ())


def test_a_child_of_a_split_has_the_files_that_were_published_for_its_parent(
    topic: StoredTopic, history: History
) -> None:
    """Their keys name the parent. The parent itself has nothing any more, and says so, also if
    it was split after its record was read."""
    topic.write([history.single("a", b"1")], listed="chain")
    parent = topic.bundle
    item = topic.run(topic.store.get(keys.bundle(parent)))
    assert item is not None
    middle = (parent.low + parent.high) // 2
    low, high = (middle, parent.high) if TOPIC.hash >= middle else (parent.low, middle)
    child = dataclasses.replace(parent, low=low, high=high)
    topic.run(topic.store.put(keys.bundle(child), item.value))
    change_record(topic, lambda found: BundleRecord(BundleState.DELETED, found.epoch))
    topic.run(divide_namespace(topic))
    assert taken(topic, planned(topic, child)) == places(history.entries)
    with pytest.raises(ServiceNotReady, match="was split or merged just now"):
        planned(topic)


def test_a_split_between_record_and_manifest_is_noticed(
    topic: StoredTopic, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the manifest nothing is known of the view that there is, nor of what was trimmed."""
    topic.write([history.single("a", b"1")])
    history.roll()
    topic.write([history.single("b", b"2")], listed="chain")

    async def split() -> None:
        await topic.store.put(
            keys.bundle(topic.bundle), BundleRecord(BundleState.DELETED, 1).encode()
        )
        await topic.store.delete(keys.manifest(topic.bundle))
        await divide_namespace(topic)

    after_the_record_was_read(topic, monkeypatch, split)
    with pytest.raises(ServiceNotReady, match="was split or merged just now"):
        planned(topic)


def test_a_manifest_from_before_the_chain_is_refused(topic: StoredTopic, history: History) -> None:
    """What lies before a checkpoint is nowhere but in the manifest: one that has not taken it in
    was put back."""
    topic.write([history.single("a", b"1")], listed="chain")
    checkpoint = CheckpointPointer("checkpoints/x", "broker-0", LogPosition(0, FILE_HEADER_BYTES))
    change_record(topic, lambda found: dataclasses.replace(found, checkpoint=checkpoint))
    with pytest.raises(ServiceNotReady, match="was put back"):
        planned(topic)

"""What the collector of a real broker deletes, keeps, and remembers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.incarnation import Broker
from magnetar.clock import SystemClock
from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import BundleRecord, BundleState, IntentRecord
from magnetar.names import BundleName, NamespaceName, TopicName, initial_boundaries
from magnetar.storage import names
from magnetar.storage.document import encode_document
from magnetar.storage.log.blocks import FILE_HEADER_BYTES, FileHeader, encode_file_header
from magnetar.storage.log.seals import publish_seal
from magnetar.storage.manifest import Manifest, commit_manifest
from magnetar.storage.volumes.volume import Volume
from magnetar.topics.dispatch.base import ReadRequest
from tests.support.brokers import CLOCK, TOPIC, Peer, open_peer, running_broker
from tests.support.published_topics import OTHER, World, world
from tests.support.rest import Process

DEAD, CLAIMED, ALSO_DEAD = (
    "broker-7.0000000000000007",
    "broker-8.0000000000000008",
    "broker-9.0000000000000009",
)
YEAR_MS = 365 * 24 * 3_600_000


async def test_what_a_dead_incarnation_set_aside_is_deleted_and_nothing_of_the_living(
    tmp_path: Path,
) -> None:
    """Only the incarnation that set a file aside may use it: once it has lost its claim, nobody
    ever will."""

    async with running_broker(tmp_path) as broker:
        volume = broker.context.volume
        claim = encode_document("claim", 1, {"incarnation": CLAIMED, "created_ms": CLOCK.wall_ms()})
        assert await volume.put_if_absent(names.claim(CLAIMED), claim)
        spares = {
            incarnation: names.spare(incarnation, 3)
            for incarnation in (DEAD, CLAIMED, broker.incarnation)
        }
        for name in spares.values():
            assert await volume.put_if_absent(name, b"x")
        await broker.maintenance.garbage_collector.collect_dead()
        left = [name for name in await volume.list(names.LOGS) if name.endswith(names.SPARE_SUFFIX)]
        assert left == sorted([spares[CLAIMED], spares[broker.incarnation]])


async def noted(broker: Broker, files: int) -> None:
    """Wait until the keys of `files` sealed log files are in the store."""
    async with asyncio.timeout(120):
        while len((await broker.context.store.range(keys.LOGS)).items) < files:
            await asyncio.sleep(0.01)


def manifests_held() -> int:
    """How many manifests there are in memory."""
    gc.collect()
    return sum(isinstance(found, Manifest) for found in gc.get_objects())


async def next_generation(broker: Broker, bundle: BundleName) -> None:
    """Commit the bundle's manifest once more, as it is."""
    await commit_manifest(
        broker.context.store, broker.context.volume, CLOCK, bundle, lambda manifest: manifest
    )


async def test_of_each_bundle_one_manifest_is_remembered_also_by_who_never_leads(
    tmp_path: Path,
) -> None:
    """Its collector reads a manifest per generation for as long as it lives; only the leader
    collects objects."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 1)
        await found.roll()
        await noted(found.broker, 1)
        garbage_collector, bundle = (
            found.broker.maintenance.garbage_collector,
            await found.broker.ownership.bundle_of(TopicName.parse(TOPIC)),
        )
        await garbage_collector.collect_own()
        before = manifests_held()
        for _ in range(20):
            await next_generation(found.broker, bundle)
            await garbage_collector.collect_own()
        assert (await found.manifest(TOPIC)).generation > 20
        assert manifests_held() <= before


async def rewritten(found: World) -> str:
    """A log file of the broker's own that the manifest of before lists, and the current one does
    not; no chain needs it."""
    await found.publish(TOPIC, 5)
    await found.roll()
    await noted(found.broker, 1)
    broker = found.broker
    [listed] = (await found.manifest(TOPIC)).level0
    for owned in list(broker.ownership.owned.values()):
        await broker.ownership.checkpointer.checkpoint(str(owned.name))
        await broker.maintenance.manifest_compactor.tidy(owned)
    assert not (await found.manifest(TOPIC)).level0
    return names.log_file(listed.incarnation, listed.file)


async def test_what_a_superseded_manifest_lists_stays_until_that_is_gone(tmp_path: Path) -> None:
    """A restore that begins now may go back to it: it does not see that the next generation
    was committed."""

    async with world(tmp_path) as found:
        file = await rewritten(found)
        volume, garbage_collector = (
            found.broker.context.volume,
            found.broker.maintenance.garbage_collector,
        )
        await garbage_collector.collect_own()
        assert await volume.exists(file)
        await garbage_collector.collect_objects()
        await garbage_collector.collect_own()
        assert not await volume.exists(file)


async def test_a_broker_that_was_fenced_deletes_nothing(tmp_path: Path) -> None:
    """The process that fenced it may need all that was there then (simulation seeds 453 and 528
    of restore)."""

    async with world(tmp_path) as found:
        await rewritten(found)
        volume, garbage_collector = (
            found.broker.context.volume,
            found.broker.maintenance.garbage_collector,
        )
        await garbage_collector.collect_objects()
        bundle = await found.broker.ownership.bundle_of(TopicName.parse(TOPIC))
        await next_generation(found.broker, bundle)
        before = [*await volume.list(names.LOGS), *await volume.list(names.MANIFESTS)]
        await volume.remove(names.claim(found.broker.incarnation))
        await garbage_collector.collect_own()
        await garbage_collector.collect_objects()
        assert [*await volume.list(names.LOGS), *await volume.list(names.MANIFESTS)] == before


async def dead_log(volume: Volume, incarnation: str) -> None:
    """The log of an incarnation that died before it wrote anything: one file with a header,
    which is not noted."""
    header = encode_file_header(FileHeader(incarnation, 0, CLOCK.wall_ms()))
    await (await volume.create_log(names.log_file(incarnation, 0), 1 << 20, header)).close()


async def test_a_damaged_log_of_one_dead_incarnation_is_named_and_those_of_others_go(
    tmp_path: Path,
) -> None:
    """The damaged one, which comes first, stays as it is until it has been restored."""

    async with running_broker(tmp_path, replaced_kept_s=0.0) as broker:
        volume, garbage_collector = broker.context.volume, broker.maintenance.garbage_collector
        for incarnation in (DEAD, ALSO_DEAD):
            await dead_log(volume, incarnation)
        await publish_seal(volume, DEAD, 0, FILE_HEADER_BYTES + 100)  # and nothing is there
        await garbage_collector.collect_dead()
        left = {name.split("/")[1] for name in await volume.list(names.LOGS)}
        assert left == {DEAD, broker.incarnation}
        assert [damage["file"] for damage in broker.context.damage.listed()] == [
            names.log_file(DEAD, 0)
        ]
        await volume.remove(names.sealed(DEAD, 0))
        garbage_collector.forget_unmet()
        await garbage_collector.collect_dead()
        garbage_collector.forget_unmet()
        assert broker.context.damage.listed() == []
        assert {name.split("/")[1] for name in await volume.list(names.LOGS)} == {
            broker.incarnation
        }


async def test_a_damaged_manifest_is_named_and_other_bundles_are_collected(tmp_path: Path) -> None:
    """Its own bundle keeps everything, the manifests of before too: they are what there is to go
    back to."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 1)
        await found.publish(OTHER, 1)
        await found.roll()
        await noted(found.broker, 1)
        volume, garbage_collector = (
            found.broker.context.volume,
            found.broker.maintenance.garbage_collector,
        )
        damaged, sound = [
            await found.broker.ownership.bundle_of(TopicName.parse(topic))
            for topic in (TOPIC, OTHER)
        ]
        for bundle in (damaged, sound):
            await next_generation(found.broker, bundle)
        orphans = [names.segment(damaged, "rewrite-1-0"), names.segment(sound, "rewrite-2-0")]
        for name in orphans:
            await volume.put_if_absent(name, b"x")
        before = await volume.list(names.manifests_of(damaged))
        assert [len(before), len(await volume.list(names.manifests_of(sound)))] == [2, 2]
        current = tmp_path / before[-1]
        data = current.read_bytes()
        current.write_bytes(b"?" + data[1:])
        await garbage_collector.collect_own()
        await garbage_collector.collect_objects()
        assert await volume.list(names.manifests_of(damaged)) == before
        assert len(await volume.list(names.manifests_of(sound))) == 1
        assert await volume.list(names.SEGMENTS) == sorted(orphans), (
            "which of the namespace's segments it lists, nobody knows"
        )
        assert [damage["bundle"] for damage in found.broker.context.damage.listed()] == [
            str(damaged)
        ]
        current.write_bytes(data)
        garbage_collector.forget_unmet()
        await garbage_collector.collect_objects()
        garbage_collector.forget_unmet()
        assert found.broker.context.damage.listed() == []
        assert await volume.list(names.manifests_of(damaged)) == before[-1:]
        assert await volume.list(names.SEGMENTS) == []


# --- namespaces that are deleted ------------------------------------------------------------------

GONE = NamespaceName("public", "gone")
IN_GONE = f"persistent://{GONE}/t"


@asynccontextmanager
async def with_namespace(
    directory: Path,
) -> AsyncIterator[tuple[BrokerAdministration, Broker, Peer]]:
    """A broker that leads, with the namespace GONE of one bundle; its maintenance is what a test
    does, and what was replaced goes at once."""
    settings: dict[str, Any] = {
        "replaced_kept_s": 0.0,
        "rewrite_age_s": 3600.0,
        "maintenance_s": 3600.0,
    }
    async with running_broker(directory, **settings) as broker, open_peer(broker) as peer:
        port = BrokerAdministration(Process(directory, broker))
        await port.namespaces.create_namespace(GONE, initial_boundaries(1), {})
        yield port, broker, peer


async def fill(broker: Broker, peer: Peer) -> BundleName:
    """Publish, list the file, write a checkpoint that is pointed to, and leave an object of each
    kind; the bundle."""
    await peer.lookup(IN_GONE)
    await peer.produce(1, IN_GONE)
    await peer.send(b"x", 0)
    await broker.service.roll(TopicName.parse(IN_GONE))
    bundle = await broker.ownership.bundle_of(TopicName.parse(IN_GONE))
    await broker.ownership.checkpointer.checkpoint(str(bundle))
    await noted(broker, 1)
    await broker.context.volume.put_if_absent(names.segment(bundle, "rewrite-1-0"), b"x")
    volume = broker.context.volume
    assert all(
        [
            await volume.list(kind(bundle))
            for kind in (names.checkpoints_of, names.manifests_of, names.segments_of)
        ]
    )
    return bundle


async def state_of(broker: Broker, bundle: BundleName) -> BundleState | None:
    item = await broker.context.store.get(keys.bundle(bundle))
    return BundleRecord.decode(item.value).state if item is not None else None


async def delete(port: BrokerAdministration, broker: Broker, bundle: BundleName) -> None:
    """Delete GONE by force, and wait until its bundle is retired."""
    await port.namespaces.delete_namespace(GONE, force=True)
    async with asyncio.timeout(120):
        while await state_of(broker, bundle) is not BundleState.DELETED:
            await asyncio.sleep(0.01)


async def left_of(broker: Broker, bundle: BundleName) -> list[str]:
    """What storage and store hold of a bundle; of its log, the files that are not the current
    one."""
    volume, store = broker.context.volume, broker.context.store
    objects = [
        await volume.list(kind(bundle))
        for kind in (names.checkpoints_of, names.manifests_of, names.segments_of)
    ]
    files = [
        name
        for name in await volume.list(names.LOGS)
        if names.log_number(name) not in (None, broker.context.log.position.file)
    ]
    items = [
        *(await store.range(keys.LOGS)).items,
        *(await store.range(keys.bundles_in(GONE))).items,
    ]
    pointer = await store.get(keys.manifest(bundle))
    return [
        *(name for listed in objects for name in listed),
        *files,
        *(item.key for item in items),
        *([pointer.key] if pointer else []),
    ]


async def test_nothing_is_left_of_a_deleted_namespace(tmp_path: Path) -> None:
    """Log files, checkpoints, manifests, segments, and every key: its bundle's record goes last."""

    async with with_namespace(tmp_path) as (port, broker, peer):
        bundle = await fill(broker, peer)
        await broker.maintenance.round()
        assert await left_of(broker, bundle)
        await delete(port, broker, bundle)
        for _ in range(3):
            await broker.maintenance.round()
        assert await left_of(broker, bundle) == []
        assert broker.ready


async def test_a_namespace_that_is_created_again_in_between_keeps_what_is_its_own(
    tmp_path: Path,
) -> None:
    """Everything of the earlier incarnation goes though the bundle has the same name; the next one
    begins with no manifest, and reads what it wrote."""

    async with with_namespace(tmp_path) as (port, broker, peer):
        bundle = await fill(broker, peer)
        generation = broker.ownership.owned[str(bundle)].catalog.manifest.generation
        await delete(port, broker, bundle)
        before = set(await left_of(broker, bundle))
        await port.namespaces.create_namespace(GONE, initial_boundaries(1), {})
        await peer.answer()  # CLOSE_PRODUCER of the deleted topic
        await peer.lookup(IN_GONE)
        await peer.produce(2, IN_GONE)
        await peer.send(b"y", 0, 2)
        await broker.service.roll(TopicName.parse(IN_GONE))
        await broker.ownership.checkpointer.checkpoint(str(bundle))
        await noted(broker, 2)
        owned = broker.ownership.owned[str(bundle)]
        assert [file.file for file in owned.catalog.manifest.level0].count(0) == 0
        assert owned.catalog.manifest.generation == generation, "it began again"
        for _ in range(3):
            await broker.maintenance.round()
        left = set(await left_of(broker, bundle))
        assert not left & {name for name in before if not name.startswith(keys.BUNDLES)}
        host = await broker.service.open_topic(TopicName.parse(IN_GONE), create=False)
        assert (
            len(
                (
                    await owned.catalog.read(
                        host.name,
                        host.core.ledgers,
                        ReadRequest(host.core.ledgers.first, 1),
                        1000,
                    )
                )[0]
            )
            == 1
        )


async def test_who_had_the_bundle_before_it_was_retired_makes_no_manifest_of_it(
    tmp_path: Path,
) -> None:
    """A former owner that stood still while it listed its files: neither when the bundle is
    over, nor in a next incarnation of it."""

    async with with_namespace(tmp_path) as (port, broker, peer):
        await peer.lookup(IN_GONE)
        await peer.produce(1, IN_GONE)
        await peer.send(b"x", 0)
        bundle = await broker.ownership.bundle_of(TopicName.parse(IN_GONE))
        owned, record = (
            broker.ownership.owned[str(bundle)],
            broker.views.bundles.items[str(bundle)].record,
        )
        await delete(port, broker, bundle)
        with pytest.raises(StoreError, match="is over"):
            await owned.catalog.cover(record, broker.context.log.position)
        await port.namespaces.create_namespace(GONE, initial_boundaries(1), {})
        await peer.answer()
        await peer.lookup(IN_GONE)
        with pytest.raises(StoreError, match="is over"):
            await owned.catalog.cover(record, broker.context.log.position)
        assert await broker.context.store.get(keys.manifest(bundle)) is None


async def test_a_store_that_has_forgotten_everything_costs_nothing(tmp_path: Path) -> None:
    """That a bundle has no record and its namespace none says nothing: only a Deleted record
    does."""

    async with with_namespace(tmp_path) as (_port, broker, peer):
        bundle = await fill(broker, peer)
        objects = [
            name
            for name in await left_of(broker, bundle)
            if "/" in name and not name.startswith(("logs", "bundles"))
        ]
        for prefix in (keys.bundle(bundle), keys.namespace(GONE), keys.manifest(bundle)):
            await broker.context.store.delete(prefix)
        for _ in range(2):
            await broker.maintenance.garbage_collector.collect_objects()
        volume = broker.context.volume
        assert all([await volume.exists(name) for name in objects])


@pytest.mark.parametrize("wrong_ms", [YEAR_MS, -YEAR_MS])
async def test_writers_are_over_by_the_time_that_the_collector_saw_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_ms: int
) -> None:
    """Neither a job's intent nor a claim is judged by what its writer's clock said, or ours; but
    by how long they were seen to stand."""
    passed_s = 0.0

    machine = SystemClock()
    monkeypatch.setattr(CLOCK, "monotonic", lambda: machine.monotonic() + passed_s)
    store = MemoryStore(SystemClock())
    async with running_broker(
        tmp_path, store=store, maintenance_s=3600.0, intent_age_max_s=3600
    ) as broker:
        volume, garbage_collector = broker.context.volume, broker.maintenance.garbage_collector
        claim = encode_document(
            "claim", 1, {"incarnation": CLAIMED, "created_ms": CLOCK.wall_ms() + wrong_ms}
        )
        assert await volume.put_if_absent(names.claim(CLAIMED), claim)
        intent = IntentRecord(
            "compaction",
            "public/default/0x00000000_0x40000000",
            TOPIC,
            "job",
            "1",
            CLOCK.wall_ms() + wrong_ms,
        )
        await store.put(keys.intent("compact-1-x"), intent.encode())
        for passed_s, stands in ((0.0, True), (3599.0, True), (3601.0, False)):
            await garbage_collector.collect_dead()
            await garbage_collector.collect_objects()
            assert (await store.get(keys.intent("compact-1-x")) is not None) == stands
            assert await volume.exists(names.claim(CLAIMED)) == (passed_s < 600)
    await store.close()

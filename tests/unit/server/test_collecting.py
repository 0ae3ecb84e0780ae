"""What the collector of a real broker deletes, keeps, and remembers."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from magnetar.metadata import keys
from magnetar.names import BundleName, TopicName
from magnetar.server.broker import Broker
from magnetar.storage import names
from magnetar.storage.document import encode_document
from magnetar.storage.log_format import FILE_HEADER_BYTES, FileHeader, encode_file_header
from magnetar.storage.manifest import Manifest, commit_manifest
from magnetar.storage.seals import publish_seal
from magnetar.storage.volume import Volume
from tests.unit.server.brokers import CLOCK, TOPIC, running_broker
from tests.unit.server.test_tidying import OTHER, world

DEAD, CLAIMED, ALSO_DEAD = "broker-7.0000000000000007", "broker-8.0000000000000008", "broker-9.0000000000000009"


def test_what_a_dead_incarnation_set_aside_is_deleted_and_nothing_of_the_living(tmp_path: Path) -> None:
    """Only the incarnation that set a file aside may use it: once it has lost its claim, nobody ever will."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            volume = broker.context.volume
            claim = encode_document("claim", 1, {"incarnation": CLAIMED, "created_ms": CLOCK.wall_ms()})
            assert await volume.put_if_absent(names.claim(CLAIMED), claim)
            spares = {incarnation: names.spare(incarnation, 3) for incarnation in (DEAD, CLAIMED, broker.incarnation)}
            for name in spares.values():
                assert await volume.put_if_absent(name, b"x")
            await broker.maintenance.collector.collect_dead()
            left = [name for name in await volume.list(names.LOGS) if name.endswith(names.SPARE_SUFFIX)]
            assert left == sorted([spares[CLAIMED], spares[broker.incarnation]])

    asyncio.run(scenario())


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
    await commit_manifest(broker.context.store, broker.context.volume, CLOCK, bundle, lambda manifest: manifest)


def test_of_each_bundle_one_manifest_is_remembered_also_by_who_never_leads(tmp_path: Path) -> None:
    """Its collector reads a manifest per generation for as long as it lives; only the leader collects objects."""

    async def scenario() -> None:
        async with world(tmp_path) as found:
            await found.publish(TOPIC, 1)
            await found.roll()
            await noted(found.broker, 1)
            collector, bundle = found.broker.maintenance.collector, await found.broker.ownership.bundle_of(TopicName.parse(TOPIC))
            await collector.collect_own()
            before = manifests_held()
            for _ in range(20):
                await next_generation(found.broker, bundle)
                await collector.collect_own()
            assert (await found.manifest(TOPIC)).generation > 20
            assert manifests_held() <= before

    asyncio.run(scenario())


async def dead_log(volume: Volume, incarnation: str) -> None:
    """The log of an incarnation that died before it wrote anything: one file with a header, which is not noted."""
    header = encode_file_header(FileHeader(incarnation, 0, CLOCK.wall_ms()))
    await (await volume.create_log(names.log_file(incarnation, 0), 1 << 20, header)).close()


def test_a_damaged_log_of_one_dead_incarnation_is_named_and_those_of_others_go(tmp_path: Path) -> None:
    """The damaged one, which comes first, stays as it is until it has been restored."""

    async def scenario() -> None:
        async with running_broker(tmp_path, replaced_kept_s=0.0) as broker:
            volume, collector = broker.context.volume, broker.maintenance.collector
            for incarnation in (DEAD, ALSO_DEAD):
                await dead_log(volume, incarnation)
            await publish_seal(volume, DEAD, 0, FILE_HEADER_BYTES + 100)  # and nothing is there
            await collector.collect_dead()
            left = {name.split("/")[1] for name in await volume.list(names.LOGS)}
            assert left == {DEAD, broker.incarnation}
            assert [damage["file"] for damage in broker.context.damage.listed()] == [names.log_file(DEAD, 0)]
            await volume.remove(names.sealed(DEAD, 0))
            collector.forget_unmet()
            await collector.collect_dead()
            collector.forget_unmet()
            assert broker.context.damage.listed() == []
            assert {name.split("/")[1] for name in await volume.list(names.LOGS)} == {broker.incarnation}

    asyncio.run(scenario())


def test_a_damaged_manifest_is_named_and_other_bundles_are_collected(tmp_path: Path) -> None:
    """Its own bundle keeps everything, the manifests of before too: they are what there is to go back to."""

    async def scenario() -> None:
        async with world(tmp_path) as found:
            await found.publish(TOPIC, 1)
            await found.publish(OTHER, 1)
            await found.roll()
            await noted(found.broker, 1)
            volume, collector = found.broker.context.volume, found.broker.maintenance.collector
            damaged, sound = [await found.broker.ownership.bundle_of(TopicName.parse(topic)) for topic in (TOPIC, OTHER)]
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
            await collector.collect_own()
            await collector.collect_objects()
            assert await volume.list(names.manifests_of(damaged)) == before
            assert len(await volume.list(names.manifests_of(sound))) == 1
            assert await volume.list(names.SEGMENTS) == sorted(orphans), "which of the namespace's segments it lists, nobody knows"
            assert [damage["bundle"] for damage in found.broker.context.damage.listed()] == [str(damaged)]
            current.write_bytes(data)
            collector.forget_unmet()
            await collector.collect_objects()
            collector.forget_unmet()
            assert found.broker.context.damage.listed() == []
            assert await volume.list(names.manifests_of(damaged)) == before[-1:]
            assert await volume.list(names.SEGMENTS) == []

    asyncio.run(scenario())

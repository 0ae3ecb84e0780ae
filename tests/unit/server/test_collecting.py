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
from magnetar.storage.manifest import Manifest, commit_manifest
from tests.unit.server.brokers import CLOCK, TOPIC, running_broker
from tests.unit.server.test_tidying import world

DEAD, CLAIMED = "broker-7.0000000000000007", "broker-8.0000000000000008"


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

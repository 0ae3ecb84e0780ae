"""What rewriting has found out about files, damage too, is kept for as long as a bundle served
here has them listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.storage import names
from magnetar.storage.manifest import commit_manifest
from tests.support.brokers import CLOCK, TOPIC
from tests.support.published_topics import OTHER, World, flip, world


@asynccontextmanager
async def damaged(directory: Path) -> AsyncIterator[tuple[World, OwnedBundle]]:
    """A broker that has met damage in a file of TOPIC's bundle, and names it."""
    async with world(directory) as found:
        await found.publish(TOPIC, 3)
        await found.roll()
        host = await found.host(TOPIC)
        run = host.index.runs[0]
        flip(
            directory / names.log_file(found.broker.incarnation, run.file),
            run.offset + run.bytes - 1,
        )
        await found.round()
        assert bundles_named(found) == [str(host.bundle.name)]
        yield found, host.bundle


def bundles_named(found: World) -> list[str]:
    return [
        damage["bundle"]
        for damage in found.broker.context.damage.listed()
        if damage["what"] == "rewriting"
    ]


async def test_damage_of_a_bundle_that_has_left_is_named_no_more(tmp_path: Path) -> None:
    """It was divided: those that it was divided into are served here, and name what they have in
    the file themselves."""

    async with damaged(tmp_path) as (found, bundle):
        await found.broker.ownership.split(
            bundle.name, ((bundle.name.low + bundle.name.high) // 2,)
        )
        await found.broker.maintenance.round()
        child = await found.broker.ownership.bundle_of(bundle.topics[TOPIC].name)
        assert child != bundle.name
        assert bundles_named(found) == [str(child)]


async def test_nothing_is_remembered_of_files_that_no_bundle_served_here_lists(
    tmp_path: Path,
) -> None:
    """One bundle was divided, and another has its file listed no more."""

    async with world(tmp_path, rewrite_age_s=3600.0) as found:
        for topic in (TOPIC, OTHER):
            await found.publish(topic, 3)
        await found.roll()
        maintenance, ownership = found.broker.maintenance, found.broker.ownership
        divided, other = (await found.host(TOPIC)).bundle, (await found.host(OTHER)).bundle
        await maintenance.round()
        assert remembered(found) == {(str(divided.name), TOPIC), (str(other.name), OTHER)}
        await ownership.split(divided.name, ((divided.name.low + divided.name.high) // 2,))
        await maintenance.round()
        child = await ownership.bundle_of(divided.topics[TOPIC].name)
        assert remembered(found) == {(str(child), TOPIC), (str(other.name), OTHER)}
        await other.topics[OTHER].trim(other.topics[OTHER].core.ledgers.end)
        await maintenance.round()
        assert (await found.manifest(OTHER)).level0 == ()
        await maintenance.round()
        assert remembered(found) == {(str(child), TOPIC)}


def remembered(found: World) -> set[tuple[str, str]]:
    """Of which bundles and topics the manifest compactor knows what files have of them."""
    shares = found.broker.maintenance.manifest_compactor._shares
    return {
        (bundle, topic)
        for bundle, files in shares.items()
        for topics in files.values()
        for topic in topics
    }


async def test_damage_of_a_file_that_is_listed_no_more_is_named_no_more(tmp_path: Path) -> None:
    """Nothing that the bundle has is in it."""

    async with damaged(tmp_path) as (found, bundle):
        context = found.broker.context
        result = await commit_manifest(
            context.store,
            context.volume,
            CLOCK,
            bundle.name,
            lambda manifest: replace(manifest, level0=()),
        )
        bundle.catalog.take(result.manifest)
        await found.broker.maintenance.manifest_compactor.tidy(bundle)
        assert bundles_named(found) == []

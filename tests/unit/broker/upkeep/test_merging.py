"""Small segments are merged, on a real broker: rounds end, and damage stops nothing but the
object it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.upkeep import segment_compaction as rewriting
from magnetar.metadata import keys
from magnetar.storage.manifest import Manifest
from magnetar.storage.segments import level_one
from tests.support.brokers import TOPIC
from tests.support.published_topics import World, flip, world

SMALL_BYTES = 64 << 10
OBJECT_BYTES = 128 << 10


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as small, and how large an object becomes, at 1/128 of what they are."""
    for module in (level_one, rewriting):
        monkeypatch.setattr(module, "SHARED_TOPIC_BYTES_MAX", SMALL_BYTES)
    monkeypatch.setattr(rewriting, "SEGMENT_BYTES_MAX", OBJECT_BYTES)


async def rewritten(found: World, size: int, number: int) -> None:
    """One entry more of about `size` bytes, in a segment of its own."""
    await found.peer.send(b"x" * size, number)
    await found.roll()
    assert (
        await found.broker.maintenance.manifest_compactor.tidy((await found.host(TOPIC)).bundle)
        is not None
    )


def small_objects(manifest: Manifest) -> int:
    return len(level_one.shared_objects(manifest))


@pytest.mark.usefixtures("small_limits")
async def test_small_stretches_between_large_ones_are_merged_once(tmp_path: Path) -> None:
    """Together they are not small, and no two of them are neighbours: they share objects all the
    same, and the next round has nothing to do."""

    async with world(tmp_path) as found:
        for number in range(2 * level_one.SHARED_OBJECTS_MAX):
            await rewritten(found, 20 << 10 if number % 2 else 100 << 10, number)
        host = await found.host(TOPIC)
        before = await found.manifest(TOPIC)
        assert small_objects(before) == level_one.SHARED_OBJECTS_MAX
        entries = await found.read_all(TOPIC)
        assert await found.broker.maintenance.manifest_compactor.tidy(host.bundle) is not None
        merged = await found.manifest(TOPIC)
        assert small_objects(merged) <= 1
        assert [part.first for part in merged.topic(TOPIC).level1] == [
            part.first for part in before.topic(TOPIC).level1
        ]
        assert await found.broker.maintenance.manifest_compactor.tidy(host.bundle) is None
        assert await found.read_all(TOPIC) == entries
        assert len(entries) == 2 * level_one.SHARED_OBJECTS_MAX


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("harm", ["damaged", "missing"])
async def test_a_damaged_small_object_stays_and_the_others_are_merged(
    tmp_path: Path, harm: str
) -> None:
    """It is named with its object and topic, and left out for a while: log files are rewritten
    and other objects merged without it."""

    async with world(tmp_path) as found:
        for number in range(level_one.SHARED_OBJECTS_MAX):
            await rewritten(found, 20 << 10, number)
        context, manifest_compactor = (
            found.broker.context,
            found.broker.maintenance.manifest_compactor,
        )
        bundle = (await found.host(TOPIC)).bundle
        hurt = (await found.manifest(TOPIC)).topic(TOPIC).level1[2]
        if harm == "damaged":
            flip(tmp_path / hurt.object, hurt.length // 2)
        else:
            (tmp_path / hurt.object).unlink()
        assert await manifest_compactor.tidy(bundle) is None, "found out"
        assert [(damage["file"], damage["topic"]) for damage in context.damage.listed()] == [
            (hurt.object, TOPIC)
        ]
        await rewritten(found, 20 << 10, level_one.SHARED_OBJECTS_MAX)
        assert await manifest_compactor.tidy(bundle) is not None
        manifest = await found.manifest(TOPIC)
        assert manifest.level0 == ()
        assert hurt in manifest.topic(TOPIC).level1
        assert small_objects(manifest) <= 2
        assert await manifest_compactor.tidy(bundle) is None
        assert (await context.store.range(keys.INTENTS)).items == ()
        await found.round()
        kept = {*await context.volume.list("segments"), hurt.object}
        assert kept == {segment.object for segment in manifest.topic(TOPIC).level1}, (
            "what was merged goes"
        )

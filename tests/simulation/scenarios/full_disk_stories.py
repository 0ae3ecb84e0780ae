"""Scripted trouble with space: a disk that is full, and stays so until less is kept.

Owns: the stories, each a function of a seed, on the stage of `story`; the bugs that they notice
(`run(bug, seed)`) or that the durable scenario notices on a disk that is full now and then
(`run_durable`). Imports: story, durable. Every story begins with a disk on which no file can be
made but out of the reserve, and on which nothing is published any more. It ends when what was let
go of has made so much room that publishing goes on by itself, with nothing acknowledged missing,
though the disk is as small as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.upkeep.expiry import skip
from magnetar.errors import StorageFull
from magnetar.names import TopicName
from magnetar.storage.log.files import LogFile, LogFiles
from magnetar.storage.log.pending import Block
from magnetar.storage.log.space import Space
from magnetar.storage.log.tail import LogTail
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.volume import ReservingSimVolume
from tests.simulation.scenarios import durable
from tests.simulation.scenarios.planted import planting
from tests.simulation.scenarios.story import BIG_BYTES, PATIENCE_S, TOPIC, Story
from tests.simulation.scenarios.tracer_clients import until_done
from tests.simulation.scenarios.tracer_cluster import BROKERS

HEAVY = "persistent://public/trimmed/heavy"
SUBSCRIPTION = "slow"
HEAVY_MESSAGES = 90
"""Six log files of them, and no more than a little else in these."""
REFUSED_MESSAGES = 40
FULL = Faults.none().but(reserve_bytes=240 << 10)
SHORT_S = 20.0

Hero = Callable[["FullStory"], Coroutine[Any, Any, None]]


class FullStory(Story):
    """With a topic whose messages only one subscription keeps, on a disk that is full."""

    def __enter__(self) -> FullStory:
        super().__enter__()
        return self

    def fill(self) -> None:
        """Publish what can be let go of; then the disk is full, and a producer goes on
        publishing what is to be kept."""
        cluster = self.cluster
        cluster.make_namespaces({"trimmed": {}}, 1)
        cluster.complete(self._publish_heavy(), PATIENCE_S)
        cluster.fill_disk(0)
        self.sending = cluster.script(self._publish(REFUSED_MESSAGES, BIG_BYTES))
        cluster.run_until(lambda: any(self.short(name) for name in BROKERS), PATIENCE_S)
        cluster.run(SHORT_S)
        assert any(self.short(name) for name in BROKERS), (
            "space came back, though nobody has let go of anything"
        )
        assert not self.sending.done(), "it was not refused"
        assert not self.counted("log.stalled"), "the reserve did not last"

    async def _publish_heavy(self) -> None:
        consumer = await until_done(
            self.environment, lambda: self.client.subscribe(HEAVY, SUBSCRIPTION)
        )
        await consumer.close()
        producer = await self.client.create_producer(HEAVY)
        for number in range(HEAVY_MESSAGES):
            await producer.send(b"%d " % number + b"x" * BIG_BYTES)
        await producer.close()

    def short(self, broker: str) -> bool:
        """Whether a broker that is ready publishes nothing for want of space."""
        found = self.cluster.brokers[broker]
        return found.ready and found.context.log.space.short is not None

    def bundle_of(self, topic: str) -> OwnedBundle:
        owned = self.cluster.brokers[self.cluster.owner_of(topic)].ownership.owned
        return next(
            bundle for bundle in owned.values() if bundle.name.contains(TopicName.parse(topic))
        )

    def heavy(self) -> SubscriptionHost:
        return self.bundle_of(HEAVY).topics[HEAVY].subscriptions[SUBSCRIPTION]

    def ends_well(self, *, deduplicated: bool = False) -> dict[str, int]:
        """Publishing goes on, what was refused is stored, and the disk is still as small as it
        was."""
        self.cluster.run_until(self.sending.done, PATIENCE_S)
        assert self.cluster.disk.limit is not None
        # who was refused sends again what may have been stored
        counts = super().ends_well(deduplicated=deduplicated)
        claims = {
            name.removeprefix("claims/")
            for name in self.cluster.disk.names
            if name.startswith("claims/")
        }
        assert claims <= self.cluster.registered(), claims
        return counts


def _freed(seed: int, hero: Hero, *, dies: bool = False) -> dict[str, int]:
    with FullStory(seed, FULL) as story:
        story.fill()
        if dies:
            for name in BROKERS:
                story.cluster.restart(name)
            story.until(lambda: all(story.cluster.brokers[name].ready for name in BROKERS))
            story.until(
                lambda: bool(story.cluster.owner_of(HEAVY) and story.cluster.owner_of(TOPIC))
            )
        story.cluster.complete(hero(story), PATIENCE_S)
        return story.ends_well()


async def _acknowledge(story: FullStory) -> None:
    consumer = await until_done(
        story.environment, lambda: story.client.subscribe(HEAVY, SUBSCRIPTION)
    )
    for _ in range(HEAVY_MESSAGES):
        await consumer.acknowledge(await consumer.receive())
    await consumer.close()


async def _at_owner(story: FullStory, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Done by the broker that serves the topic, as REST has it done; again, if the bundle is not
    served yet."""
    while True:
        try:
            story.heavy()
        except (KeyError, StopIteration):
            await asyncio.sleep(0.1)
            continue
        await asyncio.wait([task := story.within(story.cluster.owner_of(HEAVY), work())])
        task.result()
        return


async def _skip(story: FullStory) -> None:
    await _at_owner(story, lambda: skip(story.heavy(), None))


async def _unsubscribe(story: FullStory) -> None:
    await _at_owner(story, lambda: story.bundle_of(HEAVY).remove_subscription(story.heavy()))


async def _delete(story: FullStory) -> None:
    await _at_owner(story, lambda: story.bundle_of(HEAVY).delete_topic(TopicName.parse(HEAVY)))


def freed_by_acknowledging(seed: int) -> dict[str, int]:
    """A consumer comes, reads everything and acknowledges it: each acknowledgement is confirmed
    on a full disk."""
    return _freed(seed, _acknowledge)


def freed_by_skipping(seed: int) -> dict[str, int]:
    return _freed(seed, _skip)


def freed_by_unsubscribing(seed: int) -> dict[str, int]:
    return _freed(seed, _unsubscribe)


def freed_by_deleting(seed: int) -> dict[str, int]:
    return _freed(seed, _delete)


def killed_while_it_is_full(seed: int) -> dict[str, int]:
    """All brokers die at once. Their next incarnations claim, fence, seal, recover and serve
    with nothing but the reserve, and leave no claim behind."""
    return _freed(seed, _acknowledge, dies=True)


STORIES = {
    story.__name__: story
    for story in (
        freed_by_acknowledging,
        freed_by_skipping,
        freed_by_unsubscribing,
        freed_by_deleting,
        killed_while_it_is_full,
    )
}


def tell(story: str, seed: int) -> dict[str, int]:
    """One story under one seed; raises if it ends badly."""
    return STORIES[story](seed)


# --- planted bugs ---------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def no_short_files(patch: Patch) -> None:
    """A log goes on in whole files only: what frees space waits for space."""
    create = LogFiles.create_whole

    async def whole(files: LogFiles, number: int, _block_bytes: int = 0) -> LogFile:
        return await create(files, number)

    patch.setattr(LogFiles, "create", whole)


def nothing_is_refused(patch: Patch) -> None:
    """Publishing goes on into the reserve."""

    def lenient(_space: Space, _error: StorageFull) -> None:
        return

    patch.setattr(Space, "begin_short", lenient)


def the_reserve_is_never_filled_again(patch: Patch) -> None:
    """It is there once."""

    async def refill(volume: ReservingSimVolume) -> int:
        return volume._disk.reserve_size - volume._disk.reserve

    patch.setattr(ReservingSimVolume, "refill_reserve", refill)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (no_short_files, nothing_is_refused, the_reserve_is_never_filled_again)
}


def a_short_write_is_taken_for_a_whole_one(patch: Patch) -> None:
    """What did not fit is acknowledged as if it had."""
    append = LogTail._append

    async def lax(tail: LogTail, file: LogFile, block: Block) -> int:
        try:
            return await append(tail, file, block)
        except StorageFull:
            return file.end

    patch.setattr(LogTail, "_append", lax)


DURABLE_BUGS: dict[str, Callable[[Patch], None]] = {
    a_short_write_is_taken_for_a_whole_one.__name__: a_short_write_is_taken_for_a_whole_one
}


def run_durable(bug: str, seed: int) -> dict[str, int]:
    """The durable scenario on a disk that is full now and then, on brokers with this bug; raises
    if it is noticed."""
    with planting(DURABLE_BUGS, bug):
        return durable.full(seed)


def run(bug: str, seed: int) -> dict[str, int]:
    """A story on brokers with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return killed_while_it_is_full(seed)

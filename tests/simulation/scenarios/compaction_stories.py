"""Scripted trouble for the compaction of topics: brokers die, sleep and lose the topic at any step
of it, and while retention drops what the view stands for.

Owns: the stories, each a function of a seed. Imports: the stories' cluster and client. Every reader
of the view gets the latest value of each key, whatever happened.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from magnetar.broker.topics.compaction_state import CompactionStatus
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.client import EARLIEST
from magnetar.errors import AlreadyRunning
from magnetar.metadata import keys
from magnetar.metadata.records import BundleState
from magnetar.names import BundleName, TopicName
from tests.simulation.scenarios.story import PATIENCE_S, Story
from tests.simulation.scenarios.tracer_clients import until_done

ROUNDS = 4
STEPS_MAX = 4
PAUSE_MAX_S = 0.01
"""What is waited after a step: long enough for the next one to begin, or to end."""
KEYS = 6
INTENT = "intents/compaction-"


class KeyedTopic:
    """A topic in the story's bundle, whose messages have keys; `latest` is what its readers must
    get."""

    def __init__(self, story: Story, seed: int) -> None:
        bundle = BundleName.parse(story.bundle)
        names = (
            TopicName.parse(f"persistent://public/default/keyed-{number}") for number in range(1000)
        )
        self.story, self.name = story, next(name for name in names if bundle.contains(name))
        self.chance = random.Random(f"{seed}/keys")
        self.latest: dict[str, bytes] = {}
        self.sent = 0

    def publish(self, count: int) -> None:
        """So many messages, each acknowledged before the next; some delete their key."""
        self.story.cluster.complete(self._publish(count), PATIENCE_S)

    async def _publish(self, count: int) -> None:
        story, name = self.story, f"keyed-{self.sent}"
        producer = await until_done(
            story.environment,
            lambda: story.client.create_producer(
                str(self.name), name=name, send_timeout_s=PATIENCE_S
            ),
        )
        for _ in range(count):
            key, value = f"k{self.chance.randrange(KEYS)}", b"%d" % self.sent
            if self.chance.random() < 0.2:
                value = b""
                self.latest.pop(key, None)
            else:
                self.latest[key] = value
            await producer.send(value, key=key)
            self.sent += 1
        await producer.close()

    def check(self) -> None:
        """A new reader of the view gets the latest of each key."""
        found = self.story.cluster.complete(self._read(), PATIENCE_S)
        assert found == self.latest, (found, self.latest)

    async def _read(self) -> dict[str, bytes]:
        story = self.story
        reader = await until_done(
            story.environment,
            lambda: story.client.create_reader(
                str(self.name), start_message_id=EARLIEST, read_compacted=True
            ),
        )
        found: dict[str, bytes] = {}
        last, at = await reader.last_message_id(), (-1, -1)
        while last.entry >= 0 and at < (last.ledger, last.entry):
            message = await reader.receive(timeout_s=10)
            at = message.id.ledger, message.id.entry
            assert message.key is not None
            if message.value:
                found[str(message.key)] = bytes(message.value)
            else:
                found.pop(str(message.key), None)
        await reader.close()
        return found

    @property
    def host(self) -> TopicHost:
        """The topic at its owner."""
        story = self.story
        return (
            story.cluster.brokers[story.owner].ownership.owned[story.bundle].topics[str(self.name)]
        )

    def request(self) -> None:
        """Have the owner compact it, as REST does."""

        async def request() -> None:
            try:
                compactor.request(host)
            except AlreadyRunning:
                return

        host = self.host
        compactor = self.story.cluster.brokers[self.story.owner].maintenance.topic_compactor
        self.story.cluster.complete(_settled(self.story.within(self.story.owner, request())), 5.0)

    def compact(self) -> None:
        """Request it and wait until it has succeeded."""
        self.request()
        host = self.host
        compactor = self.story.cluster.brokers[self.story.owner].maintenance.topic_compactor
        self.story.until(lambda: compactor.status(host).status is not CompactionStatus.RUNNING)
        assert compactor.status(host).status is CompactionStatus.SUCCESS, compactor.status(host)

    def trim(self) -> asyncio.Task[None]:
        """Begin to drop everything that the view stands for, as retention does."""
        host = self.host

        async def trim() -> None:
            view = await host.bundle.compacted_view(host)
            if view is not None:
                await host.trim(host.core.ledgers.ordinal_after(view.horizon), view.first)

        return self.story.within(self.story.owner, trim())


async def _settled(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    task.result()


def _comes_back(story: Story, broker: str, interrupt: str) -> None:
    """The interrupted broker is there again, and the bundle is served."""
    cluster = story.cluster
    cluster.run(2 * cluster.settings.lease_ttl_s if interrupt == "pause" else 0.2)
    getattr(cluster, "resume" if interrupt == "pause" else "restart")(broker)
    story.until(
        lambda: (
            story.record.state is BundleState.OWNED
            and story.record.incarnation in cluster.registered()
        )
    )


def _intents(story: Story) -> list[str]:
    """Intents of compactions: those of the dead are the collector's to end."""
    found = story.cluster.store.execute(lambda core, _now: core.range(keys.INTENTS))
    return [item.key for item in found.items if INTENT in item.key]


def _interrupted(seed: int, interrupt: Callable[[Story, str], None], what: str) -> dict[str, int]:
    """Have the topic compacted and, some steps after the intent, interrupt its owner; again and
    again, another number of steps each time. In between retention drops what the view has."""
    chance = random.Random(f"{seed}/compaction")
    with Story(seed) as story:
        cluster, topic = story.cluster, KeyedTopic(story, seed)
        topic.publish(8)
        record = cluster.loop.record
        target, left = "", -1

        def watching(node: str, kind: str, *details: object) -> None:
            nonlocal target, left
            record(node, kind, *details)
            if node != target:
                return
            if left < 0 and INTENT in " ".join(map(str, details)):
                left = chance.randrange(STEPS_MAX)
            elif left > 0:
                left -= 1
            if left == 0:
                target = ""
                cluster.evidence.counts["interrupted"] += 1
                delay_s = chance.uniform(0, PAUSE_MAX_S)
                cluster.at(cluster.now + delay_s, lambda: interrupt(story, owner))

        cluster.loop.record = watching  # type: ignore[method-assign]
        owner = story.owner
        for round_number in range(ROUNDS):
            interruptions, left = story.counted("interrupted"), -1
            owner = target = story.owner
            topic.request()
            deadline = cluster.now + PATIENCE_S
            while story.counted("interrupted") == interruptions:
                assert cluster.now < deadline, "it never begins"
                cluster.run(0.1)
            _comes_back(story, owner, what)
            topic.check()
            topic.publish(3)
            if round_number % 2:
                topic.compact()
                cluster.complete(_settled(topic.trim()), PATIENCE_S)
                topic.check()
                topic.publish(1)
        cluster.loop.record = record  # type: ignore[method-assign]
        topic.compact()
        topic.check()
        story.until(lambda: not _intents(story))
        return story.ends_well(deduplicated=False)


def it_dies_while_it_compacts(seed: int) -> dict[str, int]:
    """At any step from the intent to the commit and what follows."""
    return _interrupted(seed, lambda story, owner: story.cluster.crash(owner), "crash")


def it_sleeps_while_it_compacts(seed: int) -> dict[str, int]:
    """Beyond its lease: it wakes up with a commit under way, over what its successor has made."""
    return _interrupted(seed, lambda story, owner: story.cluster.pause(owner), "pause")


def it_is_moved_while_it_is_compacted(seed: int) -> dict[str, int]:
    """The compaction stops, or is committed just before: the new owner has the old view or the
    new one, and compacts on."""
    chance = random.Random(f"{seed}/moves")
    with Story(seed) as story:
        topic = KeyedTopic(story, seed)
        topic.publish(12)
        for _ in range(ROUNDS):
            topic.request()
            story.cluster.run(chance.uniform(0.0, 0.05))
            former = story.owner
            destination = story.others(former)[0]
            moving = story.move(destination)
            topic.publish(2)
            story.until(moving.done)
            story.until(lambda: story.record.state is BundleState.OWNED)
            topic.check()
            topic.compact()
            story.cluster.complete(_settled(topic.trim()), PATIENCE_S)
            topic.check()
        return story.ends_well()


def it_dies_while_it_drops_what_the_view_has(seed: int) -> dict[str, int]:
    """The originals are there or not; the view has every key in both cases."""
    chance = random.Random(f"{seed}/drops")
    with Story(seed) as story:
        topic = KeyedTopic(story, seed)
        for _ in range(ROUNDS):
            topic.publish(6)
            topic.compact()
            topic.publish(2)
            former = story.owner
            topic.trim()
            story.cluster.run(chance.uniform(0.0, 0.02))
            story.cluster.crash(former)
            _comes_back(story, former, "crash")
            topic.check()
        return story.ends_well(deduplicated=False)


STORIES: dict[str, Callable[[int], dict[str, int]]] = {
    story.__name__: story
    for story in (
        it_dies_while_it_compacts,
        it_sleeps_while_it_compacts,
        it_is_moved_while_it_is_compacted,
        it_dies_while_it_drops_what_the_view_has,
    )
}


def tell(story: str, seed: int) -> dict[str, int]:
    """One story under one seed; raises if it ends badly."""
    return STORIES[story](seed)

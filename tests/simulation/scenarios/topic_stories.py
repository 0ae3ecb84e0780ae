"""Scripted trouble in the incarnation of topics: deleted, created again and trimmed while brokers
die and bundles move.

Owns: these stories. Imports: the stories' cluster and client. Each plays on a topic beside the
one that `Story.ends_well` checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.broker.topics.topic_host import TopicHost
from magnetar.metadata.records import BundleState
from magnetar.names import BundleName, TopicName
from magnetar.ownership import rules as rules
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import Position
from tests.simulation.scenarios.story import PATIENCE_S, Story
from tests.simulation.scenarios.tracer_clients import payload_of, read_topic, until_done

SLOW_FLUSH = Faults.none().but(flush_s=(0.05, 0.05))
MOMENTS_S = (0.0, 0.02, 0.06, 0.2)
"""How long after an operation has begun its broker dies: before its record is written, on the
way, after."""


class Beside:
    """A topic in the same bundle as the story's own."""

    def __init__(self, story: Story) -> None:
        bundle = BundleName.parse(story.bundle)
        names = (
            TopicName.parse(f"persistent://public/default/beside-{number}")
            for number in range(1000)
        )
        self.story, self.name = story, next(name for name in names if bundle.contains(name))
        self.positions: list[Position] = []

    def publish(self, count: int) -> None:
        """So many messages; their ids are greater than all before."""
        before = list(self.positions)
        self.story.cluster.complete(self._publish(count), PATIENCE_S)
        assert self.positions == sorted(set(self.positions)), (before, self.positions)

    async def _publish(self, count: int) -> None:
        story, name = self.story, f"beside-{len(self.positions)}"
        producer = await until_done(
            story.environment,
            lambda: story.client.create_producer(
                str(self.name), name=name, send_timeout_s=PATIENCE_S
            ),
        )
        for _ in range(count):
            found = await producer.send(payload_of("beside", len(self.positions), 0))
            self.positions.append(Position(found.ledger, found.entry, found.batch_index))
        await producer.close()

    def read(self) -> list[int]:
        """Numbers of the messages that a reader gets, in order."""
        entries = self.story.cluster.complete(
            read_topic(self.story.client, str(self.name)), PATIENCE_S
        )
        assert [entry.position for entry in entries] == [
            self.positions[entry.sequence] for entry in entries
        ]
        return [entry.sequence for entry in entries]

    @property
    def host(self) -> TopicHost:
        """The topic at its owner."""
        story = self.story
        return (
            story.cluster.brokers[story.owner].ownership.owned[story.bundle].topics[str(self.name)]
        )

    def delete(self) -> asyncio.Task[None]:
        """Begin its deletion at its owner."""
        return self.story.within(self.story.owner, self.host.bundle.delete_topic(self.name))

    def trim(self, count: int) -> asyncio.Task[None]:
        """Begin to drop the first so many messages."""
        return self.story.within(
            self.story.owner, self.host.trim(self.host.core.ledgers.first + count)
        )


def _die(story: Story, moment_s: float) -> str:
    """The owner dies a moment from now; another one takes over. Who died."""
    former = story.owner
    story.cluster.run(moment_s)
    story.cluster.crash(former)
    story.cluster.set_faults(Faults.none())
    story.write(
        rules.override(
            story.record,
            story.incarnation(story.others(former)[0]),
            owner_is_dead=True,
            reason="story",
        )
    )
    story.until(lambda: story.owner != former and story.record.state is BundleState.OWNED)
    return former


def deleted_while_its_owner_dies(seed: int) -> dict[str, int]:
    """Afterwards everything is there or nothing; if the deletion was confirmed, nothing. Ids go
    on in any case."""
    with Story(seed) as story:
        topic = Beside(story)
        topic.publish(4)
        story.cluster.set_faults(SLOW_FLUSH)
        deletion = topic.delete()
        _die(story, MOMENTS_S[seed % len(MOMENTS_S)])
        confirmed = deletion.done() and not deletion.cancelled() and deletion.exception() is None
        topic.publish(2)
        found = topic.read()
        assert found == [4, 5] or (not confirmed and found == [0, 1, 2, 3, 4, 5]), (
            confirmed,
            found,
        )
        return story.ends_well()


def created_again_at_once_and_taken_over(seed: int) -> dict[str, int]:
    """Two incarnations of a name in one term, then a death: the log distinguishes them, and so do
    the ids."""
    with Story(seed) as story:
        topic = Beside(story)
        for life in range(3):
            topic.publish(2 + life)
            story.cluster.complete(_settled(topic.delete()), PATIENCE_S)
        topic.publish(3)
        assert topic.read() == [9, 10, 11]
        _die(story, 0.0)
        assert topic.read() == [9, 10, 11]
        topic.publish(1)
        assert topic.read() == [9, 10, 11, 12]
        return story.ends_well()


async def _settled(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    task.result()


def trimmed_while_its_owner_dies(seed: int) -> dict[str, int]:
    """What was dropped stays dropped once that was confirmed, and nothing else is ever missing;
    then the bundle moves on."""
    with Story(seed) as story:
        topic = Beside(story)
        topic.publish(8)
        story.cluster.set_faults(SLOW_FLUSH)
        trimming = topic.trim(5)
        former = _die(story, MOMENTS_S[seed % len(MOMENTS_S)])
        confirmed = trimming.done() and not trimming.cancelled() and trimming.exception() is None
        topic.publish(1)
        found = topic.read()
        assert found == list(range(5, 9)) or (not confirmed and found == list(range(9))), (
            confirmed,
            found,
        )
        new_owner = story.others(story.owner, former)[0]
        story.move(new_owner)
        story.until(lambda: (story.owner, story.record.state) == (new_owner, BundleState.OWNED))
        assert topic.read() == found
        return story.ends_well()


STORIES: dict[str, Callable[[int], dict[str, int]]] = {
    story.__name__: story
    for story in (
        deleted_while_its_owner_dies,
        created_again_at_once_and_taken_over,
        trimmed_while_its_owner_dies,
    )
}


def tell(story: str, seed: int) -> dict[str, int]:
    """One story under one seed; raises if it ends badly."""
    return STORIES[story](seed)

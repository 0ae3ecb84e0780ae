"""Wall clocks of brokers that jump by hours, days and a year, and what no jump may cause.

Owns: the jumps; a topic that is used now and then, and is to be deleted only after it was unused
for `UNUSED_S`; `Witness`, which notes by the world's own time what brokers expire and delete.
Imports: the kernel, the tracer's cluster and clients, the incarnation of topics in the broker.
Invariants: a witness changes nothing that it sees; what it holds against a broker follows from
virtual time alone, which no clock in the world shows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.topics.producers import Publishing
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep import expiry as topic_life
from magnetar.names import TopicName
from tests.simulation.kernel.history import Position
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer_clients import ALLOWED, client_of
from tests.simulation.scenarios.tracer_cluster import BROKERS, Cluster

HOUR_S, DAY_S, YEAR_S = 3_600.0, 86_400.0, 365 * 86_400.0
UNUSED = "persistent://public/unused/topic"
UNUSED_S = 3
UNUSED_POLICIES = {
    "inactive_topic_policies": {"deleteWhileInactive": True, "maxInactiveDurationSeconds": UNUSED_S}
}
PAUSE_S = (0.2, 3.0 * UNUSED_S)
TOLERANCE_S = 0.02
"""What the drift of a monotonic clock makes of the spans in a run."""


def jump(cluster: Cluster, chance: random.Random, name: str) -> None:
    """Set a broker's wall clock wrong, most often for a while only."""
    clock, seconds = (
        cluster.environment(name).clock,
        chance.choice((HOUR_S, DAY_S, YEAR_S)) * chance.choice((-1, 1)),
    )
    clock.jump_wall(seconds)
    cluster.evidence.counts["clock set wrong"] += 1
    if chance.random() < 0.7:
        cluster.at(cluster.now + chance.uniform(0.2, 3.0), clock.jump_wall, -seconds)


async def jump_now_and_then(cluster: Cluster, until_s: float) -> None:
    """One broker after another."""
    chance = random.Random(f"{cluster.seed}/clocks")
    while cluster.now < until_s:
        await asyncio.sleep(chance.uniform(0.2, 2.0))
        jump(cluster, chance, chance.choice(BROKERS))


def jump_all(cluster: Cluster) -> None:
    """Set every broker's clock wrong."""
    chance = random.Random(f"{cluster.seed}/all clocks")
    for name in BROKERS:
        jump(cluster, chance, name)


async def use_now_and_then(environment: Environment) -> None:
    """Publish one message and leave, for a shorter or longer while than it takes to be deleted."""
    client = client_of(environment)
    while True:
        try:
            async with asyncio.timeout(8):
                producer = await client.create_producer(UNUSED)
                await producer.send(b"x")
                await producer.close()
        except ALLOWED:
            pass
        await asyncio.sleep(environment.clock.uniform(*PAUSE_S))


class Witness:
    """What brokers expire of `topic` and when; topics that they delete too early."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.expired: list[tuple[Position, float]] = []
        self.hasty: list[str] = []
        self.deleted = 0
        self._used: dict[TopicHost, float] = {}

    def observe(self, cluster: Cluster) -> None:
        """From now on."""
        pass_over, in_use, delete, leave = (
            topic_life.pass_over,
            topic_life._in_use,
            OwnedBundle.delete_topic,
            Publishing.detach,
        )

        def passed_over(host: SubscriptionHost, ordinal: int) -> int:
            if str(host.topic.name) == self.topic:
                ledgers, cursor = host.topic.core.ledgers, host.core.cursor
                for low, high in cursor.unacknowledged(cursor.mark_delete, ordinal):
                    for expired in range(low, high):
                        self.expired.append((Position(*ledgers.position(expired)), cluster.now))
            return pass_over(host, ordinal)

        def looked_at(topic: TopicHost, caught_up: bool) -> bool:
            used = in_use(topic, caught_up)
            if used or topic not in self._used:
                self._used[topic] = cluster.now
            return used

        def gone(publishing: Publishing, session: ProducerSession) -> None:
            self._used[publishing._topic] = cluster.now
            leave(publishing, session)

        async def deleted(bundle: OwnedBundle, name: TopicName) -> None:
            unused_s = cluster.now - self._used[bundle.topics[str(name)]]
            self.deleted += 1
            if unused_s < UNUSED_S - TOLERANCE_S:
                self.hasty.append(f"{name} was deleted {unused_s:.2f} s after it was in use")
            await delete(bundle, name)

        cluster.patch.setattr(topic_life, "pass_over", passed_over)
        cluster.patch.setattr(topic_life, "_in_use", looked_at)
        cluster.patch.setattr(OwnedBundle, "delete_topic", deleted)
        cluster.patch.setattr(Publishing, "detach", gone)

    def expired_early(self, published_s: dict[Position, float], ttl_s: float) -> Iterator[str]:
        """What was expired before it was old enough; `published_s` has virtual times."""
        for position, when in self.expired:
            if position in published_s and when - published_s[position] < ttl_s - TOLERANCE_S:
                yield (
                    f"{tuple(position)} of {self.topic} was expired at the age of "
                    f"{when - published_s[position]:.2f} s"
                )


def left(cluster: Cluster, topic: str) -> list[str]:
    """Brokers that serve a topic of this name."""
    served = {name: cluster.brokers[name].ownership.owned.values() for name in BROKERS}
    return [
        name for name, bundles in served.items() if any(topic in owned.topics for owned in bundles)
    ]

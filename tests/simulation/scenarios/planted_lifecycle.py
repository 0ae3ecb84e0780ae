"""Brokers that break one promise of the life cycle scenario.

Owns: one small patch per promise (termination, time to live, wall clocks, quotas, chunks, the end
of a topic), and `run(bug, seed)`, the life cycle scenario on a broker patched so (`none`:
unpatched, the control). Imports: the life cycle scenario, the patched parts of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from magnetar.broker.bundles.recovery import bundle_recovery as recovery
from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.topics.admission import Admission
from magnetar.broker.topics.producers import Publishing
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep import expiry as topic_life
from magnetar.topics.dispatch.base import ChunkTrait
from magnetar.topics.dispatch.chunks import ChunkAssignments
from magnetar.topics.ledgers import TERMINATED
from magnetar.topics.quota import WITHIN, Verdict
from magnetar.topics.retention import Ages
from tests.simulation.scenarios import lifecycle
from tests.simulation.scenarios.planted import planting

Patch = pytest.MonkeyPatch


def an_end_is_only_remembered(patch: Patch) -> None:
    """That a topic was terminated is not written: the next owner does not know."""
    append = TopicHost.append_update

    def forgetful(
        topic: TopicHost, changes: Mapping[str, str], on_durable: Callable[[], None]
    ) -> None:
        if TERMINATED not in changes:
            append(topic, changes, on_durable)

    patch.setattr(TopicHost, "append_update", forgetful)


def a_topic_goes_on_behind_its_end(patch: Patch) -> None:
    """Producers that are there when a topic is terminated are not refused."""
    patch.setattr(Admission, "_terminated", False)


def the_end_is_not_reported(patch: Patch) -> None:
    """Consumers wait for more when there is no more."""

    def silent(_self: SubscriptionHost) -> None:
        return

    patch.setattr(SubscriptionHost, "end_of_topic", silent)


def the_young_expire(patch: Patch) -> None:
    """Messages live four seconds less than they may."""
    expire = topic_life.expire

    async def hasty(host: SubscriptionHost, age_s: int) -> int:
        return await expire(host, age_s - 4)

    patch.setattr(topic_life, "expire", hasty)


def nothing_expires(patch: Patch) -> None:
    """The time to live is not looked at."""

    async def idle(_host: SubscriptionHost, _age_s: int) -> int:
        return 0

    patch.setattr(topic_life, "expire", idle)


def held_permanently(patch: Patch) -> None:
    """Producers that a quota holds are not let go when the backlog is gone."""
    compare = Publishing.compare_backlog

    def strict(publishing: Publishing) -> Verdict:
        return compare(publishing) if publishing.block is None else WITHIN

    patch.setattr(Publishing, "compare_backlog", strict)


def ages_go_by_the_wall_clock(patch: Patch) -> None:
    """A message is as old as the wall clock has gone on since it came."""
    patch.setattr(topic_life, "elapsed_ms", lambda clock: clock.wall_ms())
    patch.setattr(recovery, "elapsed_ms", lambda clock: clock.wall_ms())


def ages_are_taken_as_they_are(patch: Patch) -> None:
    """A new owner reads the marks of age of the former one as times of its own clock."""
    patch.setattr(Ages, "shift", lambda _ages, _by_ms: None)


def unused_by_the_wall_clock(patch: Patch) -> None:
    """A topic is unused for as long as the wall clock has gone on since it was used."""
    delete = topic_life.delete_unused

    async def hasty(topic: TopicHost, _now_ms: int) -> None:
        await delete(topic, topic.context.clock.wall_ms())

    patch.setattr(topic_life, "delete_unused", hasty)


def only_looks_see_use(patch: Patch) -> None:
    """A producer that comes and leaves between two looks leaves an unused topic behind, which
    was unused before."""
    detach = Publishing.detach

    def unseen(publishing: Publishing, session: ProducerSession) -> None:
        since_ms = publishing._topic.unused_since_ms
        detach(publishing, session)
        publishing._topic.unused_since_ms = since_ms

    patch.setattr(Publishing, "detach", unseen)


def chunks_go_to_any_consumer(patch: Patch) -> None:
    """The chunks of a message are shared out like messages."""

    def anybody(_self: ChunkAssignments, _chunk: ChunkTrait) -> None:
        return

    patch.setattr(ChunkAssignments, "consumer_of", anybody)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        an_end_is_only_remembered,
        a_topic_goes_on_behind_its_end,
        the_end_is_not_reported,
        the_young_expire,
        nothing_expires,
        held_permanently,
        ages_go_by_the_wall_clock,
        ages_are_taken_as_they_are,
        unused_by_the_wall_clock,
        only_looks_see_use,
        chunks_go_to_any_consumer,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """The life cycle scenario on brokers with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return lifecycle.counted(seed)

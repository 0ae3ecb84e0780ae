"""Periodic work on topics.

Owns: the round over all topics served here: their age, time to live, retention, backlog quotas,
deletion of unused topics and subscriptions; and the same on demand. Imports: topics, policies.
Invariants: ages are time that the owners of a topic saw pass (`clock.elapsed_ms`), so a wall clock
that jumps expires, drops and deletes nothing; nothing younger than its time to live is expired;
nothing is dropped that a durable subscription, the retention or a compacted view needs; a topic
that is being unloaded is skipped; one topic's failure does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.ports import ServedTopic
from magnetar.broker.topics.compaction_state import CompactionStatus
from magnetar.broker.topics.publish_times import first_published_at, publish_ms_of
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.clock import elapsed_ms
from magnetar.errors import MagnetarError, ServiceNotReady, StoreError
from magnetar.hosting.settings import BrokerSettings
from magnetar.policy_shapes import CAUGHT_UP
from magnetar.topics.retention import MARK_INTERVAL_MS, trim_point

log = structlog.get_logger(__name__)

TOPICS_PER_TURN = 200
"""Topics per turn of the loop."""

Work = Callable[[TopicHost, int], Awaitable[None]]


# --- one subscription -----------------------------------------------------------------------------


def pass_over(host: SubscriptionHost, ordinal: int) -> int:
    """Acknowledge everything below `ordinal` in the broker's name; how many entries that were."""
    cursor = host.core.cursor
    before = cursor.backlog
    if ordinal > cursor.mark_delete:
        host.acknowledge_by_broker(((cursor.mark_delete, ordinal),))
    return before - cursor.backlog


async def write(host: SubscriptionHost) -> None:
    """Make the cursor durable. Raises StorageError."""
    if host.core.durable:
        host.topic.bundle.write_cursor(host, lambda: None)
        await host.topic.context.log.barrier()


async def expire(host: SubscriptionHost, age_s: int) -> int:
    """Acknowledge what is older than `age_s`; how many entries that were. Raises StorageError."""
    topic = host.topic
    now_ms = elapsed_ms(topic.context.clock)
    topic.core.age(now_ms)
    low = await _older_than(topic, now_ms - age_s * 1000, host.core.cursor.mark_delete)
    return _expire_below(host, low)


def _expire_below(host: SubscriptionHost, ordinal: int) -> int:
    """As `pass_over`, and count them as expired."""
    if expired := pass_over(host, ordinal):
        host.traffic.expired(expired)
    return expired


async def _older_than(topic: ServedTopic, cutoff_ms: int, low: int) -> int:
    """An ordinal, `low` at least, below which everything was appended at `cutoff_ms` or before.
    Raises StorageError.

    Marks of age decide; between two of them the clients' publish times, counted from the last entry
    or from the first, whichever makes an entry younger. So no wall clock need be right. Where
    publish times rise by more than the time between the marks they are ignored.
    """
    low, around = max(low, topic.core.ages.older_than(cutoff_ms)), topic.core.ages.around(cutoff_ms)
    if around is None or around[1].end <= low:
        return low
    before, after = around
    last_ms = await publish_ms_of(topic, after.end - 1)
    first_ms = await publish_ms_of(topic, max(before.end, topic.core.ledgers.first))
    if (
        last_ms is None
        or first_ms is None
        or last_ms - first_ms > after.elapsed_ms - before.elapsed_ms + MARK_INTERVAL_MS
    ):
        return low
    by_last_ms, by_first_ms = (
        last_ms - (after.elapsed_ms - cutoff_ms),
        first_ms + (cutoff_ms - before.elapsed_ms),
    )
    return await first_published_at(topic, min(by_last_ms, by_first_ms), low, after.end)


async def expire_to(host: SubscriptionHost, position: tuple[int, int]) -> None:
    """Acknowledge everything up to and including `position`, durably. Raises StorageError."""
    _expire_below(host, host.topic.core.ledgers.ordinal_after(position))
    await write(host)


async def skip(host: SubscriptionHost, count: int | None) -> None:
    """Acknowledge the next `count` entries that are not acknowledged, or all (None), durably.
    Raises StorageError.

    Entries that transactions hold are neither touched nor counted.
    """
    cursor = host.core.cursor
    end, left = cursor.end, count
    if left is not None:
        end = cursor.mark_delete
        for low, high in (host.core.deferred or cursor).unacknowledged(
            cursor.mark_delete, cursor.end
        ):
            taken = min(left, high - low)
            end, left = low + taken, left - taken
            if not left:
                break
    pass_over(host, end)
    await write(host)


# --- one topic ------------------------------------------------------------------------------------


async def expire_due(topic: TopicHost, _now_ms: int) -> None:
    """Acknowledge what is older than the time to live, for all subscriptions. Raises
    StorageError."""
    ttl_s = topic.policies.message_ttl_s
    if ttl_s:
        for host in list(topic.subscriptions.values()):
            if host.core.durable and host.core.backlog:
                await expire(host, ttl_s)


async def drop_unneeded(topic: TopicHost, now_ms: int, *, grace_ms: int) -> None:
    """Drop what neither a subscription nor the retention needs. Raises StorageError, StoreError,
    ServiceNotReady."""
    # A topic with a compacted view keeps what that does not stand for yet. During the look for one
    # a SEEK may go back, or a subscription be created: what is needed is computed again.
    ledgers = topic.core.ledgers
    if _droppable(topic, now_ms, grace_ms) <= ledgers.first:
        return
    view = await topic.bundle.compacted_view(topic)
    droppable = _droppable(topic, now_ms, grace_ms)
    if view is None:
        if not _to_be_compacted(topic):
            await topic.trim(droppable)
    else:
        await topic.trim(min(droppable, ledgers.ordinal_after(view.horizon)), view.first)


def _to_be_compacted(topic: TopicHost) -> bool:
    """Whether what the topic has is to go into its first compacted view. As in Pulsar, a threshold
    says so from the beginning, a request from then on."""
    state = topic.compaction
    running = state is not None and state.status is CompactionStatus.RUNNING
    return running or topic.policies.compaction_threshold > 0


def _droppable(topic: TopicHost, now_ms: int, grace_ms: int) -> int:
    """The ordinal below which neither a subscription nor the retention needs anything now."""
    policies, core = topic.policies, topic.core
    marks = [found.cursor.mark_delete for found in core.subscriptions.values() if found.durable]
    return trim_point(
        core.ages,
        needed_from=min(marks, default=core.ledgers.end),
        end=core.ledgers.end,
        now_ms=now_ms,
        retention_minutes=policies.retention_minutes,
        retention_mb=policies.retention_mb,
        grace_ms=grace_ms,
    )


async def trim_now(topic: TopicHost) -> None:
    """`drop_unneeded` by request, without grace. Raises StorageError, StoreError,
    ServiceNotReady."""
    now_ms = elapsed_ms(topic.context.clock)
    topic.core.age(now_ms)
    await drop_unneeded(topic, now_ms, grace_ms=0)


async def enforce_quota(topic: TopicHost, _now_ms: int) -> None:
    """Hold producers, or move slow subscriptions on, as the backlog quotas say. Raises
    StorageError."""
    verdict = topic.publishing.compare_backlog()
    if verdict.evict_to_bytes < 0 and verdict.evict_older_s < 0:
        return
    for host in [host for host in topic.subscriptions.values() if host.core.durable]:
        if verdict.evict_to_bytes >= 0:
            pass_over(
                host,
                topic.core.ages.ordinal_leaving(verdict.evict_to_bytes, topic.core.ledgers.end),
            )
        if verdict.evict_older_s >= 0:
            await expire(host, verdict.evict_older_s)


async def delete_unused(topic: TopicHost, now_ms: int) -> None:
    """Delete a topic that has been without users, as its policies count them, for long enough.
    Raises StorageError, ServiceNotReady."""
    policy = topic.policies.inactive_topic
    if not policy.enabled or _in_use(topic, policy.mode == CAUGHT_UP):
        topic.unused_since_ms = None
        return
    if topic.unused_since_ms is None:
        topic.unused_since_ms = now_ms
    unused_ms = now_ms - topic.unused_since_ms
    retention = topic.policies.retention_minutes
    if unused_ms < policy.duration_s * 1000 or retention < 0 or unused_ms < retention * 60_000:
        return
    # The topic may be used again during this look for a compacted view.
    if await topic.bundle.compacted_view(topic) is None and topic.unused_since_ms is not None:
        if _in_use(topic, policy.mode == CAUGHT_UP):
            topic.unused_since_ms = None
            return
        log.info("topic.inactive", topic=str(topic.name), seconds=unused_ms // 1000)
        await topic.bundle.delete_topic(topic.name)


async def expire_subscriptions(topic: TopicHost, now_ms: int) -> None:
    """Delete durable subscriptions that have had no consumer for as long as the policy says.
    Raises StorageError."""
    minutes = topic.policies.subscription_expiration_minutes
    for host in list(topic.subscriptions.values()):
        if not minutes or host.core.connected or not host.core.durable:
            host.unused_since_ms = None
        elif host.unused_since_ms is None:
            host.unused_since_ms = now_ms
        elif now_ms - host.unused_since_ms >= minutes * 60_000:
            log.info(
                "subscription.expired",
                topic=str(topic.name),
                subscription=host.core.name,
                minutes=minutes,
            )
            await topic.bundle.remove_subscription(host)


def _in_use(topic: TopicHost, caught_up: bool) -> bool:
    if len(topic.core.producers) or topic.core.unconfirmed:
        return True
    if topic.transactions is not None and topic.transactions.has_open:
        return True  # a request to commit must find the topic
    if not caught_up:
        return bool(topic.subscriptions)
    return any(host.core.connected or host.core.backlog for host in topic.subscriptions.values())


# --- all topics -----------------------------------------------------------------------------------


class TopicExpiry:
    """Works on the topics served here, round after round."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership = context, ownership

        async def retain(topic: TopicHost, now_ms: int) -> None:
            grace_ms = int(context.settings.trim_grace_s * 1000)
            await drop_unneeded(topic, now_ms, grace_ms=grace_ms)

        self._work: tuple[tuple[Callable[[BrokerSettings], float], Work], ...] = (
            (attrgetter("expiry_check_s"), expire_due),
            (attrgetter("backlog_quota_check_s"), enforce_quota),
            (attrgetter("retention_check_s"), retain),
            (attrgetter("inactive_check_s"), expire_subscriptions),
            (attrgetter("inactive_check_s"), delete_unused),
        )
        self._done = [context.clock.monotonic()] * len(self._work)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._context.settings.topic_check_s)
            await self.look()

    async def look(self) -> None:
        """Note the age of new entries, and do what is due."""
        now = self._context.clock.monotonic()
        due = []
        for index, (interval, work) in enumerate(self._work):
            if now >= self._done[index] + interval(self._context.settings):
                self._done[index] = now
                due.append(work)
        for owned in self._ownership.owned.values():
            owned.keep_time()
        for number, topic in enumerate(self._topics()):
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            with self._context.metrics.surprises.contained("life of topics", topic=str(topic.name)):
                if topic.core.has_grown:
                    topic.core.age(elapsed_ms(self._context.clock))
            for work in due:
                with self._context.metrics.surprises.contained(
                    "life of topics", topic=str(topic.name), part=work.__name__
                ):
                    await self._do(work, topic, elapsed_ms(self._context.clock))

    def _topics(self) -> Iterator[TopicHost]:
        for owned in list(self._ownership.owned.values()):
            for topic in list(owned.topics.values()):
                if owned.serving and not topic.core.frozen:
                    yield topic

    async def _do(self, work: Work, topic: TopicHost, now_ms: int) -> None:
        try:
            await work(topic, now_ms)
        except (ServiceNotReady, StoreError):
            return  # it is leaving, or the store is unavailable: a later round does it
        except (MagnetarError, FileNotFoundError) as error:
            log.error(
                "topic.work_failed", topic=str(topic.name), work=work.__name__, error=str(error)
            )

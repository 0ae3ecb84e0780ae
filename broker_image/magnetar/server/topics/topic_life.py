"""What becomes due in the life of topics.

Owns: the periodic looks at all topics served here: their age, time to live, retention, backlog quotas, deletion of topics and subscriptions that
nobody uses; and the same on demand. Imports: topics, policies, server siblings.
Source: facts on protocol semantics 2.11.
Invariants: nothing younger than its time to live is expired; nothing is dropped that a durable subscription, the retention or a compacted view
needs; a topic that is leaving is left alone; one topic's failure does not keep the others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import structlog

from magnetar.errors import MagnetarError, ServiceNotReady, StorageError, StoreError
from magnetar.policies import CAUGHT_UP, REFUSE
from magnetar.server.bundles.ownership import Ownership
from magnetar.server.commands.seeking import first_published_at
from magnetar.server.context import BrokerContext
from magnetar.server.topics.publishing import PublishBlock
from magnetar.server.topics.subscription_host import SubscriptionHost
from magnetar.server.topics.topic_host import TopicHost
from magnetar.topics.backlog_quota import judge
from magnetar.topics.retention import trim_point

log = structlog.get_logger(__name__)

TOPICS_PER_TURN = 200
"""Topics looked at before others of the loop get their turn."""

Work = Callable[[TopicHost, int], Awaitable[None]]


# --- one subscription -------------------------------------------------------------------------------------------------------------


def pass_over(host: SubscriptionHost, ordinal: int) -> int:
    """Acknowledge everything below `ordinal` in the broker's name; how many entries that were. The log has it within a moment."""
    cursor = host.core.cursor
    before = cursor.backlog
    if ordinal > cursor.mark_delete:
        host.acknowledge_by_broker(((cursor.mark_delete, ordinal),))
    return before - cursor.backlog


async def write(host: SubscriptionHost) -> None:
    """Have the cursor durable as it is now. Raises StorageError."""
    if host.core.durable:
        host.topic.bundle.write_cursor(host, lambda: None)
        await host.topic.context.log.barrier()


async def expire(host: SubscriptionHost, cutoff_ms: int) -> int:
    """Acknowledge what is from before `cutoff_ms`; how many entries that were. Raises StorageError."""
    topic = host.topic
    mark = host.core.cursor.mark_delete
    ages = topic.core.ages
    # What was appended before or after decides by itself; only between two marks of age the publish times are read.
    low = max(mark, ages.older_than(cutoff_ms))
    high = max(low, ages.younger_from(cutoff_ms, topic.core.ledgers.end))
    expired = pass_over(host, await first_published_at(topic, cutoff_ms, low, high))
    host.messages_expired += expired
    return expired


async def expire_to(host: SubscriptionHost, position: tuple[int, int]) -> None:
    """Acknowledge everything up to and including `position`, durably. Raises StorageError."""
    host.messages_expired += pass_over(host, host.topic.core.ledgers.ordinal_after(position))
    await write(host)


async def skip(host: SubscriptionHost, count: int | None) -> None:
    """Acknowledge the next `count` entries that are not acknowledged, or all (None), durably. Raises StorageError.

    What transactions hold is not touched, and not counted.
    """
    cursor = host.core.cursor
    end, left = cursor.end, count
    if left is not None:
        end = cursor.mark_delete
        for low, high in (host.core.withheld or cursor).unacknowledged(cursor.mark_delete, cursor.end):
            taken = min(left, high - low)
            end, left = low + taken, left - taken
            if not left:
                break
    pass_over(host, end)
    await write(host)


# --- one topic --------------------------------------------------------------------------------------------------------------------


async def expire_due(topic: TopicHost, now_ms: int) -> None:
    """Acknowledge what is older than the time to live, for all subscriptions. Raises StorageError."""
    ttl_s = topic.policies.message_ttl_s
    if ttl_s:
        for host in list(topic.subscriptions.values()):
            if host.core.durable and host.core.backlog:
                await expire(host, now_ms - ttl_s * 1000)


async def drop_unneeded(topic: TopicHost, now_ms: int, *, grace_ms: int) -> None:
    """Drop what neither a subscription nor the retention needs. Raises StorageError, StoreError, ServiceNotReady."""
    # A compacted view is read by the ordinals of its entries: those stay. To look for one takes a while, in which a SEEK may go back and a
    # subscription come: what is needed is asked again.
    if _droppable(topic, now_ms, grace_ms) > topic.core.ledgers.first and not await topic.bundle.is_compacted(topic):
        await topic.trim(_droppable(topic, now_ms, grace_ms))


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
    """`drop_unneeded` by request: what retention lets go goes at once. Raises StorageError, StoreError, ServiceNotReady."""
    now_ms = topic.context.clock.wall_ms()
    topic.core.age(now_ms)
    await drop_unneeded(topic, now_ms, grace_ms=0)


async def enforce_quota(topic: TopicHost, now_ms: int) -> None:
    """Keep producers away, or move slow subscriptions on, as the backlog quotas say. Raises StorageError."""
    quotas, core = topic.policies.backlog_quotas, topic.core
    if not quotas and topic.publish_block is None:
        return
    hosts = [host for host in topic.subscriptions.values() if host.core.durable]
    first, end = min((host.core.cursor.mark_delete for host in hosts), default=core.ledgers.end), core.ledgers.end
    age_s = (now_ms - core.ages.append_ms_of(first, now_ms)) / 1000 if first < end else 0.0
    verdict = judge(quotas, core.ages.bytes_from(first, end), age_s)
    block = None
    if verdict.block:
        block = PublishBlock.EXCEPTION if verdict.block == REFUSE else PublishBlock.HOLD
    if block is not topic.publish_block:
        log.info("topic.backlog_quota", topic=str(topic.name), block=verdict.block or "lifted")
        topic.publish_block = block
    for host in hosts:
        if verdict.evict_to_bytes >= 0:
            pass_over(host, core.ages.ordinal_leaving(verdict.evict_to_bytes, end))
        if verdict.evict_older_s >= 0:
            await expire(host, now_ms - verdict.evict_older_s * 1000)


async def delete_unused(topic: TopicHost, now_ms: int) -> None:
    """Delete a topic that has been without users, as its policies count them, for long enough. Raises StorageError, ServiceNotReady."""
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
    if not await topic.bundle.is_compacted(topic) and not _in_use(topic, policy.mode == CAUGHT_UP):
        log.info("topic.inactive", topic=str(topic.name), seconds=unused_ms // 1000)
        await topic.bundle.delete_topic(topic.name)


async def expire_subscriptions(topic: TopicHost, now_ms: int) -> None:
    """Delete durable subscriptions that have had no consumer for as long as the policy says. Raises StorageError."""
    minutes = topic.policies.subscription_expiration_minutes
    for host in list(topic.subscriptions.values()):
        if not minutes or host.core.connected or not host.core.durable:
            host.unused_since_ms = None
        elif host.unused_since_ms is None:
            host.unused_since_ms = now_ms
        elif now_ms - host.unused_since_ms >= minutes * 60_000:
            log.info("subscription.expired", topic=str(topic.name), subscription=host.core.name, minutes=minutes)
            await topic.bundle.remove_subscription(host)


def _in_use(topic: TopicHost, caught_up: bool) -> bool:
    if len(topic.core.producers) or topic.core.unconfirmed:
        return True
    if topic.transactions is not None and topic.transactions.has_open:
        return True  # who is asked to commit must not say that there is nothing
    if not caught_up:
        return bool(topic.subscriptions)
    return any(host.core.connected or host.core.backlog for host in topic.subscriptions.values())


# --- all topics -------------------------------------------------------------------------------------------------------------------


class TopicLife:
    """Looks at the topics served here, again and again."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership = context, ownership
        settings = context.settings
        grace_ms = int(settings.trim_grace_s * 1000)

        async def retain(topic: TopicHost, now_ms: int) -> None:
            await drop_unneeded(topic, now_ms, grace_ms=grace_ms)

        self._work: tuple[tuple[float, Work], ...] = (
            (settings.expiry_check_s, expire_due),
            (settings.backlog_quota_check_s, enforce_quota),
            (settings.retention_check_s, retain),
            (settings.inactive_check_s, expire_subscriptions),
            (settings.inactive_check_s, delete_unused),
        )
        now = context.clock.monotonic()
        self._due = [now + interval for interval, _ in self._work]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._context.settings.topic_check_s)
            await self.look()

    async def look(self) -> None:
        """Note the age of what has come, and do what has become due."""
        now = self._context.clock.monotonic()
        due = []
        for index, (interval, work) in enumerate(self._work):
            if now >= self._due[index]:
                self._due[index] = now + interval
                due.append(work)
        for number, topic in enumerate(self._topics()):
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            if topic.core.has_grown:
                topic.core.age(self._context.clock.wall_ms())
            for work in due:
                await self._do(work, topic, self._context.clock.wall_ms())

    def _topics(self) -> Iterator[TopicHost]:
        for owned in list(self._ownership.owned.values()):
            for topic in list(owned.topics.values()):
                if owned.serving and not topic.core.frozen:
                    yield topic

    async def _do(self, work: Work, topic: TopicHost, now_ms: int) -> None:
        try:
            await work(topic, now_ms)
        except (ServiceNotReady, StoreError):
            return  # it is leaving, or the store is away: whoever has it next looks at it again
        except (StorageError, MagnetarError, FileNotFoundError) as error:
            log.error("topic.work_failed", topic=str(topic.name), work=work.__name__, error=str(error))

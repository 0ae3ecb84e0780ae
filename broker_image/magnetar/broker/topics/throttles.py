"""Rates of a topic in service.

Owns: `TopicThrottles`, which holds publishing connections, pauses deliveries and refuses
subscribing as the rates of a topic and of its namespace's resource group say; `ResourceGroups`, the
rates of groups that all their topics at this broker share. Imports: ports, policies, views.
Invariants: a topic without a rate has no throttles, and pays one look at an attribute per run of
SENDs and per read; over a long time no rate is exceeded by more than what one read of a connection
brings every `HOLD_S_MAX`; connections are read again at least that often, so that their PINGs are
answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from magnetar.broker.connections.intake import RATE
from magnetar.broker.ports import AttachedProducer, SendRun, ServedTopic
from magnetar.errors import NotAllowed
from magnetar.metadata.records import RESOURCE_GROUPS
from magnetar.policies import Policies, Rate
from magnetar.topics.rates import UNLIMITED, TokenBucket

if TYPE_CHECKING:
    from magnetar.broker.ports import GroupRates as SharedRates
    from magnetar.broker.ports import ServedSubscription
    from magnetar.clock import Clock
    from magnetar.hosting.views import ClusterViews
    from magnetar.topics.dispatch.base import Delivery

HOLD_S_MAX = 10.0
"""Less than clients wait for an answer to their PING."""
SUBSCRIBERS_MAX = 1_000
"""Consumers of one topic whose attempts are counted; beyond it the oldest are forgotten."""


class GroupRates(NamedTuple):
    """What the topics of one resource group share at this broker."""

    publish: TokenBucket
    dispatch: TokenBucket


class ResourceGroups:
    """Groups by name, as of the views. Every live broker has an equal share of a group."""

    def __init__(self, views: ClusterViews, clock: Clock) -> None:
        self._views, self._clock = views, clock
        self._known: dict[str, tuple[Any, int, GroupRates]] = {}

    def rates(self, name: str) -> GroupRates | None:
        """None for a group that is not there."""
        viewed = self._views.documents.get(RESOURCE_GROUPS)
        limits = viewed.record.documents.get(name) if viewed is not None else None
        if limits is None:
            return None
        brokers, known = max(1, len(self._views.incarnations.items)), self._known.get(name)
        if known is None or known[:2] != (limits, brokers):
            now = self._clock.monotonic()
            publish, dispatch = (
                TokenBucket(_share(limits, way, brokers), now) for way in ("publish", "dispatch")
            )
            rates = GroupRates(publish, dispatch)
            known = self._known[name] = (limits, brokers, rates)
        return known[2]


def _share(limits: Mapping[str, int], way: str, brokers: int) -> Rate:
    """One broker's part of a group's limits, rounded up."""
    messages, size = (
        -(-max(0, limits.get(f"{way}RateIn{unit}", -1)) // brokers) for unit in ("Msgs", "Bytes")
    )
    return Rate(messages, size)


def throttles_of(topic: ServedTopic, before: TopicThrottles | None) -> TopicThrottles | None:
    """The throttles that a topic's policies ask for, None for most; those from before if they are
    the same."""
    policies = topic.policies
    group = (
        topic.bundle.policies.group(policies.resource_group) if policies.resource_group else None
    )
    rates = (
        policies.publish_rate,
        policies.dispatch_rate,
        policies.subscription_dispatch_rate,
        policies.subscribe_rate,
    )
    if group is None and not any(rate.limits for rate in rates):
        return None
    if before is not None and before.made_of == (rates, group):
        return before
    return TopicThrottles(topic, policies, group, (rates, group))


class TopicThrottles:
    """Of one topic. Counters say how often each limit made something wait."""

    def __init__(
        self, topic: ServedTopic, policies: Policies, group: SharedRates | None, made_of: object
    ) -> None:
        self.made_of = made_of
        self.publish_waits = self.topic_waits = 0
        self.subscription_waits: dict[str, int] = {}
        self._clock, self._name = topic.context.clock, topic.name
        now = self._clock.monotonic()
        self._publish = [TokenBucket(policies.publish_rate, now)]
        self._dispatch = [TokenBucket(policies.dispatch_rate, now)]
        if group is not None:
            self._publish.append(group.publish)
            self._dispatch.append(group.dispatch)
        self._each = policies.subscription_dispatch_rate
        self._of_subscription: dict[str, TokenBucket] = {}
        self._subscribing = policies.subscribe_rate
        self._subscribers: dict[tuple[str, str, int], TokenBucket] = {}
        self._waiting: dict[object, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}

    # --- publishing -------------------------------------------------------------------------------

    def published(self, session: AttachedProducer, run: SendRun) -> None:
        """A run of SENDs was taken: its connection is not read for as long as that was too much."""
        messages, size, now = sum(run.counts), sum(map(len, run.entries)), self._clock.monotonic()
        for bucket in self._publish:
            bucket.take(messages, size)
        for bucket in (*self._dispatch[:1], *self._of_subscription.values()):
            if bucket.rate.relative:
                bucket.take(-messages, -size)
        wait_s = max(bucket.wait_s(now) for bucket in self._publish)
        if wait_s > 0:
            self.publish_waits += 1
            connection = session.connection
            connection.hold_reading(RATE)
            self._wake(connection, wait_s, partial(connection.resume_reading, RATE))

    def _wake(self, held: object, wait_s: float, then: Callable[[], None]) -> None:
        """Read a connection again, or deliver to a subscription, after a while."""
        waiting = self._waiting.pop(held, None)
        if waiting is not None:
            waiting[0].cancel()
        wait_s = min(wait_s, HOLD_S_MAX)
        timer = asyncio.get_running_loop().call_later(wait_s, self._go_on, held)
        self._waiting[held] = timer, then

    def _go_on(self, held: object) -> None:
        _timer, then = self._waiting.pop(held)
        then()

    # --- delivery ---------------------------------------------------------------------------------

    def _bucket(self, name: str) -> TokenBucket | None:
        """Of one subscription, None without a rate."""
        if not self._each.limits:
            return None
        found = self._of_subscription.get(name)
        if found is None:
            found = TokenBucket(self._each, self._clock.monotonic())
            self._of_subscription[name] = found
        return found

    def room(self, subscription: ServedSubscription, entries: int) -> int:
        """How many entries may be read for delivery now; 0 if it must wait, and is woken."""
        now, own = self._clock.monotonic(), self._bucket(subscription.core.name)
        topic_s = max(bucket.wait_s(now) for bucket in self._dispatch)
        own_s = own.wait_s(now) if own is not None else 0.0
        if topic_s > 0 or own_s > 0:
            if topic_s > 0:
                self.topic_waits += 1
            else:
                name = subscription.core.name
                self.subscription_waits[name] = self.subscription_waits.get(name, 0) + 1
            self._wake(subscription, max(topic_s, own_s), subscription.schedule)
            return 0
        rooms = [bucket.room() for bucket in self._dispatch]
        return min(entries, *rooms, own.room() if own is not None else UNLIMITED)

    def delivered(
        self,
        subscription: ServedSubscription,
        deliveries: Sequence[Delivery],
        first: int,
        entries: Sequence[memoryview],
    ) -> None:
        """Entries, whose ordinals begin with `first`, were sent."""
        messages = sum(delivery.messages for delivery in deliveries)
        size = sum(
            len(entries[ordinal - first]) for found in deliveries for ordinal in found.ordinals
        )
        own = self._bucket(subscription.core.name)
        for bucket in (*self._dispatch, *((own,) if own is not None else ())):
            bucket.take(messages, size)

    # --- subscribing ------------------------------------------------------------------------------

    def check_subscribe(self, peer: str, name: str, consumer_id: int) -> None:
        """Count an attempt of a consumer. Raises NotAllowed if it comes back too often."""
        if not self._subscribing.limits:
            return
        key, now = (peer.rpartition(":")[0], name, consumer_id), self._clock.monotonic()
        bucket = self._subscribers.pop(key, None)
        if bucket is None:
            bucket = TokenBucket(replace(self._subscribing, bytes=0), now)
        self._subscribers[key] = bucket
        if len(self._subscribers) > SUBSCRIBERS_MAX:
            del self._subscribers[next(iter(self._subscribers))]
        if bucket.wait_s(now) > 0:
            raise NotAllowed(
                "Subscribe limited by subscribe rate limit per consumer.",
                f"topic {self._name} takes {self._subscribing.messages} in "
                f"{self._subscribing.period_s} s: come back later, or raise its subscribeRate",
            )
        bucket.take(1, 0)

    def stop(self) -> None:
        """Wake the connections and subscriptions that wait: these throttles hold no more."""
        for held, (timer, _then) in list(self._waiting.items()):
            timer.cancel()
            self._go_on(held)

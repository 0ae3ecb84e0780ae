"""Metrics of topics and their subscriptions.

Owns: the names that `/metrics` has for them, how each is read, and which topics are named. Imports:
topics, watermarks, sheet. Invariants: reading touches no storage; time and memory are proportional
to topics and subscriptions, in turns of the loop; a topic is named with all its subscriptions, or
not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from magnetar.broker.exposition.sheet import ABSENT, Family, Sheet, labels_of
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.watermarks.followed import Followed
from magnetar.clock import Clock
from magnetar.hosting.metrics_settings import MetricsSettings
from magnetar.names import CLUSTER_NAME
from magnetar.storage.turns import Turns

WORK_PER_TURN_MAX = 40
"""Topics and subscriptions read before others get their turn: a millisecond or two."""


class ServedBundle(Protocol):
    """A bundle in service, as its topics are read."""

    @property
    def topics(self) -> Mapping[str, TopicHost]: ...
    @property
    def unstored(self) -> Mapping[str, TopicHost]: ...


@dataclass(frozen=True, slots=True)
class ReadSubscription:
    """A subscription at the time of a scrape."""

    host: SubscriptionHost
    followed: Followed | None
    now_ms: int

    def watermark_lag_s(self) -> float:
        watermark_ms = self.followed.watermark_ms if self.followed is not None else None
        return ABSENT if watermark_ms is None else (self.now_ms - watermark_ms) / 1000


SUBSCRIPTION_FAMILIES: tuple[Family[ReadSubscription], ...] = (
    Family(
        "magnetar_subscription_watermark_lag_seconds",
        "gauge",
        "By how much the watermark of a subscription is behind the clock; absent without one",
        ReadSubscription.watermark_lag_s,
    ),
)


class Naming:
    """Which topics are named: the first ones, as long as they fit with their subscriptions."""

    def __init__(self, settings: MetricsSettings) -> None:
        self._room = (
            settings.metrics_objects_max if settings.exposeTopicLevelMetricsInPrometheus else 0
        )
        self.unnamed = 0

    def takes(self, objects: int) -> bool:
        """Whether a topic is named that has so many objects, itself included."""
        if objects > self._room:
            self.unnamed += 1
            return False
        self._room -= objects
        return True


BROKER_FAMILIES: tuple[Family[Naming], ...] = (
    Family(
        "magnetar_metrics_topics_unnamed",
        "gauge",
        "Topics served here that no metric names, by exposeTopicLevelMetricsInPrometheus or because "
        "of metrics_objects_max",
        lambda naming: naming.unnamed,
    ),
)


EXPOSED: tuple[tuple[tuple[str, ...], tuple[Family[Any], ...]], ...] = (
    (("cluster",), BROKER_FAMILIES),
    (("cluster", "namespace", "topic", "subscription"), SUBSCRIPTION_FAMILIES),
)
"""Labels, and the metrics that have them."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Sheets:
    """All that one scrape reads."""

    broker: Sheet[Naming] = field(default_factory=lambda: Sheet(BROKER_FAMILIES))
    subscriptions: Sheet[ReadSubscription] = field(
        default_factory=lambda: Sheet(SUBSCRIPTION_FAMILIES)
    )

    def pieces(self) -> Iterable[bytes]:
        yield from self.broker.pieces()
        yield from self.subscriptions.pieces()


async def read_topics(
    served: Mapping[str, ServedBundle], settings: MetricsSettings, clock: Clock
) -> Sheets:
    """The values of now."""
    sheets, naming, turns = Sheets(), Naming(settings), Turns(WORK_PER_TURN_MAX)
    for bundle in list(served.values()):
        for topic in [*bundle.topics.values(), *bundle.unstored.values()]:
            work = 1 + len(topic.subscriptions)
            if naming.takes(work):
                _read_subscriptions(topic, sheets, clock.wall_ms())
            await turns.after(work)
    sheets.broker.add(labels_of(cluster=CLUSTER_NAME), naming)
    return sheets


def _read_subscriptions(topic: TopicHost, sheets: Sheets, now_ms: int) -> None:
    marks = topic.watermarks
    followed = {found.subscription: found for found in marks.followed} if marks is not None else {}
    for name, host in topic.subscriptions.items():
        labels = labels_of(
            cluster=CLUSTER_NAME,
            namespace=str(topic.name.namespace_name),
            topic=str(topic.name),
            subscription=name,
        )
        sheets.subscriptions.add(labels, ReadSubscription(host, followed.get(host), now_ms))

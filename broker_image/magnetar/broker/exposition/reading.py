"""One reading of all topics that are served here.

Owns: which objects metrics name, sums of the others, and the walk over them. Imports: the families,
topics. Invariants: time and memory are proportional to topics and subscriptions, in turns of the
loop; a topic is named with all that is attached to it, or not at all; what is named and the sums of
namespaces together are everything, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Protocol

from magnetar import __version__
from magnetar.balance.load import BundleLoad, LoadReport
from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.context import BrokerContext
from magnetar.broker.exposition.brokers import (
    BROKER_FAMILIES,
    BUNDLE_FAMILIES,
    LOAD_FAMILIES,
    VERSION_FAMILIES,
    ReadBroker,
)
from magnetar.broker.exposition.clients import (
    CONSUMER_FAMILIES,
    PRODUCER_FAMILIES,
    ReadConsumer,
    ReadProducer,
)
from magnetar.broker.exposition.schemas import SCHEMA_FAMILIES
from magnetar.broker.exposition.sheet import ABSENT, Family, Sheet, labels_of
from magnetar.broker.exposition.subscriptions import SUBSCRIPTION_FAMILIES, ReadSubscription
from magnetar.broker.exposition.topics import (
    HISTOGRAM_FAMILIES,
    LIMITS,
    OLDEST,
    TOPIC_FAMILIES,
    ReadTopic,
)
from magnetar.broker.schema_statistics import SchemaCounts, SchemaStatistics
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.hosting.metrics_settings import MetricsSettings
from magnetar.names import CLUSTER_NAME
from magnetar.storage.turns import Turns

WORK_PER_TURN_MAX = 20
"""Topics, subscriptions, producers and consumers read before others get their turn."""
NAMESPACE_FAMILIES: tuple[Family[int], ...] = (
    Family("pulsar_topics_count", "Topics of a namespace served here", lambda count: count),
)
TOPIC = ("cluster", "namespace", "topic")
EXPOSED: tuple[tuple[tuple[str, ...], tuple[Family[Any], ...]], ...] = (
    (("cluster", "version"), VERSION_FAMILIES),
    (("cluster",), BROKER_FAMILIES),
    (("cluster", "broker", "metric"), LOAD_FAMILIES),
    (("cluster", "broker", "bundle"), BUNDLE_FAMILIES),
    (("cluster", "namespace"), NAMESPACE_FAMILIES),
    (("cluster", "namespace"), SCHEMA_FAMILIES),
    (TOPIC, TOPIC_FAMILIES),
    ((*TOPIC, "subscription"), SUBSCRIPTION_FAMILIES),
    ((*TOPIC, "subscription", "consumer_name", "consumer_id"), CONSUMER_FAMILIES),
    ((*TOPIC, "producer_name", "producer_id"), PRODUCER_FAMILIES),
)
"""Labels, and the metrics that have them."""


class ServedBundle(Protocol):
    """A bundle in service, as its topics are read."""

    @property
    def topics(self) -> Mapping[str, TopicHost]: ...
    @property
    def unstored(self) -> Mapping[str, TopicHost]: ...


@dataclass(frozen=True, slots=True)
class Scraped:
    """What is read: the bundles of a broker, its last load report, its work with schemas."""

    context: BrokerContext
    served: Mapping[str, ServedBundle]
    load: LoadReport
    schemas: SchemaStatistics


class Naming:
    """Which topics are named: the first ones, as long as they fit with what is attached to them."""

    def __init__(self, settings: MetricsSettings) -> None:
        self.consumers = bool(settings.exposeConsumerLevelMetricsInPrometheus)
        self.producers = bool(settings.exposeProducerLevelMetricsInPrometheus)
        self._room = (
            settings.metrics_objects_max if settings.exposeTopicLevelMetricsInPrometheus else 0
        )
        self.unnamed = 0

    def takes(self, topic: TopicHost) -> bool:
        """Whether a topic is named."""
        objects = 1 + len(topic.subscriptions)
        if self.consumers:
            objects += sum(len(found.core.consumers) for found in topic.subscriptions.values())
        if self.producers:
            objects += len(topic.core.producers)
        if objects > self._room:
            self.unnamed += 1
            return False
        self._room -= objects
        return True


class Sums:
    """Of the metrics of topics; what no topic has stays absent."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [ABSENT if family in _SPARSE else 0.0 for family in TOPIC_FAMILIES]

    def add(self, values: list[float]) -> None:
        sums = self.values
        for index, value in enumerate(values):
            if isnan(value) or index in _LIMITS:
                continue
            if isnan(sums[index]):
                sums[index] = value
            elif index in _OLDEST:
                sums[index] = max(sums[index], value)
            else:
                sums[index] += value

    def named(self) -> dict[str, float]:
        return {
            family.name: value for family, value in zip(TOPIC_FAMILIES, self.values, strict=True)
        }


def _indices(names: Collection[str]) -> frozenset[int]:
    return frozenset(at for at, family in enumerate(TOPIC_FAMILIES) if family.name in names)


_OLDEST, _LIMITS = _indices(OLDEST), _indices(LIMITS)
_SPARSE = {*HISTOGRAM_FAMILIES, *(family for family in TOPIC_FAMILIES if family.name in LIMITS)}


class Sheets:
    """All that one scrape reads."""

    def __init__(self) -> None:
        self.version: Sheet[ReadBroker] = Sheet(VERSION_FAMILIES)
        self.broker: Sheet[ReadBroker] = Sheet(BROKER_FAMILIES)
        self.load: Sheet[ReadBroker] = Sheet(LOAD_FAMILIES)
        self.bundles: Sheet[BundleLoad] = Sheet(BUNDLE_FAMILIES)
        self.namespaces: Sheet[int] = Sheet(NAMESPACE_FAMILIES)
        self.schemas: Sheet[SchemaCounts] = Sheet(SCHEMA_FAMILIES)
        self.topics: Sheet[ReadTopic] = Sheet(TOPIC_FAMILIES)
        self.subscriptions: Sheet[ReadSubscription] = Sheet(SUBSCRIPTION_FAMILIES)
        self.consumers: Sheet[ReadConsumer] = Sheet(CONSUMER_FAMILIES)
        self.producers: Sheet[ReadProducer] = Sheet(PRODUCER_FAMILIES)

    def pieces(self) -> Iterator[bytes]:
        for sheet in (
            self.version,
            self.broker,
            self.load,
            self.bundles,
            self.namespaces,
            self.schemas,
            self.topics,
            self.subscriptions,
            self.consumers,
            self.producers,
        ):
            if len(sheet):
                yield from sheet.pieces()


class Reading:
    """One walk over all topics."""

    def __init__(self, scraped: Scraped) -> None:
        self._scraped, self._naming = scraped, Naming(scraped.context.settings)
        self._sheets, self._totals = Sheets(), Sums()
        self._counts: dict[str, int] = {}
        self._rest: dict[str, Sums] = {}

    async def read(self) -> Sheets:
        """The values of now."""
        turns, cluster = Turns(WORK_PER_TURN_MAX), labels_of(cluster=CLUSTER_NAME)
        # as Pulsar has them, so that a broker without topics is seen
        self._sheets.namespaces.add(cluster, 0)
        self._sheets.topics.add_values(cluster, Sums().values)
        self._sheets.schemas.add(cluster, self._scraped.schemas.unknown)
        for bundle in list(self._scraped.served.values()):
            for topic in [*bundle.topics.values(), *bundle.unstored.values()]:
                await turns.after(self._read_topic(topic))
        for namespace, count in self._counts.items():
            self._sheets.namespaces.add(labels_of(cluster=CLUSTER_NAME, namespace=namespace), count)
        for namespace, counts in list(self._scraped.schemas.by_namespace.items()):
            named = labels_of(cluster=CLUSTER_NAME, namespace=namespace)
            self._sheets.schemas.add(named, counts)
            await turns.after(1)
        for namespace, sums in self._rest.items():
            self._sheets.topics.add_values(
                labels_of(cluster=CLUSTER_NAME, namespace=namespace), sums.values
            )
        self._read_broker()
        return self._sheets

    def _read_topic(self, host: TopicHost) -> int:
        """Read one topic; how much work that was."""
        marks = host.watermarks
        followed = {one.subscription: one for one in marks.followed} if marks is not None else {}
        subscriptions = [
            ReadSubscription(found, followed.get(found)) for found in host.subscriptions.values()
        ]
        topic, namespace = ReadTopic(host, subscriptions), str(host.name.namespace_name)
        values = self._sheets.topics.values(topic)
        self._totals.add(values)
        self._counts[namespace] = self._counts.get(namespace, 0) + 1
        if not self._naming.takes(host):
            self._rest.setdefault(namespace, Sums()).add(values)
            return 1 + len(subscriptions) + topic.consumers
        labels = {"cluster": CLUSTER_NAME, "namespace": namespace, "topic": str(host.name)}
        self._sheets.topics.add_values(labels_of(**labels), values)
        for found in subscriptions:
            self._read_subscription(found, labels | {"subscription": found.core.name})
        if self._naming.producers:
            self._read_producers(host, labels)
        return 1 + len(subscriptions) + topic.consumers + len(host.core.producers)

    def _read_subscription(self, found: ReadSubscription, labels: dict[str, str]) -> None:
        self._sheets.subscriptions.add(labels_of(**labels), found)
        if self._naming.consumers:
            for session, rates in found.consumers:
                named = labels_of(
                    **labels, consumer_name=session.name, consumer_id=str(session.consumer_id)
                )
                self._sheets.consumers.add(named, ReadConsumer(session, rates))

    def _read_producers(self, host: TopicHost, labels: dict[str, str]) -> None:
        for name, producer in host.core.producers.by_name.items():
            session = producer.handle
            assert isinstance(session, ProducerSession)
            named = labels_of(**labels, producer_name=name, producer_id=str(session.producer_id))
            self._sheets.producers.add(named, ReadProducer(session))

    def _read_broker(self) -> None:
        context, load = self._scraped.context, self._scraped.load
        found = ReadBroker(
            context.metrics,
            load,
            sum(self._counts.values()),
            self._naming.unnamed,
            self._totals.named(),
        )
        self._sheets.version.add(labels_of(cluster=CLUSTER_NAME, version=__version__), found)
        self._sheets.broker.add(labels_of(cluster=CLUSTER_NAME), found)
        balancing = {"cluster": CLUSTER_NAME, "broker": context.broker}
        self._sheets.load.add(labels_of(**balancing, metric="loadBalancing"), found)
        for bundle in load.top:
            self._sheets.bundles.add(labels_of(**balancing, bundle=bundle.name), bundle)

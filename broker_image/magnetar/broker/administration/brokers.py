"""Brokers.

Owns: what REST sees of brokers: who there is, what they serve, their settings, load and statistics,
and the health check. Imports: metadata, client, names, errors. Source: Pulsar's health check
publishes to a topic of the broker's own and reads it back. Invariants: a health check ends within
`HEALTH_S`, and within a second while the log waits for the disk; it asks nothing of any other
broker, and so says nothing of others; one runs at a time, and concurrent callers get its result;
its topics are in a system namespace, and are deleted as any unused topic is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from magnetar.balance.load import BundleLoad, LoadReport, Resource
from magnetar.balance.settings import text_of
from magnetar.broker.administration.clusters import Clusters
from magnetar.broker.administration.moves import address_of_broker, addresses_of_broker
from magnetar.broker.administration.namespaces import Namespaces
from magnetar.broker.administration.site import Site
from magnetar.broker.administration.statistics import topic_stats
from magnetar.broker.incarnation import Broker
from magnetar.broker.upkeep.expiry import enforce_quota
from magnetar.client import Client
from magnetar.client.connection import Credentials
from magnetar.clock import elapsed_ms
from magnetar.errors import (
    MagnetarError,
    NotOwner,
    ServiceNotReady,
    TopicExists,
    TopicNotFound,
)
from magnetar.hosting.bounded import bounded_fields
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.records import BundleState, IncarnationRecord
from magnetar.names import CLUSTER_NAME, SYSTEM_NAMESPACE, TopicName, initial_boundaries
from magnetar.security.authorization import INTERNAL_METHOD
from magnetar.storage.turns import Turns

HEALTH_S = 10.0
"""A round trip takes milliseconds; a disk or a store that is slow may hold it up for a moment."""
BUNDLE_S = 5.0
"""How long a check waits for the bundle of its topic, which had no owner, or which is on its way
here."""
LEADER_S, LEADER_LOOK_S = 30.0, 0.1
"""How long a question for the leader waits for one, and how often it looks: the end of a lease
and an election take seconds."""
LOG_LOOK_S = 0.1
MEBI = 1 << 20
STATS_PER_TURN_MAX = 50
"""Topics and subscriptions whose statistics are listed before others get their turn."""


class Brokers:
    """Brokers."""

    def __init__(self, site: Site, clusters: Clusters, namespaces: Namespaces) -> None:
        self._site, self._clusters, self._namespaces = site, clusters, namespaces
        self._checking: asyncio.Task[None] | None = None

    # --- who there is -----------------------------------------------------------------------------

    async def brokers(self, cluster: str) -> list[str]:
        if cluster and cluster not in await self._clusters.clusters():
            raise TopicNotFound(
                "Cluster does not exist", f"{cluster}: GET /admin/v2/clusters lists them"
            )
        return (
            []
            if cluster not in ("", CLUSTER_NAME)
            else sorted(address_of_broker(record) for record in self._live().values())
        )

    def _live(self) -> dict[str, IncarnationRecord]:
        return {
            identifier: viewed.record
            for identifier, viewed in self._site.broker.views.incarnations.items.items()
        }

    async def leader_broker(self) -> dict[str, str]:
        """Where the leader is; waits while an election settles. Raises ServiceNotReady if there
        is none for `LEADER_S`."""
        record = await self._leader()
        return {"serviceUrl": record.http_url, "brokerId": address_of_broker(record)}

    async def at_leader(self) -> None:
        """Raises NotOwner with the leader's address unless this broker leads, ServiceNotReady as
        `leader_broker`."""
        if self._site.broker.leader.leading:
            return
        record = await self._leader(working=True)
        if record.broker != self._site.broker.context.broker:
            raise NotOwner(
                f"broker {record.broker} leads; ask {record.http_url}",
                record.http_url,
                record.http_url_tls,
            )

    async def _leader(self, working: bool = False) -> IncarnationRecord:
        """The leader's record; with `working` not this broker's before it has begun to lead."""
        try:
            async with asyncio.timeout(LEADER_S):
                while True:
                    broker = self._site.broker
                    current = await broker.leader.current()
                    record = self._live().get(current)
                    begins = working and current == broker.incarnation and not broker.leader.leading
                    if record is not None and not begins:
                        return record
                    await asyncio.sleep(LEADER_LOOK_S)
        except TimeoutError as error:
            raise ServiceNotReady(
                f"no leader has been elected for {LEADER_S:.0f} s; ask again"
            ) from error

    async def owned_bundles(self, cluster: str, broker: str) -> dict[str, Any]:
        await self.brokers(cluster)
        found = {
            identifier
            for identifier, record in self._live().items()
            if broker == record.broker or broker in addresses_of_broker(record)
        }
        if not found:
            raise TopicNotFound(
                f"broker {broker} is not there; GET /admin/v2/brokers lists the live ones"
            )
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        items = self._site.broker.views.bundles.items
        return {
            name: dict(status)
            for name, viewed in sorted(items.items())
            if viewed.record.incarnation in found
        }

    # --- health -----------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Have this broker's own parts do their work: the way to the metadata store, the log, the
        port for clients.

        And a message, published and read through that port, where the bundle of the check's topic
        is served here: bundles move as load wants, and another broker that has it may be sick.
        Raises ServiceNotReady saying what failed.
        """
        broker = self._site.broker
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._look_at_parts(broker), name="health check")
            # the caller may have left
            self._checking.add_done_callback(lambda task: task.cancelled() or task.exception())
        while not self._checking.done():
            # A disk that does not answer is the answer: no caller waits for it.
            if (waits := _why_log_waits(broker)) is not None:
                raise ServiceNotReady(f"the broker is not healthy: {waits}")
            await asyncio.wait([self._checking], timeout=LOG_LOOK_S)
        await self._checking

    async def _look_at_parts(self, broker: Broker) -> None:
        topic = TopicName.parse(
            f"persistent://{SYSTEM_NAMESPACE}/healthcheck-{broker.context.broker}"
        )
        step, bundle = "reach the metadata store", ""
        try:
            async with asyncio.timeout(HEALTH_S):
                if await broker.context.store.get(keys.namespace(SYSTEM_NAMESPACE)) is None:
                    await self._create_health_namespace()
                step = "flush its log"
                await broker.context.log.barrier()
                step = "answer at its own port"
                async with _own_client(broker) as client:
                    await client.partitions(str(topic))
                    bundle = await _bundle_here(broker, topic)
                    if bundle:
                        step = "publish and read a message"
                        await _publish_and_read(broker, client, topic)
        except (MagnetarError, OSError, TimeoutError) as error:
            if bundle and bundle not in broker.ownership.owned:
                return  # the bundle was transferred during the check; the rest was healthy
            raise ServiceNotReady(
                f"the broker is not healthy: it could not {step} "
                f"({error or f'no answer in {HEALTH_S:.0f} s'})"
            ) from error

    async def _create_health_namespace(self) -> None:
        try:
            await self._namespaces.write_namespace(SYSTEM_NAMESPACE, initial_boundaries(1), {})
        except TopicExists:
            return

    async def check_backlog_quotas(self) -> None:
        """Have backlogs of topics served here compared with their quotas at once."""
        broker = self._site.broker
        for owned in list(broker.ownership.owned.values()):
            for topic in list(owned.topics.values()):
                if owned.serving and not topic.frozen:
                    await enforce_quota(topic, elapsed_ms(broker.context.clock))

    # --- settings ---------------------------------------------------------------------------------

    def configuration(self) -> dict[str, str]:
        settings = self._site.broker.context.settings
        numbers = {
            field.name: str(getattr(settings, field.name))
            for field in bounded_fields(BrokerSettings)
        }
        balance = self._site.broker.ownership.balance.current.named()
        return numbers | {name: text_of(value) for name, value in balance.items()}

    def internal_configuration(self) -> dict[str, Any]:
        """Pulsar's InternalConfigurationData; there are no ledgers in BookKeeper, and the store
        is named by its kind only."""
        return {
            "metadataStoreUrl": self._site.process.store_name,
            "configurationMetadataStoreUrl": self._site.process.store_name,
            "ledgersRootPath": None,
            "bookkeeperMetadataServiceUri": None,
            "stateStorageServiceUrl": None,
        }

    # --- load and statistics ----------------------------------------------------------------------

    def metrics_json(self) -> list[dict[str, Any]]:
        traffic = self._site.broker.context.metrics.traffic()
        counts = self._site.broker.service.counts()
        named = dict(
            zip(
                ("brk_bundles", "brk_topics_count", "brk_producers_count", "brk_consumers_count"),
                counts,
                strict=True,
            )
        )
        named |= {"brk_msg_in": traffic.messages_in, "brk_bytes_in": traffic.bytes_in}
        named |= {"brk_msg_out": traffic.messages_out, "brk_bytes_out": traffic.bytes_out}
        return [
            {
                "metrics": named,
                "dimensions": {"broker": self._site.broker.context.broker, "metric": "broker"},
            }
        ]

    def load_report(self) -> dict[str, Any]:
        """Pulsar's LoadManagerReport, as of the last report of this broker."""
        broker = self._site.broker
        context = broker.context
        viewed = broker.views.load.get(broker.incarnation)
        load = viewed.record if viewed is not None else LoadReport(context.broker, 0)
        bundles = sorted(broker.ownership.owned)
        return {
            "loadReportType": "LocalBrokerData",
            "webServiceUrl": context.http_url,
            "pulsarServiceUrl": context.service_url,
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            "brokerVersionString": _version(broker),
            "lastUpdate": load.updated_ms,
            "cpu": _in_percent(load.cpu),
            "memory": _in_percent(load.memory),
            "bandwidthIn": _in_kilobits(load.bandwidth_in),
            "bandwidthOut": _in_kilobits(load.bandwidth_out),
            "lastStats": {bundle.name: _bundle_stats(bundle) for bundle in load.top},
            "msgRateIn": load.rates.messages_in,
            "msgRateOut": load.rates.messages_out,
            "msgThroughputIn": load.rates.bytes_in,
            "msgThroughputOut": load.rates.bytes_out,
            "numBundles": len(bundles),
            "numTopics": load.topics,
            "numProducers": load.producers,
            "numConsumers": load.consumers,
            "bundles": bundles,
            "lastBundleGains": [],
            "lastBundleLosses": [],
            "protocols": {},
            "advertisedListeners": {},
        }

    async def broker_topics(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        turns = Turns(STATS_PER_TURN_MAX)
        for name, owned in sorted(self._site.broker.ownership.owned.items()):
            kinds: dict[str, dict[str, Any]] = {}
            for kind, topics in (
                ("persistent", owned.topics),
                ("non-persistent", owned.non_persistent.by_name),
            ):
                for topic in list(topics.values()):
                    kinds.setdefault(kind, {})[str(topic.name)] = topic_stats(topic)
                    await turns.after(1 + len(topic.subscriptions))
            if kinds:
                found.setdefault(str(owned.name.namespace), {})[name.rpartition("/")[2]] = kinds
        return found


def _why_log_waits(broker: Broker) -> str | None:
    """What keeps the log from writing what is published, for longer than a sound disk ever
    takes; None if nothing does."""
    writer = broker.context.log
    if writer.space.stalled is not None:
        return f"its log waits for space ({writer.space.stalled})"
    if writer.space.short is not None:
        return str(writer.space.short)
    if writer.hangs:
        return f"its log has waited for the disk for {writer.flush_age_s:.1f} s; see to the disk"
    return None


def _own_client(broker: Broker) -> Client:
    """A client that begins at this broker's own port."""
    context = broker.context
    shown = (
        Credentials(INTERNAL_METHOD, context.security.internal_token().encode())
        if context.security is not None
        else None
    )
    tls = (
        context.tls.to_peers()
        if context.tls is not None and broker.service_url == broker.service_url_tls
        else None
    )
    return Client(
        broker.service_url,
        network=context.network,
        clock=context.clock,
        operation_timeout_s=HEALTH_S,
        credentials=shown,
        tls=tls,
    )


async def _bundle_here(broker: Broker, topic: TopicName) -> str:
    """The bundle of the check's topic if it is served here, "" if not; one without an owner is
    assigned first."""
    ownership, bundles = broker.ownership, broker.views.bundles
    bundle = await ownership.bundle_of(topic)
    # it comes too slowly, or has just left, or was split
    with contextlib.suppress(ServiceNotReady, TimeoutError):
        async with asyncio.timeout(BUNDLE_S):
            viewed = bundles.get(str(bundle))
            if viewed is None or viewed.record.state is BundleState.FREE:
                await ownership.assigner.assign_merged(str(bundle))
            viewed = bundles.get(str(bundle))
            if viewed is not None and viewed.record.incarnation == broker.incarnation:
                await ownership.serving(bundle)
                return str(bundle)
    return ""


async def _publish_and_read(broker: Broker, client: Client, topic: TopicName) -> None:
    payload = f"{broker.incarnation}-{broker.context.clock.random_bits(32):08x}".encode()
    producer = await client.create_producer(str(topic))
    sent = await producer.send(payload)
    reader = await client.create_reader(str(topic), sent, inclusive=True)
    while (await reader.receive()).value != payload:
        pass


def _in_percent(resource: Resource) -> dict[str, float]:
    return {"usage": round(resource.percent, 2), "limit": 100.0}


def _in_kilobits(resource: Resource) -> dict[str, float]:
    return {"usage": resource.usage * 8 / 1000, "limit": resource.limit * 8 / 1000}


def _bundle_stats(bundle: BundleLoad) -> dict[str, float]:
    """Pulsar's NamespaceBundleStats."""
    rates = bundle.history.level.mean.rates
    return {
        "msgRateIn": rates.messages_in,
        "msgRateOut": rates.messages_out,
        "msgThroughputIn": rates.bytes_in,
        "msgThroughputOut": rates.bytes_out,
        "topics": bundle.topics,
        "producerCount": bundle.producers,
        "consumerCount": bundle.consumers,
        "cacheSize": 0,
    }


def _version(broker: Broker) -> str:
    viewed = broker.views.incarnations.get(broker.incarnation)
    return viewed.record.version if viewed is not None else ""

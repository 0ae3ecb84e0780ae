"""Health, status and lookup.

Owns: what REST shows of this broker as a whole, and where topics are served. Imports: metadata,
site. Invariant: whether this broker is alive or ready is answered at any time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from magnetar import __version__
from magnetar.balance.load import LoadReport
from magnetar.broker.administration.site import Site
from magnetar.broker.commands.lookups import addresses_of
from magnetar.broker.exposition.reading import Scraped
from magnetar.broker.exposition.scrapes import Scrapes
from magnetar.hosting.views import ClusterViews
from magnetar.metadata.records import (
    INTERNAL_LISTENER,
    BundleState,
    CoordinatorClaimRecord,
    IncarnationRecord,
)
from magnetar.names import COORDINATOR_TOPIC, TopicName


class Health:
    """The broker itself."""

    def __init__(self, site: Site) -> None:
        self._site, self._scrapes = site, Scrapes()

    def ready(self) -> bool:
        broker = self._site.process.broker
        return broker is not None and broker.ready and not broker.draining

    def live(self) -> bool:
        """The answer itself proves that the event loop makes progress."""
        return True

    async def metrics(self) -> AsyncIterator[bytes]:
        """In Prometheus' text format, a piece at a time."""
        broker, coordinator = self._site.process.broker, self._site.process.coordinator
        yield broker.metrics.exposition() if broker is not None else b""
        if broker is not None and broker.ready:
            viewed, context = broker.views.load.get(broker.incarnation), broker.context
            load = viewed.record if viewed is not None else LoadReport(context.broker, 0)
            schemas = broker.service.schemas.statistics
            scraped = Scraped(context, broker.ownership.owned, load, schemas)
            async for piece in self._scrapes.pieces(scraped):
                yield piece
        if coordinator is not None:
            yield coordinator.exposition()

    def version(self) -> str:
        return __version__

    async def status(self) -> dict[str, Any]:
        broker = self._site.broker
        views = broker.views
        leader = await broker.leader.current()
        brokers = [
            _broker_row(views, identifier, viewed.record)
            for identifier, viewed in sorted(views.incarnations.items.items())
        ]
        bundles = [
            {
                "bundle": name,
                "state": str(viewed.record.state),
                "epoch": viewed.record.epoch,
                "owner": viewed.record.incarnation,
                "reason": viewed.record.reason,
                "pinned_until_ms": viewed.record.pinned_until_ms,
            }
            for name, viewed in sorted(views.bundles.items.items())
            if viewed.record.state is not BundleState.DELETED  # those that replace it are listed
        ]
        return {
            "incarnation": broker.incarnation,
            "leader": leader,
            "storage_id": broker.storage_id,
            "volume": self._site.process.volume_location,
            "brokers": brokers,
            "bundles": bundles,
        }

    async def lookup(self, topic: TopicName, listener: str) -> dict[str, str]:
        ownership, service = self._site.broker.ownership, self._site.broker.service
        owner: (
            CoordinatorClaimRecord | IncarnationRecord | None
        ) = await service.coordinators.holder_of(topic)
        if owner is None:
            # no such topic is ever created
            own = service.coordinators.here and topic.base == COORDINATOR_TOPIC
            if (
                not own
                and not service.namespace_policies(topic.namespace_name).auto_topic_creation.allowed
            ):
                await service.partitions_for_client(topic, may_create=False)  # raises TopicNotFound
            owner = await ownership.owner_of(topic)
        url, url_tls = addresses_of(owner, listener or INTERNAL_LISTENER)
        http_url, http_url_tls = "", ""
        if listener in owner.listeners:
            http_url, http_url_tls = (
                owner.listeners[listener].http_url,
                owner.listeners[listener].http_url_tls,
            )
        return _found(url, http_url or owner.http_url, url_tls, http_url_tls or owner.http_url_tls)

    async def bundle_range(self, topic: TopicName) -> str:
        return (await self._site.broker.ownership.bundle_of(topic)).range


def _found(url: str, http_url: str, url_tls: str, http_url_tls: str) -> dict[str, str]:
    """Pulsar's LookupData, without what is not there."""
    found = {
        "brokerUrl": url,
        "httpUrl": http_url,
        "nativeUrl": url,
        "brokerUrlTls": url_tls,
        "httpUrlTls": http_url_tls,
    }
    # The last one is what clients before 2.0 called brokerUrlTls.
    return {name: address for name, address in found.items() if address} | {"brokerUrlSsl": url_tls}


def _broker_row(views: ClusterViews, identifier: str, record: IncarnationRecord) -> dict[str, Any]:
    """One broker of the status."""
    viewed, cordon = views.load.get(identifier), views.cordons.get(record.broker)
    load = viewed.record if viewed is not None else None
    owned = sum(
        1 for bundle in views.bundles.items.values() if bundle.record.incarnation == identifier
    )
    state = "draining" if record.draining else "serving" if cordon is None else "cordoned"
    return {
        "broker": record.broker,
        "incarnation": identifier,
        "service_url": record.service_url,
        "listeners": {name: address.service_url for name, address in record.listeners.items()},
        "bundles": owned,
        "topics": load.topics if load is not None else 0,
        "in": load.rates.messages_in if load is not None else 0.0,
        "out": load.rates.messages_out if load is not None else 0.0,
        "state": state,
        "http_url": record.http_url,
        "service_url_tls": record.service_url_tls,
        "http_url_tls": record.http_url_tls,
        "version": record.version,
        "started_ms": record.started_ms,
        "producers": load.producers if load is not None else 0,
        "consumers": load.consumers if load is not None else 0,
        "cpu": load.cpu.share if load is not None else None,
        "memory": load.memory.share if load is not None else None,
        "cordon": cordon.record.reason if cordon is not None else None,
    }

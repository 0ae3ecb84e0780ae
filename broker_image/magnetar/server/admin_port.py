"""The broker's side of REST.

Owns: `AdminPort` over a broker process. Imports: admin ports, metadata, server siblings.
Invariants: a question that needs the owner of a topic and is asked elsewhere is refused with the owner's address; what REST creates is created
by compare-and-swap, so a second creator is told that it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar import __version__
from magnetar.errors import InvalidRequest, NotOwner, ServiceNotReady, StoreUnavailable, TopicExists, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord
from magnetar.metadata.store import Compare, Put
from magnetar.names import NamespaceName, TopicName, initial_boundaries
from magnetar.server.broker import Broker

if TYPE_CHECKING:
    from magnetar.server.process import BrokerProcess


class BrokerAdminPort:
    """Answers the routes for whichever incarnation the process runs now."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process

    @property
    def _broker(self) -> Broker:
        broker = self._process.broker
        if broker is None or not broker.ready:
            raise ServiceNotReady("the broker is starting or stopping; try again in a moment")
        return broker

    def ready(self) -> bool:
        broker = self._process.broker
        return broker is not None and broker.ready and not broker.draining

    def live(self) -> bool:
        """The answer itself proves that the event loop makes progress."""
        return True

    def metrics(self) -> bytes:
        broker = self._process.broker
        return broker.metrics.exposition() if broker is not None else b""

    def version(self) -> str:
        return __version__

    async def status(self) -> dict[str, Any]:
        broker = self._broker
        views = broker.views
        leader = await broker.leader.current()
        brokers = []
        for identifier, viewed in sorted(views.incarnations.items.items()):
            load = views.load.get(identifier)
            owned = sum(1 for bundle in views.bundles.items.values() if bundle.record.incarnation == identifier)
            cordoned = views.cordons.get(viewed.record.broker) is not None
            state = "draining" if viewed.record.draining else "cordoned" if cordoned else "serving"
            brokers.append(
                {
                    "broker": viewed.record.broker,
                    "incarnation": identifier,
                    "service_url": viewed.record.service_url,
                    "bundles": owned,
                    "topics": load.record.topics if load is not None else 0,
                    "in": load.record.message_rate_in if load is not None else 0.0,
                    "out": load.record.message_rate_out if load is not None else 0.0,
                    "state": state,
                }
            )
        bundles = [
            {
                "bundle": name,
                "state": str(viewed.record.state),
                "epoch": viewed.record.epoch,
                "owner": viewed.record.incarnation,
                "reason": viewed.record.reason,
            }
            for name, viewed in sorted(views.bundles.items.items())
        ]
        return {
            "incarnation": broker.incarnation,
            "leader": leader,
            "storage_id": broker.storage_id,
            "volume": str(self._process.volume_directory.resolve()),
            "brokers": brokers,
            "bundles": bundles,
        }

    async def lookup(self, topic: TopicName) -> dict[str, str]:
        ownership = self._broker.ownership
        owner = await ownership.resolve(await ownership.bundle_of(topic))
        return {"brokerUrl": owner.service_url, "httpUrl": owner.http_url, "nativeUrl": owner.service_url}

    async def namespaces(self, tenant: str) -> list[str]:
        return sorted(name for name in self._broker.views.namespaces.items if name.partition("/")[0] == tenant)

    async def namespace(self, name: NamespaceName) -> dict[str, Any]:
        item = await self._broker.context.store.get(keys.namespace(name))
        if item is None:
            raise TopicNotFound(f"namespace {name} does not exist; create it with PUT or a TopicNamespace")
        record = NamespaceRecord.decode(item.value)
        boundaries = [f"0x{boundary:08x}" for boundary in record.boundaries]
        return {**record.policies, "bundles": {"boundaries": boundaries, "numBundles": len(boundaries) - 1}}

    async def create_namespace(self, name: NamespaceName, bundles: int, policies: dict[str, Any]) -> None:
        record = NamespaceRecord(boundaries=initial_boundaries(bundles), policies=policies)
        await self._create(keys.namespace(name), record.encode(), f"namespace {name}")

    async def topics(self, name: NamespaceName) -> list[str]:
        return await self._broker.service.topics_in(name)

    async def partitions(self, topic: TopicName) -> int:
        return await self._broker.service.partitions(topic)

    async def create_partitions(self, topic: TopicName, partitions: int) -> None:
        await self._broker.service.partitioning.create(topic, partitions)

    async def _create(self, key: str, value: bytes, what: str) -> None:
        result = await self._broker.context.store.transact([Compare(key, "create", "=", 0)], [Put(key, value)])
        if not result.succeeded:
            raise TopicExists(f"{what} already exists")

    async def stats(self, topic: TopicName) -> dict[str, Any]:
        host = await self._broker.service.open_topic(topic, create=False)
        counters = host.core.counters
        return {
            "msgInCounter": counters.messages_in,
            "bytesInCounter": counters.bytes_in,
            "msgOutCounter": counters.messages_out,
            "bytesOutCounter": counters.bytes_out,
            "publishers": [
                {"producerName": name, "producerId": found.producer_id} for name, found in host.core.producers.by_name.items()
            ],
            "subscriptions": {
                name: {
                    "msgBacklog": subscription.core.backlog,
                    "unackedMessages": subscription.core.unacknowledged,
                    "type": subscription.core.kind.name.title() if subscription.core.kind is not None else "",
                    "isDurable": subscription.core.durable,
                    "msgOutCounter": subscription.core.messages_out,
                    "consumers": [
                        {
                            "consumerName": consumer.name,
                            "availablePermits": consumer.permits,
                            "unackedMessages": consumer.unacknowledged,
                        }
                        for consumer in subscription.core.consumers.values()
                    ],
                }
                for name, subscription in host.subscriptions.items()
            },
        }

    async def roll(self, topic: TopicName) -> tuple[int, int]:
        return await self._broker.service.roll(topic)

    async def unload_topic(self, topic: TopicName, destination: str) -> None:
        ownership = self._broker.ownership
        bundle = await ownership.bundle_of(topic)
        if str(bundle) not in ownership.owned:
            owner = await ownership.resolve(bundle)
            raise NotOwner(f"topic {topic} is served by {owner.broker}; ask {owner.http_url}")
        target = ""
        if destination:
            target = next((i for i, v in self._broker.views.incarnations.items.items() if v.record.broker == destination), "")
            if not target:
                raise InvalidRequest(f"destinationBroker: {destination!r} is not a live broker")
        try:
            await ownership.move(str(bundle), target, "unload requested")
        except StoreUnavailable as error:
            raise ServiceNotReady(f"the metadata store does not answer: {error}") from error

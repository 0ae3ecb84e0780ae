"""Clusters.

Owns: their records and what REST shows of them. Imports: metadata, errors. Invariant: our own
cluster exists without a record and cannot be deleted.
"""

from __future__ import annotations

from typing import Any

from magnetar.broker.administration.site import Site
from magnetar.errors import NotAllowed, TopicExists, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import ClusterDataRecord
from magnetar.names import CLUSTER_NAME, check_part


class Clusters:
    """Clusters that are known."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def clusters(self) -> list[str]:
        found = await self._site.broker.context.store.range(keys.CLUSTERS)
        return sorted(
            {CLUSTER_NAME, *(item.key.removeprefix(keys.CLUSTERS) for item in found.items)}
        )

    async def cluster(self, name: str) -> dict[str, Any]:
        item = await self._site.broker.context.store.get(keys.cluster_data(name))
        if item is not None:
            return ClusterDataRecord.decode(item.value).data
        if name != CLUSTER_NAME:
            raise TopicNotFound(f"Cluster {name} does not exist; create it with PUT")
        return {
            "serviceUrl": self._site.broker.context.http_url,
            "brokerServiceUrl": self._site.broker.service_url,
        }

    async def write_cluster(self, name: str, data: dict[str, Any], create: bool) -> None:
        check_part("cluster", name)
        record = ClusterDataRecord(data)
        if create:
            if name == CLUSTER_NAME:
                raise TopicExists(f"Cluster {name} already exists")
            await self._site.create(keys.cluster_data(name), record.encode(), f"Cluster {name}")
            return
        if name not in await self.clusters():
            raise TopicNotFound(f"Cluster {name} does not exist; create it with PUT")
        await self._site.change(keys.cluster_data(name), ClusterDataRecord, lambda _current: record)

    async def delete_cluster(self, name: str) -> None:
        if name == CLUSTER_NAME:
            raise NotAllowed(f"Cluster {name} is this one; it cannot be deleted")
        current, _ = await self._site.change(
            keys.cluster_data(name), ClusterDataRecord, lambda current: current
        )
        if current is None:
            raise TopicNotFound(f"Cluster {name} does not exist")
        await self._site.change(keys.cluster_data(name), ClusterDataRecord, lambda _current: None)

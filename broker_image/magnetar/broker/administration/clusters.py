"""Clusters.

Owns: their records and what REST shows of them. Imports: metadata, errors. Invariant: our own
cluster exists without a record and cannot be deleted.
"""

from __future__ import annotations

from typing import Any

from magnetar.broker.administration.site import Site
from magnetar.errors import (
    InUse,
    InvalidRequest,
    MagnetarError,
    PreconditionFailed,
    TopicExists,
    TopicNotFound,
)
from magnetar.metadata import keys
from magnetar.metadata.records import ClusterDataRecord
from magnetar.names import CLUSTER_NAME
from magnetar.rest.answers import check_named

UNSET: dict[str, Any] = {
    "brokerClientTlsEnabled": False,
    "brokerClientTlsEnabledWithKeyStore": False,
    "tlsAllowInsecureConnection": False,
}
"""What Pulsar's `ClusterData` shows of flags that are not set."""


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
            return UNSET | ClusterDataRecord.decode(item.value).data
        if name != CLUSTER_NAME:
            raise _unknown(name)
        return {
            "serviceUrl": self._site.broker.context.http_url,
            "brokerServiceUrl": self._site.broker.service_url,
            **UNSET,
            "brokerClientTlsTrustStoreType": "JKS",
            "brokerClientTlsKeyStoreType": "JKS",
        }

    async def check(self, name: str, refusal: type[MagnetarError] = PreconditionFailed) -> None:
        """Raises `refusal` for a cluster that is not known."""
        if name not in await self.clusters():
            raise refusal(f"Cluster {name} does not exist.", "GET /admin/v2/clusters lists them")

    async def write_cluster(self, name: str, data: dict[str, Any] | None, create: bool) -> None:
        check_named("cluster", name)
        if data is None:
            raise InvalidRequest("cluster data is required; send an object with its URLs")
        record = ClusterDataRecord(data)
        if create:
            exists = TopicExists("Cluster already exists", f"change {name} with POST")
            if name == CLUSTER_NAME:
                raise exists
            await self._site.create(keys.cluster_data(name), record.encode(), exists)
            return
        if name not in await self.clusters():
            raise _unknown(name)
        await self._site.change(keys.cluster_data(name), ClusterDataRecord, lambda _current: record)

    async def delete_cluster(self, name: str) -> None:
        if name == CLUSTER_NAME:
            raise InUse(f"Cluster not empty: {name} is this one; it cannot be deleted")
        current, _ = await self._site.change(
            keys.cluster_data(name), ClusterDataRecord, lambda current: current
        )
        if current is None:
            raise _unknown(name)
        await self._site.change(keys.cluster_data(name), ClusterDataRecord, lambda _current: None)


def _unknown(name: str) -> TopicNotFound:
    return TopicNotFound("Cluster does not exist", f"create {name} with PUT")

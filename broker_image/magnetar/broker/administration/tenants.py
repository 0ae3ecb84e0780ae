"""Clusters, tenants and stored documents.

Owns: their records and what REST sees of them. Imports: metadata, errors. Invariants: our own
cluster is there without a record and cannot be deleted; a tenant is there if it has a record or a
namespace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnetar.broker.administration.namespaces import NamespaceAdministration
from magnetar.errors import InvalidRequest, LimitExceeded, NotAllowed, TopicExists, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.owned_fields import (
    refuse_deletion,
    refuse_tenant_deletion,
    refuse_tenant_edit,
)
from magnetar.metadata.records import ClusterDataRecord, DocumentsRecord, TenantRecord
from magnetar.names import CLUSTER_NAME, NamespaceName, check_part

DOCUMENTS_MAX = 1000
"""Documents of one group, which are one record."""


class TenantAdministration(NamespaceAdministration):
    """Clusters, tenants, stored documents."""

    # --- clusters ---------------------------------------------------------------------------------

    async def clusters(self) -> list[str]:
        found = await self._broker.context.store.range(keys.CLUSTERS)
        return sorted(
            {CLUSTER_NAME, *(item.key.removeprefix(keys.CLUSTERS) for item in found.items)}
        )

    async def cluster(self, name: str) -> dict[str, Any]:
        item = await self._broker.context.store.get(keys.cluster_data(name))
        if item is not None:
            return ClusterDataRecord.decode(item.value).data
        if name != CLUSTER_NAME:
            raise TopicNotFound(f"Cluster {name} does not exist; create it with PUT")
        return {
            "serviceUrl": self._broker.context.http_url,
            "brokerServiceUrl": self._broker.service_url,
        }

    async def write_cluster(self, name: str, data: dict[str, Any], create: bool) -> None:
        check_part("cluster", name)
        record = ClusterDataRecord(data)
        if create:
            if name == CLUSTER_NAME:
                raise TopicExists(f"Cluster {name} already exists")
            await self._create(keys.cluster_data(name), record.encode(), f"Cluster {name}")
            return
        if name not in await self.clusters():
            raise TopicNotFound(f"Cluster {name} does not exist; create it with PUT")
        await self._change(keys.cluster_data(name), ClusterDataRecord, lambda _current: record)

    async def delete_cluster(self, name: str) -> None:
        if name == CLUSTER_NAME:
            raise NotAllowed(f"Cluster {name} is this one; it cannot be deleted")
        current, _ = await self._change(
            keys.cluster_data(name), ClusterDataRecord, lambda current: current
        )
        if current is None:
            raise TopicNotFound(f"Cluster {name} does not exist")
        await self._change(keys.cluster_data(name), ClusterDataRecord, lambda _current: None)

    # --- tenants ----------------------------------------------------------------------------------

    async def tenants(self) -> list[str]:
        broker = self._broker
        recorded = {
            item.key.removeprefix(keys.TENANTS)
            for item in (await broker.context.store.range(keys.TENANTS)).items
        }
        return sorted(recorded | {name.partition("/")[0] for name in broker.views.namespaces.items})

    async def tenant(self, name: str) -> dict[str, Any]:
        item = await self._broker.context.store.get(keys.tenant(name))
        if item is not None:
            record = TenantRecord.decode(item.value)
        elif self._namespaces_of(name):
            record = TenantRecord(allowed_clusters=(CLUSTER_NAME,))
        else:
            raise TopicNotFound(f"Tenant {name} does not exist; create it with PUT")
        return {
            "adminRoles": list(record.admin_roles),
            "allowedClusters": list(record.allowed_clusters),
        }

    def _namespaces_of(self, tenant: str) -> list[str]:
        return sorted(
            name for name in self._broker.views.namespaces.items if name.partition("/")[0] == tenant
        )

    async def write_tenant(self, name: str, body: dict[str, Any], create: bool) -> None:
        check_part("tenant", name)
        record = TenantRecord(
            _names(body, "adminRoles"), _names(body, "allowedClusters") or (CLUSTER_NAME,)
        )
        if create:
            if self._namespaces_of(name):
                raise TopicExists(f"Tenant {name} already exists")
            await self._create(keys.tenant(name), record.encode(), f"Tenant {name}")
            return
        if name not in await self.tenants():
            raise TopicNotFound(f"Tenant {name} does not exist; create it with PUT")

        def change(current: TenantRecord | None) -> TenantRecord:
            if current is None:
                return record
            refuse_tenant_edit(name, current, record)
            return replace(record, owner=current.owner, owned=current.owned)

        await self._change(keys.tenant(name), TenantRecord, change)

    async def delete_tenant(self, name: str, force: bool) -> None:
        """Raises NotAllowed while it has namespaces and `force` is not set, OwnedByResource,
        TopicNotFound."""
        item = await self._broker.context.store.get(keys.tenant(name))
        if item is not None:
            refuse_tenant_deletion(name, TenantRecord.decode(item.value))
        if force:
            for namespace in self._namespaces_of(name):  # all of them before the first is deleted
                refuse_deletion(
                    namespace, await self._namespace_record(NamespaceName.parse(namespace))
                )
            for namespace in self._namespaces_of(name):
                await self.delete_namespace(NamespaceName.parse(namespace), force=True)
        elif self._namespaces_of(name):
            raise NotAllowed(
                f"The tenant {name} still has active namespaces: "
                f"{', '.join(self._namespaces_of(name)[:5])}; delete them first"
            )
        if name not in await self.tenants():
            raise TopicNotFound(f"Tenant {name} does not exist")

        def remove(current: TenantRecord | None) -> None:
            if current is not None:
                refuse_tenant_deletion(name, current)

        await self._change(keys.tenant(name), TenantRecord, remove)

    # --- documents --------------------------------------------------------------------------------

    async def documents(self, group: str) -> dict[str, Any]:
        item = await self._broker.context.store.get(keys.documents(group))
        return dict(DocumentsRecord.decode(item.value).documents) if item is not None else {}

    async def write_document(self, group: str, name: str, value: Any) -> None:
        """Raises LimitExceeded if a group would hold more than `DOCUMENTS_MAX`."""

        def change(current: DocumentsRecord | None) -> DocumentsRecord | None:
            found = {**(current.documents if current is not None else {}), name: value}
            kept = {key: stored for key, stored in found.items() if stored is not None}
            if value is not None and len(kept) > DOCUMENTS_MAX:
                raise LimitExceeded(
                    f"{group}: {DOCUMENTS_MAX} are stored already; delete some first"
                )
            return DocumentsRecord(kept) if kept else None

        await self._change(keys.documents(group), DocumentsRecord, change)


def _names(body: dict[str, Any], field: str) -> tuple[str, ...]:
    value = body.get(field)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest(f"{field}: {value!r} is not a list of names")
    return tuple(sorted(value))

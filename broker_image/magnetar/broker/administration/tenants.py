"""Tenants.

Owns: their records and what REST shows of them. Imports: metadata, errors, namespaces. Invariant: a
tenant exists if it has a record or a namespace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnetar.broker.administration.clusters import Clusters
from magnetar.broker.administration.namespaces import Namespaces
from magnetar.broker.administration.site import Site
from magnetar.errors import NotAllowed, PreconditionFailed, TopicExists, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.owned_fields import (
    refuse_deletion,
    refuse_tenant_deletion,
    refuse_tenant_edit,
)
from magnetar.metadata.records import TenantRecord
from magnetar.names import CLUSTER_NAME, NamespaceName
from magnetar.rest.answers import check_named
from magnetar.shapes import Bean, Items, Text

TENANT_INFO = Bean({"adminRoles": Items(Text()), "allowedClusters": Items(Text())})


class Tenants:
    """Tenants."""

    def __init__(self, site: Site, namespaces: Namespaces, clusters: Clusters) -> None:
        self._site, self._namespaces, self._clusters = site, namespaces, clusters

    async def tenants(self) -> list[str]:
        broker = self._site.broker
        recorded = {
            item.key.removeprefix(keys.TENANTS)
            for item in (await broker.context.store.range(keys.TENANTS)).items
        }
        return sorted(recorded | {name.partition("/")[0] for name in broker.views.namespaces.items})

    async def tenant(self, name: str) -> dict[str, Any]:
        item = await self._site.broker.context.store.get(keys.tenant(name))
        if item is not None:
            record = TenantRecord.decode(item.value)
        elif self._namespaces.of_tenant(name):
            record = TenantRecord(allowed_clusters=(CLUSTER_NAME,))
        else:
            raise TopicNotFound("Tenant does not exist", f"create {name} with PUT")
        return {
            "adminRoles": list(record.admin_roles),
            "allowedClusters": list(record.allowed_clusters),
        }

    async def write_tenant(self, name: str, body: dict[str, Any] | None, create: bool) -> None:
        """Raises InvalidTopicName, InvalidRequest, PreconditionFailed, TopicExists,
        TopicNotFound, OwnedByResource."""
        check_named("tenant", name)
        record = await self._record(body)
        if create:
            exists = TopicExists("Tenant already exist", f"change {name} with POST")
            if self._namespaces.of_tenant(name):
                raise exists
            await self._site.create(keys.tenant(name), record.encode(), exists)
            return
        if name not in await self.tenants():
            raise TopicNotFound(f"Tenant {name} not found", "create it with PUT")

        def change(current: TenantRecord | None) -> TenantRecord:
            if current is None:
                return record
            refuse_tenant_edit(name, current, record)
            return replace(record, owner=current.owner, owned=current.owned)

        await self._site.change(keys.tenant(name), TenantRecord, change)

    async def _record(self, body: dict[str, Any] | None) -> TenantRecord:
        """A tenant from Pulsar's TenantInfo. Raises InvalidRequest, PreconditionFailed."""
        if body is None:
            raise PreconditionFailed("TenantInfo is null; send adminRoles and allowedClusters")
        info = TENANT_INFO.filled("TenantInfo", body)
        if info["allowedClusters"] is None:
            raise PreconditionFailed(f"Clusters cannot be null; allow {CLUSTER_NAME}")
        if not info["allowedClusters"] or not all(map(str.strip, info["allowedClusters"])):
            raise PreconditionFailed(f"Clusters cannot be empty or blank; allow {CLUSTER_NAME}")
        if unknown := set(info["allowedClusters"]) - set(await self._clusters.clusters()):
            raise PreconditionFailed(
                "Clusters do not exist", f"{', '.join(sorted(unknown))}: create them with PUT"
            )
        roles = info["adminRoles"] or ()
        if any(role != role.strip() for role in roles):
            raise PreconditionFailed(
                "AdminRoles contains whitespace in the beginning or end.", "leave it out"
            )
        return TenantRecord(tuple(sorted(roles)), tuple(sorted(info["allowedClusters"])))

    async def delete_tenant(self, name: str, force: bool) -> None:
        """Raises NotAllowed while it has namespaces and `force` is not set, OwnedByResource,
        TopicNotFound."""
        item = await self._site.broker.context.store.get(keys.tenant(name))
        if item is not None:
            refuse_tenant_deletion(name, TenantRecord.decode(item.value))
        if force:
            for namespace in self._namespaces.of_tenant(
                name
            ):  # all of them before the first is deleted
                refuse_deletion(
                    namespace, await self._site.namespace_record(NamespaceName.parse(namespace))
                )
            for namespace in self._namespaces.of_tenant(name):
                await self._namespaces.delete_namespace(NamespaceName.parse(namespace), force=True)
        elif self._namespaces.of_tenant(name):
            raise NotAllowed(
                "The tenant still has active namespaces",
                f"delete {', '.join(self._namespaces.of_tenant(name)[:5])} first",
            )
        if name not in await self.tenants():
            raise TopicNotFound("Tenant doesn't exist", f"there is no {name} to delete")

        def remove(current: TenantRecord | None) -> None:
            if current is not None:
                refuse_tenant_deletion(name, current)

        await self._site.change(keys.tenant(name), TenantRecord, remove)

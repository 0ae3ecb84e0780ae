"""Tenants.

Owns: their records and what REST shows of them. Imports: metadata, errors, namespaces. Invariant: a
tenant exists if it has a record or a namespace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnetar.broker.administration.namespaces import Namespaces
from magnetar.broker.administration.site import Site
from magnetar.errors import InvalidRequest, NotAllowed, TopicExists, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.owned_fields import (
    refuse_deletion,
    refuse_tenant_deletion,
    refuse_tenant_edit,
)
from magnetar.metadata.records import TenantRecord
from magnetar.names import CLUSTER_NAME, NamespaceName, check_part


class Tenants:
    """Tenants."""

    def __init__(self, site: Site, namespaces: Namespaces) -> None:
        self._site, self._namespaces = site, namespaces

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
            raise TopicNotFound(f"Tenant {name} does not exist; create it with PUT")
        return {
            "adminRoles": list(record.admin_roles),
            "allowedClusters": list(record.allowed_clusters),
        }

    async def write_tenant(self, name: str, body: dict[str, Any], create: bool) -> None:
        check_part("tenant", name)
        record = TenantRecord(
            _names(body, "adminRoles"), _names(body, "allowedClusters") or (CLUSTER_NAME,)
        )
        if create:
            if self._namespaces.of_tenant(name):
                raise TopicExists(f"Tenant {name} already exists")
            await self._site.create(keys.tenant(name), record.encode(), f"Tenant {name}")
            return
        if name not in await self.tenants():
            raise TopicNotFound(f"Tenant {name} does not exist; create it with PUT")

        def change(current: TenantRecord | None) -> TenantRecord:
            if current is None:
                return record
            refuse_tenant_edit(name, current, record)
            return replace(record, owner=current.owner, owned=current.owned)

        await self._site.change(keys.tenant(name), TenantRecord, change)

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
                f"The tenant {name} still has active namespaces: "
                f"{', '.join(self._namespaces.of_tenant(name)[:5])}; delete them first"
            )
        if name not in await self.tenants():
            raise TopicNotFound(f"Tenant {name} does not exist")

        def remove(current: TenantRecord | None) -> None:
            if current is not None:
                refuse_tenant_deletion(name, current)

        await self._site.change(keys.tenant(name), TenantRecord, remove)


def _names(body: dict[str, Any], field: str) -> tuple[str, ...]:
    value = body.get(field)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest(f"{field}: {value!r} is not a list of names")
    return tuple(sorted(value))

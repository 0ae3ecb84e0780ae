"""What policies name.

Owns: `References`, whether the clusters and resource groups that a policy names are there, and
whether a request that sets a policy has one. Imports: metadata, names, policy_shapes, errors.
Source: words and statuses of Pulsar's NamespacesBase and PersistentTopicsBase. Invariant: a policy
that names something absent is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.broker.administration.clusters import Clusters
from magnetar.broker.administration.documents import Documents
from magnetar.broker.administration.site import Site
from magnetar.errors import InvalidRequest, NotAuthorized, NotOffered, PreconditionFailed
from magnetar.metadata import keys
from magnetar.metadata.records import RESOURCE_GROUPS, TenantRecord
from magnetar.names import CLUSTER_NAME, NamespaceName, TopicName
from magnetar.policy_shapes import canonical

Target = NamespaceName | TopicName


class References:
    """Checks values of policies before they are set."""

    def __init__(self, site: Site, clusters: Clusters, documents: Documents) -> None:
        self._site, self._clusters, self._documents = site, clusters, documents
        self._checks: dict[str, Callable[[Any, Target], Awaitable[None]]] = {
            "replication_clusters": self._replication,
            "allowed_clusters": self._allowed,
            "resource_group_name": self._group,
            "anti_affinity": self._affinity,
            "persistence": self._persistence,
            "offload_policies": self._offloading,
            "entryFilters": self._filters,
            "max_message_size": self._message_size,
        }

    async def check(self, key: str, given: Any, target: Target) -> None:
        """Raises InvalidRequest, PreconditionFailed, NotAuthorized, NotOffered."""
        check = self._checks.get(key)
        if check is not None:
            await check(canonical(key, given), target)

    async def namespace(self, name: NamespaceName, policies: dict[str, Any]) -> None:
        """Check the policies that a namespace is to be created with. Raises as `check`."""
        for key in ("replication_clusters", "allowed_clusters"):
            await self._of_tenant(canonical(key, policies.get(key)) or (), name.tenant)
        for key in policies.keys() & {"resource_group_name", "entryFilters"}:
            if policies[key] is not None:
                await self.check(key, policies[key], name)

    async def _of_tenant(self, clusters: Any, tenant: str) -> None:
        item = await self._site.broker.context.store.get(keys.tenant(tenant))
        allowed = TenantRecord.decode(item.value).allowed_clusters if item is not None else ()
        known = {*allowed, *(() if item is not None else (CLUSTER_NAME,))}
        for cluster in clusters:
            if cluster not in known:
                raise NotAuthorized(
                    f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant "
                    f"[{tenant}]",
                    "allow it with POST /admin/v2/tenants",
                )

    async def _replication(self, clusters: Any, target: Target) -> None:
        if not clusters:
            raise PreconditionFailed(f"ClusterIds should not be null or empty; send {CLUSTER_NAME}")
        if isinstance(target, TopicName) and CLUSTER_NAME not in clusters:
            raise PreconditionFailed(
                "Can not remove local cluster from the local topic-level replication clusters "
                f"policy; add {CLUSTER_NAME}"
            )
        known = await self._clusters.clusters()
        for cluster in clusters:
            if cluster not in known:
                raise NotAuthorized(
                    f"Invalid cluster id: {cluster}", "GET /admin/v2/clusters lists them"
                )
        if clusters != [CLUSTER_NAME]:
            raise NotOffered(
                "Replication to other clusters is not offered by Magnetar",
                f"send {CLUSTER_NAME} alone; consume here and publish there",
            )

    async def _allowed(self, clusters: Any, target: Target) -> None:
        await self._of_tenant(clusters or (), target.tenant)

    async def _group(self, name: Any, _target: Target) -> None:
        if name and name not in await self._documents.documents(RESOURCE_GROUPS):
            raise PreconditionFailed(
                "ResourceGroup does not exist", f"create {name!r} with PUT /admin/v2/resourcegroups"
            )

    async def _affinity(self, group: Any, _target: Target) -> None:
        if not (group or "").strip():
            raise PreconditionFailed("Anti-affinity group can't be empty; name one")

    async def _persistence(self, found: Any, _target: Target) -> None:
        if found is None:
            raise InvalidRequest("persistence policies should not be null; send quorums")

    async def _offloading(self, found: Any, _target: Target) -> None:
        if not found:
            raise PreconditionFailed(
                "The offloadPolicies must be specified for namespace offload.",
                "offloading is not offered; have the BrokerCluster store messages as objects",
            )

    async def _filters(self, found: Any, _target: Target) -> None:
        names = (found or {}).get("entryFilterNames") or ""
        if not names.strip():
            raise InvalidRequest(
                "entryFilterNames can't be empty. To remove entry filters use the remove method."
            )
        raise InvalidRequest(
            f"Entry filter '{names.split(',')[0].strip()}' not found",
            "classes are not loaded into brokers: filter in the consumer",
        )

    async def _message_size(self, size: Any, _target: Target) -> None:
        limit = self._site.broker.context.settings.max_message_bytes
        if size is not None and size > limit:
            raise PreconditionFailed(f"max_message_size: {size} is out of range; use 0..{limit}")

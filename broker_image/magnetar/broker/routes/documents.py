"""Routes of what administrators store beside policies.

Owns: peers, failure domains and isolation policies of clusters, resource groups and quotas,
bookies: what Pulsar's tools set up and read back. Failure domains and isolation policies govern
placement, groups limit rates; loads of bundles are measured, so that quotas are only shown.
Imports: FastAPI, administration. Source: names, JSON and refusals of Pulsar's ClustersBase,
ResourceGroupsBase and ResourceQuotasBase. Invariant: what was stored is durable when 204 is
answered, and returned in one form.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import InUse, NotAllowed, NotOffered, PreconditionFailed, TopicNotFound
from magnetar.metadata.records import FAILURE_DOMAINS, ISOLATION_POLICIES, RESOURCE_GROUPS
from magnetar.policy_shapes import RESOURCE_GROUP
from magnetar.rest.answers import NO_CONTENT, Namespace, body, shaped
from magnetar.rest.rights import Asked
from magnetar.shapes import TEXT, TEXTS, Anything, Bean

OBJECT = {"type": "object"}
NAMES = {"type": "array", "items": {"type": "string"}}
PEERS = "peers"
DOMAIN = Bean({"brokers": TEXTS}, {"brokers": []})
ISOLATION = Bean(
    {
        "namespaces": TEXTS,
        "primary": TEXTS,
        "secondary": TEXTS,
        "auto_failover_policy": Anything(),
        "unload_scope": TEXT,
    },
    {"namespaces": [], "primary": [], "secondary": []},
)
QUOTA = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100000.0,
    "bandwidthOut": 300000.0,
    "memory": 80.0,
    "dynamic": True,
}
"""Pulsar's default for a bundle whose load is not known."""


def document_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Stored documents over `admin`."""
    router = APIRouter(prefix="/admin/v2", dependencies=asked)
    _add_peers(router, admin)
    _add_domains(router, admin)
    # before the policies by name, among which "brokers" cannot be
    _add_isolated_brokers(router, admin)
    _add_isolation(router, admin)
    _add_groups(router, admin)
    _add_quotas(router, admin)
    _add_bookies(router)
    return router


def _add_peers(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/clusters/{cluster}/peers", tags=["clusters"])
    async def peers(cluster: str) -> list[str]:
        """List the clusters that were stored as peers of a cluster."""
        await admin.clusters.cluster(cluster)
        return list((await admin.documents.documents(f"{PEERS}/{cluster}")).get("names", []))

    @router.post(
        "/clusters/{cluster}/peers",
        status_code=NO_CONTENT,
        tags=["clusters"],
        openapi_extra=body("names", NAMES),
    )
    async def write(cluster: str, request: Request) -> None:
        """Store the names of a cluster's peers, which may not replicate a namespace together."""
        await admin.clusters.cluster(cluster)
        names = await shaped(request, PEERS, TEXTS) or []
        known = await admin.clusters.clusters()
        for name in names:
            if name == cluster:
                raise PreconditionFailed(
                    f"{name} itself can't be part of peer-list", "name other clusters"
                )
            if name not in known:
                raise PreconditionFailed(
                    f"Peer cluster {name} does not exist", "GET /admin/v2/clusters lists them"
                )
        await admin.documents.write_document(f"{PEERS}/{cluster}", "names", names)


def _add_domains(router: APIRouter, admin: BrokerAdministration) -> None:
    path = f"/clusters/{{cluster}}/{FAILURE_DOMAINS}"

    def absent(said: str) -> TopicNotFound:
        return TopicNotFound(said, f"GET .../{FAILURE_DOMAINS} lists them")

    @router.get(path, tags=["clusters"])
    async def domains(cluster: str) -> dict[str, Any]:
        """Return all failure domains of a cluster."""
        return await admin.documents.documents(f"{FAILURE_DOMAINS}/{cluster}")

    @router.get(f"{path}/{{name}}", tags=["clusters"])
    async def domain(cluster: str, name: str) -> Any:
        """Return one of the failure domains of a cluster."""
        await admin.clusters.check(cluster)
        said = f"Domain {name} for cluster {cluster} does not exist"
        return await admin.documents.document(f"{FAILURE_DOMAINS}/{cluster}", name, absent(said))

    @router.post(
        f"{path}/{{name}}",
        status_code=NO_CONTENT,
        tags=["clusters"],
        openapi_extra=body("FailureDomain", OBJECT),
    )
    async def write_domain(cluster: str, name: str, request: Request) -> None:
        """Store one of the failure domains of a cluster; a broker is in one of them."""
        await admin.clusters.check(cluster)
        wanted = await shaped(request, "FailureDomain", DOMAIN) or {"brokers": []}
        for other, found in (
            await admin.documents.documents(f"{FAILURE_DOMAINS}/{cluster}")
        ).items():
            twice = [broker for broker in found.get("brokers", ()) if broker in wanted["brokers"]]
            if other != name and twice:
                raise NotAllowed(
                    f"[{', '.join(twice)}] already exists in {other}", "take them out there first"
                )
        await admin.documents.write_document(f"{FAILURE_DOMAINS}/{cluster}", name, wanted)

    @router.delete(f"{path}/{{name}}", response_class=Response, tags=["clusters"])
    async def remove_domain(cluster: str, name: str) -> None:
        """Forget one of the failure domains of a cluster."""
        await admin.clusters.check(cluster)
        said = f"Domain-name {name} or cluster {cluster} does not exist"
        await admin.documents.remove(f"{FAILURE_DOMAINS}/{cluster}", name, absent(said))


async def _isolation(admin: BrokerAdministration, cluster: str) -> dict[str, Any]:
    """The isolation policies of a cluster that has any. Raises TopicNotFound."""
    found = await admin.documents.documents(f"{ISOLATION_POLICIES}/{cluster}")
    if not found:
        raise TopicNotFound(
            f"NamespaceIsolationPolicies for cluster {cluster} does not exist; store one first"
        )
    return found


def _add_isolation(router: APIRouter, admin: BrokerAdministration) -> None:
    path = f"/clusters/{{cluster}}/{ISOLATION_POLICIES}"

    @router.get(path, tags=["clusters"])
    async def policies(cluster: str) -> dict[str, Any]:
        """Return all isolation policies of a cluster."""
        await admin.clusters.check(cluster, TopicNotFound)
        return await _isolation(admin, cluster)

    @router.get(f"{path}/{{name}}", tags=["clusters"])
    async def policy(cluster: str, name: str) -> Any:
        """Return one of the isolation policies of a cluster."""
        await admin.clusters.check(cluster)
        found = (await _isolation(admin, cluster)).get(name)
        if found is None:
            raise TopicNotFound(
                f"Cannot find NamespaceIsolationPolicy {name} for cluster {cluster}",
                f"GET .../{ISOLATION_POLICIES} lists them",
            )
        return found

    @router.post(
        f"{path}/{{name}}",
        status_code=NO_CONTENT,
        tags=["clusters"],
        openapi_extra=body("NamespaceIsolationData", OBJECT),
    )
    async def write_policy(cluster: str, name: str, request: Request) -> None:
        """Store one of the isolation policies of a cluster."""
        await admin.clusters.check(cluster)
        wanted = await shaped(request, f"isolation policy {name}", ISOLATION)
        given = {field: value for field, value in (wanted or {}).items() if value is not None}
        await admin.documents.write_document(f"{ISOLATION_POLICIES}/{cluster}", name, given)

    @router.delete(f"{path}/{{name}}", status_code=NO_CONTENT, tags=["clusters"])
    async def remove_policy(cluster: str, name: str) -> None:
        """Forget one of the isolation policies of a cluster, if it is there."""
        await admin.clusters.check(cluster)
        await _isolation(admin, cluster)
        await admin.documents.write_document(f"{ISOLATION_POLICIES}/{cluster}", name, None)


def _add_isolated_brokers(router: APIRouter, admin: BrokerAdministration) -> None:
    path = f"/clusters/{{cluster}}/{ISOLATION_POLICIES}/brokers"

    @router.get(path, tags=["clusters"])
    async def isolated(cluster: str) -> list[dict[str, Any]]:
        """List the brokers with the isolation policy that names them."""
        await admin.clusters.check(cluster)
        await _isolation(admin, cluster)
        return [
            await admin.documents.isolation_of(name)
            for name in await admin.brokers.brokers(cluster)
        ]

    @router.get(f"{path}/{{broker}}", tags=["clusters"])
    async def isolated_broker(cluster: str, broker: str) -> dict[str, Any]:
        """Return the isolation policy that names a broker."""
        await admin.clusters.check(cluster)
        await _isolation(admin, cluster)
        if broker not in await admin.brokers.brokers(cluster):
            raise TopicNotFound(
                f"broker {broker} is not there; GET /admin/v2/brokers lists the live ones"
            )
        return await admin.documents.isolation_of(broker)

    @router.get("/clusters/{cluster}/migrate", tags=["clusters"])
    async def migration(cluster: str) -> dict[str, Any]:
        """Tell that a cluster is not being migrated."""
        await admin.clusters.cluster(cluster)
        return {"migrated": False, "migratedClusterUrl": None}


def _add_groups(router: APIRouter, admin: BrokerAdministration) -> None:
    absent = TopicNotFound("ResourceGroup does not exist; GET /admin/v2/resourcegroups lists them")

    @router.get("/resourcegroups", tags=["resource groups"])
    async def groups() -> list[str]:
        """List the resource groups."""
        return sorted(await admin.documents.documents(RESOURCE_GROUPS))

    @router.get("/resourcegroups/{name}", tags=["resource groups"])
    async def group(name: str) -> Any:
        """Return a resource group."""
        return await admin.documents.document(RESOURCE_GROUPS, name, absent)

    @router.put(
        "/resourcegroups/{name}",
        status_code=NO_CONTENT,
        tags=["resource groups"],
        openapi_extra=body("its limits", OBJECT),
    )
    async def write(name: str, request: Request) -> None:
        """Create a resource group, or change those of its limits that are given."""
        given = await shaped(request, "ResourceGroup", RESOURCE_GROUP) or {}
        stored = (await admin.documents.documents(RESOURCE_GROUPS)).get(name) or {}
        limits = {
            field: stored.get(field, -1) if given.get(field) is None else given[field]
            for field in RESOURCE_GROUP.fields
        }
        await admin.documents.write_document(RESOURCE_GROUPS, name, limits)

    @router.delete("/resourcegroups/{name}", status_code=NO_CONTENT, tags=["resource groups"])
    async def remove(name: str) -> None:
        """Forget a resource group that no namespace is in."""
        users = admin.namespaces.of_group(name)
        if users:
            raise InUse("ResourceGroup is in use", f"take {', '.join(users[:5])} out of it first")
        await admin.documents.remove(RESOURCE_GROUPS, name, absent)


def _add_quotas(router: APIRouter, admin: BrokerAdministration) -> None:
    refusal = NotOffered(
        "Resource quotas are not offered by Magnetar: the load of bundles is measured; limit rates by policies or "
        "resource groups, and balancing by the settings of load balancing"
    )

    @router.get("/resource-quotas", tags=["resource quotas"])
    async def default() -> Any:
        """Return Pulsar's default quota of a bundle."""
        return QUOTA

    @router.post("/resource-quotas", status_code=NO_CONTENT, tags=["resource quotas"])
    async def write_default() -> None:
        """Refused: loads are measured."""
        raise refusal

    path = "/resource-quotas/{tenant}/{namespace}/{bundle}"

    @router.get(path, tags=["resource quotas"])
    async def quota(namespace: Namespace, bundle: str) -> Any:
        """Return Pulsar's default quota for a bundle of a namespace."""
        await admin.bundles.bundle(namespace, bundle)
        return QUOTA

    @router.post(path, status_code=NO_CONTENT, tags=["resource quotas"])
    async def write(namespace: Namespace, bundle: str) -> None:
        """Refused: loads are measured."""
        await admin.bundles.bundle(namespace, bundle)
        raise refusal

    @router.delete(path, status_code=NO_CONTENT, tags=["resource quotas"])
    async def remove(namespace: Namespace, bundle: str) -> None:
        """Have the default quota hold for a bundle, which it always does."""
        await admin.bundles.bundle(namespace, bundle)


def _add_bookies(router: APIRouter) -> None:
    @router.get("/bookies/all", tags=["bookies"])
    async def bookies() -> dict[str, Any]:
        """List no bookies: brokers store what they acknowledge themselves."""
        return {"bookies": []}

    @router.get("/bookies/racks-info", tags=["bookies"])
    async def racks() -> Response:
        """Tell the racks of no bookies."""
        return Response("{}", media_type="application/json")

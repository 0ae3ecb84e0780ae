"""Routes of what administrators store and Magnetar only returns.

Owns: peers, failure domains and isolation policies of clusters, resource quotas and groups,
bookies: what Pulsar's tools set up and read back. Failure domains and isolation policies govern
placement. Imports: FastAPI, administration. Source: names and JSON of Pulsar's admin API.
Invariants: what was stored is durable when 204 is answered and returned as it came.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import InvalidRequest, TopicNotFound
from magnetar.rest.answers import (
    NO_CONTENT,
    Namespace,
    body,
    body_of,
    object_of,
)
from magnetar.rest.rights import Asked

OBJECT = {"type": "object"}
NAMES = {"type": "array", "items": {"type": "string"}}
DOMAINS, ISOLATION, PEERS, GROUPS, QUOTAS = (
    "failureDomains",
    "namespaceIsolationPolicies",
    "peers",
    "resourcegroups",
    "resource-quotas",
)
DEFAULT_QUOTA = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100000.0,
    "bandwidthOut": 300000.0,
    "memory": 80.0,
    "dynamic": True,
}


def document_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Stored documents over `admin`."""
    router = APIRouter(prefix="/admin/v2", dependencies=asked)
    _add_peers(router, admin)
    # before the policies by name, among which "brokers" cannot be
    _add_isolated_brokers(router, admin)
    for part in (DOMAINS, ISOLATION):
        _add_parts(router, admin, part)
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
        """Store the names of a cluster's peers."""
        await admin.clusters.cluster(cluster)
        names = await body_of(request)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidRequest(
                f"peers: {str(names)[:80]!r} is not a list of names; send names of clusters"
            )
        for name in names:
            await admin.clusters.cluster(name)
        await admin.documents.write_document(f"{PEERS}/{cluster}", "names", names)


def _add_parts(router: APIRouter, admin: BrokerAdministration, part: str) -> None:
    """Named documents of a cluster."""
    path = f"/clusters/{{cluster}}/{part}"

    @router.get(
        path, tags=["clusters"], name=f"all_{part}", description=f"Return all {part} of a cluster."
    )
    async def documents(cluster: str) -> dict[str, Any]:
        await admin.clusters.cluster(cluster)
        return await admin.documents.documents(f"{part}/{cluster}")

    @router.get(
        f"{path}/{{name}}",
        tags=["clusters"],
        name=f"one_of_{part}",
        description=f"Return one of the {part} of a cluster.",
    )
    async def document(cluster: str, name: str) -> Any:
        return await _one(admin, f"{part}/{cluster}", name)

    @router.post(
        f"{path}/{{name}}",
        status_code=NO_CONTENT,
        tags=["clusters"],
        name=f"write_{part}",
        description=f"Store one of the {part} of a cluster.",
        openapi_extra=body("Pulsar's JSON", OBJECT),
    )
    async def write(cluster: str, name: str, request: Request) -> None:
        await admin.clusters.cluster(cluster)
        await admin.documents.write_document(f"{part}/{cluster}", name, await object_of(request))

    @router.delete(
        f"{path}/{{name}}",
        status_code=NO_CONTENT,
        tags=["clusters"],
        name=f"remove_{part}",
        description=f"Forget one of the {part}.",
    )
    async def remove(cluster: str, name: str) -> None:
        await _one(admin, f"{part}/{cluster}", name)
        await admin.documents.write_document(f"{part}/{cluster}", name, None)


async def _one(admin: BrokerAdministration, group: str, name: str) -> Any:
    """Raises TopicNotFound."""
    found = (await admin.documents.documents(group)).get(name)
    if found is None:
        raise TopicNotFound(f"{group}: there is no {name!r}; store it first")
    return found


def _add_isolated_brokers(router: APIRouter, admin: BrokerAdministration) -> None:
    path = f"/clusters/{{cluster}}/{ISOLATION}/brokers"

    @router.get(path, tags=["clusters"])
    async def isolated(cluster: str) -> list[dict[str, Any]]:
        """List the brokers with the isolation policy that names them."""
        return [
            await admin.documents.isolation_of(name)
            for name in await admin.brokers.brokers(cluster)
        ]

    @router.get(f"{path}/{{broker}}", tags=["clusters"])
    async def isolated_broker(cluster: str, broker: str) -> dict[str, Any]:
        """Return the isolation policy that names a broker."""
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
    @router.get("/resourcegroups", tags=["resource groups"])
    async def groups() -> list[str]:
        """List the resource groups."""
        return sorted(await admin.documents.documents(GROUPS))

    @router.get("/resourcegroups/{name}", tags=["resource groups"])
    async def group(name: str) -> Any:
        """Return a resource group."""
        return await _one(admin, GROUPS, name)

    @router.put(
        "/resourcegroups/{name}",
        status_code=NO_CONTENT,
        tags=["resource groups"],
        openapi_extra=body("its limits", OBJECT),
    )
    async def write(name: str, request: Request) -> None:
        """Store a resource group."""
        await admin.documents.write_document(GROUPS, name, await object_of(request))

    @router.delete("/resourcegroups/{name}", status_code=NO_CONTENT, tags=["resource groups"])
    async def remove(name: str) -> None:
        """Forget a resource group."""
        await _one(admin, GROUPS, name)
        await admin.documents.write_document(GROUPS, name, None)


def _add_quotas(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/resource-quotas", tags=["resource quotas"])
    async def default() -> Any:
        """Return the default quota of a bundle."""
        return (await admin.documents.documents(QUOTAS)).get("default", DEFAULT_QUOTA)

    @router.post(
        "/resource-quotas",
        status_code=NO_CONTENT,
        tags=["resource quotas"],
        openapi_extra=body("ResourceQuota", OBJECT),
    )
    async def write_default(request: Request) -> None:
        """Store the default quota of a bundle."""
        await admin.documents.write_document(QUOTAS, "default", await object_of(request))

    path = "/resource-quotas/{tenant}/{namespace}/{bundle}"

    @router.get(path, tags=["resource quotas"])
    async def quota(namespace: Namespace, bundle: str) -> Any:
        """Return the quota of a bundle."""
        stored = await admin.documents.documents(QUOTAS)
        return stored.get(f"{namespace}/{bundle}", stored.get("default", DEFAULT_QUOTA))

    @router.post(
        path,
        status_code=NO_CONTENT,
        tags=["resource quotas"],
        openapi_extra=body("ResourceQuota", OBJECT),
    )
    async def write(namespace: Namespace, bundle: str, request: Request) -> None:
        """Store the quota of a bundle."""
        await admin.namespaces.namespace(namespace)
        await admin.documents.write_document(
            QUOTAS, f"{namespace}/{bundle}", await object_of(request)
        )

    @router.delete(path, status_code=NO_CONTENT, tags=["resource quotas"])
    async def remove(namespace: Namespace, bundle: str) -> None:
        """Have the default quota hold for a bundle again."""
        await admin.documents.write_document(QUOTAS, f"{namespace}/{bundle}", None)


def _add_bookies(router: APIRouter) -> None:
    @router.get("/bookies/all", tags=["bookies"])
    async def bookies() -> dict[str, Any]:
        """List no bookies: brokers store what they acknowledge themselves."""
        return {"bookies": []}

    @router.get("/bookies/racks-info", tags=["bookies"])
    async def racks() -> Response:
        """Tell the racks of no bookies."""
        return Response("{}", media_type="application/json")

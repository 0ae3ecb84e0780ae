"""Routes of clusters and tenants.

Owns: `/admin/v2/clusters` and `/admin/v2/tenants`. Imports: FastAPI, administration. Suites PUT
clusters and tenants first and take 409 for "there already". Invariant: what is created here is
durable when 204 is answered.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.rest.answers import NO_CONTENT, body, object_or_none
from magnetar.rest.rights import Asked

CLUSTER = {
    "type": "object",
    "properties": {"serviceUrl": {"type": "string"}, "brokerServiceUrl": {"type": "string"}},
}
NAMES = {"type": "array", "items": {"type": "string"}}
TENANT = {"type": "object", "properties": {"adminRoles": NAMES, "allowedClusters": NAMES}}


def cluster_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Clusters and tenants over `admin`."""
    router = APIRouter(prefix="/admin/v2", dependencies=asked)
    _add_clusters(router, admin)
    _add_tenants(router, admin)
    return router


def _add_clusters(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/clusters", tags=["clusters"])
    async def clusters() -> list[str]:
        """List the clusters that are known."""
        return await admin.clusters.clusters()

    @router.get("/clusters/{cluster}", tags=["clusters"])
    async def cluster(cluster: str) -> dict[str, Any]:
        """Return what is known about a cluster."""
        return await admin.clusters.cluster(cluster)

    @router.put(
        "/clusters/{cluster}",
        response_class=Response,
        tags=["clusters"],
        openapi_extra=body("ClusterData", CLUSTER),
    )
    async def create_cluster(cluster: str, request: Request) -> None:
        """Make a cluster known."""
        await admin.clusters.write_cluster(cluster, await object_or_none(request), create=True)

    @router.post(
        "/clusters/{cluster}",
        response_class=Response,
        tags=["clusters"],
        openapi_extra=body("ClusterData", CLUSTER),
    )
    async def update_cluster(cluster: str, request: Request) -> None:
        """Replace what is known about a cluster."""
        await admin.clusters.write_cluster(cluster, await object_or_none(request), create=False)

    @router.delete("/clusters/{cluster}", status_code=NO_CONTENT, tags=["clusters"])
    async def delete_cluster(cluster: str) -> None:
        """Forget a cluster."""
        await admin.clusters.delete_cluster(cluster)


def _add_tenants(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/tenants", tags=["tenants"])
    async def tenants() -> list[str]:
        """List the tenants."""
        return await admin.tenants.tenants()

    @router.get("/tenants/{tenant}", tags=["tenants"])
    async def tenant(tenant: str) -> dict[str, Any]:
        """Return a tenant's roles and clusters."""
        return await admin.tenants.tenant(tenant)

    @router.put(
        "/tenants/{tenant}",
        status_code=NO_CONTENT,
        tags=["tenants"],
        openapi_extra=body("TenantInfo", TENANT),
    )
    async def create_tenant(tenant: str, request: Request) -> None:
        """Create a tenant."""
        await admin.tenants.write_tenant(tenant, await object_or_none(request), create=True)

    @router.post(
        "/tenants/{tenant}",
        status_code=NO_CONTENT,
        tags=["tenants"],
        openapi_extra=body("TenantInfo", TENANT),
    )
    async def update_tenant(tenant: str, request: Request) -> None:
        """Replace a tenant's roles and clusters."""
        await admin.tenants.write_tenant(tenant, await object_or_none(request), create=False)

    @router.delete("/tenants/{tenant}", status_code=NO_CONTENT, tags=["tenants"])
    async def delete_tenant(tenant: str, force: bool = False) -> None:
        """Delete a tenant; with its namespaces only by force."""
        await admin.tenants.delete_tenant(tenant, force)

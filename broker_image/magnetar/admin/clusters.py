"""Routes of clusters, tenants and brokers.

Owns: `/admin/v2/clusters`, `/admin/v2/tenants`, `/admin/v2/brokers`. Imports: FastAPI, ports.
Source: facts on protocol 3: suites PUT clusters and tenants first and take 409 for "there already".
Invariant: what is created here is durable when 204 is answered.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from magnetar.admin.answers import NO_CONTENT, object_of
from magnetar.admin.ports import AdminPort


def cluster_router(port: AdminPort) -> APIRouter:
    """Clusters, tenants and brokers over `port`."""
    router = APIRouter(prefix="/admin/v2")
    _add_clusters(router, port)
    _add_tenants(router, port)
    _add_brokers(router, port)
    return router


def _add_clusters(router: APIRouter, port: AdminPort) -> None:
    @router.get("/clusters")
    async def clusters() -> list[str]:
        return await port.clusters()

    @router.get("/clusters/{cluster}")
    async def cluster(cluster: str) -> dict[str, Any]:
        return await port.cluster(cluster)

    @router.put("/clusters/{cluster}", status_code=NO_CONTENT)
    @router.post("/clusters/{cluster}", status_code=NO_CONTENT)
    async def write(cluster: str, request: Request) -> None:
        await port.write_cluster(cluster, await object_of(request), create=request.method == "PUT")

    @router.delete("/clusters/{cluster}", status_code=NO_CONTENT)
    async def delete(cluster: str) -> None:
        await port.delete_cluster(cluster)


def _add_tenants(router: APIRouter, port: AdminPort) -> None:
    @router.get("/tenants")
    async def tenants() -> list[str]:
        return await port.tenants()

    @router.get("/tenants/{tenant}")
    async def tenant(tenant: str) -> dict[str, Any]:
        return await port.tenant(tenant)

    @router.put("/tenants/{tenant}", status_code=NO_CONTENT)
    @router.post("/tenants/{tenant}", status_code=NO_CONTENT)
    async def write(tenant: str, request: Request) -> None:
        await port.write_tenant(tenant, await object_of(request), create=request.method == "PUT")

    @router.delete("/tenants/{tenant}", status_code=NO_CONTENT)
    async def delete(tenant: str) -> None:
        await port.delete_tenant(tenant)


def _add_brokers(router: APIRouter, port: AdminPort) -> None:
    @router.get("/brokers")
    @router.get("/brokers/{cluster}")
    async def brokers(cluster: str = "") -> list[str]:
        del cluster  # there is one
        return await port.brokers()

    @router.get("/brokers/leaderBroker")
    async def leader() -> dict[str, str]:
        return await port.leader_broker()

    @router.get("/brokers/configuration/runtime")
    async def configuration() -> dict[str, str]:
        return port.configuration()

"""Routes of namespaces.

Owns: `/admin/v2/namespaces` but its policies (`policy_routes`). Imports: FastAPI, ports, names.
Invariant: a namespace that holds topics is deleted only with `force`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from magnetar.admin.answers import NO_CONTENT, body_of, namespace_name, object_of
from magnetar.admin.ports import AdminPort, ListMode
from magnetar.errors import InvalidRequest
from magnetar.names import DEFAULT_BUNDLES, PERSISTENT

BASE = "/admin/v2/namespaces/{tenant}/{namespace}"


def namespace_router(port: AdminPort) -> APIRouter:
    """Namespaces over `port`."""
    router = APIRouter()
    _add_life(router, port)
    _add_work(router, port)
    return router


def _add_life(router: APIRouter, port: AdminPort) -> None:
    @router.get("/admin/v2/namespaces/{tenant}")
    async def namespaces(tenant: str) -> list[str]:
        return await port.namespaces(tenant)

    @router.get(BASE)
    async def policies(tenant: str, namespace: str) -> dict[str, Any]:
        return await port.namespace(namespace_name(tenant, namespace))

    @router.put(BASE, status_code=NO_CONTENT)
    async def create(tenant: str, namespace: str, request: Request) -> None:
        settings = await object_of(request)
        bundles = settings.pop("bundles", None)
        count = bundles.get("numBundles", DEFAULT_BUNDLES) if isinstance(bundles, dict) else DEFAULT_BUNDLES
        if isinstance(count, bool) or not isinstance(count, int):
            raise InvalidRequest(f"bundles.numBundles: {count!r} is not a number")
        given = {key: value for key, value in settings.items() if value is not None}
        await port.create_namespace(namespace_name(tenant, namespace), count, given)

    @router.delete(BASE, status_code=NO_CONTENT)
    async def delete(tenant: str, namespace: str, force: bool = False) -> None:
        await port.delete_namespace(namespace_name(tenant, namespace), force)

    @router.get(f"{BASE}/topics")
    async def topics(tenant: str, namespace: str, mode: ListMode = "PERSISTENT") -> list[str]:
        return await port.topics(namespace_name(tenant, namespace), mode)

    @router.get("/admin/v2/{domain:domain}/{tenant}/{namespace}")
    async def topics_of_domain(domain: str, tenant: str, namespace: str) -> list[str]:
        return await port.topics(namespace_name(tenant, namespace), "PERSISTENT" if domain == PERSISTENT else "NON_PERSISTENT")

    @router.get("/admin/v2/{domain:domain}/{tenant}/{namespace}/partitioned")
    async def partitioned(domain: str, tenant: str, namespace: str) -> list[str]:
        found = await port.partitioned_topics(namespace_name(tenant, namespace))
        return [name for name in found if name.startswith(f"{domain}://")]

    @router.get(f"{BASE}/bundles")
    async def bundles(tenant: str, namespace: str) -> dict[str, Any]:
        found: dict[str, Any] = (await port.namespace(namespace_name(tenant, namespace)))["bundles"]
        return found


def _add_work(router: APIRouter, port: AdminPort) -> None:
    @router.put(f"{BASE}/unload", status_code=NO_CONTENT)
    async def unload(tenant: str, namespace: str) -> None:
        await port.unload_namespace(namespace_name(tenant, namespace), "", "")

    @router.put(f"{BASE}/{{bundle}}/unload", status_code=NO_CONTENT)
    async def unload_bundle(
        tenant: str, namespace: str, bundle: str, destination: Annotated[str, Query(alias="destinationBroker")] = ""
    ) -> None:
        await port.unload_namespace(namespace_name(tenant, namespace), bundle, destination)

    @router.put(f"{BASE}/{{bundle}}/split", status_code=NO_CONTENT)
    async def split_bundle(
        tenant: str,
        namespace: str,
        bundle: str,
        request: Request,
        unload: bool = False,
        algorithm: Annotated[str, Query(alias="splitAlgorithmName")] = "",
    ) -> None:
        positions = await body_of(request)
        if not isinstance(positions, list | None) or any(type(found) is not int for found in positions or ()):
            raise InvalidRequest(f"body: {str(positions)[:80]} is not a list of split boundaries")
        await port.split_bundle(namespace_name(tenant, namespace), bundle, algorithm, positions or (), unload=unload)

    @router.post(f"{BASE}/clearBacklog", status_code=NO_CONTENT)
    @router.post(f"{BASE}/clearBacklog/{{subscription:path}}", status_code=NO_CONTENT)
    async def clear_backlog(tenant: str, namespace: str, subscription: str = "") -> None:
        await port.clear_backlog(namespace_name(tenant, namespace), subscription)

    @router.post(f"{BASE}/unsubscribe/{{subscription:path}}", status_code=NO_CONTENT)
    async def unsubscribe(tenant: str, namespace: str, subscription: str) -> None:
        await port.unsubscribe_all(namespace_name(tenant, namespace), subscription)

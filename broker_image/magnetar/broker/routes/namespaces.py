"""Routes of namespaces.

Owns: `/admin/v2/namespaces` but its policies (`routes.policies`). Imports: FastAPI, administration,
names. Invariants: a namespace that holds topics is deleted only with `force`; what concerns all of
its bundles is done at all their owners.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.administration.topics import ListMode
from magnetar.broker.routes.topics import Destination
from magnetar.errors import InvalidRequest
from magnetar.names import DEFAULT_BUNDLES, PERSISTENT, boundaries_given, initial_boundaries
from magnetar.policy_shapes import SHAPES
from magnetar.rest.answers import (
    NAMESPACE,
    NO_CONTENT,
    Domain,
    Namespace,
    body,
    shaped,
)
from magnetar.rest.rights import Asked
from magnetar.shapes import LONG, TEXTS, Anything, Bean, Items

BUNDLE = f"{NAMESPACE}/{{bundle:bundle}}"
BOUNDARIES = {"type": "array", "items": {"type": "integer"}}
BUNDLES = {
    "type": "object",
    "properties": {
        "numBundles": {"type": "integer"},
        "boundaries": {"type": "array", "items": {"type": "string"}},
    },
}
POLICIES = {"type": "object", "properties": {"bundles": BUNDLES}}
POLICIES_SHAPE = Bean(
    {
        **dict.fromkeys(SHAPES, Anything()),  # read in one form where they are checked
        "bundles": Bean({"numBundles": LONG, "boundaries": TEXTS}),
    }
)


def namespace_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Namespaces over `admin`."""
    router = APIRouter(tags=["namespaces"], dependencies=asked)
    _add_life(router, admin)
    _add_lists(router, admin)
    _add_bundles(router, admin)
    _add_moves(router, admin)
    _add_work(router, admin)
    return router


def _add_life(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(NAMESPACE)
    async def namespace(namespace: Namespace) -> dict[str, Any]:
        """Return all policies of a namespace."""
        return await admin.namespaces.namespace(namespace)

    @router.put(
        NAMESPACE,
        status_code=NO_CONTENT,
        openapi_extra=body("its first policies", POLICIES, required=False),
    )
    async def create_namespace(namespace: Namespace, request: Request) -> None:
        """Create a namespace."""
        settings = await shaped(request, "policies", POLICIES_SHAPE) or {}
        boundaries = _boundaries(settings.pop("bundles", None))
        given = {key: value for key, value in settings.items() if value is not None}
        await admin.namespaces.create_namespace(namespace, boundaries, given)

    @router.delete(NAMESPACE, status_code=NO_CONTENT)
    async def delete_namespace(namespace: Namespace, force: bool = False) -> None:
        """Delete a namespace; with its topics only by force."""
        await admin.namespaces.delete_namespace(namespace, force)


def _boundaries(bundles: dict[str, Any] | None) -> tuple[int, ...]:
    """Where Pulsar's BundlesData divides a namespace: at its boundaries, else into as many equal
    parts as it says. Raises InvalidRequest."""
    given = bundles or {}
    try:
        if given.get("boundaries"):
            return boundaries_given(given["boundaries"])
        count = given.get("numBundles") or 0
        return initial_boundaries(count if count > 0 else DEFAULT_BUNDLES)
    except InvalidRequest as error:
        said = (
            "Input bundles do not cover the whole hash range."
            if given.get("boundaries")
            else "Invalid number of bundles."
        )
        raise InvalidRequest(f"{said} {error.fault}", error.remedy) from error


def _add_lists(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/admin/v2/namespaces/{tenant}")
    async def namespaces(tenant: str) -> list[str]:
        """List the namespaces of a tenant."""
        return await admin.namespaces.namespaces(tenant)

    # where Java's client asks
    @router.get("/admin/namespaces/{cluster}/antiAffinity/{group}", include_in_schema=False)
    @router.get("/admin/v2/namespaces/{cluster}/antiAffinity/{group}")
    async def anti_affinity(
        cluster: str, group: str, tenant: Annotated[str, Query(alias="property")] = ""
    ) -> list[str]:
        """List the namespaces (of a tenant) that belong to an anti-affinity group."""
        del cluster  # there is one
        return await admin.namespaces.anti_affinity_namespaces(tenant, group)

    @router.get(f"{NAMESPACE}/topics")
    async def topics(namespace: Namespace, mode: ListMode = "PERSISTENT") -> list[str]:
        """List the topics of a namespace, partitions one by one."""
        return await admin.topics.topics(namespace, mode)

    @router.get("/admin/v2/{domain:domain}/{tenant}/{namespace}")
    async def topics_of_domain(domain: Domain, namespace: Namespace, bundle: str = "") -> list[str]:
        """List the topics of a namespace that are persistent, or those that are not; of one
        bundle, if named."""
        mode: ListMode = "PERSISTENT" if domain == PERSISTENT else "NON_PERSISTENT"
        found = await admin.topics.topics(namespace, mode)
        return admin.bundles.topics_of_bundle(namespace, bundle, found) if bundle else found

    @router.get("/admin/v2/{domain:domain}/{tenant}/{namespace}/partitioned")
    async def partitioned_topics(domain: Domain, namespace: Namespace) -> list[str]:
        """List the partitioned topics of a namespace."""
        found = await admin.topics.partitioned_topics(namespace)
        return [name for name in found if name.startswith(f"{domain}://")]


def _add_bundles(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{NAMESPACE}/bundles")
    async def bundles(namespace: Namespace) -> dict[str, Any]:
        """Tell the hash ranges that a namespace is divided into."""
        found: dict[str, Any] = (await admin.namespaces.namespace(namespace))["bundles"]
        return found

    @router.get(f"{BUNDLE}/topicHashPositions")
    async def hash_positions(
        namespace: Namespace,
        bundle: str,
        topics: list[str] = Query(default=[]),  # noqa: B008
    ) -> dict[str, Any]:
        """Tell where topics of a bundle lie in its range; of all of them unless some are named."""
        found = topics or admin.bundles.topics_of_bundle(
            namespace, bundle, await admin.topics.topics(namespace, "ALL")
        )
        return {
            "namespace": str(namespace),
            "bundle": bundle,
            "topicHashPositions": admin.bundles.hash_positions(found),
        }


def _add_moves(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.put(f"{NAMESPACE}/unload", status_code=NO_CONTENT)
    async def unload_namespace(namespace: Namespace, destination: Destination = "") -> None:
        """Hand all bundles of a namespace to other brokers, or to one."""
        await admin.bundles.unload_namespace(namespace, destination)

    @router.put(f"{NAMESPACE}/{{bundle}}/unload", status_code=NO_CONTENT)
    async def unload_bundle(
        namespace: Namespace, bundle: str, destination: Destination = ""
    ) -> None:
        """Hand one bundle to another broker."""
        await admin.bundles.unload_bundle(namespace, bundle, destination)

    @router.put(
        f"{NAMESPACE}/{{bundle}}/split",
        status_code=NO_CONTENT,
        openapi_extra=body("boundaries", BOUNDARIES, required=False),
    )
    async def split_bundle(
        namespace: Namespace,
        bundle: str,
        request: Request,
        unload: bool = False,
        algorithm: Annotated[str, Query(alias="splitAlgorithmName")] = "",
    ) -> None:
        """Divide one bundle in two, or at the boundaries given."""
        positions = await shaped(request, "body", Items(LONG))
        await admin.bundles.split_bundle(
            namespace, bundle, algorithm, positions or (), unload=unload
        )


def _add_work(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.post(f"{BUNDLE}/clearBacklog", status_code=NO_CONTENT, name="clear_bundle")
    @router.post(
        f"{BUNDLE}/clearBacklog/{{subscription:path}}",
        status_code=NO_CONTENT,
        name="clear_bundle_subscription",
    )
    @router.post(f"{NAMESPACE}/clearBacklog", status_code=NO_CONTENT, name="clear_namespace")
    @router.post(
        f"{NAMESPACE}/clearBacklog/{{subscription:path}}",
        status_code=NO_CONTENT,
        name="clear_namespace_subscription",
    )
    async def clear_backlog(namespace: Namespace, bundle: str = "", subscription: str = "") -> None:
        """Acknowledge everything in a namespace, or in one of its bundles, unread: for one
        subscription name, or for all."""
        await admin.bundles.clear_backlog(namespace, bundle, subscription)

    @router.post(
        f"{BUNDLE}/unsubscribe/{{subscription:path}}",
        status_code=NO_CONTENT,
        name="unsubscribe_bundle",
    )
    @router.post(
        f"{NAMESPACE}/unsubscribe/{{subscription:path}}",
        status_code=NO_CONTENT,
        name="unsubscribe_namespace",
    )
    async def unsubscribe_all(namespace: Namespace, subscription: str, bundle: str = "") -> None:
        """Delete a subscription from all topics of a namespace, or of one of its bundles."""
        await admin.bundles.unsubscribe_all(namespace, bundle, subscription)

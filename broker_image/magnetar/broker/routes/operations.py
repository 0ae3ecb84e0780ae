"""Magnetar's own routes, for operating a cluster.

Owns: `/magnetar/v1`: cordons of brokers, damage of the whole cluster, pins and merges of
bundles, changes of a namespace's policies in one request, owners of namespaces. Imports: FastAPI, administration.
Invariants: what is answered is durable; a change of policies leaves those alone that it does not
name.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import InvalidRequest
from magnetar.rest.answers import NO_CONTENT, Namespace, object_of
from magnetar.rest.rights import Asked

REASON_CHARACTERS_MAX = 500
PIN_S_MAX = 1 << 31


def operation_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """The routes over `admin`."""
    router = APIRouter(prefix="/magnetar/v1", tags=["broker"], dependencies=asked)

    @router.get("/damage")
    async def damage(cluster: bool = False) -> dict[str, Any]:
        """Damaged storage that this broker, or with `cluster` any broker, knows of now, and why
        it lacks space if it does."""
        return (
            await admin.operations.cluster_damage()
            if cluster
            else {
                "damage": admin.operations.damage(),
                "short_of_space": admin.operations.short_of_space(),
            }
        )

    _add_cordons(router, admin)
    _add_namespaces(router, admin)
    _add_owners(router, admin)
    return router


def _add_cordons(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.put("/brokers/{broker}/cordon", status_code=NO_CONTENT)
    async def cordon(broker: str, request: Request) -> None:
        """Have a broker take no new bundles and, with `drain`, transfer those it has."""
        body = await object_of(request)
        drain, force, reason = (
            body.get("drain", True),
            body.get("force", False),
            body.get("reason", "cordoned by REST"),
        )
        for name, value in (("drain", drain), ("force", force)):
            if not isinstance(value, bool):
                raise InvalidRequest(f"{name}: {value!r} is not true or false")
        if not isinstance(reason, str) or len(reason) > REASON_CHARACTERS_MAX:
            raise InvalidRequest(
                f"reason: {str(reason)[:80]!r} is not a text of at most {REASON_CHARACTERS_MAX} "
                "characters"
            )
        await admin.operations.cordon(broker, drain=drain, reason=reason, force=force)

    @router.delete("/brokers/{broker}/cordon", status_code=NO_CONTENT)
    async def uncordon(broker: str) -> None:
        """Let a broker take bundles again."""
        await admin.operations.uncordon(broker)


def _add_namespaces(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.put("/namespaces/{tenant}/{namespace}/{bundle}/pin", status_code=NO_CONTENT)
    async def pin(
        namespace: Namespace,
        bundle: str,
        seconds: Annotated[float | None, Query(gt=0, le=PIN_S_MAX)] = None,
    ) -> None:
        """Have load balancing leave a bundle with its owner, for `move_pin_s` by default."""
        await admin.bundles.pin_bundle(namespace, bundle, seconds)

    @router.delete("/namespaces/{tenant}/{namespace}/{bundle}/pin", status_code=NO_CONTENT)
    async def unpin(namespace: Namespace, bundle: str) -> None:
        """Take a pin back."""
        await admin.bundles.pin_bundle(namespace, bundle, 0)

    @router.put("/namespaces/{tenant}/{namespace}/{bundle}/merge")
    async def merge(namespace: Namespace, bundle: str) -> dict[str, str]:
        """Make one bundle of this one and its right neighbour, which the same broker serves."""
        return {"bundle": await admin.bundles.merge_bundle(namespace, bundle)}

    @router.patch("/namespaces/{tenant}/{namespace}/policies", status_code=NO_CONTENT)
    async def edit(namespace: Namespace, request: Request) -> None:
        """Set the policies named; null takes one away."""
        changes = await object_of(request)
        await admin.policies.edit_policies(namespace, lambda policies: policies.update(changes))


def _add_owners(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/namespaces/owners")
    async def owners() -> dict[str, str]:
        """Return the custom resource of every namespace that has one."""
        return admin.namespaces.namespace_owners()

    @router.get("/namespaces/{tenant}/{namespace}/owner")
    async def owner(namespace: Namespace) -> dict[str, Any]:
        """Return the custom resource that owns a namespace, and the fields that it sets."""
        return await admin.namespaces.namespace_owner(namespace)

    @router.delete("/namespaces/{tenant}/{namespace}/owner", status_code=NO_CONTENT)
    async def release(namespace: Namespace) -> None:
        """Have no custom resource own a namespace: for one that is gone, since a living one
        takes the namespace again."""
        await admin.namespaces.release_namespace(namespace)

"""Routes of settings that change while brokers run.

Owns: `/admin/v2/brokers/configuration` but its runtime view: names, stored values, changes. Imports:
FastAPI, administration. Source: pulsar-admin's list-dynamic-config, get-all-dynamic-config,
update-dynamic-config and delete-dynamic-config. Invariant: a value is durable when 204 is answered,
and then in force at every broker that reads the metadata store.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import PreconditionFailed
from magnetar.rest.rights import Asked

FIXED = (
    "this setting is read when a broker starts; set it in spec.config of the BrokerCluster, which "
    "restarts brokers one by one, or MAGNETAR_{name} in the environment of one started by hand "
    "(brokers/configuration lists those that change while brokers run)"
)


def dynamic_settings_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Settings over `admin`."""
    router = APIRouter(
        prefix="/admin/v2/brokers/configuration", tags=["brokers"], dependencies=asked
    )

    @router.get("")
    async def names() -> list[str]:
        """List the settings that can be changed while brokers run."""
        return admin.dynamic_settings.names()

    @router.get("/values")
    async def values() -> dict[str, str]:
        """Return the settings that were changed while brokers run."""
        return await admin.dynamic_settings.values()

    @router.post("/{name}/{value:path}", response_class=Response)
    async def change(name: str, value: str) -> None:
        """Set a value for all brokers."""
        _check(admin, name, "update")
        await admin.dynamic_settings.change(name, value)

    @router.delete("/{name}", response_class=Response)
    async def restore(name: str) -> None:
        """Return to what each broker was started with."""
        _check(admin, name, "delete")
        await admin.dynamic_settings.change(name, None)

    return router


def _check(admin: BrokerAdministration, name: str, act: str) -> None:
    """Raises PreconditionFailed for a setting that does not change while brokers run."""
    if name in admin.dynamic_settings.names():
        return
    known = name in admin.brokers.configuration()
    raise PreconditionFailed(
        f"Can't {act} non-dynamic configuration",
        f"{name}: {FIXED.format(name=name.upper())}"
        if known
        else f"there is no setting {name!r}: brokers/configuration/runtime lists them",
    )

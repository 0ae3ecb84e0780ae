"""Routes of schemas.

Owns: `/admin/v2/schemas/T/N/topic/...`. Imports: FastAPI, administration. Source: shapes and codes
of Pulsar's admin API. Invariants: a definition that is none is 422, one that does not fit is 409,
a version that is not there 404.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.routes.subscriptions import PROPERTIES
from magnetar.errors import InvalidRequest
from magnetar.rest.answers import PersistentTopic, body, object_of
from magnetar.rest.rights import Asked
from magnetar.schemas.types import SchemaType

SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
ACCEPTED = 202
PAYLOAD = {
    "type": "object",
    "required": ["type", "schema"],
    "properties": {
        "type": {"type": "string", "enum": [found.name for found in SchemaType]},
        "schema": {"type": "string"},
        "properties": PROPERTIES,
    },
}


def schema_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Schemas over `admin`."""
    router = APIRouter(tags=["schemas"], dependencies=asked)
    _add_reading(router, admin)
    _add_changes(router, admin)
    _add_questions(router, admin)
    return router


def _add_reading(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{SCHEMA}/schema")
    async def schema(topic: PersistentTopic) -> dict[str, Any]:
        """Return the latest version of a topic's schema."""
        return await admin.schemas.schema(topic)

    @router.get(f"{SCHEMA}/schema/{{version}}")
    async def schema_version(topic: PersistentTopic, version: str) -> dict[str, Any]:
        """Return one version of a topic's schema."""
        if not version.removeprefix("-").isdecimal() or not version.isascii():
            raise InvalidRequest(f"version: {version[:40]!r} is not a number; send 0, 1, ...")
        return await admin.schemas.schema(topic, int(version[:20]))

    @router.get(f"{SCHEMA}/schemas")
    async def schemas(topic: PersistentTopic) -> dict[str, Any]:
        """Return all versions of a topic's schema since the last deletion."""
        return await admin.schemas.schemas(topic)

    @router.get(f"{SCHEMA}/metadata")
    async def metadata(topic: PersistentTopic) -> dict[str, Any]:
        """Tell which versions of a topic's schema there are."""
        return await admin.schemas.metadata(topic)


def _add_changes(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.post(f"{SCHEMA}/schema", openapi_extra=body("PostSchemaPayload", PAYLOAD))
    @router.put(f"{SCHEMA}/schema", include_in_schema=False)
    async def upload(topic: PersistentTopic, request: Request) -> dict[str, Any]:
        """Register a schema; its version."""
        return await admin.schemas.upload(topic, await object_of(request))

    @router.delete(f"{SCHEMA}/schema")
    async def delete(topic: PersistentTopic, force: bool = False) -> dict[str, Any]:
        """Delete a topic's schema; with `force` its versions, too."""
        return await admin.schemas.delete(topic, force)


def _add_questions(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.post(
        f"{SCHEMA}/compatibility",
        status_code=ACCEPTED,
        openapi_extra=body("PostSchemaPayload", PAYLOAD),
    )
    async def compatibility(topic: PersistentTopic, request: Request) -> dict[str, Any]:
        """Tell whether a schema could be registered."""
        return await admin.schemas.test(topic, await object_of(request))

    @router.post(f"{SCHEMA}/version", openapi_extra=body("PostSchemaPayload", PAYLOAD))
    async def version(topic: PersistentTopic, request: Request) -> dict[str, Any]:
        """Tell which version a schema is; -1 if it is none."""
        return await admin.schemas.find(topic, await object_of(request))

"""Routes that are known and not offered.

Owns: typed refusals for schemas (but plain bytes), functions, connectors, packages, offloading,
shadow topics and geo-replication. Imports: FastAPI, administration, errors. Suites and tools call
them; a refusal that they can read is better than "no such route". Invariants: nothing here changes
anything; every refusal says what is there instead.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import NotAllowed, TopicNotFound, UnsupportedCommand
from magnetar.rest.answers import TOPIC, PersistentTopic, Topic
from magnetar.rest.rights import Asked

SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
ALL = ["GET", "PUT", "POST", "DELETE"]
FUNCTIONS = ("functions", "function", "sinks", "sink", "sources", "source", "packages")
TOPIC_PARTS = (
    "offload",
    "shadowTopics",
    "subscription/{subscription}/replicatedSubscriptionStatus",
    "replicatedSubscriptionStatus",
)
"""The subscription's comes first: a topic's name may hold slashes, so that the topic's route
would take it."""
SCHEMA_WORK = ("compatibility", "version", "metadata")


def refused_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Refusals; `admin` says whether a topic exists."""
    router = APIRouter(dependencies=asked)
    _add_schemas(router, admin)
    _add_functions(router)
    _add_topic_parts(router)
    return router


def _add_schemas(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{SCHEMA}/schema", tags=["schemas"], name="schema")
    @router.get(f"{SCHEMA}/schema/{{version}}", tags=["schemas"], name="schema_version")
    async def schema(topic: PersistentTopic, version: str = "") -> None:
        """Answer 404: messages are plain bytes, which have no schema."""
        del version
        raise TopicNotFound(f"Schema not found: topic {topic} has none; messages are plain bytes")

    @router.get(f"{SCHEMA}/schemas", tags=["schemas"])
    async def schemas(topic: PersistentTopic) -> dict[str, Any]:
        """List no schemas: messages are plain bytes."""
        await admin.topics.partitions(topic, False)
        return {"getSchemaResponses": []}

    @router.post(f"{SCHEMA}/schema", tags=["schemas"])
    @router.put(f"{SCHEMA}/schema", include_in_schema=False)
    @router.delete(f"{SCHEMA}/schema", include_in_schema=False)
    async def change(topic: PersistentTopic) -> None:
        """Refused: messages are plain bytes."""
        del topic
        raise UnsupportedCommand(
            "schemas are not offered by this version of Magnetar; messages are plain bytes, which "
            "any client can encode"
        )

    for work in SCHEMA_WORK:
        path = f"{SCHEMA}/{work}"
        router.add_api_route(
            path,
            change,
            methods=["GET", "POST"],
            tags=["schemas"],
            name=f"schema_{work}",
            include_in_schema=False,
        )


def _add_functions(router: APIRouter) -> None:
    async def refuse(request: Request) -> None:
        """Refused: functions and connectors do not run here."""
        del request
        raise NotAllowed(
            "functions, connectors and packages are not offered by Magnetar; run them as clients "
            "of their own"
        )

    for name in FUNCTIONS:
        for path in (f"/admin/v3/{name}", f"/admin/v3/{name}/{{rest:path}}"):
            router.add_api_route(
                path, refuse, methods=ALL, tags=["not offered"], include_in_schema=False
            )
    for path in ("/admin/v2/worker/{rest:path}", "/admin/v2/worker-stats/{rest:path}"):
        router.add_api_route(
            path, refuse, methods=ALL, tags=["not offered"], include_in_schema=False
        )


def _add_topic_parts(router: APIRouter) -> None:
    async def refuse(topic: Topic) -> None:
        """Refused: topics have neither tiers nor replicas elsewhere."""
        del topic
        raise UnsupportedCommand(
            "offloading, shadow topics and replication are not offered by Magnetar: all brokers "
            "share one storage"
        )

    for part in TOPIC_PARTS:
        router.add_api_route(
            f"{TOPIC}/{part}", refuse, methods=ALL, tags=["not offered"], include_in_schema=False
        )

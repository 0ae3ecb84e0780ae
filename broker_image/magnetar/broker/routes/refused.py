"""Routes that are known and not offered.

Owns: typed refusals for functions, connectors, packages, offloading, shadow topics and
geo-replication. Imports: FastAPI, errors. Suites and tools call
them; a refusal that they can read is better than "no such route". Invariants: nothing here changes
anything; every refusal says what is there instead.
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from magnetar.errors import NotAllowed, UnsupportedCommand
from magnetar.rest.answers import TOPIC, Topic
from magnetar.rest.rights import Asked

ALL = ["GET", "PUT", "POST", "DELETE"]
FUNCTIONS = ("functions", "function", "sinks", "sink", "sources", "source", "packages")
TOPIC_PARTS = (
    "shadowTopics",
    "subscription/{subscription}/replicatedSubscriptionStatus",
    "replicatedSubscriptionStatus",
)
"""The subscription's comes first: a topic's name may hold slashes, so that the topic's route
would take it."""


def refused_router(asked: Asked) -> APIRouter:
    """Refusals."""
    router = APIRouter(dependencies=asked)
    _add_functions(router)
    _add_topic_parts(router)
    return router


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
            "Shadow topics and replication are not offered by Magnetar; consume here and publish "
            "there"
        )

    for part in TOPIC_PARTS:
        router.add_api_route(
            f"{TOPIC}/{part}", refuse, methods=ALL, tags=["not offered"], include_in_schema=False
        )

"""Routes that explain.

Owns: `GET /magnetar/v1/explain` and, from broker to broker, `/magnetar/v1/explain/owned`. Imports:
FastAPI, administration, names. Invariant: both only read.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import InvalidRequest
from magnetar.names import BundleName, TopicName
from magnetar.rest.rights import Asked


def explain_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """The routes over `admin`."""
    router = APIRouter(prefix="/magnetar/v1", tags=["broker"], dependencies=asked)

    @router.get("/explain")
    async def explain(topic: str = "", bundle: str = "") -> dict[str, Any]:
        """Who serves a topic or a bundle, why, from which files, and what would happen if the
        owner died."""
        return await admin.explanations.explain(
            _topic(topic), BundleName.parse(bundle) if bundle else None
        )

    @router.get("/explain/owned")
    async def owned(bundle: str = "", topic: str = "") -> dict[str, Any]:
        """What only the bundle's owner knows."""
        if not bundle:
            raise InvalidRequest("bundle: name it; tenant/namespace/0x00000000_0x40000000")
        return admin.explanations.explain_owned(_topic(topic), BundleName.parse(bundle))

    return router


def _topic(text: str) -> TopicName | None:
    return TopicName.parse(text) if text else None

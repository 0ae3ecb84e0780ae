"""Routes of watermarks.

Owns: `.../subscription/S/watermark` beside Pulsar's routes of subscriptions, and
`/magnetar/v1/watermarks`, which has all of a topic's. Imports: FastAPI, administration. The policy
`watermarks` is a row of `policies`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.routes.subscriptions import SUBSCRIPTION
from magnetar.rest.answers import PersistentTopic, Topic
from magnetar.rest.rights import Asked

OURS = "/magnetar/v1/watermarks/{tenant}/{namespace}/{topic:path}"


def watermark_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """The routes over `admin`."""
    router = APIRouter(tags=["watermarks"], dependencies=asked)

    @router.get(f"{SUBSCRIPTION}/watermark")
    async def of_subscription(topic: Topic, subscription: str) -> dict[str, Any]:
        """Return the event-time watermark of a subscription (null: none yet), and who holds it
        back."""
        return await admin.watermarks.of_subscription(topic, subscription)

    @router.get(OURS)
    async def of_topic(topic: PersistentTopic) -> dict[str, Any]:
        """Return the event-time watermarks of a topic's durable subscriptions by name, each with
        who holds it back."""
        return await admin.watermarks.of_topic(topic)

    return router

"""Routes of subscriptions.

Owns: `/admin/v2/persistent/T/N/topic/subscription(s)`: create, delete, skip, expire, reset,
properties. Imports: FastAPI, administration. Invariant: on a partitioned topic they act on all its
partitions, but for a position, which is one of a single partition.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import InvalidRequest, PreconditionFailed
from magnetar.rest.answers import (
    NO_CONTENT,
    TOPIC,
    Topic,
    body,
    object_of,
    strings_of,
)
from magnetar.rest.rights import Asked
from magnetar.shapes import FLAG, INT, Bean, Whole

SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
MESSAGE_ID = {
    "type": "object",
    "properties": {
        "ledgerId": {"type": "integer"},
        "entryId": {"type": "integer"},
        "partitionIndex": {"type": "integer"},
    },
}
NEW_SUBSCRIPTION = {
    "type": "object",
    "properties": {
        **MESSAGE_ID["properties"],  # type: ignore[dict-item]
        "properties": {"type": "object"},
    },
}
PROPERTIES = {"type": "object", "additionalProperties": {"type": "string"}}
_LONG_MAX = (1 << 63) - 1
_ID = Whole(-1, (1 << 64) - 1)
IDENTIFIER = Bean(
    {"ledgerId": _ID, "entryId": _ID, "partitionIndex": INT, "isExcluded": FLAG},
    {"entryId": -1, "partitionIndex": -1, "isExcluded": False},
)
"""Pulsar's ResetCursorData."""


def subscription_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Subscriptions over `admin`."""
    router = APIRouter(tags=["subscriptions"], dependencies=asked)
    _add_life(router, admin)
    _add_properties(router, admin)
    _add_resets(router, admin)
    _add_skips(router, admin)
    return router


def position_of(found: dict[str, Any]) -> tuple[int, int] | None:
    """The position of a message id in JSON; None without one. Values that JavaScript or Go write
    as unsigned are taken as signed. Raises InvalidRequest."""
    given = IDENTIFIER.filled("message id", found)
    if given["ledgerId"] is None:
        return None
    return _signed(given["ledgerId"]), _signed(given["entryId"])


def _signed(value: int) -> int:
    return value - (1 << 64) if value > _LONG_MAX else value


def _add_life(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{TOPIC}/subscriptions")
    async def subscriptions(topic: Topic) -> list[str]:
        """List the durable subscriptions of a topic."""
        return await admin.subscriptions.subscriptions(topic)

    @router.put(
        SUBSCRIPTION,
        status_code=NO_CONTENT,
        openapi_extra=body("where it begins", NEW_SUBSCRIPTION, required=False),
    )
    async def create_subscription(topic: Topic, subscription: str, request: Request) -> None:
        """Create a subscription that begins at a message id, or (without one) behind the last
        message."""
        found = await object_of(request)
        properties = strings_of("properties", found.get("properties") or {})
        await admin.subscriptions.create_subscription(
            topic, subscription, position_of(found), properties
        )

    @router.delete(SUBSCRIPTION, status_code=NO_CONTENT)
    async def delete_subscription(
        topic: Topic,
        subscription: str,
        force: bool = False,
    ) -> None:
        """Delete a subscription; with consumers only by force."""
        await admin.subscriptions.delete_subscription(topic, subscription, force)


def _add_properties(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{SUBSCRIPTION}/properties")
    async def subscription_properties(topic: Topic, subscription: str) -> dict[str, str]:
        """Return the properties of a subscription."""
        return await admin.subscriptions.subscription_properties(topic, subscription)

    @router.put(
        f"{SUBSCRIPTION}/properties",
        status_code=NO_CONTENT,
        openapi_extra=body("all properties", PROPERTIES),
    )
    async def replace_subscription_properties(
        topic: Topic, subscription: str, request: Request
    ) -> None:
        """Replace the properties of a subscription."""
        properties = strings_of("properties", await object_of(request))
        await admin.subscriptions.replace_subscription_properties(topic, subscription, properties)


def _add_resets(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.post(f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", status_code=NO_CONTENT)
    async def reset_to_time(topic: Topic, subscription: str, timestamp: int) -> None:
        """Deliver again from the first message published at this time (milliseconds) on."""
        await admin.subscriptions.reset_to_time(topic, subscription, timestamp)

    @router.post(
        f"{SUBSCRIPTION}/resetcursor",
        status_code=NO_CONTENT,
        openapi_extra=body("a message id", MESSAGE_ID),
    )
    async def reset_to_position(topic: Topic, subscription: str, request: Request) -> None:
        """Deliver again from a message id on."""
        found = await object_of(request)
        position = position_of(found)
        if position is None:
            raise InvalidRequest("resetcursor: the body has no ledgerId; send a message id")
        excluded = bool(FLAG.read("isExcluded", found.get("isExcluded")))
        await admin.subscriptions.reset_to_position(topic, subscription, position, excluded)


def _add_skips(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.post(f"{SUBSCRIPTION}/skip/{{count}}", status_code=NO_CONTENT)
    async def skip(topic: Topic, subscription: str, count: int) -> None:
        """Acknowledge the next `count` messages unread."""
        if count < 0:
            raise InvalidRequest(f"skip: {count} is out of range; skip 0 or more messages")
        await admin.subscriptions.skip(topic, subscription, count)

    @router.post(f"{SUBSCRIPTION}/skip_all", status_code=NO_CONTENT)
    async def skip_all(topic: Topic, subscription: str) -> None:
        """Acknowledge everything that is there now."""
        await admin.subscriptions.skip(topic, subscription, None)

    @router.post(f"{SUBSCRIPTION}/expireMessages/{{seconds}}", status_code=NO_CONTENT)
    async def expire(topic: Topic, subscription: str, seconds: int) -> None:
        """Acknowledge what is older than this, for one subscription."""
        await admin.subscriptions.expire(topic, subscription, seconds)

    @router.post(
        f"{SUBSCRIPTION}/expireMessages",
        status_code=NO_CONTENT,
        openapi_extra=body("a message id", MESSAGE_ID),
    )
    async def expire_to(topic: Topic, subscription: str, request: Request) -> None:
        """Acknowledge everything up to a message id."""
        found = await object_of(request)
        position = position_of(found)
        if position is None:
            raise InvalidRequest(
                "expireMessages: the body has no ledgerId; send a message id, or a time in the path"
            )
        index = IDENTIFIER.filled("message id", found)["partitionIndex"]
        if index != topic.partition:
            raise PreconditionFailed(
                "Invalid parameter for expire message by position, partition index of passed in "
                "message position doesn't match partition index for the topic",
                f"send partitionIndex {topic.partition} with ids of {topic}",
            )
        await admin.subscriptions.expire_to(topic, subscription, position)

    @router.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", status_code=NO_CONTENT)
    async def expire_all(topic: Topic, seconds: int) -> None:
        """Acknowledge what is older than this, for all subscriptions."""
        await admin.subscriptions.expire(topic, None, seconds)

"""Routes of subscriptions.

Owns: `/admin/v2/persistent/T/N/topic/subscription(s)`: create, delete, skip, expire, reset. Imports: FastAPI, ports.
Source: facts on protocol 3, priority 1.
Invariant: on a partitioned topic they act on all its partitions.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from magnetar.admin.answers import NO_CONTENT, body_of, object_of, topic_name
from magnetar.admin.ports import AdminPort
from magnetar.errors import InvalidRequest

BASE = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic:path}"
SUBSCRIPTION = f"{BASE}/subscription/{{subscription}}"
_LONG_MAX = (1 << 63) - 1


def subscription_router(port: AdminPort) -> APIRouter:
    """Subscriptions over `port`."""
    router = APIRouter()
    _add_life(router, port)
    _add_moves(router, port)
    return router


def position_of(body: dict[str, Any]) -> tuple[int, int] | None:
    """The position of a message id in JSON; None without one. Values that JavaScript or Go write as unsigned are taken as signed."""
    if "ledgerId" not in body:
        return None
    ledger, entry = body["ledgerId"], body.get("entryId", -1)
    for name, value in (("ledgerId", ledger), ("entryId", entry)):
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 64:
            raise InvalidRequest(f"{name}: {value!r} is not valid; send a message id with ledgerId and entryId")
    return _signed(ledger), _signed(entry)


def _signed(value: int) -> int:
    return value - (1 << 64) if value > _LONG_MAX else value


def _add_life(router: APIRouter, port: AdminPort) -> None:
    @router.get(f"{BASE}/subscriptions")
    async def subscriptions(domain: str, tenant: str, namespace: str, topic: str) -> list[str]:
        return await port.subscriptions(topic_name(domain, tenant, namespace, topic))

    @router.put(SUBSCRIPTION, status_code=NO_CONTENT)
    async def create(domain: str, tenant: str, namespace: str, topic: str, subscription: str, request: Request) -> None:
        body = await object_of(request)
        properties = body.get("properties")
        if properties is not None and not isinstance(properties, dict):
            raise InvalidRequest(f"properties: {properties!r} is not an object")
        name = topic_name(domain, tenant, namespace, topic)
        await port.create_subscription(name, subscription, position_of(body), properties or {})

    @router.delete(SUBSCRIPTION, status_code=NO_CONTENT)
    async def delete(domain: str, tenant: str, namespace: str, topic: str, subscription: str, force: bool = False) -> None:
        await port.delete_subscription(topic_name(domain, tenant, namespace, topic), subscription, force)


def _add_moves(router: APIRouter, port: AdminPort) -> None:
    @router.post(f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", status_code=NO_CONTENT)
    async def reset_to_time(domain: str, tenant: str, namespace: str, topic: str, subscription: str, timestamp: int) -> None:
        await port.reset_to_time(topic_name(domain, tenant, namespace, topic), subscription, timestamp)

    @router.post(f"{SUBSCRIPTION}/resetcursor", status_code=NO_CONTENT)
    async def reset(domain: str, tenant: str, namespace: str, topic: str, subscription: str, request: Request) -> None:
        body = await object_of(request)
        position = position_of(body)
        if position is None:
            raise InvalidRequest("resetcursor: the body has no ledgerId; send a message id")
        excluded = body.get("isExcluded") is True
        await port.reset_to_position(topic_name(domain, tenant, namespace, topic), subscription, position, excluded)

    @router.post(f"{SUBSCRIPTION}/skip/{{count}}", status_code=NO_CONTENT)
    async def skip(domain: str, tenant: str, namespace: str, topic: str, subscription: str, count: int) -> None:
        if count < 0:
            raise InvalidRequest(f"skip: {count} is out of range; skip 0 or more messages")
        await port.skip(topic_name(domain, tenant, namespace, topic), subscription, count)

    @router.post(f"{SUBSCRIPTION}/skip_all", status_code=NO_CONTENT)
    async def skip_all(domain: str, tenant: str, namespace: str, topic: str, subscription: str) -> None:
        await port.skip(topic_name(domain, tenant, namespace, topic), subscription, None)

    @router.post(f"{SUBSCRIPTION}/expireMessages/{{seconds}}", status_code=NO_CONTENT)
    async def expire(domain: str, tenant: str, namespace: str, topic: str, subscription: str, seconds: int) -> None:
        await port.expire(topic_name(domain, tenant, namespace, topic), subscription, seconds)

    @router.post(f"{SUBSCRIPTION}/expireMessages", status_code=NO_CONTENT)
    async def expire_to(domain: str, tenant: str, namespace: str, topic: str, subscription: str, request: Request) -> None:
        body = await body_of(request)
        position = position_of(body) if isinstance(body, dict) else None
        if position is None:
            raise InvalidRequest("expireMessages: the body has no ledgerId; send a message id, or a time in the path")
        await port.expire_to(topic_name(domain, tenant, namespace, topic), subscription, position)

    @router.post(f"{BASE}/all_subscription/expireMessages/{{seconds}}", status_code=NO_CONTENT)
    async def expire_all(domain: str, tenant: str, namespace: str, topic: str, seconds: int) -> None:
        await port.expire(topic_name(domain, tenant, namespace, topic), None, seconds)

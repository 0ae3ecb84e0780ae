"""Routes of topics.

Owns: creation, deletion, partitions, statistics and the work on whole topics under `/admin/v2/persistent/T/N/topic`. Imports: FastAPI, ports.
Source: facts on protocol 2.11 and 3.
Invariants: a topic's routes answer at its owner, or redirect there; what is created twice is refused with 409.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from magnetar.admin.answers import NO_CONTENT, answer, body_of, topic_name
from magnetar.admin.ports import AdminPort
from magnetar.errors import InvalidRequest

TOPIC = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}"
BASE = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic:path}"


def topic_router(port: AdminPort) -> APIRouter:
    """Topics over `port`."""
    router = APIRouter()
    _add_partitions(router, port)
    _add_statistics(router, port)
    _add_work(router, port)
    _add_life(router, port)
    return router


def _add_life(router: APIRouter, port: AdminPort) -> None:
    @router.put(TOPIC, status_code=NO_CONTENT)
    async def create(domain: str, tenant: str, namespace: str, topic: str, request: Request) -> None:
        properties = await body_of(request)
        if properties is not None and not isinstance(properties, dict):
            raise InvalidRequest(f"properties: {properties!r} is not an object")
        await port.create_topic(topic_name(domain, tenant, namespace, topic), properties or {})

    @router.delete(TOPIC, status_code=NO_CONTENT)
    async def delete(domain: str, tenant: str, namespace: str, topic: str, force: bool = False) -> None:
        await port.delete_topic(topic_name(domain, tenant, namespace, topic), force)


def _add_partitions(router: APIRouter, port: AdminPort) -> None:
    path = f"{BASE}/partitions"

    @router.get(path)
    async def partitions(
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        may_create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> dict[str, Any]:
        count = await port.partitions(topic_name(domain, tenant, namespace, topic), may_create)
        return {"partitions": count, "deleted": False}

    @router.put(path, status_code=NO_CONTENT)
    async def create(domain: str, tenant: str, namespace: str, topic: str, request: Request) -> None:
        await port.create_partitions(topic_name(domain, tenant, namespace, topic), await _count(request))

    @router.post(path, status_code=NO_CONTENT)
    async def grow(domain: str, tenant: str, namespace: str, topic: str, request: Request) -> None:
        await port.grow_partitions(topic_name(domain, tenant, namespace, topic), await _count(request))

    @router.delete(path, status_code=NO_CONTENT)
    async def delete(domain: str, tenant: str, namespace: str, topic: str, force: bool = False) -> None:
        await port.delete_partitions(topic_name(domain, tenant, namespace, topic), force)


async def _count(request: Request) -> int:
    """The number of partitions in a body: bare, or (with properties) as PartitionedTopicMetadata."""
    body = await body_of(request)
    count = body.get("partitions") if isinstance(body, dict) else body
    if isinstance(count, bool) or not isinstance(count, int):
        raise InvalidRequest(f"partitions: {count!r} is not a whole number")
    return count


def _add_statistics(router: APIRouter, port: AdminPort) -> None:
    @router.get(f"{BASE}/stats")
    async def stats(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        return await port.stats(topic_name(domain, tenant, namespace, topic))

    @router.get(f"{BASE}/internalStats")
    async def internal(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        return await port.internal_stats(topic_name(domain, tenant, namespace, topic))

    @router.get(f"{BASE}/partitioned-stats")
    async def partitioned(
        domain: str, tenant: str, namespace: str, topic: str, per_partition: Annotated[bool, Query(alias="perPartition")] = True
    ) -> dict[str, Any]:
        return await port.partitioned_stats(topic_name(domain, tenant, namespace, topic), per_partition)

    @router.get(f"{BASE}/lastMessageId")
    async def last_message_id(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        return await port.last_message_id(topic_name(domain, tenant, namespace, topic))


def _add_work(router: APIRouter, port: AdminPort) -> None:
    @router.put(f"{BASE}/unload", status_code=NO_CONTENT)
    async def unload(
        domain: str, tenant: str, namespace: str, topic: str, destination: Annotated[str, Query(alias="destinationBroker")] = ""
    ) -> None:
        await port.unload_topic(topic_name(domain, tenant, namespace, topic), destination)

    @router.post(f"{BASE}/roll")
    async def roll(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        ledger, entry = await port.roll(topic_name(domain, tenant, namespace, topic))
        return {"position": {"ledgerId": ledger, "entryId": entry}}

    @router.post(f"{BASE}/terminate")
    async def terminate(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        return await port.terminate(topic_name(domain, tenant, namespace, topic))

    @router.post(f"{BASE}/terminate/partitions")
    async def terminate_partitions(domain: str, tenant: str, namespace: str, topic: str) -> Response:
        return answer(await port.terminate_partitions(topic_name(domain, tenant, namespace, topic)))

    @router.post(f"{BASE}/trim", status_code=NO_CONTENT)
    async def trim(domain: str, tenant: str, namespace: str, topic: str) -> None:
        await port.trim(topic_name(domain, tenant, namespace, topic))

    @router.delete(f"{BASE}/truncate", status_code=NO_CONTENT)
    async def truncate(domain: str, tenant: str, namespace: str, topic: str) -> None:
        await port.truncate(topic_name(domain, tenant, namespace, topic))

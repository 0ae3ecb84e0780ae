"""Routes that show single messages.

Owns: peek, examine, an entry by its id, the id at a time and the size of a backlog, under `/admin/v2/persistent/T/N/topic`. Imports: FastAPI, ports.
Source: facts on protocol 3, priority 1.
Invariant: the body is the message's payload, uncompressed, as octets; its metadata are headers `X-Pulsar-...`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from magnetar.admin.answers import TOPIC, Domain, body, object_of, topic_name
from magnetar.admin.ports import AdminPort, FoundMessage
from magnetar.admin.subscriptions import MESSAGE_ID, position_of
from magnetar.errors import InvalidRequest

OCTETS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


def message_router(port: AdminPort) -> APIRouter:
    """Messages over `port`."""
    router = APIRouter(tags=["messages"])
    _add_reading(router, port)
    _add_positions(router, port)
    return router


def _shown(message: FoundMessage) -> Response:
    return Response(message.payload, media_type="application/octet-stream", headers=dict(message.headers))


def _add_reading(router: APIRouter, port: AdminPort) -> None:
    @router.get(f"{TOPIC}/subscription/{{subscription}}/position/{{number}}", responses=OCTETS)
    async def peek(domain: Domain, tenant: str, namespace: str, topic: str, subscription: str, number: int) -> Response:
        """Show the `number`-th message (from 1) that a subscription has not acknowledged."""
        return _shown(await port.peek(topic_name(domain, tenant, namespace, topic), subscription, number))

    @router.get(f"{TOPIC}/examinemessage", responses=OCTETS)
    async def examine(
        domain: Domain,
        tenant: str,
        namespace: str,
        topic: str,
        origin: Annotated[str, Query(alias="initialPosition", description="earliest or latest")] = "latest",
        number: Annotated[int, Query(alias="messagePosition", description="counted from there, from 1")] = 1,
    ) -> Response:
        """Show a message counted from the beginning or from the end of a topic."""
        return _shown(await port.examine(topic_name(domain, tenant, namespace, topic), origin, number))

    @router.get(f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", responses=OCTETS)
    async def message(domain: Domain, tenant: str, namespace: str, topic: str, ledger: int, entry: int) -> Response:
        """Show the message with this id."""
        return _shown(await port.message(topic_name(domain, tenant, namespace, topic), (ledger, entry)))


def _add_positions(router: APIRouter, port: AdminPort) -> None:
    @router.get(f"{TOPIC}/messageid/{{timestamp}}")
    async def message_id(domain: Domain, tenant: str, namespace: str, topic: str, timestamp: int) -> dict[str, Any]:
        """Tell the id of the first message published at this time (milliseconds) or later."""
        return await port.message_id_at(topic_name(domain, tenant, namespace, topic), timestamp)

    @router.put(f"{TOPIC}/backlogSize", openapi_extra=body("a message id", MESSAGE_ID))
    async def backlog_size(domain: Domain, tenant: str, namespace: str, topic: str, request: Request) -> int:
        """Tell about how many bytes follow a message id."""
        position = position_of(await object_of(request))
        if position is None:
            raise InvalidRequest("backlogSize: the body has no ledgerId; send a message id")
        return await port.backlog_size(topic_name(domain, tenant, namespace, topic), position)

    @router.post(
        f"{TOPIC}/subscription/{{subscription}}/analyzeBacklog", openapi_extra=body("where to begin", MESSAGE_ID, required=False)
    )
    async def analyze(domain: Domain, tenant: str, namespace: str, topic: str, subscription: str) -> dict[str, Any]:
        """Count what a subscription has before it."""
        return await port.analyze_backlog(topic_name(domain, tenant, namespace, topic), subscription)

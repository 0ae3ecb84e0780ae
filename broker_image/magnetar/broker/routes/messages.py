"""Routes that show single messages.

Owns: peek, examine, an entry by its id, the id at a time and the size of a backlog, under
`/admin/v2/persistent/T/N/topic`. Imports: FastAPI, administration. Invariants: the body is the
message's payload, uncompressed, as octets; its metadata are headers `X-Pulsar-...`; messages are
uncompressed one at a time, and answers that peers have not read yet hold at most
`ANSWERS_BYTES_MAX` of payloads: small messages may unpack into large ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.administration.messages import FoundMessage
from magnetar.broker.routes.subscriptions import MESSAGE_ID, position_of
from magnetar.errors import InvalidRequest, LimitExceeded
from magnetar.rest.answers import (
    TOPIC,
    Topic,
    body,
    object_of,
)
from magnetar.rest.rights import Asked

ANSWERS_BYTES_MAX = 64 << 20
"""Of all payloads that are being sent. One alone may be larger, and small ones find room beside
those of peers that read nothing."""
LOOKS_MAX = 1
"""Messages that are read and uncompressed at a time: each takes a core."""
PART_BYTES = 64 << 10
"""What is sent at once: others are served between two parts. A message of one part is small."""
OCTETS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}


def message_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Messages over `admin`."""
    router = APIRouter(tags=["messages"], dependencies=asked)
    _add_reading(router, admin)
    _add_positions(router, admin)
    return router


class _Payloads:
    """Answers with messages, and the room that they have together."""

    def __init__(self) -> None:
        self._looks = asyncio.Semaphore(LOOKS_MAX)
        self.bytes = 0

    async def answer(self, look: Callable[[], Awaitable[FoundMessage]]) -> Response:
        """What was found, once it is this request's turn to look."""
        async with self._looks:
            return _Shown(self, await look())


class _Shown(Response):
    """One message, sent in parts."""

    def __init__(self, payloads: _Payloads, message: FoundMessage) -> None:
        super().__init__(
            media_type="application/octet-stream",
            headers={**message.headers, "Content-Length": str(len(message.payload))},
        )
        self._payloads, self._payload = payloads, memoryview(message.payload)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        payloads, size = self._payloads, len(self._payload)
        if size > PART_BYTES and payloads.bytes and payloads.bytes + size > ANSWERS_BYTES_MAX:
            error = LimitExceeded(
                f"messages of {payloads.bytes} bytes are being sent, {size} more are too many; try "
                "again in a moment"
            )
            await JSONResponse({"reason": str(error)}, error.http_status)(scope, receive, send)
            return
        payloads.bytes += size
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            for start in range(0, size, PART_BYTES):
                await send(
                    {
                        "type": "http.response.body",
                        "body": bytes(self._payload[start : start + PART_BYTES]),
                        "more_body": True,
                    }
                )
                await asyncio.sleep(0)  # sending waits for a peer that is slow only
            await send({"type": "http.response.body", "body": b""})
        finally:
            payloads.bytes -= size


def _add_reading(router: APIRouter, admin: BrokerAdministration) -> None:
    payloads = _Payloads()

    @router.get(f"{TOPIC}/subscription/{{subscription}}/position/{{number}}", responses=OCTETS)
    async def peek(topic: Topic, subscription: str, number: int) -> Response:
        """Show the `number`-th message (from 1) that a subscription has not acknowledged."""
        return await payloads.answer(lambda: admin.messages.peek(topic, subscription, number))

    @router.get(f"{TOPIC}/examinemessage", responses=OCTETS)
    async def examine(
        topic: Topic,
        origin: Annotated[
            str, Query(alias="initialPosition", description="earliest or latest")
        ] = "latest",
        number: Annotated[
            int, Query(alias="messagePosition", description="counted from there, from 1")
        ] = 1,
    ) -> Response:
        """Show a message counted from the beginning or from the end of a topic."""
        return await payloads.answer(lambda: admin.messages.examine(topic, origin, number))

    @router.get(f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", responses=OCTETS)
    async def message(topic: Topic, ledger: int, entry: int) -> Response:
        """Show the message with this id."""
        return await payloads.answer(lambda: admin.messages.message(topic, (ledger, entry)))


def _add_positions(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{TOPIC}/messageid/{{timestamp}}")
    async def message_id(topic: Topic, timestamp: int) -> dict[str, Any]:
        """Tell the id of the first message published at this time (milliseconds) or later."""
        return await admin.messages.message_id_at(topic, timestamp)

    @router.put(f"{TOPIC}/backlogSize", openapi_extra=body("a message id", MESSAGE_ID))
    async def backlog_size(topic: Topic, request: Request) -> int:
        """Tell about how many bytes follow a message id."""
        position = position_of(await object_of(request))
        if position is None:
            raise InvalidRequest("backlogSize: the body has no ledgerId; send a message id")
        return await admin.messages.backlog_size(topic, position)

    @router.post(
        f"{TOPIC}/subscription/{{subscription}}/analyzeBacklog",
        openapi_extra=body("where to begin", MESSAGE_ID, required=False),
    )
    async def analyze(topic: Topic, subscription: str) -> dict[str, Any]:
        """Count what a subscription has before it."""
        return await admin.messages.analyze_backlog(topic, subscription)

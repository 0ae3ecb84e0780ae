"""The audit log: which role changed what, and what it was denied.

Owns: the events `audit.changed` and `audit.denied`, and the middleware that logs changes over REST.
Imports: structlog, security. Invariants: these events are never limited in rate, and hold no body,
query or credential; a request that failed changed nothing and is not here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from magnetar.security.authorization import Place, Principal, Right

log = structlog.get_logger(__name__)

PRINCIPAL = "magnetar.principal"
"""Key of an ASGI scope: the `Principal` of a request that was let in."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
UNCHANGED_STATUS_MIN = 300
"""Refusals, and redirects to the broker that makes the change."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def denied(principal: Principal, right: Right, namespace: str, place: Place) -> None:
    """A role that is known asked for what it may not have."""
    log.warning(
        "audit.denied",
        role=principal.role,
        original=principal.original,
        right=right.name,
        namespace=namespace,
        topic=str(place.topic) if place.topic is not None else "",
        subscription=place.subscription,
    )


class AuditTrail:
    """ASGI middleware: logs every request that changed something."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self._application(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if (
                message["type"] == "http.response.start"
                and message["status"] < UNCHANGED_STATUS_MIN
            ):
                principal = scope.get(PRINCIPAL)
                log.info(
                    "audit.changed",
                    role=principal.role if principal is not None else "",
                    original=principal.original if principal is not None else "",
                    address=(scope.get("client") or ("",))[0],
                    method=scope["method"],
                    path=scope["path"],
                    status=message["status"],
                )
            await send(message)

        await self._application(scope, receive, sending)

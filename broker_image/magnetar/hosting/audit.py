"""The audit log: which role changed what, and what it was denied.

Owns: the events `audit.changed`, `audit.refused` and `audit.denied`, and the middleware that logs
changes over REST.
Imports: structlog, security. Invariants: these events are never limited in rate, and hold no body,
query or credential; peers whose role is not known cause none but changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from magnetar.security.authorization import Place, Principal, Right

log = structlog.get_logger(__name__)

PRINCIPAL = "magnetar.principal"
"""Key of an ASGI scope: the `Principal` of a request that was let in."""
NOT_PERMITTED = frozenset({401, 403})
"""Have an `audit.denied` that says more."""
PATH_LENGTH_MAX = 1000
READING = frozenset({"GET", "HEAD", "OPTIONS"})
REDIRECT_STATUS_MIN, REFUSAL_STATUS_MIN = 300, 400
"""Redirects lead to the broker that makes the change."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def denied(principal: Principal, right: Right, namespace: str, place: Place) -> None:
    """A role that is known asked for what it may not have."""
    log.warning(
        "audit.denied",
        role=principal.role,
        original=principal.original,
        address=principal.address,
        right=right.name,
        namespace=namespace,
        topic=str(place.topic) if place.topic is not None else "",
        subscription=place.subscription,
    )


class AuditTrail:
    """ASGI middleware: logs every request that changed something, and those of known roles that
    were to."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self._application(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note(scope, message["status"])
            await send(message)

        await self._application(scope, receive, sending)


def _note(scope: Message, status: int) -> None:
    """A request that may change something was answered."""
    principal = scope.get(PRINCIPAL)
    if status < REDIRECT_STATUS_MIN:
        report, event = log.info, "audit.changed"
    elif principal is not None and status >= REFUSAL_STATUS_MIN and status not in NOT_PERMITTED:
        report, event = log.warning, "audit.refused"
    else:
        return
    report(
        event,
        role=principal.role if principal is not None else "",
        original=principal.original if principal is not None else "",
        address=(scope.get("client") or ("",))[0],
        method=scope["method"],
        path=scope["path"][:PATH_LENGTH_MAX],
        status=status,
    )

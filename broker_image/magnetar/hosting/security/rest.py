"""Who may have HTTP requests answered.

Owns: `RestGate`: who asks, and whether the role may. Imports: FastAPI, security, authentication,
the guard. Invariants: a request of an unknown peer reaches no route but the open ones; while no
incarnation runs only super users are let through, to the answer that it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import Request

from magnetar.errors import NotAuthorized
from magnetar.hosting.audit import PRINCIPAL, denied
from magnetar.hosting.http import CERTIFICATE
from magnetar.hosting.security.authentication import Authenticator
from magnetar.hosting.tls import PeerCertificate
from magnetar.security.authorization import Place, Right, Rules, allowed

if TYPE_CHECKING:
    from magnetar.hosting.security.guard import Guard


class RestGate:
    """Decides by the records that the guard follows."""

    def __init__(self, authenticator: Authenticator, guard: Callable[[], Guard | None]) -> None:
        """`guard`: that of the incarnation that runs now."""
        self._authenticator, self._guard = authenticator, guard

    def metrics_are_open(self) -> bool:
        return self._authenticator.source.current.document.open_metrics

    async def admit(
        self, request: Request, right: Right, place: Callable[[], tuple[str, Place]]
    ) -> None:
        headers, certificate = request.headers, request.scope.get(CERTIFICATE, PeerCertificate())
        principal = self._authenticator.of_request(
            headers.get("authorization", ""),
            headers.get("x-pulsar-auth-method-name", ""),
            certificate,
        )
        self._authenticator.check_port(principal, tls=request.scope["scheme"] == "https")
        principal = self._authenticator.behind_proxy(
            principal, headers.get("x-original-principal", "")
        )
        if request.client is not None:
            principal = replace(principal, address=request.client.host)
        request.scope[PRINCIPAL] = principal
        namespace, where = place()
        refusal = (
            f"Unauthorized: {request.method} {request.url.path[:200]} needs {right.value}, which "
            "this role is not granted; "
            "ask an administrator of the cluster for the permission"
        )
        guard = self._guard()
        if guard is not None:
            await guard.require(principal, right, namespace, where, refusal)
            return
        document = self._authenticator.source.current.document
        if document.authorization and not allowed(
            principal, right, Rules(document.super_user_roles), where
        ):
            denied(principal, right, namespace, where)
            raise NotAuthorized(refusal)

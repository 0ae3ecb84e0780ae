"""The HTTP side of a transaction coordinator.

Owns: /live, /ready and /metrics, and `/internal/v1/coordinator`, by which brokers answer what
administrators ask. Imports: FastAPI, rest, inspection. Invariants: /ready is good only while the
number is held, and serves operators and rollouts; the internal routes are in no table of rights, so
they are for super users and processes of the cluster alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Response
from fastapi.responses import PlainTextResponse

from magnetar import __version__
from magnetar.rest.answers import NO_CONTENT, PROMETHEUS_TYPE, add_refusals
from magnetar.rest.rights import Gate, gate_of

if TYPE_CHECKING:
    from magnetar.coordinator.inspection import CoordinatorInspection

INTERNAL = "/internal/v1/coordinator"
LISTED = 1000
"""Transactions of a list, if the request does not say how many."""
LISTED_MAX = 10_000
"""Transactions of a list at most. A broker asks for one more, to learn whether there are any."""


def coordinator_application(
    ready: Callable[[], bool],
    metrics: Callable[[], bytes],
    inspection: CoordinatorInspection,
    gate: Gate | None = None,
) -> FastAPI:
    """The routes. `gate` is asked before each but the probes (None: admit every request)."""
    asked = [Depends(gate_of(gate))] if gate is not None else []
    application = FastAPI(
        title="Magnetar transaction coordinator",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        dependencies=asked,
    )
    add_refusals(application)
    application.include_router(_internal_routes(inspection))

    @application.get("/live", response_class=PlainTextResponse)
    async def live() -> PlainTextResponse:
        """Tell whether the process makes progress."""
        return PlainTextResponse("ok")

    @application.get("/ready", response_class=PlainTextResponse)
    async def report_ready() -> PlainTextResponse:
        """Tell whether this process holds its number and answers."""
        good = ready()
        return PlainTextResponse("ok" if good else "not ready", status_code=200 if good else 503)

    @application.get("/metrics")
    async def report_metrics() -> Response:
        """Return all metrics in Prometheus' text format."""
        return Response(metrics(), media_type=PROMETHEUS_TYPE)

    return application


def _internal_routes(inspection: CoordinatorInspection) -> APIRouter:
    router = APIRouter(prefix=INTERNAL, tags=["transactions"])

    @router.get("/{tcid}")
    async def stats(tcid: int) -> dict[str, Any]:
        """Return the state of a number, its sequences and its log."""
        return await inspection.stats(tcid)

    @router.get("/{tcid}/transactions")
    async def transactions(
        tcid: int,
        older_ms: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=LISTED_MAX + 1)] = LISTED,
    ) -> list[dict[str, Any]]:
        """List transactions that have not ended everywhere, the oldest first."""
        return await inspection.transactions(tcid, older_ms, limit)

    @router.get("/{tcid}/transactions/{least}")
    async def transaction(tcid: int, least: int) -> dict[str, Any]:
        """Return a transaction, or how it has ended."""
        return await inspection.transaction(tcid, least)

    @router.post("/{tcid}/transactions/{least}/abort", status_code=NO_CONTENT)
    async def abort(tcid: int, least: int) -> None:
        """Abort an open transaction."""
        await inspection.abort(tcid, least)

    @router.post("/{tcid}/abort")
    async def abort_of(tcid: int, role: Annotated[str, Query(min_length=1)]) -> dict[str, Any]:
        """Abort open transactions of a role, as many as one call does."""
        return await inspection.abort_of(tcid, role)

    return router

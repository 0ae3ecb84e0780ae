"""The HTTP side of a transaction coordinator.

Owns: /live, /ready and /metrics, and what brokers ask for administrators. Imports: FastAPI, admin.
Invariant: /ready is good only while the number is held; the clients' service does not decide who is
asked, so it serves people and rollouts.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Depends, FastAPI, Response
from fastapi.responses import PlainTextResponse

from magnetar import __version__
from magnetar.rest.answers import add_refusals
from magnetar.rest.application import PROMETHEUS_TYPE
from magnetar.rest.coordinators import coordinator_router
from magnetar.rest.rights import Gate, gate_of
from magnetar.rest.transaction_ports import CoordinatorPort


def coordinator_application(
    ready: Callable[[], bool],
    metrics: Callable[[], bytes],
    port: CoordinatorPort,
    gate: Gate | None = None,
) -> FastAPI:
    """The routes; that /live is answered at all is what it tells. `gate` is asked before each
    but the probes (None: nobody is)."""
    asked = [Depends(gate_of(gate))] if gate is not None else []
    application = FastAPI(
        title="Magnetar transaction coordinator",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        dependencies=asked,
    )
    add_refusals(application)
    application.include_router(coordinator_router(port))

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

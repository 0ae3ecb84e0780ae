"""The FastAPI application of a broker.

Owns: putting the routes together; health, lookup and status. Imports: FastAPI, ports, the routes by resource.
Invariants: no handler raises anything but `MagnetarError` for what a peer can cause; what a path means never depends on the order of registration.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from magnetar import __version__
from magnetar.admin.answers import add_refusals, topic_name
from magnetar.admin.clusters import cluster_router
from magnetar.admin.explain import explain_router
from magnetar.admin.namespaces import namespace_router
from magnetar.admin.operations import operation_router
from magnetar.admin.policy_routes import policy_router
from magnetar.admin.ports import AdminPort
from magnetar.admin.subscriptions import subscription_router
from magnetar.admin.topics import topic_router

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_application(port: AdminPort) -> FastAPI:
    """All routes over `port`."""
    application = FastAPI(title="Magnetar", version=__version__, docs_url="/docs", redoc_url=None)
    add_refusals(application)
    _add_health(application, port)
    for router in (
        operation_router(port),
        explain_router(port),
        cluster_router(port),
        namespace_router(port),
        subscription_router(port),
        topic_router(port),
        policy_router(port),
    ):
        application.include_router(router)
    return application


def _add_health(application: FastAPI, port: AdminPort) -> None:
    @application.get("/live", response_class=PlainTextResponse)
    @application.get("/ready", response_class=PlainTextResponse)
    async def probe(request: Request) -> PlainTextResponse:
        good = port.live() if request.url.path == "/live" else port.ready()
        return PlainTextResponse("ok" if good else "not ready", status_code=200 if good else 503)

    @application.get("/admin/v2/brokers/health", response_class=PlainTextResponse)
    @application.get("/admin/v2/brokers/ready", response_class=PlainTextResponse)
    async def health() -> PlainTextResponse:
        return PlainTextResponse("ok" if port.ready() else "not ready", status_code=200 if port.ready() else 503)

    @application.get("/admin/v2/brokers/version", response_class=PlainTextResponse)
    async def version() -> str:
        return port.version()

    @application.get("/metrics")
    @application.get("/metrics/", include_in_schema=False)
    async def metrics() -> Response:
        return Response(port.metrics(), media_type=PROMETHEUS_TYPE)

    @application.get("/magnetar/v1/status")
    async def status() -> dict[str, Any]:
        return await port.status()

    @application.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic:path}")
    async def lookup(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, str]:
        return await port.lookup(topic_name(domain, tenant, namespace, topic))

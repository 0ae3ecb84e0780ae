"""The FastAPI application of a broker.

Owns: the routes of health, lookup and the part of Pulsar's admin REST that this version offers. Imports: FastAPI, ports, names, errors.
Invariants: every error leaves as its declared status with `{"reason": ...}` (what Pulsar's admin clients parse); a success without a body is 204;
no handler raises anything but `MagnetarError` for what a peer can cause.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from magnetar import __version__
from magnetar.admin.ports import AdminPort
from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.names import DEFAULT_BUNDLES, NamespaceName, TopicName

CLUSTER_NAME = "standalone"
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_application(port: AdminPort) -> FastAPI:
    """All routes over `port`."""
    application = FastAPI(title="Magnetar", version=__version__, docs_url="/docs", redoc_url=None)
    application.add_exception_handler(MagnetarError, _refuse)
    application.add_exception_handler(RequestValidationError, _refuse_shape)
    application.add_exception_handler(HTTPException, _refuse_route)
    _add_health(application, port)
    _add_lookup(application, port)
    _add_namespaces(application, port)
    _add_topics(application, port)
    return application


def _topic(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    return TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}")


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MagnetarError)
    return JSONResponse({"reason": str(error)}, status_code=error.http_status)


async def _refuse_shape(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return JSONResponse({"reason": f"{place}: {first['msg']} (got {first.get('input')!r})"}, status_code=400)


async def _refuse_route(request: Request, error: Exception) -> JSONResponse:
    """A path or a method that no route has."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path} is not offered ({error.detail}); GET /docs lists what is"
    return JSONResponse({"reason": reason}, status_code=error.status_code, headers=error.headers)


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

    @application.get("/admin/v2/clusters")
    async def clusters() -> list[str]:
        return [CLUSTER_NAME]


def _add_lookup(application: FastAPI, port: AdminPort) -> None:
    @application.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic:path}")
    async def lookup(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, str]:
        return await port.lookup(_topic(domain, tenant, namespace, topic))


def _add_namespaces(application: FastAPI, port: AdminPort) -> None:
    @application.get("/admin/v2/namespaces/{tenant}")
    async def namespaces(tenant: str) -> list[str]:
        return await port.namespaces(tenant)

    @application.get("/admin/v2/namespaces/{tenant}/{namespace}")
    async def policies(tenant: str, namespace: str) -> dict[str, Any]:
        return await port.namespace(NamespaceName.parse(f"{tenant}/{namespace}"))

    @application.put("/admin/v2/namespaces/{tenant}/{namespace}", status_code=204)
    async def create(tenant: str, namespace: str, body: Annotated[dict[str, Any] | None, Body()] = None) -> None:
        settings = dict(body or {})
        bundles = settings.pop("bundles", None)
        count = bundles.get("numBundles", DEFAULT_BUNDLES) if isinstance(bundles, dict) else DEFAULT_BUNDLES
        if not isinstance(count, int):
            raise InvalidRequest(f"bundles.numBundles: {count!r} is not a number")
        await port.create_namespace(NamespaceName.parse(f"{tenant}/{namespace}"), count, settings)

    @application.get("/admin/v2/namespaces/{tenant}/{namespace}/topics")
    @application.get("/admin/v2/persistent/{tenant}/{namespace}")
    async def topics(tenant: str, namespace: str) -> list[str]:
        return await port.topics(NamespaceName.parse(f"{tenant}/{namespace}"))


def _add_topics(application: FastAPI, port: AdminPort) -> None:
    base = "/admin/v2/{domain}/{tenant}/{namespace}/{topic:path}"

    @application.get(f"{base}/partitions")
    async def partitions(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        return {"partitions": await port.partitions(_topic(domain, tenant, namespace, topic)), "deleted": False}

    @application.put(f"{base}/partitions", status_code=204)
    async def create_partitions(domain: str, tenant: str, namespace: str, topic: str, count: Annotated[int, Body()]) -> None:
        await port.create_partitions(_topic(domain, tenant, namespace, topic), count)

    @application.get(f"{base}/stats")
    async def stats(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        return await port.stats(_topic(domain, tenant, namespace, topic))

    @application.put(f"{base}/unload", status_code=204)
    async def unload(
        domain: str, tenant: str, namespace: str, topic: str, destination: Annotated[str, Query(alias="destinationBroker")] = ""
    ) -> None:
        await port.unload_topic(_topic(domain, tenant, namespace, topic), destination)

    @application.post(f"{base}/roll")
    async def roll(domain: str, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        ledger, entry = await port.roll(_topic(domain, tenant, namespace, topic))
        return {"position": {"ledgerId": ledger, "entryId": entry}}

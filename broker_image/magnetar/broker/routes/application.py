"""The FastAPI application of a broker.

Owns: putting the routes together; probes, metrics, lookup and status. Imports: FastAPI,
administration, the routes by resource. Invariants: no handler raises anything but `MagnetarError`
for what a peer can cause; the meaning of a path does not depend on the order of registration,
except that a fixed word is matched before a name.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from magnetar import __version__
from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.routes.balance import balance_router
from magnetar.broker.routes.brokers import broker_router
from magnetar.broker.routes.clusters import cluster_router
from magnetar.broker.routes.documents import document_router
from magnetar.broker.routes.dynamic_settings import dynamic_settings_router
from magnetar.broker.routes.explain import explain_router
from magnetar.broker.routes.load_analytics import load_analytics_router
from magnetar.broker.routes.messages import message_router
from magnetar.broker.routes.namespaces import namespace_router
from magnetar.broker.routes.operations import operation_router
from magnetar.broker.routes.pages import add_docs
from magnetar.broker.routes.permissions import permission_router
from magnetar.broker.routes.policies import policy_router
from magnetar.broker.routes.refused import refused_router
from magnetar.broker.routes.schemas import schema_router
from magnetar.broker.routes.subscriptions import subscription_router
from magnetar.broker.routes.topics import topic_router
from magnetar.broker.routes.transactions import transaction_router
from magnetar.broker.routes.watermarks import watermark_router
from magnetar.rest.answers import PROMETHEUS_TYPE, Topic, add_refusals
from magnetar.rest.rights import Gate, gate_of

LISTENER_LENGTH_MAX = 200
LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic:path}"
ROUTERS = (
    operation_router,
    explain_router,
    balance_router,
    load_analytics_router,
    transaction_router,
    watermark_router,
    dynamic_settings_router,
    broker_router,
    document_router,
    cluster_router,
    namespace_router,
    message_router,
    subscription_router,
    topic_router,
    permission_router,
    policy_router,
    schema_router,
)


def create_application(admin: BrokerAdministration, gate: Gate | None = None) -> FastAPI:
    """All routes over `admin`; `gate` is asked before each of them (None: admit every request)."""
    asked = [Depends(gate_of(gate))] if gate is not None else []
    application = FastAPI(
        title="Magnetar",
        version=__version__,
        openapi_url=None,
        dependencies=asked,
        redirect_slashes=False,
    )
    add_refusals(application)
    _add_probes(application, admin)
    add_docs(application)
    _add_lookup(application, admin)
    for router in ROUTERS:
        # Not by `include_router`, which makes each route again at the first request.
        application.router.routes.extend(router(admin, asked).routes)
    application.router.routes.extend(refused_router(asked).routes)
    return application


def _add_probes(application: FastAPI, admin: BrokerAdministration) -> None:
    def answer(good: bool) -> PlainTextResponse:
        return PlainTextResponse("ok" if good else "not ready", status_code=200 if good else 503)

    @application.get("/live", response_class=PlainTextResponse, tags=["broker"])
    async def live() -> PlainTextResponse:
        """Tell whether the process makes progress."""
        return answer(admin.health.live())

    @application.get("/ready", response_class=PlainTextResponse, tags=["broker"])
    async def ready() -> PlainTextResponse:
        """Tell whether clients should be sent here."""
        return answer(admin.health.ready())

    @application.get("/status.html", response_class=PlainTextResponse, tags=["broker"])
    async def vip_status() -> PlainTextResponse:
        """Tell a load balancer of Pulsar's brokers whether clients should be sent here."""
        ready = admin.health.ready()
        return PlainTextResponse("OK" if ready else "not ready", 200 if ready else 503)

    @application.get("/metrics", tags=["broker"])
    @application.get("/metrics/", include_in_schema=False)
    async def metrics() -> Response:
        """Return all metrics in Prometheus' text format."""
        return StreamingResponse(admin.health.metrics(), media_type=PROMETHEUS_TYPE)

    @application.get("/magnetar/v1/status", tags=["broker"])
    async def status() -> dict[str, Any]:
        """Tell who serves what: brokers, bundles and their owners."""
        return await admin.health.status()


def _add_lookup(application: FastAPI, admin: BrokerAdministration) -> None:
    @application.get(f"{LOOKUP}/bundle", response_class=PlainTextResponse, tags=["lookup"])
    async def bundle(topic: Topic) -> str:
        """Tell the bundle that a topic falls into."""
        return await admin.health.bundle_range(topic)

    @application.get(LOOKUP, tags=["lookup"])
    async def lookup(
        topic: Topic,
        listener: Annotated[str, Query(alias="listenerName", max_length=LISTENER_LENGTH_MAX)] = "",
        listener_header: Annotated[
            str, Header(alias="X-Pulsar-ListenerName", max_length=LISTENER_LENGTH_MAX)
        ] = "",
    ) -> dict[str, str]:
        """Tell which broker serves a topic, and its address on a listener; the query wins over
        the header."""
        return await admin.health.lookup(topic, (listener or listener_header).strip())

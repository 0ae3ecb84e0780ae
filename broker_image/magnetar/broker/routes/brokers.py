"""Routes of brokers.

Owns: `/admin/v2/brokers` and `/admin/v2/broker-stats`: who there is, health, settings, load and
statistics. Imports: FastAPI, administration. Invariant: health is a message that was published and
read, within a bound of time; ready asks no other process.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import UnsupportedCommand
from magnetar.rest.answers import NO_CONTENT
from magnetar.rest.rights import Asked


def broker_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Brokers over `admin`."""
    router = APIRouter(prefix="/admin/v2", dependencies=asked)
    _add_state(router, admin)
    _add_configuration(router, admin)
    _add_brokers(router, admin)
    _add_statistics(router, admin)
    return router


def _add_state(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/brokers/health", response_class=PlainTextResponse, tags=["brokers"])
    async def health() -> str:
        """Publish a message through this broker and read it; ok, or 503 with what failed."""
        await admin.brokers.check_health()
        return "ok"

    @router.get("/brokers/ready", response_class=PlainTextResponse, tags=["brokers"])
    async def ready() -> PlainTextResponse:
        """Tell whether clients should be sent here."""
        return PlainTextResponse(
            "ok" if admin.health.ready() else "not ready",
            status_code=200 if admin.health.ready() else 503,
        )

    @router.get("/brokers/version", response_class=PlainTextResponse, tags=["brokers"])
    async def version() -> str:
        """Tell the version of this broker."""
        return admin.health.version()

    @router.get("/brokers/leaderBroker", tags=["brokers"])
    async def leader() -> dict[str, str]:
        """Tell which broker leads."""
        return await admin.brokers.leader_broker()

    @router.get("/brokers/backlog-quota-check", status_code=NO_CONTENT, tags=["brokers"])
    async def check_quotas() -> None:
        """Compare backlogs with their quotas now."""
        await admin.brokers.check_backlog_quotas()


def _add_configuration(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/brokers/configuration/runtime", tags=["brokers"])
    async def runtime() -> dict[str, str]:
        """Return the settings in force."""
        return admin.brokers.configuration()

    @router.get("/brokers/internal-configuration", tags=["brokers"])
    async def internal() -> dict[str, Any]:
        """Tell where metadata and storage are."""
        return admin.brokers.internal_configuration()


def _add_brokers(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/brokers", tags=["brokers"], name="all_brokers")
    @router.get("/brokers/{cluster}", tags=["brokers"])
    async def brokers(cluster: str = "") -> list[str]:
        """List the live brokers as host:port of their HTTP."""
        return await admin.brokers.brokers(cluster)

    @router.get("/brokers/{cluster}/{broker}/ownedNamespaces", tags=["brokers"])
    async def owned(cluster: str, broker: str) -> dict[str, Any]:
        """List the bundles that a broker serves."""
        return await admin.brokers.owned_bundles(cluster, broker)


def _add_statistics(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get("/broker-stats/metrics", tags=["broker statistics"])
    async def metrics() -> list[dict[str, Any]]:
        """Return this broker's metrics as Pulsar's JSON."""
        return admin.brokers.metrics_json()

    @router.get("/broker-stats/mbeans", tags=["broker statistics"])
    async def beans() -> list[dict[str, Any]]:
        """Return no beans: there is no JVM."""
        return []

    @router.get("/broker-stats/topics", tags=["broker statistics"], name="topics_of_broker")
    @router.get("/broker-stats/destinations", tags=["broker statistics"])
    async def destinations() -> dict[str, Any]:
        """Return the statistics of all topics served here, by namespace and bundle."""
        return await admin.brokers.broker_topics()

    @router.get("/broker-stats/load-report", tags=["broker statistics"])
    async def load_report() -> dict[str, Any]:
        """Return this broker's load as it was last reported."""
        return admin.brokers.load_report()

    @router.get("/broker-stats/allocator-stats/{allocator}", tags=["broker statistics"])
    async def allocator(allocator: str) -> Response:
        """Refused: there is no Netty allocator."""
        raise UnsupportedCommand(
            f"allocator-stats: there is no allocator {allocator!r}; memory is in "
            "broker-stats/load-report"
        )

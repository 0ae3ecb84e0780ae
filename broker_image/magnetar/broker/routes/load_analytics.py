"""Routes of load analytics.

Owns: `/magnetar/v1/load-analytics`: the advice in force, and reports of runs. Imports: FastAPI,
administration. Invariants: all of it only reads; a report is answered with a policy that lets a
browser load and run nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import HTMLResponse

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.rest.rights import Asked

ID_PATTERN = r"^\d{15}-\d{8,12}-[^/]+$"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "X-Content-Type-Options": "nosniff",
}


def load_analytics_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """The routes over `admin`."""
    router = APIRouter(prefix="/magnetar/v1/load-analytics", tags=["broker"], dependencies=asked)

    @router.get("")
    async def advice() -> dict[str, Any]:
        """The advice that this broker uses, or why it uses none."""
        return await admin.load_analytics.advice()

    @router.get("/reports")
    async def reports(job: Annotated[str, Query(max_length=400)] = "") -> list[dict[str, Any]]:
        """Reports that are kept, newest first, at most 100; `job` is a DataJob's name, with its
        Kubernetes namespace and a slash or without."""
        return await admin.load_analytics.reports(job)

    @router.get("/reports/{report}", response_class=HTMLResponse)
    async def report(report: Annotated[str, Path(pattern=ID_PATTERN, max_length=300)]) -> Response:
        """One report, a page that needs nothing from elsewhere."""
        page = await admin.load_analytics.report(report)
        return HTMLResponse(page, headers=_HEADERS)

    return router

"""Routes of a transaction coordinator.

Owns: `/internal/v1/coordinator`, by which brokers answer what administrators ask. Imports: FastAPI,
ports. Invariant: they are in no table of rights, so they are for super users and processes of the
cluster alone.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from magnetar.rest.answers import NO_CONTENT
from magnetar.rest.transaction_ports import CoordinatorPort

INTERNAL = "/internal/v1/coordinator"
LISTED = 1000
"""Transactions of a list, if nobody says how many."""
LISTED_MAX = 10_000
"""Transactions of a list at most; coordinators are asked for one more, so that whoever asks
knows whether there are any."""


def coordinator_router(port: CoordinatorPort) -> APIRouter:
    """The routes over `port`."""
    router = APIRouter(prefix=INTERNAL, tags=["transactions"])

    @router.get("/{tcid}")
    async def stats(tcid: int) -> dict[str, Any]:
        """Return the state of a number, its sequences and its log."""
        return await port.stats(tcid)

    @router.get("/{tcid}/transactions")
    async def transactions(
        tcid: int,
        older_ms: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=LISTED_MAX + 1)] = LISTED,
    ) -> list[dict[str, Any]]:
        """List transactions that have not ended everywhere, the oldest first."""
        return await port.transactions(tcid, older_ms, limit)

    @router.get("/{tcid}/transactions/{least}")
    async def transaction(tcid: int, least: int) -> dict[str, Any]:
        """Return a transaction, or how it has ended."""
        return await port.transaction(tcid, least)

    @router.post("/{tcid}/transactions/{least}/abort", status_code=NO_CONTENT)
    async def abort(tcid: int, least: int) -> None:
        """Abort an open transaction."""
        await port.abort(tcid, least)

    @router.post("/{tcid}/abort")
    async def abort_of(tcid: int, role: Annotated[str, Query(min_length=1)]) -> dict[str, Any]:
        """Abort open transactions of a role, as many as one call does."""
        return await port.abort_of(tcid, role)

    return router

"""Routes of load balancing.

Owns: `/magnetar/v1/balance`: what is in force, what was decided, what would be decided now. Imports:
FastAPI, administration. Invariants: all of it only reads; what the leader alone knows is answered by
the leader, to which other brokers redirect.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.administration.balance import HISTORY_MAX
from magnetar.rest.rights import Asked
from magnetar.storage.names import DECISIONS

ID_PATTERN = r"^\d{15}-\d{20}-\d{8}$"
Before = Annotated[str, Query(pattern=r"^(\d{15}-\d{20}-\d{8})?$")]


def balance_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """The routes over `admin`."""
    router = APIRouter(prefix="/magnetar/v1/balance", tags=["broker"], dependencies=asked)

    @router.get("")
    async def overview() -> dict[str, Any]:
        """Settings in force, load of each broker against the mean, imbalance (max/mean) now and in
        a sample a minute of the last hour, moves under way. Answered by the leader."""
        await admin.brokers.at_leader()
        return await admin.balance.overview()

    @router.get("/history")
    async def history(
        count: Annotated[int, Query(ge=1, le=HISTORY_MAX)] = 20, before: Before = ""
    ) -> list[dict[str, Any]]:
        """The last decisions that moved, split or merged bundles, newest first, without their
        inputs; `before` (an id) goes on where the former page ended. Kept for a day."""
        return await admin.balance.history(count, f"{DECISIONS}/{before}" if before else "")

    @router.get("/decisions/{decision}")
    async def decision(
        decision: Annotated[str, Path(pattern=ID_PATTERN)],
    ) -> dict[str, Any]:
        """One decision of the history; its `record` has all inputs, and replays
        (`magnetar balance simulate`)."""
        return await admin.balance.shown(decision)

    @router.get("/plan")
    async def plan(inputs: bool = False) -> dict[str, Any]:
        """What the leader would do now; nothing is moved. With `inputs` also its `record`, which
        replays. Answered by the leader."""
        await admin.brokers.at_leader()
        return await admin.balance.plan(inputs)

    return router

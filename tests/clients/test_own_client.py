"""`magnetar.client` on a real server: the scenarios that it also passes on Apache Pulsar (`python -m dev.peer_client`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dev.client_scenarios import BASIC
from dev.server_process import ServerProcess
from magnetar.client import Client

SCENARIO_TIMEOUT_S = 90


@pytest.mark.slow
@pytest.mark.parametrize("scenario", BASIC, ids=lambda scenario: str(scenario.__name__))
def test_scenario(shared_server: ServerProcess, scenario: Callable[[Client, str], Awaitable[None]]) -> None:
    """What the scenario's own sentence says."""

    async def body() -> None:
        async with asyncio.timeout(SCENARIO_TIMEOUT_S), Client(shared_server.service_url) as client:
            await scenario(client, f"own-{scenario.__name__}")

    asyncio.run(body())

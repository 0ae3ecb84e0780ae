"""The real application over a real broker, for tests.

Owns: `Rest`, one HTTP client without a network, and `rest_over` that opens one. Imports: httpx, the
admin application, the broker of the tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.incarnation import Broker
from magnetar.broker.routes.application import create_application
from magnetar.rest.rights import Gate
from tests.support.brokers import Peer, open_peer, running_broker

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPICS = "/admin/v2/persistent/public/default"


def refusal_text(refusal: Mapping[str, str]) -> str:
    """All that a refusal says: what is wrong, and what to do."""
    return "; ".join(refusal[part] for part in ("reason", "remedy") if part in refusal)


class Process:
    """A process as the port sees it: which incarnation runs now, and on what directory."""

    store_name = "memory"
    coordinator = None

    def __init__(self, directory: Path, broker: Broker | None) -> None:
        self.volume_location, self.broker = str(directory), broker


class Rest:
    """Requests to one broker's application."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """The answer, whatever its status."""
        return await self._client.request(
            method, path, **({"json": body} if body is not None else {}), **options
        )

    async def __call__(self, method: str, path: str, body: Any = None, *, status: int = 204) -> Any:
        """The JSON of an answer with the expected status; None without one."""
        found = await self.ask(method, path, body)
        assert found.status_code == status, (method, path, found.status_code, found.text)
        if status >= 400:
            assert list(found.json()) in (["reason"], ["reason", "remedy"]), found.text
        return found.json() if found.content else None

    async def get(self, path: str) -> Any:
        return await self("GET", path, status=200)


@asynccontextmanager
async def rest_over(
    directory: Path, broker: Broker, gate: Gate | None = None
) -> AsyncIterator[Rest]:
    """The application over `broker`."""
    application = create_application(BrokerAdministration(Process(directory, broker)), gate)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application), base_url="http://test"
    ) as client:
        yield Rest(client)


@asynccontextmanager
async def broker_with_rest(
    directory: Path, **settings: Any
) -> AsyncIterator[tuple[Broker, Rest, Peer]]:
    """A broker, its REST and a client that has shaken hands and looked a topic up."""
    async with (
        running_broker(directory, **settings) as broker,
        rest_over(directory, broker) as rest,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        yield broker, rest, peer

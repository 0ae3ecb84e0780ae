"""The two servers under comparison, as scenarios reach them.

Owns: `Server` (ports, REST), how both are set for a comparison, and namespaces of scenarios.
Imports: httpx. Invariants: a request that gets no answer raises; REST bodies are JSON, or text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

TENANT = "public"
FAILOVER_DELAY_MS = 10
"""Of both servers: a scenario waits for each change of the active consumer."""
MAGNETAR_SETTINGS = {
    "MAGNETAR_FAILOVER_DELAY_MS": str(FAILOVER_DELAY_MS),
    "MAGNETAR_ACK_WRITE_DELAY_S": "0",
    # What a commit makes visible comes with its answer, however busy the machine is.
    "MAGNETAR_TRANSACTION_END_PATIENCE_S": "60",
}
ORACLE_SETTINGS = {"activeConsumerFailoverDelayTimeMillis": str(FAILOVER_DELAY_MS)}
KEPT = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
"""When what nobody needs is dropped is each server's own affair."""
REST_TIMEOUT_S = 120.0


def namespace(number: int) -> str:
    """Of scenarios that run one after another: an unload of a topic may disconnect its neighbours."""
    return f"{TENANT}/differential-{number}"


@dataclass(frozen=True)
class Answer:
    """Of a REST request."""

    status: int
    body: Any


class Server:
    """A running server; close it when its scenarios have ended."""

    def __init__(self, name: str, broker_port: int, http_url: str) -> None:
        self.name, self.broker_port, self.http_url = name, broker_port, http_url
        self._http = httpx.AsyncClient(
            base_url=http_url, timeout=REST_TIMEOUT_S, follow_redirects=True, trust_env=False
        )

    async def rest(self, method: str, path: str, body: Any = None) -> Answer:
        """A request below /admin/v2, or of an absolute path."""
        url = path if path.startswith("/") else f"/admin/v2/{path}"
        content = None if body is None else json.dumps(body)
        answer = await self._http.request(
            method, url, content=content, headers={"Content-Type": "application/json"}
        )
        try:
            return Answer(answer.status_code, answer.json() if answer.content else None)
        except ValueError:
            return Answer(answer.status_code, answer.text)

    async def prepare(self, namespace: str) -> None:
        """Make a namespace for scenarios, if it is not there."""
        answer = await self.rest("PUT", f"namespaces/{namespace}", {"bundles": {"numBundles": 1}})
        if answer.status not in (204, 409):
            raise RuntimeError(f"{self.name} refused {namespace}: {answer}")
        await self.rest("POST", f"namespaces/{namespace}/retention", KEPT)

    async def close(self) -> None:
        await self._http.aclose()

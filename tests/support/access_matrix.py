"""A standalone server with security, and the roles that ask it.

Owns: `secured_server`, which runs the whole server in this process; what each role shows and may
do. Imports: the process, tokens of the tests.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from magnetar.broker.incarnation import Broker
from magnetar.broker.process import EMBEDDED, BrokerProcess, ProcessOptions
from magnetar.broker.routes.application import create_application
from magnetar.hosting.access import AccessOptions
from magnetar.metadata import keys
from magnetar.security.authorization import INTERNAL_METHOD, Right
from magnetar.security.keys import SecretKey
from tests.support.brokers import HOST, SETTINGS
from tests.support.polling import until
from tests.support.secured import DOCUMENT, KEY, token

TENANT, NAMESPACE, NAME = "acme", "acme/ns", "persistent://acme/ns/t"
TENANT_RECORD = {"adminRoles": ["chief"], "allowedClusters": ["standalone"]}
LOCAL = {"x-magnetar-internal": "1", "Content-Type": "application/json"}
GRANTED: dict[str, set[Right]] = {
    "no credentials": {Right.OPEN},
    "forged": {Right.OPEN},
    "forged internal": {Right.OPEN},
    "anonymous": {Right.OPEN, Right.ANYBODY},
    "nobody": {Right.OPEN, Right.ANYBODY},
    "writer": {Right.OPEN, Right.ANYBODY, Right.USE, Right.PRODUCE},
    "reader": {Right.OPEN, Right.ANYBODY, Right.USE, Right.CONSUME},
    "chief": {*Right} - {Right.SUPER},
    "admin": {*Right},
    "internal": {*Right},
}
ANONYMOUS = DOCUMENT.replace("authentication: {", "authentication: {anonymousRole: guest, ")
UNKNOWN = ("no credentials", "forged", "forged internal")
STILL = replace(SETTINGS, maintenance_s=3600.0, inactive_topic_s=0.0)
"""Nobody but the roles changes the metadata store: the first round of maintenance notes its backup
there, and a topic that nobody uses is deleted, at times that only a fast machine stays below."""


@dataclass
class Asked:
    """What came of one request, and the route that took it."""

    status: int = 0
    text: str = ""
    route: str = ""
    body_was_read: bool = False


@dataclass
class Server:
    """A standalone server in this process, and the application that it serves."""

    process: BrokerProcess
    broker: Broker
    application: FastAPI

    def credentials(self, role: str) -> tuple[str, str]:
        """The method of authentication and what a role shows by it."""
        assert self.process.security is not None
        if role in ("no credentials", "anonymous"):
            return "", ""
        if role == "forged":
            return "token", token("admin", key=SecretKey(b"f" * 32))
        if role.endswith("internal"):
            return INTERNAL_METHOD, token(
                "magnetar:internal", 60
            ) if role != "internal" else self.process.security.internal_token()
        return "token", token(role)

    async def ask(self, role: str, method: str, path: str, body: Any = None) -> Asked:
        """The answer to one request."""
        scheme, shown = self.credentials(role)
        headers = LOCAL | (
            {"Authorization": f"{'Bearer' if scheme == 'token' else scheme} {shown}"}
            if scheme
            else {}
        )
        asked = Asked()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            await self.application(scope, receive, send)
            # A route of Starlette alone does not name itself.
            asked.route = spelled(getattr(scope.get("route"), "path", scope["path"]))

        async def content() -> AsyncIterator[bytes]:
            asked.body_was_read = True
            yield json.dumps(body).encode() if body is not None else b""

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=application), base_url="http://test"
        ) as client:
            answer = await client.request(method, path, headers=headers, content=content())
        asked.status, asked.text = answer.status_code, answer.text
        return asked

    async def stored(self) -> dict[str, str]:
        """Everything in the metadata store but what the broker says of its own load."""
        found = await self.ask("admin", "POST", "/internal/v1/store/range", {"prefix": ""})
        return {
            item["key"]: item["value"]
            for item in json.loads(found.text)["items"]
            if not item["key"].startswith(keys.LOAD)
        }


def spelled(path: str) -> str:
    """A route's path without the converters of its parameters."""
    return re.sub(r":\w+}", "}", path)


@asynccontextmanager
async def secured_server(
    directory: Path, monkeypatch: pytest.MonkeyPatch, document: str = DOCUMENT
) -> AsyncIterator[Server]:
    """A standalone server with the tenant's administrator, two roles with grants and one topic."""
    made: list[FastAPI] = []

    def create(*arguments: Any) -> FastAPI:
        made.append(create_application(*arguments))
        return made[0]

    monkeypatch.setattr("magnetar.broker.process.create_application", create)
    (directory / "key").write_bytes(KEY.secret)
    (directory / "security.yaml").write_text(document.replace("DIRECTORY", str(directory)))
    access = AccessOptions(security=str(directory / "security.yaml"))
    ready: asyncio.Future[Broker] = asyncio.get_running_loop().create_future()
    options = ProcessOptions(
        "standalone", directory / "data", EMBEDDED, HOST, HOST, 0, 0, STILL, access=access
    )
    process = BrokerProcess(options, ready.set_result)
    running = asyncio.create_task(process.run())
    running.add_done_callback(lambda _: ready.cancel())  # one that cannot start is not waited for
    try:
        server = Server(process, await ready, made[0])
        await until(lambda: server.broker.leader.leading)
        for method, path, body in (
            ("PUT", f"/admin/v2/tenants/{TENANT}", TENANT_RECORD),
            ("PUT", f"/admin/v2/namespaces/{TENANT}/ns", None),
            ("PUT", f"/admin/v2/persistent/{TENANT}/ns/t", None),
            ("POST", f"/admin/v2/namespaces/{TENANT}/ns/permissions/writer", ["produce"]),
            ("POST", f"/admin/v2/namespaces/{TENANT}/ns/permissions/reader", ["consume"]),
        ):
            assert (await server.ask("admin", method, path, body)).status == 204
        yield server
    finally:
        process.stop()
        await running

"""Every route, asked by every kind of role: complete by construction, for a route without a row
of expectation fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from magnetar.coordinator.probes import coordinator_application
from magnetar.hosting.security.rest import RestGate
from magnetar.security.authorization import Right
from tests.support.access_matrix import (
    ANONYMOUS,
    GRANTED,
    NAME,
    TENANT,
    TENANT_RECORD,
    UNKNOWN,
    Server,
    secured_server,
    spelled,
)
from tests.support.access_rows import COORDINATOR_ROWS, ROUTE_ROWS, RouteRow

VALUES = {
    "domain": "persistent",
    "tenant": TENANT,
    "namespace": "ns",
    "topic": "t",
    "subscription": "s",
    "bundle": "0x00000000_0xffffffff",
    "policy": "retention",
    "cluster": "standalone",
    "broker": "absent",
    "tcid": "0",
    "most": "0",
}
"""Of the parts of paths; others are a number or a name that is not there."""
BODIES: dict[str, Any] = {
    "/admin/v2/tenants/{tenant}": TENANT_RECORD,
    "/internal/v1/store/get": {"key": "x"},
    "/internal/v1/store/range": {"prefix": "x"},
    "/internal/v1/store/transact": {"compares": [], "operations": []},
}


def routes(application: FastAPI) -> set[tuple[str, str]]:
    """Methods and paths of everything that the application answers."""

    def walk(found: Any) -> Iterator[tuple[str, str]]:
        for route in found:
            if isinstance(route, Route):
                yield from ((method, spelled(route.path)) for method in route.methods or ())
            else:  # a router that was included; anything else has no such attribute, and fails
                yield from walk(route.original_router.routes)

    return {*walk(application.routes)}


async def _wrong(
    server: Server, role: str, method: str, path: str, row: RouteRow, rights: set[Right]
) -> str:
    """What is not as the row says; "" if all is."""
    place = re.sub(r"{(\w+)}", lambda found: VALUES.get(found[1], "7"), path)
    if row.right in rights and "{topic}" in path:  # a request before this one may have unloaded it
        await server.ask("admin", "GET", f"/lookup/v2/topic/{NAME.replace('://', '/')}")
    asked = await server.ask(role, method, place, BODIES.get(path))
    if row.right in rights:
        good = asked.status < 500 and asked.status not in (401, 403)
    elif role in UNKNOWN:
        good = asked.status == 401 and not asked.body_was_read
    else:
        needed = f"needs {row.right.value}, which this role is not granted"
        good = asked.status == row.refused and needed in asked.text and not asked.body_was_read
    return "" if good and asked.route == path else f"{role}: {method} {path}: {asked}"


async def _check(server: Server, roles: Collection[str]) -> None:
    """Refusals come first, and change nothing in the store; then every operation is carried out,
    or refused for reasons of its own."""
    granted, before = {role: GRANTED[role] for role in roles}, await server.stored()
    refused = [
        _wrong(server, role, *route, row, rights)
        for route, row in ROUTE_ROWS.items()
        for role, rights in granted.items()
        if row.right not in rights
    ]
    assert "\n".join(filter(None, await asyncio.gather(*refused))) == ""
    assert await server.stored() == before
    found = [
        await _wrong(server, role, *route, row, rights)
        for role, rights in granted.items()
        for route, row in ROUTE_ROWS.items()
        if row.right in rights
    ]
    assert "\n".join(filter(None, found)) == ""


async def test_every_route_answers_exactly_the_roles_of_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route without a row fails, and a row without a route; a refused role has changed
    nothing, and no body was read before."""

    async with secured_server(tmp_path, monkeypatch) as server:
        assert routes(server.application) == {*ROUTE_ROWS}
        await _check(server, [role for role in GRANTED if role != "anonymous"])


async def test_the_anonymous_role_has_the_rights_of_a_known_role_without_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And wrong credentials are not taken for none."""

    async with secured_server(tmp_path, monkeypatch, ANONYMOUS) as server:
        await _check(server, ["anonymous", "forged"])


async def test_every_route_of_a_coordinator_refuses_whom_its_row_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secured_server(tmp_path, monkeypatch) as server:
        security, port = server.process.security, None  # nobody gets as far as that here
        assert security is not None
        gate = RestGate(security, lambda: server.broker.guard)
        application = coordinator_application(lambda: True, bytes, port, gate)  # type: ignore[arg-type]
        assert routes(application) == {*COORDINATOR_ROWS}
        server.application = application
        found = [
            await _wrong(server, role, *route, row, rights)
            for route, row in COORDINATOR_ROWS.items()
            for role, rights in GRANTED.items()
            if role != "anonymous" and (row.right is Right.OPEN or row.right not in rights)
        ]
        assert "\n".join(filter(None, found)) == ""

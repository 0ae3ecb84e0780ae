"""What clients may do: every command has its right, grants and revocations reach open
connections, and REST has the same rules."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from magnetar.broker.routes.application import ROUTERS, create_application
from magnetar.broker.routes.store_routes import store_router
from magnetar.errors import NotAuthorized
from magnetar.hosting.security.guard import NEEDS, OF_THE_CONNECTION
from magnetar.hosting.security.rest import RestGate
from magnetar.rest.rights import OTHER_RIGHTS, READ_RIGHTS, RIGHTS, right_of, spelled
from magnetar.security.authorization import INTERNAL_METHOD
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.rest import rest_over
from tests.support.secured import appoint, grant, peer_of, secured_broker, show, token

NAMESPACE = "public/default"
Topics = "/admin/v2/persistent/public/default"


async def _as(stack: AsyncExitStack, broker: Any, role: str) -> Peer:
    peer = await stack.enter_async_context(peer_of(broker))
    assert (await show(peer, token(role))).type == Type.CONNECTED
    return peer


def _code(answer: api.BaseCommand) -> int | None:
    """The error of any answer; None if it is none."""
    for field in ("error", "lookup_response", "partitioned_metadata_response"):
        if answer.HasField(field) and getattr(answer, field).HasField("error"):
            return int(getattr(answer, field).error)
    return None


async def _may(peer: Peer) -> set[str]:
    """Which of some commands are answered."""
    asked: dict[str, dict[str, Any]] = {
        "lookup": {"topic": TOPIC},
        "partitioned_metadata": {"topic": TOPIC},
        "get_topics_of_namespace": {"namespace": NAMESPACE},
        "producer": {"topic": TOPIC, "producer_id": 1},
        "subscribe": {
            "topic": TOPIC,
            "consumer_id": 1,
            "subscription": "s",
            "subType": 1,
            "consumer_name": "c",
        },
    }
    found = set()
    for field, values in asked.items():
        answer = await peer.ask(field, **values)
        while answer.type == Type.ACTIVE_CONSUMER_CHANGE:
            answer = await peer.answer()
        code = _code(answer)
        assert code in (None, api.AuthorizationError), (field, answer)
        if code is None:
            found.add(field)
    return found


EVERYTHING = {"lookup", "partitioned_metadata", "get_topics_of_namespace", "producer", "subscribe"}
"""The commands that `_may` asks."""


async def test_each_role_gets_what_it_was_granted(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as (broker, _), AsyncExitStack() as stack:
        await appoint(broker, "chief")
        await grant(
            broker,
            {"writer": ["produce"], "reader": ["consume"]},
            destination_auth={TOPIC: {"guest": ["consume"]}},
        )
        await (await _as(stack, broker, "admin")).lookup()
        everything = await _may(await _as(stack, broker, "admin"))
        assert await _may(await _as(stack, broker, "chief")) == everything
        assert await _may(await _as(stack, broker, "writer")) == everything - {"subscribe"}
        assert await _may(await _as(stack, broker, "reader")) == everything - {"producer"}
        assert await _may(await _as(stack, broker, "guest")) == everything - {
            "producer",
            "get_topics_of_namespace",
        }
        assert await _may(await _as(stack, broker, "nobody")) == set()


async def test_what_was_revoked_ends_on_open_connections(tmp_path: Path) -> None:
    """Producer and consumer are closed when the record changes; coming back, they are refused.
    Others go on."""

    async with secured_broker(tmp_path) as (broker, _), AsyncExitStack() as stack:
        await grant(broker, {"writer": ["produce"], "reader": ["consume"], "other": ["produce"]})
        writer, reader, other = [
            await _as(stack, broker, role) for role in ("writer", "reader", "other")
        ]
        await writer.lookup()
        await writer.produce()
        await other.produce()
        assert (await reader.subscribe()).type == Type.SUCCESS
        await grant(broker, {"other": ["produce"]})
        assert (await writer.answer()).type == Type.CLOSE_PRODUCER
        assert (await reader.answer()).type == Type.CLOSE_CONSUMER
        assert (
            _code(await writer.ask("producer", topic=TOPIC, producer_id=1))
            == api.AuthorizationError
        )
        assert await other.send(b"still here")


async def test_a_grant_holds_once_it_is_stored(tmp_path: Path) -> None:
    """For a client that was refused a moment ago, although no watch reports the grant, and also
    while another one's look at the store is under way."""

    async with secured_broker(tmp_path) as (broker, _), AsyncExitStack() as stack:
        admin, writer, nobody = [
            await _as(stack, broker, role) for role in ("admin", "writer", "nobody")
        ]
        await admin.lookup()
        assert (
            _code(await writer.ask("producer", topic=TOPIC, producer_id=1))
            == api.AuthorizationError
        )
        await broker.views.namespaces.stop()
        refused = asyncio.create_task(nobody.ask("producer", topic=TOPIC, producer_id=1))
        await grant(broker, {"writer": ["produce"]})
        await writer.produce()
        assert _code(await refused) == api.AuthorizationError


async def test_every_command_of_the_broker_has_its_right(tmp_path: Path) -> None:
    async def run() -> set[int]:
        async with secured_broker(tmp_path) as (broker, _):
            return set(broker.service._handlers)

    assert await run() <= {*NEEDS, *OF_THE_CONNECTION}


async def test_only_processes_of_the_cluster_and_super_users_end_transactions_at_participants(
    tmp_path: Path,
) -> None:
    """Not a role that may publish and consume there; a coordinator that speaks for such a role
    keeps its own right."""

    async with secured_broker(tmp_path) as (broker, found), AsyncExitStack() as stack:
        await grant(broker, {"user": ["produce", "consume"]})
        guard = broker.guard
        assert guard is not None
        shown = {
            "user": ("token", token("user"), ""),
            "admin": ("token", token("admin"), ""),
            "internal": (INTERNAL_METHOD, found.internal_token(), ""),
            "internal for user": (INTERNAL_METHOD, found.internal_token(), "user"),
        }
        let_through = set()
        for who, (method, data, original) in shown.items():
            peer = await stack.enter_async_context(peer_of(broker))
            assert (await show(peer, data, method, original=original)).type == Type.CONNECTED
            connection = broker._connections.open()[-1]
            for kind, body in (
                (Type.END_TXN_ON_PARTITION, api.CommandEndTxnOnPartition(topic=TOPIC)),
                (Type.END_TXN_ON_SUBSCRIPTION, api.CommandEndTxnOnSubscription()),
            ):
                with suppress(NotAuthorized):
                    await guard.check(connection, kind, body)
                    let_through.add((who, kind))
        assert {who for who, _ in let_through} == {"admin", "internal", "internal for user"}
        assert len(let_through) == 6


def _routes(router: APIRouter) -> list[tuple[str, str]]:
    return [
        (method, route.path)
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    ]


def test_every_route_has_its_right_and_every_right_its_route() -> None:
    port = None
    found = [
        *_routes(create_application(port).router),  # type: ignore[arg-type]
        *_routes(store_router(port)),  # type: ignore[arg-type]
        *(row for router in ROUTERS for row in _routes(router(port, []))),  # type: ignore[arg-type]
    ]
    assert len(found) > 150
    assert [row for row in found if right_of(*row) is None] == []
    assert (
        sorted({*RIGHTS, *READ_RIGHTS, *OTHER_RIGHTS} - {spelled(path) for _, path in found}) == []
    )


async def test_rest_knows_who_asks_and_what_they_may(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as (broker, found):
        await appoint(broker, "chief")
        await grant(broker, {"reader": ["consume"]})
        async with rest_over(tmp_path, broker, RestGate(found, lambda: broker.guard)) as rest:

            async def status(method: str, path: str, shown: str = "", body: Any = None) -> int:
                answer = await rest.ask(
                    method, path, body, headers={"Authorization": shown} if shown else {}
                )
                if answer.status_code in (401, 403):
                    assert "reason" in answer.json()
                return answer.status_code

            def bearer(role: str) -> str:
                return f"Bearer {token(role)}"

            for path in ("/live", "/ready", "/metrics", "/docs", "/openapi.json"):
                assert await status("GET", path) == 200, path
            for path in (
                "/admin/v2/clusters",
                "/magnetar/v1/status",
                "/lookup/v2/topic/persistent/public/default/t",
            ):
                assert await status("GET", path) == 401, path
                assert await status("GET", path, "Bearer x.y.z") == 401, path
                assert await status("GET", path, "Basic eDp5") == 401, path
            assert await status("GET", "/admin/v2/clusters", bearer("nobody")) == 200
            assert await status("GET", "/magnetar/v1/status", bearer("chief")) == 403
            assert await status("GET", "/magnetar/v1/status", bearer("admin")) == 200
            assert (
                await status(
                    "GET", "/magnetar/v1/status", f"magnetar-internal {found.internal_token()}"
                )
                == 200
            )
            assert await status("PUT", f"{Topics}/t", bearer("reader")) == 403
            assert await status("PUT", f"{Topics}/t", bearer("chief")) == 204
            assert await status("GET", f"{Topics}/t/stats", bearer("nobody")) == 401
            assert await status("GET", f"{Topics}/t/stats", bearer("reader")) == 200
            assert await status("PUT", f"{Topics}/t/subscription/s", bearer("reader")) == 204
            assert await status("PUT", "/admin/v2/tenants/new", bearer("chief"), {}) == 401
            tenant = {"allowedClusters": ["standalone"]}
            assert await status("PUT", "/admin/v2/tenants/new", bearer("admin"), tenant) == 204
            path = "/admin/v2/namespaces/public/default/permissions/writer"
            assert await status("POST", path, bearer("reader"), ["produce"]) == 403
            assert await status("POST", path, bearer("chief"), ["produce"]) == 204


def test_a_server_without_security_loads_none_of_it() -> None:
    """Neither its memory nor its start pays for what is switched off."""
    code = (
        "import sys, magnetar.broker.process, magnetar.coordinator.process, magnetar.cli.serve\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('jwt', 'cryptography') or "
        "n.startswith('magnetar.hosting.security')"
        " or n in ('magnetar.security.tokens', 'magnetar.security.document')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]", shown.stdout

"""Logs that peers can cause are limited; the audit log is not, and knows who did what."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import structlog
from fastapi import Depends, FastAPI, Request
from structlog.testing import capture_logs

from magnetar.errors import InvalidRequest, NotAuthorized
from magnetar.hosting.audit_file import AuditFile
from magnetar.hosting.http import HttpListener
from magnetar.hosting.logs import (
    PEER_EVENTS_BURST,
    PEER_EVENTS_PER_S,
    PeerEventLimit,
    configure_logs,
)
from magnetar.hosting.security.rest import RestGate
from magnetar.names import TopicName
from magnetar.rest.answers import add_refusals
from magnetar.security.authorization import Place, Principal, Right
from tests.support.brokers import HOST, TOPIC, Type
from tests.support.secured import authenticator, peer_of, secured_broker, show, token


def test_what_peers_cause_is_limited_by_name_and_counted() -> None:
    """A peer that sends garbage at will fills no disk; other events, and those of other names,
    pass."""
    now = 0.0
    limit = PeerEventLimit(lambda: now)

    def passes(**event: object) -> structlog.typing.EventDict | None:
        try:
            return limit(None, "info", dict(event))
        except structlog.DropEvent:
            return None

    passed = [passes(event="connection.protocol_error", peer="p") for _ in range(1000)]
    assert sum(found is not None for found in passed) == PEER_EVENTS_BURST
    assert passes(event="connection.expired", peer="p") is not None
    assert all(passes(event="log.rolled") is not None for _ in range(1000))
    now = 1 / PEER_EVENTS_PER_S
    found = passes(event="connection.protocol_error", peer="p")
    assert found is not None
    assert found["left_out"] == 1000 - PEER_EVENTS_BURST
    now += 3600
    assert (
        sum(passes(event="connection.protocol_error", peer="p") is not None for _ in range(1000))
        == PEER_EVENTS_BURST
    )


async def test_changes_are_in_the_audit_log() -> None:
    """No token, query or body. What failed, or only read, changed nothing."""
    application = FastAPI()

    @application.put("/things/{name}")
    async def put(name: str) -> None:
        del name

    @application.get("/things/{name}")
    async def get(name: str) -> str:
        return name

    listener = HttpListener(application, HOST, 0)
    port = await listener.open()
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as client:
        with capture_logs() as logged:
            await client.get("/things/a")
            await client.put("/things/a?token=secret", content=b"secret")
            await client.put("/nothing")
    await listener.close()
    [change] = [line for line in logged if line["event"].startswith("audit.")]
    assert change == {
        "event": "audit.changed",
        "log_level": "info",
        "role": "",
        "original": "",
        "address": HOST,
        "method": "PUT",
        "path": "/things/a",
        "status": 200,
    }


async def test_a_role_that_is_denied_is_named(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as (broker, _):
        assert broker.guard is not None
        with capture_logs() as logged, pytest.raises(NotAuthorized):
            await broker.guard.require(
                Principal("eve", address="10.1.2.3:4"),
                Right.CONSUME,
                "public/default",
                Place(None, "s"),
                "no",
            )
        [found] = [line for line in logged if line["event"] == "audit.denied"]
        assert (found["role"], found["right"], found["namespace"], found["subscription"]) == (
            "eve",
            "CONSUME",
            "public/default",
            "s",
        )


async def test_a_denial_on_the_binary_protocol_names_the_peer(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as (broker, _), peer_of(broker) as peer:
        assert (await show(peer, token("eve"))).type == Type.CONNECTED
        with capture_logs() as logged:
            refused = await peer.ask("producer", topic=TOPIC, producer_id=1)
            assert refused.type == Type.ERROR
        [found] = [line for line in logged if line["event"] == "audit.denied"]
        assert found["role"] == "eve"
        assert HOST in found["address"]
        assert found["topic"] == str(TopicName.parse(TOPIC))


async def test_what_a_known_role_was_refused_is_in_the_audit_log(tmp_path: Path) -> None:
    """With its status; a peer that shows nothing causes no event."""
    gate = RestGate(authenticator(tmp_path / "security"), lambda: None)

    async def admit(request: Request) -> None:
        await gate.admit(request, Right.SUPER, lambda: ("", Place()))

    application = FastAPI(dependencies=[Depends(admit)])
    add_refusals(application)

    @application.put("/things/{name}", status_code=409)
    async def put_thing(name: str) -> str:
        return name

    listener = HttpListener(application, HOST, 0)
    port = await listener.open()
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as client:
        with capture_logs() as logged:
            shown = {"authorization": f"Bearer {token('admin')}"}
            await client.put(f"/things/{'a' * 2000}", headers=shown)
            assert (await client.put("/things/a")).status_code == 401
    await listener.close()
    [event] = [line for line in logged if line["event"].startswith("audit.")]
    assert (event["event"], event["role"], event["status"]) == ("audit.refused", "admin", 409)
    assert event["address"] == HOST
    assert len(event["path"]) == 1000


def test_audit_events_go_to_a_file_of_bounded_size(tmp_path: Path) -> None:
    """Others do not; what was before is kept once."""
    path = tmp_path / "audit.jsonl"
    write = AuditFile(path, bytes_max=100)
    for number in range(7):
        for name in ("audit.changed", "broker.ready"):
            event = {"event": name, "number": number}
            assert write(None, "info", event) == event
    kept = [*(tmp_path / "audit.jsonl.1").read_text().splitlines(), *path.read_text().splitlines()]
    assert [json.loads(line)["number"] for line in kept] == [4, 5, 6]
    assert all(file.stat().st_size <= 100 for file in tmp_path.iterdir())
    assert path.stat().st_mode & 0o027 == 0


def test_an_audit_file_that_cannot_be_written_says_so_once(tmp_path: Path) -> None:
    write = AuditFile(tmp_path / "none" / "audit.jsonl")
    event = {"event": "audit.changed"}
    assert "No such file" in write(None, "info", event)["audit_file"]
    assert write(None, "info", event) == event
    with pytest.raises(InvalidRequest, match="audit-log"):
        configure_logs("info", str(tmp_path / "none" / "audit.jsonl"))


async def test_a_change_is_logged_with_its_role(tmp_path: Path) -> None:
    """The gate says who it was."""
    found = authenticator(tmp_path / "security")
    gate = RestGate(found, lambda: None)

    async def admit(request: Request) -> None:
        await gate.admit(request, Right.SUPER, lambda: ("", Place()))

    application = FastAPI(dependencies=[Depends(admit)])
    add_refusals(application)

    @application.put("/things/{name}")
    async def put_thing(name: str) -> str:
        return name

    listener = HttpListener(application, HOST, 0)
    port = await listener.open()
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as client:
        with capture_logs() as logged:
            await client.put("/things/a", headers={"authorization": f"Bearer {token('admin')}"})
            with pytest.raises(httpx.HTTPError):
                (
                    await client.put(
                        "/things/a", headers={"authorization": f"Bearer {token('eve')}"}
                    )
                ).raise_for_status()
    await listener.close()
    events = [
        (line["event"], line["role"]) for line in logged if line["event"].startswith("audit.")
    ]
    assert events == [("audit.changed", "admin"), ("audit.denied", "eve")]

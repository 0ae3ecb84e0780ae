"""The store over HTTP: what jobs beside a standalone server commit through, and who is kept out."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from magnetar.broker.routes.application import create_application
from magnetar.broker.routes.store_routes import store_router
from magnetar.clock import SystemClock
from magnetar.metadata.backends.memory import MemoryStore
from tests.support.memory_rest import MemoryPort
from tests.support.resources import every_resource

INTERNAL = {"x-magnetar-internal": "1"}
ROUTES = "/internal/v1/store"


async def run(script: Callable[[MemoryStore, FastAPI], Coroutine[Any, Any, None]]) -> None:
    store = MemoryStore(SystemClock())
    application = create_application(every_resource(MemoryPort()))
    application.include_router(store_router(store))
    await script(store, application)
    await store.close()


def client_of(
    application: FastAPI, host: str = "127.0.0.1", headers: dict[str, str] = INTERNAL
) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=application, client=(host, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)


async def test_a_transaction_commits_once() -> None:
    """Compare, put and delete in one: the second time the comparison fails and shows what is
    there."""

    async def script(store: MemoryStore, application: FastAPI) -> None:
        value = base64.b64encode(b"\x00\xff").decode()
        body = {
            "compares": [{"key": "a", "target": "mod", "operator": "=", "operand": 0}],
            "operations": [
                {"kind": "put", "key": "a", "value": value},
                {"kind": "delete", "key": "b"},
            ],
        }
        await store.put("b", b"old")
        async with client_of(application) as client:
            first = (await client.post(f"{ROUTES}/transact", json=body)).json()
            assert first["succeeded"]
            second = (await client.post(f"{ROUTES}/transact", json=body)).json()
            assert (second["succeeded"], second["current"][0]["value"]) == (False, value)
            read = (await client.post(f"{ROUTES}/get", json={"key": "a"})).json()
            assert (read["item"]["value"], read["item"]["mod_revision"]) == (
                value,
                first["revision"],
            )
            assert (await client.post(f"{ROUTES}/get", json={"key": "b"})).json() == {"item": None}
            found = (await client.post(f"{ROUTES}/range", json={"prefix": ""})).json()
            assert [item["key"] for item in found["items"]] == ["a"]

    await run(script)


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("10.0.0.7", INTERNAL),
        ("127.0.0.1", {}),
        ("::ffff:10.0.0.7", INTERNAL),
        ("testclient", INTERNAL),
    ],
)
async def test_strangers_are_refused(host: str, headers: dict[str, str]) -> None:
    """Another machine, and a web page in a browser of this one (which cannot send the header)."""

    async def script(store: MemoryStore, application: FastAPI) -> None:
        await store.put("a", b"secret")
        async with client_of(application, host, headers) as client:
            answer = await client.post(f"{ROUTES}/get", json={"key": "a"})
            assert answer.status_code == 409
            assert "reason" in answer.json()

    await run(script)


@pytest.mark.parametrize(
    "body",
    [
        {
            "compares": [{"key": "a", "target": "value", "operator": "=", "operand": 1}],
            "operations": [],
        },
        {
            "compares": [{"key": "a", "target": "mod", "operator": "=", "operand": "YQ=="}],
            "operations": [],
        },
        {"compares": [], "operations": [{"kind": "put", "key": "a", "value": "no base64!"}]},
        {"compares": [], "operations": [{"kind": "drop", "key": "a"}]},
        {"compares": [], "operations": [], "extra": 1},
        {
            "compares": [],
            "operations": [{"kind": "put", "key": f"k{number}"} for number in range(129)],
        },
    ],
)
async def test_malformed_requests_change_nothing(body: dict[str, Any]) -> None:
    async def script(store: MemoryStore, application: FastAPI) -> None:
        async with client_of(application) as client:
            answer = await client.post(f"{ROUTES}/transact", json=body)
            assert (answer.status_code, list(answer.json())) == (400, ["reason"])
        assert (await store.range("")).items == ()

    await run(script)

"""The store over HTTP gives what the store behind it gives: both sides run, over a real socket."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.broker.routes.application import create_application
from magnetar.broker.routes.store_routes import store_router
from magnetar.clock import SystemClock
from magnetar.errors import StoreError, StoreUnavailable
from magnetar.hosting.http import HttpListener
from magnetar.hosting.security.rest import RestGate
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.store import Compare, Delete, Put
from magnetar.rest.rights import Gate
from magnetar_jobs.remote_store import RemoteStore
from tests.support.secured import authenticator, token


async def serve(
    body: Callable[[MemoryStore, str], Awaitable[None]], gate: Gate | None = None
) -> None:
    """Run `body(store, url)` against the routes over a memory store; `gate` is asked before
    each."""

    store = MemoryStore(SystemClock())
    application = create_application(cast(Any, object()), gate)
    application.include_router(store_router(store))
    listener = HttpListener(application, "127.0.0.1", 0)
    port = await listener.open()
    try:
        await body(store, f"http://127.0.0.1:{port}")
    finally:
        await listener.close()
        await store.close()


async def test_a_broker_that_asks_who_comes_is_shown_a_super_users_token(tmp_path: Path) -> None:
    """Also from this machine: a user of it is not yet one of the cluster."""

    async def body(_store: MemoryStore, url: str) -> None:
        (tmp_path / "token").write_text(token("admin") + "\n")
        assert await RemoteStore(url, str(tmp_path / "token")).get("k") is None
        for refused in (RemoteStore(url), RemoteStore(url, str(tmp_path / "none"))):
            with pytest.raises(StoreError, match=r"401|MAGNETAR_TOKEN_FILE"):
                await refused.get("k")
        (tmp_path / "token").write_text(token("reader"))
        with pytest.raises(StoreError, match="403"):
            await RemoteStore(url, str(tmp_path / "token")).get("k")

    await serve(body, RestGate(authenticator(tmp_path / "security"), lambda: None))


@pytest.mark.slow
async def test_reads_and_transactions_equal_those_of_the_store_itself() -> None:
    async def body(store: MemoryStore, url: str) -> None:
        remote = RemoteStore(url)
        assert await remote.get("manifests/a") is None
        revision = await remote.put("manifests/a", b"\x00\xff")
        assert await remote.get("manifests/a") == await store.get("manifests/a")
        lost = await remote.transact(
            [Compare("manifests/a", "mod", "=", revision - 1)], [Put("manifests/a", b"late")]
        )
        assert not lost.succeeded
        assert lost.current == (await store.get("manifests/a"),)
        won = await remote.transact(
            [
                Compare("manifests/a", "value", "=", b"\x00\xff"),
                Compare("manifests/b", "version", "=", 0),
            ],
            [Put("manifests/a", b"new"), Put("manifests/b", b"other")],
        )
        assert won.succeeded
        assert await remote.range("manifests/") == await store.range("manifests/")
        assert len((await remote.range("manifests/", limit=1)).items) == 1
        assert await remote.delete("manifests/b")
        assert not await remote.delete("manifests/b")
        assert (await remote.transact([], [Delete("manifests/", prefix=True)])).succeeded
        assert (await store.range("manifests/")).items == ()

    await serve(body)


@pytest.mark.slow
async def test_malformed_requests_are_refused_and_change_nothing() -> None:
    async def body(store: MemoryStore, url: str) -> None:
        remote = RemoteStore(url)
        with pytest.raises(StoreError, match="does not fit target"):
            await remote.transact([Compare("k", "value", "=", 3)], [Put("k", b"v")])
        assert await store.get("k") is None

    await serve(body)


@pytest.mark.slow
async def test_a_request_that_a_web_page_could_send_is_refused() -> None:
    async def body(_store: MemoryStore, url: str) -> None:
        def post() -> int:
            data = json.dumps({"key": "k"}).encode()
            request = urllib.request.Request(
                f"{url}/internal/v1/store/get", data, {"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert await asyncio.to_thread(post) == 409

    await serve(body)


async def test_no_broker_means_the_outcome_is_unknown() -> None:
    with pytest.raises(StoreUnavailable, match="is the standalone broker running"):
        await RemoteStore("http://127.0.0.1:9").put("k", b"v")

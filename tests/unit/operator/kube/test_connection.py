"""Requests through the official client: credentials, deadlines and what comes back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_operator.kube.connection import connect, login
from magnetar_operator.kube.errors import ApiUnavailable, KubernetesError
from tests.support.api_server import api_server, kubeconfig

JSON = "application/json"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def test_a_request_carries_its_body_and_its_encoded_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/apis/x?labelSelector=a%3Db&continue=a%2Bb%3D&timeout=1500ms"

    async def scenario() -> None:
        connection = await connect()
        apply = "application/apply-patch+yaml"
        answer = await connection.exchange("PATCH", path, {"a": [1]}, apply, 120.0)
        assert (answer.status, answer.body) == (201, b'{"kind": "X"}')
        await connection.close()

    with api_server(lambda *_: (201, {"kind": "X"})) as (url, asked):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", url, here="x")))
        await scenario()
    assert asked == [("PATCH", path, {"a": [1]})]


async def test_credentials_are_read_again_after_they_were_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And kopf's watches get the same ones."""
    seen: list[str] = []

    def answers(_method: str, _path: str, _body: Any, token: str) -> tuple[int, Any]:
        seen.append(token)
        return (200, {}) if token == "Bearer t-2" else (401, {"message": "Unauthorized"})

    async def scenario(path: Path) -> None:
        connection = await connect()
        path.write_text(path.read_text().replace("t-1", "t-2"))
        statuses = [
            (await connection.exchange("GET", "/version", None, JSON, 120.0)).status
            for _ in range(2)
        ]
        assert statuses == [401, 200]
        info = await login()
        assert info.as_http_headers() == {"Authorization": "Bearer t-2"}
        await connection.close()

    with api_server(answers, with_token=True) as (url, _):
        path = kubeconfig(tmp_path / "config", url, here="x")
        monkeypatch.setenv("KUBECONFIG", str(path))
        await scenario(path)
    assert seen == ["Bearer t-1", "Bearer t-2"]


async def test_no_answer_within_the_deadline_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is sent once: a write that was given up is not repeated."""

    given_up = threading.Event()

    def answers(*_: Any) -> tuple[int, Any]:
        given_up.wait(120)
        return 200, {}

    async def scenario() -> None:
        connection = await connect()
        try:
            with pytest.raises(ApiUnavailable, match="PUT /x: no answer"):
                await connection.exchange("PUT", "/x?a=b", {}, JSON, 1.0)
        finally:
            given_up.set()
        await connection.close()

    with api_server(answers) as (url, asked):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", url, here="x")))
        await scenario()
    assert len(asked) == 1


async def test_without_credentials_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "config"
    for content in (None, "{", yaml.safe_dump({"contexts": []}), yaml.safe_dump("text")):
        if content is not None:
            path.write_text(content)
        monkeypatch.setenv("KUBECONFIG", str(path))
        with pytest.raises(KubernetesError, match="set KUBECONFIG"):
            await connect()

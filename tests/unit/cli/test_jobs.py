"""`magnetar job` against an API server that answers from a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from magnetar.cli.commands import application
from magnetar.cli.failures import CommandFailed
from tests.support.api_server import api_server, kubeconfig

JOBS = "/apis/magnetar.io/v1alpha1/namespaces/shop/datajobs"
STATUS = {
    "state": "Running",
    "run": "20261126-0300-01234567",
    "driverPod": "prices-0a-2",
    "nextScheduleTime": "2026-11-27T03:00:00Z",
    "progress": {"phase": "Reading", "complete": "31%", "secondsLeft": 60},
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "Running", "message": "attempt 2 is at work"}
    ],
    "history": [
        {
            "run": "20261126-0300-01234567",
            "state": "Running",
            "attempts": 2,
            "startedAt": "2026-11-26T03:00:01Z",
            "failures": {"podsLost": 1},
            "lastError": "its pod has vanished",
        }
    ],
}


def job(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": {}, "status": status}


def answer(_: str, path: str, __: Any) -> tuple[int, Any]:
    found: dict[str, tuple[int, Any]] = {
        JOBS: (200, {"items": [job("prices", **STATUS), job("new")]}),
        f"{JOBS}/prices": (200, job("prices", **STATUS)),
        f"{JOBS}/new": (200, job("new")),
        "/api/v1/namespaces/shop/pods/prices-0a-2/log?tailLines=5": (200, "one\ntwo\n"),
    }
    return found.get(path, (404, {"message": "not found"}))


@pytest.fixture(autouse=True)
def _api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with api_server(answer) as (url, _):
        path = kubeconfig(tmp_path / "config", url, east="shop")
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield


def run(*arguments: str) -> str:
    result = CliRunner().invoke(application, ["job", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_jobs_are_listed_with_what_they_do_and_when_they_run() -> None:
    head, first, second = run("list").splitlines()
    assert head.split()[:3] == ["JOB", "TYPE", "STATE"]
    assert first.split()[0] == "new"
    assert "Reading 31%, 60 s left" in second
    assert "2026-11-27T03:00:00Z" in second
    rows = json.loads(run("list", "-o", "json"))
    assert rows[1]["last_run"] == "2026-11-26T03:00:01Z"


def test_a_job_is_explained_with_its_failures_and_what_to_do() -> None:
    found = json.loads(run("explain", "prices", "-o", "json"))
    assert found["why"] == "attempt 2 is at work"
    assert found["failures"] == "podsLost: 1"
    assert "kubectl logs" in found["remedy"]
    text = run("explain", "prices")
    assert "its pod has vanished" in text
    assert "20261126-0300-01234567" in text
    assert "has not reconciled it yet" in run("explain", "new")


def test_the_log_is_that_of_the_latest_driver() -> None:
    assert run("logs", "prices", "--lines", "5") == "one\ntwo\n"
    with pytest.raises(CommandFailed, match="has had no driver yet"):
        run("logs", "new")


def test_a_job_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandFailed, match="datajob/other does not exist"):
        run("explain", "other")

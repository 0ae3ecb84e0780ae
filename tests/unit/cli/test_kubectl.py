"""kubectl as the command line runs it: what it refuses becomes two lines and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magnetar.cli.failures import CommandFailed, Refused, Unreachable, exit_code_of
from magnetar.cli.kubectl import PROGRAM_VARIABLE, Kubectl


def acting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, error: str = "", code: int = 0
) -> Path:
    """Put a program in kubectl's place that writes its arguments down and answers so."""
    program, log = tmp_path / "kubectl", tmp_path / "arguments"
    program.write_text(
        f"#!/bin/sh\necho \"$@\" >> '{log}'\ncat <<'END'\n{answer}\nEND\necho \"{error}\" "
        f">&2\nexit {code}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program))
    return log


def test_context_and_namespace_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = acting(tmp_path, monkeypatch, json.dumps({"items": [{"kind": "Pod"}]}))
    assert Kubectl("shop", "west").list("pods", "a=b") == [{"kind": "Pod"}]
    assert (
        log.read_text() == "--context west --namespace shop get pods --selector a=b --output json\n"
    )


def test_an_object_that_is_not_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting(tmp_path, monkeypatch, "")
    assert Kubectl().get("pod", "x") is None


@pytest.mark.parametrize(
    ("error", "kind", "status", "code"),
    [
        ("Error from server (Forbidden): pods is forbidden", Refused, 403, 1),
        ("The BrokerCluster is invalid: spec.replicas: 500", Refused, 422, 1),
        ("Unable to connect to the server: dial tcp", Unreachable, None, 3),
        ("error: something else", Refused, 0, 1),
    ],
)
def test_its_refusals_keep_their_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: str,
    kind: type[CommandFailed],
    status: int | None,
    code: int,
) -> None:
    acting(tmp_path, monkeypatch, "", error, code=1)
    with pytest.raises(kind) as caught:
        Kubectl().list("pods")
    assert exit_code_of(caught.value) == code
    assert error.rpartition(": ")[2] in str(caught.value)
    assert getattr(caught.value, "status", None) == status


def test_without_kubectl_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROGRAM_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CommandFailed, match="kubectl was not found") as caught:
        Kubectl().list("pods")
    assert PROGRAM_VARIABLE in caught.value.remedy

"""How a command of the tools ends: a known failure is one line and exit code 1, a reader that
has left is no failure, bugs are not hidden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dev.kube.report import CommandFailed, exit_code, run_with_progress


def failing(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CommandFailed("etcd: not installed"), "error: etcd: not installed"),
        (
            PermissionError("denied"),
            "error: denied; the local cluster and its images belong to root (sudo -E)",
        ),
        (KeyboardInterrupt(), "interrupted; run the same command again to continue"),
    ],
    ids=["failure", "permission", "interrupt"],
)
def test_what_is_known_to_go_wrong_is_one_line(
    error: BaseException, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda: failing(error), (CommandFailed,)) == 1
    assert capsys.readouterr() == ("", said + "\n")


def test_a_reader_that_has_seen_enough_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written later goes nowhere, also at exit."""
    replaced: list[int] = []
    monkeypatch.setattr(os, "dup2", lambda _source, target: replaced.append(target))
    assert exit_code(lambda: failing(BrokenPipeError()), (CommandFailed,)) == 0
    assert len(replaced) == 1


def test_anything_else_is_a_bug_and_seen_as_one() -> None:
    assert exit_code(lambda: 3, (CommandFailed,)) == 3
    with pytest.raises(ValueError, match="bug"):
        exit_code(lambda: failing(ValueError("bug")), (CommandFailed,))


@pytest.mark.parametrize(("failures", "ends_well"), [(0, True), (2, True), (3, False)])
def test_a_command_that_fetches_outlives_failures_of_the_network(
    tmp_path: Path, failures: int, ends_well: bool
) -> None:
    """It is run again, a bounded number of times, and its last failure is reported."""
    ledger = tmp_path / "attempts"
    script = 'echo x >> "$0"; test $(wc -l < "$0") -gt $1 || { echo no route; exit 1; }'
    argv = ["sh", "-c", script, ledger, str(failures)]
    if ends_well:
        run_with_progress(argv, lambda _: "fetching", attempts=3)
    else:
        with pytest.raises(CommandFailed, match="no route"):
            run_with_progress(argv, lambda _: "fetching", attempts=3)
    assert len(ledger.read_text().split()) == min(failures + 1, 3)

"""`magnetar token`: what it makes is what servers believe, and keys stay private."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnetar.cli.commands import application
from magnetar.cli.failures import WrongUsage
from magnetar.clock import SystemClock
from magnetar.errors import InvalidRequest
from magnetar.security.keys import secret_key
from magnetar.security.signatures import public_key
from magnetar.security.tokens import TokenRules, verify

NOW_S = SystemClock().wall_ms() / 1000


def run(*arguments: str) -> str:
    """Standard output. Raises what the command raises."""
    return CliRunner().invoke(application, ["token", *arguments], catch_exceptions=False).stdout


@pytest.mark.parametrize("form", [[], ["--base64"]])
def test_tokens_of_a_secret_key_are_believed(tmp_path: Path, form: list[str]) -> None:
    file = tmp_path / "key"
    run("create-secret-key", "--output", str(file), *form)
    assert file.stat().st_mode & 0o777 == 0o600
    token = (
        run(
            "create",
            "--secret-key",
            str(file),
            "--subject",
            "reader",
            "--expires",
            "2h",
            "--audience",
            "main",
        )
        .strip()
        .encode()
    )
    rules = TokenRules(secret_key("f", file.read_bytes()), audience="main")
    now_s = SystemClock().wall_ms() / 1000
    claims = verify(token, rules, now_s)
    assert claims.role == "reader"
    assert claims.expires_s is not None
    assert 7100 < claims.expires_s - now_s < 7400


def test_tokens_of_a_private_key_are_believed_by_its_public_half(tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    run("create-key-pair", "--output-private-key", str(private), "--output-public-key", str(public))
    token = run("create", "--private-key", str(private), "--subject", "reader").strip()
    assert (
        verify(token.encode(), TokenRules(public_key("f", public.read_bytes())), NOW_S).expires_s
        is None
    )
    (tmp_path / "token").write_text(token)
    assert json.loads(run("show", "--file", str(tmp_path / "token")).split("\n}\n", 1)[1]) == {
        "sub": "reader"
    }


def test_a_key_is_never_replaced_and_mistakes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "key"
    run("create-secret-key", "--output", str(file))
    before = file.read_bytes()
    with pytest.raises(WrongUsage, match="exists"):
        run("create-secret-key", "--output", str(file))
    assert file.read_bytes() == before
    with pytest.raises(WrongUsage, match="--expires"):
        run("create", "--secret-key", str(file), "--subject", "a", "--expires", "soon")
    with pytest.raises(WrongUsage, match="--private-key"):
        run("create", "--subject", "a")
    with pytest.raises(InvalidRequest, match="--secret-key"):
        run("create", "--secret-key", str(tmp_path / "none"), "--subject", "a")

"""What the command line shows to servers: a user and a password as headers and as a client's
credentials; options that cannot go together are wrong usage, and no error holds a secret."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.access import PASSWORD, Access
from magnetar.cli.failures import WrongUsage, lines_of
from magnetar.cli.local_jobs import driven
from magnetar.cli.rest import Rest
from magnetar.cli.screen import OutputFormat, Screen
from magnetar.cli.session import Session

SECRET = "correct horse"
BASIC = base64.b64encode(f"writer:{SECRET}".encode()).decode()


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_file_is_read_for_each_request(tmp_path: Path, end: str) -> None:
    """So that a changed password is used; an end of line is no part of it."""
    file = tmp_path / "password"
    file.write_bytes(f"{SECRET}{end}".encode())
    access = Access(user="writer", password_file=str(file))
    assert access.headers() == {"Authorization": f"Basic {BASIC}"}
    file.write_text("other ")
    assert access.shown_password() == b"writer:other "


def test_each_of_the_three_ways_to_authenticate() -> None:
    assert Access(user="writer", password=SECRET).headers() == {"Authorization": f"Basic {BASIC}"}
    assert Access("a.b.c").headers() == {"Authorization": "Bearer a.b.c"}
    assert Access().headers() == {}
    odd = os.fsdecode(b"p\xff")  # as the environment holds it
    assert Access(user="ü", password=odd).shown_password() == "ü:".encode() + b"p\xff"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"password": SECRET}, f"{PASSWORD}: a password is given, but no user"),
        ({"password_file": "/f"}, "--password-file: a password is given, but no user"),
        ({"user": "writer"}, "--user: 'writer' comes without a password"),
        ({"user": "a:b", "password": SECRET}, "--user: 'a:b' has a colon"),
        ({"user": "a\n", "password": SECRET}, r"--user: 'a\n' has a colon or a control character"),
        ({"user": "a", "password": SECRET, "token": SECRET}, "--user: 'a' is given, and a token"),
        ({"user": "a", "password": SECRET, "token_file": "/t"}, "--user: 'a' is given, and a tok"),
        ({"user": "a", "password": SECRET, "password_file": "/f"}, "--password-file: /f is given"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        Access(**given)
    lines = lines_of(refused.value)
    assert said in lines[0]
    assert len(lines) == 2
    assert SECRET not in "".join(lines)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (b"", "has no password"),
        (b"\n", "has no password"),
        (f"{SECRET}\n{SECRET}\n".encode(), "has more than one line"),
        (b"\xff\xfe", "cannot be read: it is not text"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_password(tmp_path: Path, held: bytes | None, said: str) -> None:
    file = tmp_path / "password"
    if held is not None:
        file.write_bytes(held)
    with pytest.raises(WrongUsage) as refused:
        Access(user="writer", password_file=str(file)).headers()
    lines = lines_of(refused.value)
    assert f"--password-file: {file} {said}" in lines[0]
    assert len(lines) == 2
    assert SECRET not in "".join(lines)


def test_a_job_refuses_a_user() -> None:
    """Its driver shows a token only; without one it would ask as nobody."""
    access = Access(user="writer", password=SECRET)
    session = Session(Rest("http://127.0.0.1:1", access=access), Screen(OutputFormat.TABLE), access)
    with pytest.raises(WrongUsage, match="--user: 'writer': jobs ask servers with a token only"):
        driven("LoadAnalytics", [], session)


def test_no_option_takes_the_password_itself() -> None:
    """Arguments are for everybody in `ps`; the environment is read instead."""
    environment = {**os.environ, PASSWORD: SECRET}
    for arguments in (
        ("status", "--user", "writer", "--password", SECRET),
        ("status",),
        ("produce", "t", "-m", "a"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "magnetar", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment,
        )
        assert done.returncode == 2
        assert ("No such option" if "--password" in arguments else PASSWORD) in done.stderr

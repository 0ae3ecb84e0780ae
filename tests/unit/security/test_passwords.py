"""Passwords as htpasswd and openssl passwd hash them: what is taken, and what is refused by line."""

from __future__ import annotations

import warnings

import pytest

from magnetar.errors import InvalidRequest
from magnetar.security.passwords import PASSWORD_BYTES_MAX, USERS_MAX, Passwords

HASHES = (
    "$apr1$saltsalt$EGVZDNN6gOqijy.tv9axG/",
    "$1$saltsalt$NuzA7WTAelpl95xgBGWN60",
    "$5$saltsalt$myjXcpMpE2Ofk7fj9hqyNYSn6lmWG4Mqnjx.KIRRr4/",
    "$6$saltsalt$hRM5XZ86KXEw9UOmjigeVqFgULtFB2sgpC9lXQDfMib3Zgw7mEiUvBJI2EplzfAqxL5Vvwp2scFtv/uamSo5z0",
)
"""Of `correct horse`, made by openssl passwd."""


@pytest.mark.parametrize("line", HASHES, ids=["apr1", "md5", "sha256", "sha512"])
def test_a_hash_of_each_scheme_is_known(line: str) -> None:
    users = Passwords(f"# comment\n\nalice:{line}\nbob:{HASHES[0]}\n".encode())
    assert users.check("alice", b"correct horse")
    assert not users.check("alice", b"correct horsf")
    assert not users.check("alice", b"")
    assert not users.check("mallory", b"correct horse")
    assert not users.check("alice", b"x" * (PASSWORD_BYTES_MAX + 1))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 120])
@pytest.mark.parametrize(
    "salt", ["$1$abcdefgh", "$5$s", "$6$sixteenletters..", "$6$rounds=1000$sa", "$5$rounds=1400$sa"]
)
def test_hashes_are_those_of_the_systems_library(salt: str, length: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crypt = pytest.importorskip("crypt")
    password = "p\u00e4" * length
    users = Passwords(f"u:{crypt.crypt(password, salt)}".encode())
    assert users.check("u", password.encode())
    assert not users.check("u", password.encode() + b"x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 users"),
        ("# nobody", "0 users"),
        ("alice", "line 1: the hash begins with none"),
        (":$apr1$a$b", "line 1: the user is empty"),
        (f"a:{HASHES[0]}\na:{HASHES[0]}", "line 2: the user"),
        ("a:$2y$05$abcdefghijklmnopqrstuuOeZ2hQ32AyBh8ZYFFLfYoUxWKOV2GcS", "none of"),
        ("a:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "none of"),
        ("a:rqXexS6ZhobKA", "none of"),
        ("a:plain", "none of"),
        ("a:$apr1$saltsalt$short", "not one of $apr1$"),
        (f"a:{HASHES[3]}x", "not one of $6$"),
        ("a:$6$rounds=999999999$salt$x", "1000 to 20000 rounds"),
        ("a:$6$$x", "not one of $6$"),
    ],
)
def test_a_line_that_is_no_users_is_refused_without_showing_it(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        Passwords(text.encode())
    assert said in str(error.value)
    for secret in ("W6ph5", "rqXexS6", "plain", HASHES[0], "OeZ2h"):
        assert secret not in str(error.value)


def test_other_files_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        Passwords(b"\xff")
    many = "\n".join(f"u{number}:{HASHES[0]}" for number in range(USERS_MAX + 1))
    with pytest.raises(InvalidRequest, match="users"):
        Passwords(many.encode())

"""Users and passwords on both protocols: who gets in, and what a peer without one can cost."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from magnetar.errors import AuthenticationFailed, ServiceNotReady, WireCode
from magnetar.hosting.security.basic import CHECKS_PER_S_MAX, BasicChecks
from magnetar.hosting.tls import PeerCertificate
from magnetar.security.passwords import Passwords
from tests.support.brokers import Type
from tests.support.secured import authenticator, peer_of, secured_broker, show

HASH = "$apr1$saltsalt$EGVZDNN6gOqijy.tv9axG/"
RIGHT = b"alice:correct horse"
DOCUMENT = """
authentication: {basic: {usersFile: DIRECTORY/users}}
authorization: {superUserRoles: [alice]}
"""
NO_CERTIFICATE = PeerCertificate()


class Counted(Passwords):
    """Counts hashes."""

    hashes = 0

    def check(self, user: str, password: bytes) -> bool:
        self.hashes += 1
        return super().check(user, password)


def users(directory: Path, text: str = f"alice:{HASH}") -> None:
    directory.mkdir(exist_ok=True)
    (directory / "users").write_text(text)


async def test_a_user_gets_in_by_the_password(tmp_path: Path) -> None:
    """On the binary protocol, as the role that the name is."""
    users(tmp_path / "security")
    async with secured_broker(tmp_path, DOCUMENT) as (broker, _):
        for shown, good in ((RIGHT, True), (b"alice:wrong", False), (b"bob:correct horse", False)):
            async with peer_of(broker) as peer:
                answer = await show(peer, shown, "basic")
                assert (answer.type == Type.CONNECTED) is good
                if not good:
                    assert answer.error.error == WireCode.AUTHENTICATION
                    assert b"horse" not in answer.error.message.encode()


@pytest.mark.parametrize(
    "header",
    ["Basic !", "Basic", f"Basic {base64.b64encode(b'alice').decode()}", "Basic YWxpY2U6eA=="],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: str) -> None:
    users(tmp_path)
    with pytest.raises(AuthenticationFailed):
        authenticator(tmp_path, DOCUMENT).of_request(header, "", NO_CERTIFICATE)


def test_a_header_names_the_user(tmp_path: Path) -> None:
    users(tmp_path)
    shown = base64.b64encode(RIGHT).decode()
    for scheme in ("Basic", "basic"):
        found = authenticator(tmp_path, DOCUMENT).of_request(
            f"{scheme} {shown}", "basic", NO_CERTIFICATE
        )
        assert found.role == "alice"


def test_without_users_a_basic_header_is_nobody(tmp_path: Path) -> None:
    found = authenticator(tmp_path, "authentication: {anonymousRole: guest}")
    shown = base64.b64encode(RIGHT).decode()
    assert found.of_request(f"Basic {shown}", "basic", NO_CERTIFICATE).role == "guest"


def test_wrong_passwords_cost_a_bounded_time_and_right_ones_are_remembered() -> None:
    """Who was right before gets in while others try."""
    checks, passwords = BasicChecks(b"k"), Counted(f"alice:{HASH}".encode())
    assert checks.user(passwords, RIGHT, 0.0) == "alice"
    assert checks.user(passwords, RIGHT, 0.0) == "alice"
    assert passwords.hashes == 1
    refusals = []
    for number in range(100):
        with pytest.raises((AuthenticationFailed, ServiceNotReady)) as error:
            checks.user(passwords, f"alice:{number}".encode(), 0.0)
        refusals.append(type(error.value))
    assert passwords.hashes == CHECKS_PER_S_MAX
    assert refusals.count(ServiceNotReady) == 101 - CHECKS_PER_S_MAX
    assert checks.user(passwords, RIGHT, 0.0) == "alice"
    with pytest.raises(AuthenticationFailed):
        checks.user(passwords, b"alice:later", 0.1)
    checks.forget()
    with pytest.raises(AuthenticationFailed):
        checks.user(Passwords(f"bob:{HASH}".encode()), RIGHT, 1.0)

"""CONNECT with security on: who is let in, for how long, and how all others are refused."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from magnetar.errors import AuthenticationFailed, InvalidRequest
from magnetar.hosting.security.authentication import (
    CLOCKS_APART_S,
    INTERNAL_AUDIENCE,
    INTERNAL_TOKEN_S,
)
from magnetar.hosting.security.handshakes import REFRESH
from magnetar.hosting.security.source import SecuritySource
from magnetar.hosting.tls import PeerCertificate
from magnetar.security.authorization import INTERNAL, INTERNAL_METHOD, INTERNAL_ROLE
from magnetar.security.keys import SecretKey, key_lines
from magnetar.security.tokens import make
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import CLOCK, TOPIC, Peer, Type, command_frame
from tests.support.replaced_files import replace_file
from tests.support.secured import DOCUMENT, KEY, authenticator, peer_of, secured_broker, show, token

OTHER = SecretKey(b"o" * 32)
WITH_ANONYMOUS = DOCUMENT.replace("{token:", "{anonymousRole: visitor, token:")


async def _refused(peer: Peer, answer: api.BaseCommand, code: int) -> None:
    assert answer.type == Type.ERROR, answer
    assert answer.error.error == code, answer
    assert await peer.closed_by_broker()


async def test_only_who_shows_a_good_token_gets_in(tmp_path: Path) -> None:
    """Nothing, a wrong key, an expired token, another method: an error with Pulsar's code, and
    the end of the connection."""

    async with secured_broker(tmp_path) as (broker, _):
        async with peer_of(broker) as peer:
            assert (await show(peer, token("admin"))).type == Type.CONNECTED
            assert await peer.lookup()
        for data, method in (
            (b"", ""),
            (b"", "token"),
            (token("admin", key=OTHER), "token"),
            (token("admin", -1), "token"),
            (b"x" * 40_000, "token"),
            (token("admin"), "basic"),
            (token("admin"), INTERNAL_METHOD),
            (b"", "tls"),
        ):
            async with peer_of(broker) as peer:
                await _refused(peer, await show(peer, data, method), api.AuthenticationError)


async def test_nothing_is_answered_before_the_handshake(tmp_path: Path) -> None:
    """A LOOKUP sent in one go behind a CONNECT that is refused is not looked at."""

    async with secured_broker(tmp_path) as (broker, _), peer_of(broker) as peer:
        peer.write(
            requests.connect("test", 21) + command_frame("lookup", request_id=1, topic=TOPIC)
        )
        assert (await peer.answer()).type == Type.ERROR
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await peer.answer()


async def test_the_anonymous_role_is_for_who_shows_nothing(tmp_path: Path) -> None:
    """A wrong token is refused also where nobody needs one: its owner believes that it is used."""

    async with secured_broker(tmp_path, WITH_ANONYMOUS) as (broker, _):
        for method in ("", "none", "basic"):
            async with peer_of(broker) as peer:
                assert (await show(peer, b"", method)).type == Type.CONNECTED
        async with peer_of(broker) as peer:
            await _refused(
                peer, await show(peer, token("admin", key=OTHER)), api.AuthenticationError
            )


async def test_a_token_is_asked_for_again_before_it_ends(tmp_path: Path) -> None:
    """AUTH_CHALLENGE, and the connection goes on with the answer; it has the same role or ends."""

    async with secured_broker(tmp_path) as (broker, _), peer_of(broker) as peer:
        assert (await show(peer, token("admin", 8))).type == Type.CONNECTED
        challenge = (await peer.answer(Type.AUTH_CHALLENGE)).auth_challenge
        assert challenge.challenge.auth_data == REFRESH
        assert challenge.challenge.auth_method_name == "token"
        peer.write(requests.auth_response("test", 21, "token", token("admin", 100).encode()))
        assert await peer.lookup()
        peer.write(requests.auth_response("test", 21, "token", token("stranger", 100).encode()))
        await _refused(peer, await peer.answer(), api.AuthenticationError)


@pytest.mark.parametrize("refreshes", [True, False])
async def test_a_connection_ends_with_its_token(tmp_path: Path, refreshes: bool) -> None:
    """Whether its client was asked and said nothing, or cannot be asked."""

    async with secured_broker(tmp_path) as (broker, _), peer_of(broker) as peer:
        assert (await show(peer, token("admin", 5), refreshes=refreshes)).type == Type.CONNECTED
        if refreshes:
            await peer.answer(Type.AUTH_CHALLENGE)
        await _refused(peer, await peer.answer(), api.AuthenticationError)


async def test_a_proxy_speaks_for_others_and_nobody_else_does(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as (broker, _):
        for role, original, good in (
            ("proxy", "admin", True),
            ("proxy", "", False),
            ("proxy", "proxy", False),
            ("admin", "admin", True),
            ("admin", "other", False),
        ):
            async with peer_of(broker) as peer:
                answer = await show(peer, token(role), original=original)
                if good:
                    assert answer.type == Type.CONNECTED
                else:
                    await _refused(peer, answer, api.AuthorizationError)


async def test_who_was_let_in_by_an_earlier_key_connects_again(tmp_path: Path) -> None:
    """A key that leaked is worth nothing a moment after it was replaced."""

    async with secured_broker(tmp_path) as (broker, found), peer_of(broker) as peer:
        assert (await show(peer, token("admin"))).type == Type.CONNECTED
        following = asyncio.create_task(found.source.follow())
        replace_file(tmp_path / "security" / "key", OTHER.secret)
        assert await peer.closed_by_broker()
        async with peer_of(broker) as before:
            await _refused(before, await show(before, token("admin")), api.AuthenticationError)
        async with peer_of(broker) as after:
            assert (await show(after, token("admin", key=OTHER))).type == Type.CONNECTED
        following.cancel()


async def test_a_broken_document_changes_nothing_and_counts_once(tmp_path: Path) -> None:
    found = authenticator(tmp_path)
    before = found.source.current
    following = asyncio.create_task(found.source.follow())
    changed = asyncio.Event()
    found.source.listen(changed.set)
    replace_file(tmp_path / "security.yaml", "authentication: [")
    async with asyncio.timeout(120):
        while not found.source.reloads_failed:
            await asyncio.sleep(0.01)
        assert found.source.current is before
        replace_file(
            tmp_path / "security.yaml",
            DOCUMENT.replace("DIRECTORY", str(tmp_path)).replace("[admin]", "[chief]"),
        )
        await changed.wait()
    assert found.source.current.document.super_user_roles == {"chief"}
    assert found.source.reloads_failed == 1
    following.cancel()


def test_a_cluster_needs_an_internal_key(tmp_path: Path) -> None:
    """Its brokers could not ask each other anything; a server that is alone makes one up."""
    authenticator(tmp_path)
    with pytest.raises(InvalidRequest, match=r"internal\.keyFile"):
        SecuritySource(tmp_path / "security.yaml", CLOCK, alone=False)
    (tmp_path / "key").unlink()
    with pytest.raises(InvalidRequest, match="secretKeyFile"):
        SecuritySource(tmp_path / "security.yaml", CLOCK, alone=True)


def test_internal_tokens_are_known_by_the_internal_key_alone(tmp_path: Path) -> None:
    """A user's key makes no internal token, and an internal token is none of a user's."""
    found = authenticator(tmp_path)
    internal = found.internal_token().encode()
    assert found.principal(INTERNAL_METHOD, internal, "").internal
    for method, data in (
        (INTERNAL_METHOD, token("magnetar:internal").encode()),
        ("token", internal),
    ):
        with pytest.raises(Exception, match="signature"):
            found.principal(method, data, "")
    assert KEY not in found.source.current.internal_keys


def test_an_internal_key_is_replaced_while_processes_have_files_of_different_phases(
    tmp_path: Path,
) -> None:
    """Before, while the next one is believed, while it signs, and after: neighbours in time know
    each other, and clients stay."""
    document = DOCUMENT + "internal: {keyFile: DIRECTORY/internal}\n"
    first, second = b"1" * 32, b"2" * 32
    phases = (first, key_lines((first, second)), key_lines((second, first)), key_lines((second,)))
    for earlier, later in itertools.pairwise(phases):
        tokens = []
        for content in (earlier, later):
            (tmp_path / "internal").write_bytes(content)
            tokens.append(authenticator(tmp_path, document).internal_token().encode())
        for content in (earlier, later):
            (tmp_path / "internal").write_bytes(content)
            process = authenticator(tmp_path, document)
            assert all(process.principal(INTERNAL_METHOD, shown, "").internal for shown in tokens)
    (tmp_path / "internal").write_bytes(first)
    former = authenticator(tmp_path, document).internal_token().encode()
    (tmp_path / "internal").write_bytes(phases[-1])
    process = authenticator(tmp_path, document)
    with pytest.raises(Exception, match="signature"):
        process.principal(INTERNAL_METHOD, former, "")


async def test_only_processes_connect_again_when_their_key_goes(tmp_path: Path) -> None:
    """A key that comes cuts nobody off, one that goes those that came by internal keys; clients
    have nothing to do with it."""

    (tmp_path / "security").mkdir()
    (tmp_path / "security" / "internal").write_bytes(b"1" * 32)
    document = DOCUMENT + "internal: {keyFile: DIRECTORY/internal}\n"
    async with (
        secured_broker(tmp_path, document) as (broker, found),
        peer_of(broker) as client,
        peer_of(broker) as process,
    ):
        assert (await show(client, token("admin"))).type == Type.CONNECTED
        assert (await show(process, found.internal_token(), INTERNAL_METHOD)).type == Type.CONNECTED
        changed = asyncio.Event()
        found.source.listen(changed.set)
        following = asyncio.create_task(found.source.follow())
        replace_file(tmp_path / "security" / "internal", key_lines((b"1" * 32, b"2" * 32)))
        async with asyncio.timeout(120):
            await changed.wait()
        assert await process.lookup()
        replace_file(tmp_path / "security" / "internal", key_lines((b"2" * 32,)))
        assert await process.closed_by_broker()
        assert await client.lookup()
        following.cancel()


NOBODY = PeerCertificate()
BY_CERTIFICATE = DOCUMENT.replace("{token:", "{tls: true, token:")


@pytest.mark.parametrize(
    "role", [INTERNAL_ROLE, "magnetar:", "magnetar:other", "a\x00b", "a\n", "\u2028"]
)
def test_no_client_has_a_role_of_the_cluster_or_one_that_is_no_line(
    tmp_path: Path, role: str
) -> None:
    """Whether a token, a certificate or a proxy names it; nor does the document name such a
    role."""
    found = authenticator(tmp_path / "a", BY_CERTIFICATE)
    with pytest.raises(AuthenticationFailed):
        found.principal("token", token(role).encode(), NOBODY)
    with pytest.raises(AuthenticationFailed):
        found.principal("tls", b"", PeerCertificate(role))
    proxy = found.principal("token", token("proxy").encode(), NOBODY)
    with pytest.raises(AuthenticationFailed):
        found.behind_proxy(proxy, role)
    if role.startswith("magnetar:"):
        for before, after in (
            ("[admin]", f"['{role}']"),
            ("[proxy]", f"['{role}']"),
            ("{token:", f"{{anonymousRole: '{role}', token:"),
        ):
            with pytest.raises(InvalidRequest, match="magnetar:"):
                authenticator(tmp_path / "b", DOCUMENT.replace(before, after))


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": None},
        {"sub": "admin"},
        {"sub": None},
        {"exp": INTERNAL_TOKEN_S + CLOCKS_APART_S + 5},
        {"aud": "other"},
        {"exp": -1},
    ],
)
def test_an_internal_token_is_as_processes_make_them(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    """The right key alone is not enough: one that never ends, or that names a role, was not made
    by a process of the cluster."""
    (tmp_path / "internal").write_bytes(OTHER.secret)
    document = DOCUMENT + f"internal: {{keyFile: {tmp_path / 'internal'}}}\n"
    found = authenticator(tmp_path / "a", document)
    assert found.principal(INTERNAL_METHOD, found.internal_token().encode(), NOBODY) is INTERNAL
    payload = {"sub": INTERNAL_ROLE, "aud": INTERNAL_AUDIENCE, "exp": 1, **changed}
    if isinstance(payload["exp"], int | float):
        payload["exp"] = found.now_s() + float(payload["exp"])
    sent = make(
        OTHER, "HS256", {name: value for name, value in payload.items() if value is not None}
    )
    with pytest.raises(AuthenticationFailed):
        found.principal(INTERNAL_METHOD, sent.encode(), NOBODY)


def test_a_certificate_is_believed_until_its_end(tmp_path: Path) -> None:
    """A connection by one ends with it; an HTTP connection that outlives it is refused."""
    found = authenticator(tmp_path, BY_CERTIFICATE)
    end = found.now_s() + 60
    assert found.principal("tls", b"", PeerCertificate("a", end)).expires_s == end
    with pytest.raises(AuthenticationFailed, match="expired"):
        found.of_request("", "", PeerCertificate("a", found.now_s() - 1))


def test_clients_and_the_cluster_have_different_keys(tmp_path: Path) -> None:
    """With one key, an issuer of clients' tokens could make those of the cluster's processes."""
    (tmp_path / "internal").write_bytes(KEY.secret)
    with pytest.raises(InvalidRequest, match="same key"):
        authenticator(
            tmp_path / "a", DOCUMENT + f"internal: {{keyFile: {tmp_path / 'internal'}}}\n"
        )

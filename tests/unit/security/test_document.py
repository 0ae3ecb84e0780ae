"""The security document: what it means, and that no mistake in it is passed over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import InvalidRequest
from magnetar.security.document import (
    DOCUMENT_BYTES_MAX,
    SecurityDocument,
    TokenOptions,
    parse_document,
)

FULL = """
authentication:
  anonymousRole: visitor
  token: {secretKeyFile: /keys/secret, roleClaim: role, audience: main}
  tls: true
authorization:
  enabled: false
  superUserRoles: [admin, operator]
  proxyRoles: [proxy]
  openMetrics: false
internal: {keyFile: /keys/internal, caFile: /keys/ca.crt}
"""


def test_every_field_arrives_where_it_belongs() -> None:
    assert parse_document(FULL) == SecurityDocument(
        anonymous_role="visitor",
        token=TokenOptions("/keys/secret", "", "role", "main"),
        client_certificates=True,
        authorization=False,
        super_user_roles=frozenset({"admin", "operator"}),
        proxy_roles=frozenset({"proxy"}),
        open_metrics=False,
        internal_key_file="/keys/internal",
        internal_ca_file="/keys/ca.crt",
    )


def test_what_is_left_out_is_the_strict_choice() -> None:
    """Authorization is on, nobody is anonymous, nobody is a super user."""
    found = parse_document("authentication: {token: {publicKeyFile: /k}}")
    assert (found.authorization, found.anonymous_role, found.super_user_roles) == (
        True,
        "",
        frozenset(),
    )
    assert found.token == TokenOptions(public_key_file="/k")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "the document"),
        ("authorisation: {}", "authorisation"),
        ("authentication: {token: {secretKeyFile: /a, publicKeyFile: /b}}", "authentication.token"),
        ("authentication: {token: {roleClaim: sub}}", "authentication.token"),
        ("authentication: {token: {secretKeyFile: [/a]}}", "authentication.token.secretKeyFile"),
        (
            "authentication: {token: {secretKeyFile: /a, roleClaim: ''}}",
            "authentication.token.roleClaim",
        ),
        ("authentication: {token: {secretkeyfile: /a}}", "authentication.token.secretkeyfile"),
        ("authentication: {tls: 'yes'}", "authentication.tls"),
        ("authentication: {tls: true}\nauthorization: {enabled: 1}", "authorization.enabled"),
        (
            "authentication: {tls: true}\nauthorization: {superUserRoles: admin}",
            "authorization.superUserRoles",
        ),
        (
            "authentication: {tls: true}\nauthorization: {superUserRoles: ['']}",
            "authorization.superUserRoles",
        ),
        (
            "authentication: {tls: true}\nauthorization: {superUserRoles: [a], proxyRoles: [a]}",
            "authorization.proxyRoles",
        ),
        (
            "authentication: {anonymousRole: a}\nauthorization: {superUserRoles: [a]}",
            "authentication.anonymousRole",
        ),
        ("authentication: {}", "authentication"),
        ("{", "not YAML"),
        ("x" * (DOCUMENT_BYTES_MAX + 1), "bytes"),
    ],
)
def test_a_mistake_is_refused_by_the_name_of_its_field(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_document(text)
    assert named in str(refused.value)


def test_a_secret_in_the_wrong_place_is_not_repeated() -> None:
    """A user who writes the key itself into the document does not find it in the log."""
    for text in (
        "authentication: {token: hunter2}",
        "authentication: {token: {secretKeyFile: {hunter2: x}}}",
        "a: [hunter2",
    ):
        with pytest.raises(InvalidRequest) as refused:
            parse_document(text)
        assert "hunter2" not in str(refused.value)


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Whatever the file holds, it is a document or refused by the one error that is logged."""
    try:
        found = parse_document(text)
    except InvalidRequest:
        return
    assert found.token or found.client_certificates or found.anonymous_role

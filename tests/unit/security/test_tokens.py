"""Tokens: what is believed, and every way known to us of being believed wrongly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import AuthenticationFailed, InvalidRequest
from magnetar.security.keys import SecretKey, secret_key
from magnetar.security.signatures import PrivateKey, public_key
from magnetar.security.tokens import TOKEN_BYTES_MAX, Claims, TokenRules, make, verify

NOW_S = 1_700_000_000.0
KEY = SecretKey(b"k" * 32)
RULES = TokenRules(KEY)
RSA_KEY = rsa.generate_private_key(65537, 2048)
CURVES: dict[str, ec.EllipticCurve] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
}


def private_pem(key: Any) -> bytes:
    found: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return found


def public_bytes(key: Any, encoding: serialization.Encoding = serialization.Encoding.PEM) -> bytes:
    found: bytes = key.public_key().public_bytes(
        encoding, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def signed(header: Any, payload: Any, key: bytes = KEY.secret) -> bytes:
    """A token with any header, signed with HMAC-SHA-256."""
    text = part(header) + b"." + part(payload)
    return (
        text + b"." + base64.urlsafe_b64encode(hmac.digest(key, text, hashlib.sha256)).rstrip(b"=")
    )


def refused(token: bytes, rules: TokenRules = RULES) -> str:
    with pytest.raises(AuthenticationFailed) as error:
        verify(token, rules, NOW_S)
    return str(error.value)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_of_the_shared_key_names_its_role(algorithm: str) -> None:
    key = SecretKey(b"k" * 64)
    token = make(key, algorithm, {"sub": "reader", "exp": NOW_S + 5}).encode()
    assert verify(token, TokenRules(key), NOW_S) == Claims("reader", NOW_S + 5)


def test_a_shared_key_takes_no_algorithm_whose_hash_is_longer() -> None:
    """RFC 7518 section 3.2: a key of 32 bytes is one for HS256."""
    assert KEY.algorithms == {"HS256"}
    token = make(SecretKey(KEY.secret + b"k" * 32), "HS512", {"sub": "reader"}).encode()
    assert "algorithm" in refused(token)


def test_a_token_of_another_maker_is_understood() -> None:
    """RFC 7515 A.1: header with line breaks in it, the published key and signature."""
    token = (
        b"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19y"
        b"b290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    )
    published = (
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"
    )
    key = SecretKey(base64.urlsafe_b64decode(published + "=="))
    assert verify(token, TokenRules(key, role_claim="iss"), 1_300_819_379.0) == Claims(
        "joe", 1_300_819_380.0
    )


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512"])
def test_a_token_of_a_private_key_is_believed_by_its_public_half(algorithm: str) -> None:
    key: Any = RSA_KEY if algorithm == "RS256" else ec.generate_private_key(CURVES[algorithm])
    private = PrivateKey("k", private_pem(key))
    assert private.algorithm == algorithm
    token = make(private, private.algorithm, {"sub": "reader"}).encode()
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        assert verify(
            token, TokenRules(public_key("k", public_bytes(key, encoding))), NOW_S
        ) == Claims("reader", None)
    other: Any = (
        rsa.generate_private_key(65537, 2048)
        if algorithm == "RS256"
        else ec.generate_private_key(CURVES[algorithm])
    )
    assert "signature" in refused(token, TokenRules(public_key("k", public_bytes(other))))


def test_an_unsigned_token_is_not_believed() -> None:
    for algorithm in ("none", "None", "NONE", "", None, ["HS256"]):
        text = part({"alg": algorithm}) + b"." + part({"sub": "admin"})
        assert "algorithm" in refused(text + b".")


def test_a_public_key_never_serves_as_a_shared_secret() -> None:
    """The classic confusion: HS256 over the public key's own bytes, which everybody knows."""
    pem = public_bytes(RSA_KEY)
    forged = signed({"alg": "HS256"}, {"sub": "admin"}, pem)
    assert "algorithm" in refused(forged, TokenRules(public_key("k", pem)))
    with pytest.raises(InvalidRequest, match="publicKeyFile"):
        secret_key("token.secretKeyFile", pem)
    for key in (RSA_KEY, ec.generate_private_key(ec.SECP256R1())):
        with pytest.raises(InvalidRequest, match="publicKeyFile"):
            secret_key("token.secretKeyFile", public_bytes(key, serialization.Encoding.DER))
    assert secret_key("token.secretKeyFile", b"\x30" + b"r" * 40).algorithms, (
        "random bytes may begin like that"
    )


def test_an_ec_key_takes_only_the_algorithm_of_its_curve() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    rules = TokenRules(public_key("k", public_bytes(key)))
    _, payload, signature = (
        make(PrivateKey("k", private_pem(key)), "ES256", {"sub": "a"}).encode().split(b".")
    )
    assert "algorithm" in refused(b".".join((part({"alg": "ES384"}), payload, signature)), rules)


def test_extensions_that_must_be_understood_are_refused() -> None:
    assert "critical" in refused(
        signed({"alg": "HS256", "crit": ["b64"], "b64": False}, {"sub": "a"})
    )


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"sub": "a", "exp": NOW_S}, "expired"),
        ({"sub": "a", "exp": "tomorrow"}, "exp"),
        ({"sub": "a", "exp": True}, "exp"),
        ({"sub": "a", "exp": 10**400}, "exp"),
        ({"sub": "a", "nbf": NOW_S + 1}, "not be accepted yet"),
        ({}, "role"),
        ({"sub": ""}, "role"),
        ({"sub": 7}, "role"),
        ({"sub": []}, "role"),
        ({"sub": "x" * 513}, "role"),
    ],
)
def test_claims_that_do_not_hold_are_refused(payload: dict[str, Any], why: str) -> None:
    assert why in refused(signed({"alg": "HS256"}, payload))


def test_the_role_claim_may_be_a_list_as_pulsar_takes_it() -> None:
    assert (
        verify(
            signed({"alg": "HS256"}, {"roles": ["a", "b"]}), TokenRules(KEY, "roles"), NOW_S
        ).role
        == "a"
    )


def test_the_audience_is_checked_if_one_is_configured() -> None:
    rules = TokenRules(KEY, audience="main")
    assert (
        verify(signed({"alg": "HS256"}, {"sub": "a", "aud": ["x", "main"]}), rules, NOW_S).role
        == "a"
    )
    for audience in ("other", ["other"], None, 7):
        assert "audience" in refused(signed({"alg": "HS256"}, {"sub": "a", "aud": audience}), rules)


def test_a_token_that_is_too_long_is_not_looked_at() -> None:
    assert str(TOKEN_BYTES_MAX) in refused(b"a" * (TOKEN_BYTES_MAX + 1))


@given(st.binary(max_size=300))
def test_no_bytes_are_a_token_by_chance_and_none_break_the_check(token: bytes) -> None:
    refused(token)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_token_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    """Also in its header and payload: what is not signed is not believed. (The spare bits of the
    last letter carry nothing.)"""
    token = bytearray(make(KEY, "HS256", {"sub": "reader"}).encode())
    token[place % (len(token) - 1)] ^= change
    refused(bytes(token))


def test_no_error_repeats_what_was_shown() -> None:
    token = signed({"alg": "HS256"}, {"sub": "hunter2"}, b"x" * 32)
    assert "hunter2" not in refused(token)
    assert token.decode()[:20] not in refused(token)


def test_keys_are_not_shown() -> None:
    assert "kkkk" not in repr(KEY)
    assert "kkkk" not in repr(RULES)


def test_key_files_come_raw_or_in_pulsars_form() -> None:
    assert secret_key("f", b"data:;base64," + base64.b64encode(b"k" * 32) + b"\n") == KEY
    assert secret_key("f", b"k" * 32) == KEY
    for wrong in (b"data:;base64,!!", b"data:text", b"short"):
        with pytest.raises(InvalidRequest, match="f:"):
            secret_key("f", wrong)


def test_public_keys_that_are_none_or_too_weak_are_refused() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    for wrong in (
        b"",
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        private_pem(RSA_KEY),
        public_bytes(weak),
    ):
        with pytest.raises(InvalidRequest, match=r"token\.publicKeyFile"):
            public_key("token.publicKeyFile", wrong)

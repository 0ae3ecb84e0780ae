"""Tokens: JSON Web Tokens in their compact form.

Owns: checking one, and making one. Imports: keys, errors.
Source: RFC 7515, 7519; Pulsar's AuthenticationProviderToken: the role is a claim (its first item if it is a list), the audience is checked if one is
configured, `exp` and `nbf` are seconds.
Why not PyJWT: what is needed of it is this page, and a token may only name an algorithm that the key takes in any case.
Invariants: nothing of a token is believed before its signature is verified; an unsigned one, or one with extensions that must be understood, is
refused; no part of a token is in an error's text.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from typing import Any, Protocol

from magnetar.errors import AuthenticationFailed
from magnetar.security.document import ROLE_LENGTH_MAX
from magnetar.security.keys import VerifyingKey

TOKEN_BYTES_MAX = 16 << 10


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says: a role, and until when (unix seconds; None = for ever)."""

    role: str
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to fulfil."""

    key: VerifyingKey
    role_claim: str = "sub"
    audience: str = ""


class SigningKey(Protocol):
    """What tokens are made with."""

    def sign(self, algorithm: str, signed: bytes) -> bytes:
        """The signature of `signed`."""
        ...


def verify(token: bytes, rules: TokenRules, now_s: float) -> Claims:
    """The claims of a token. Raises AuthenticationFailed, in words of Pulsar's."""
    if not token:
        raise AuthenticationFailed("No token credentials passed")
    if len(token) > TOKEN_BYTES_MAX:
        raise _refused(f"JWT has more than {TOKEN_BYTES_MAX} bytes")
    parts = token.split(b".")
    if len(parts) != 3:
        raise _refused("JWT strings must contain exactly 2 period characters")
    header = _object(parts[0])
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in rules.key.algorithms:
        raise _refused("JWT is not signed by an algorithm of the configured key")
    if "crit" in header:
        raise _refused("JWT has critical extensions, none of which are known")
    if not rules.key.verifies(algorithm, parts[0] + b"." + parts[1], _decode(parts[2])):
        raise _refused("JWT signature does not match locally computed signature")
    return _claims(_object(parts[1]), rules, now_s)


def _claims(payload: dict[str, Any], rules: TokenRules, now_s: float) -> Claims:
    expires_s, begins_s = _time(payload, "exp"), _time(payload, "nbf")
    if expires_s is not None and now_s >= expires_s:
        raise _refused("JWT expired")
    if begins_s is not None and now_s < begins_s:
        raise _refused("JWT must not be accepted yet")
    if rules.audience:
        audience = payload.get("aud")
        if rules.audience not in (audience if isinstance(audience, list) else [audience]):
            raise _refused("JWT is for another audience")
    role = payload.get(rules.role_claim)
    if isinstance(role, list):
        role = role[0] if role else None
    if not isinstance(role, str) or not 0 < len(role) <= ROLE_LENGTH_MAX:
        raise _refused("JWT names no role in the configured claim")
    return Claims(role, expires_s)


def _time(payload: dict[str, Any], name: str) -> float | None:
    found = payload.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise _refused(f"JWT claim {name} is not a number of seconds")
    try:
        seconds = float(found)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise _refused(f"JWT claim {name} is not a number of seconds")
    return seconds


def _object(part: bytes) -> dict[str, Any]:
    try:
        found = json.loads(_decode(part))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refused("JWT is malformed")
    return found


def _decode(part: bytes) -> bytes:
    if any(
        letter in part for letter in b"+/="
    ):  # not of this alphabet, though the decoder would take them: one token, one spelling
        raise _refused("JWT is malformed")
    try:
        return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _refused("JWT is malformed") from None


def _refused(why: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"Failed to authentication token: {why}")


def make(key: SigningKey, algorithm: str, payload: dict[str, Any]) -> str:
    """A token with these claims."""
    signed = b".".join(_encode(json.dumps(part, separators=(",", ":")).encode()) for part in ({"alg": algorithm}, payload))
    return (signed + b"." + _encode(key.sign(algorithm, signed))).decode()


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")

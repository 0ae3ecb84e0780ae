"""Tokens: JSON Web Tokens in their compact form.

Owns: checking one, and making one. Imports: keys, errors; PyJWT, which is imported only when there
is a token to look at. Source: RFC 7515, 7519; Pulsar's AuthenticationProviderToken: the role is a
claim (its first item if it is a list), the audience is checked if one is configured, `exp` and
`nbf` are seconds. Invariants: nothing of a token is believed before its signature is verified; the
key decides which algorithms there are; an unsigned token, or one with extensions that must be
understood, is refused; times are those of our clock; no part of a token is in an error's text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from magnetar.errors import AuthenticationFailed
from magnetar.security.document import ROLE_LENGTH_MAX
from magnetar.security.keys import SigningKey, VerifyingKey

TOKEN_BYTES_MAX = 16 << 10


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says: a role, and until when (unix seconds; None = without limit)."""

    role: str
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to fulfil."""

    key: VerifyingKey
    role_claim: str = "sub"
    audience: str = ""


def verify(token: bytes, rules: TokenRules, now_s: float) -> Claims:
    """The claims of a token. Raises AuthenticationFailed, in words of Pulsar's."""
    if not token:
        raise AuthenticationFailed("No token credentials passed")
    if len(token) > TOKEN_BYTES_MAX:
        raise _refused(f"JWT has more than {TOKEN_BYTES_MAX} bytes")
    import jwt

    try:
        found = jwt.PyJWS().decode_complete(
            token, rules.key.material, algorithms=sorted(rules.key.algorithms)
        )
    except jwt.InvalidAlgorithmError:
        raise _refused("JWT is not signed by an algorithm of the configured key") from None
    except jwt.InvalidSignatureError:
        raise _refused("JWT signature does not match locally computed signature") from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _refused("JWT is malformed, or has critical extensions that are not known") from None
    return _claims(_object(found["payload"]), rules, now_s)


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


def _object(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refused("JWT is malformed")
    return found


def _refused(why: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"Failed to authentication token: {why}")


def make(key: SigningKey, algorithm: str, payload: dict[str, Any]) -> str:
    """A token with these claims."""
    import jwt

    return jwt.PyJWS().encode(
        json.dumps(payload, separators=(",", ":")).encode(), key.material, algorithm
    )

"""Keys that tokens are signed with.

Owns: the forms in which key files come, and which algorithms a key takes. Imports: errors;
`signatures` for public keys. Source: Pulsar's tokenSecretKey and tokenPublicKey (raw bytes, or
`data:;base64,...`); RFC 7518 section 3. Invariants: the key decides which algorithms a token may
name, never the token; an HMAC key that is a public key or too short to resist guessing is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from magnetar.errors import InvalidRequest

SECRET_BYTES_MIN = 32
KEY_FILE_BYTES_MAX = 64 << 10
KEYS_MAX = 4
_DATA = b"data:"
_BASE64 = b";base64,"
_HASH_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}


class VerifyingKey(Protocol):
    """What tokens are checked with."""

    @property
    def algorithms(self) -> frozenset[str]:
        """Names of the algorithms (JWA) that this key takes."""
        ...

    @property
    def material(self) -> Any:
        """What PyJWT takes for a key."""
        ...


class SigningKey(Protocol):
    """What tokens are made with."""

    @property
    def material(self) -> Any:
        """What PyJWT takes for a key."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """A key shared by who makes tokens and who checks them."""

    secret: bytes

    @property
    def algorithms(self) -> frozenset[str]:
        """Those whose hash is no longer than the key (RFC 7518 section 3.2)."""
        return frozenset(name for name, size in _HASH_BYTES.items() if size <= len(self.secret))

    @property
    def material(self) -> bytes:
        return self.secret


def file_content(field: str, data: bytes) -> bytes:
    """The bytes of a key file, decoded if it is in Pulsar's `data:` form. Raises InvalidRequest
    naming `field`."""
    if not data.startswith(_DATA):
        return data
    head, separator, text = data.partition(_BASE64)
    try:
        if not separator or len(head) > 100:
            raise ValueError("no base64")
        return base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        raise InvalidRequest(
            f"{field}: its file begins with data: but is not data:;base64,...; write it in that "
            "form, or as raw bytes"
        ) from None


def secret_keys(field: str, data: bytes) -> tuple[SecretKey, ...]:
    """The keys of a file with one, or with several as lines of `data:;base64,...`: the first one
    signs, all are believed. Raises InvalidRequest naming `field`."""
    lines = data.split() if data.startswith(_DATA) else [data]
    if len(lines) > KEYS_MAX:
        raise InvalidRequest(
            f"{field}: its file has {len(lines)} keys, more than {KEYS_MAX}; keep those that are "
            "in use"
        )
    return tuple(secret_key(field, line) for line in lines)


def key_lines(keys: Iterable[bytes]) -> bytes:
    """The file that `secret_keys` reads as these."""
    return b"".join(_DATA + b";base64," + base64.b64encode(key) + b"\n" for key in keys)


def _is_public(secret: bytes) -> bool:
    """Whether bytes are a public key or certificate in DER: anybody who has it could sign
    tokens."""
    if secret[:1] != b"\x30":  # what every structure in DER begins with
        return False
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    for load in (load_der_public_key, x509.load_der_x509_certificate):
        try:
            load(secret)
        except Exception:  # whatever it is, it is not one of these
            continue
        return True
    return False


def secret_key(field: str, data: bytes) -> SecretKey:
    """The key of a file. Raises InvalidRequest naming `field`."""
    secret = file_content(field, data)
    if b"-----BEGIN " in secret[:200]:
        raise InvalidRequest(
            f"{field}: its file holds a key in PEM; everybody who knows a public key could sign "
            "tokens with it: use publicKeyFile for it"
        )
    if _is_public(secret):
        raise InvalidRequest(
            f"{field}: its file holds a public key in DER, which is no secret: use publicKeyFile "
            "for it"
        )
    if len(secret) < SECRET_BYTES_MIN:
        raise InvalidRequest(
            f"{field}: its file has {len(secret)} bytes, fewer than {SECRET_BYTES_MIN}; make one "
            "with magnetar token create-secret-key"
        )
    return SecretKey(secret)

"""Public keys that tokens are checked with, and private ones that sign them.

Owns: reading keys for RS256/384/512 and ES256/384/512 by the package `cryptography`, which is
imported only when such a key is loaded. Imports: errors, keys. Source: RFC 7518 sections 3.3 and
3.4. Invariants: an EC key takes the one algorithm of its curve; RSA keys below 2048 bits are
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magnetar.errors import InvalidRequest
from magnetar.security.keys import file_content

RSA_BITS_MIN = 2048
_RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512"})
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, slots=True, repr=False)
class PublicKey:
    """Checks tokens of the private key it belongs to; `material` is a key of `cryptography`."""

    material: Any
    algorithms: frozenset[str]


def public_key(field: str, data: bytes) -> PublicKey:
    """The key of a file, in PEM or DER. Raises InvalidRequest naming `field`."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    content = file_content(field, data)
    load = (
        serialization.load_pem_public_key
        if b"-----BEGIN " in content[:200]
        else serialization.load_der_public_key
    )
    try:
        key = load(content)
    except Exception:  # its exceptions quote what they were given
        raise InvalidRequest(
            f"{field}: its file holds no public key in PEM or DER; write the public half of the "
            "signing key"
        ) from None
    return _verifying(field, key, ec.EllipticCurvePublicKey, rsa.RSAPublicKey)


def _verifying(field: str, key: Any, elliptic: type[Any], rsa: type[Any]) -> PublicKey:
    if isinstance(key, rsa):
        if key.key_size < RSA_BITS_MIN:
            raise InvalidRequest(
                f"{field}: an RSA key of {key.key_size} bits is too short; use {RSA_BITS_MIN} or "
                "more"
            )
        return PublicKey(key, _RSA_ALGORITHMS)
    if isinstance(key, elliptic) and key.curve.name in _CURVES:
        return PublicKey(key, frozenset({_CURVES[key.curve.name]}))
    raise InvalidRequest(
        f"{field}: its key is neither RSA nor of the curves P-256, P-384 and P-521; use one of them"
    )


class PrivateKey:
    """Signs tokens; `algorithm` is the first of its family, or the one of its curve."""

    def __init__(self, field: str, data: bytes) -> None:
        """Raises InvalidRequest naming `field`."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, rsa

        content = file_content(field, data)
        load = (
            serialization.load_pem_private_key
            if b"-----BEGIN " in content[:200]
            else serialization.load_der_private_key
        )
        try:
            self.material: Any = load(content, None)
        except Exception:  # its exceptions quote what they were given
            raise InvalidRequest(
                f"{field}: its file holds no unencrypted private key in PEM or DER; write one with "
                "openssl genpkey"
            ) from None
        public = _verifying(
            field, self.material.public_key(), ec.EllipticCurvePublicKey, rsa.RSAPublicKey
        )
        self.algorithm = min(public.algorithms)

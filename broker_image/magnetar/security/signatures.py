"""Public keys that tokens are checked with, and private ones that sign them.

Owns: RS256/384/512 and ES256/384/512 over the package `cryptography`, which is imported only when such a key is loaded. Imports: errors, keys.
Source: RFC 7518 sections 3.3 and 3.4 (an ECDSA signature is R and S, each as long as the curve's numbers).
Invariants: an EC key takes the one algorithm of its curve; RSA keys below 2048 bits are refused.
"""

from __future__ import annotations

from typing import Any

from magnetar.errors import InvalidRequest
from magnetar.security.keys import VerifyingKey, file_content

RSA_BITS_MIN = 2048
_CURVES = {"secp256r1": ("ES256", 32), "secp384r1": ("ES384", 48), "secp521r1": ("ES512", 66)}


def public_key(field: str, data: bytes) -> VerifyingKey:
    """The key of a file, in PEM or DER. Raises InvalidRequest naming `field`."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, rsa
    except ModuleNotFoundError:
        raise InvalidRequest(f"{field}: public keys need the package cryptography, which is not installed; install it") from None
    content = file_content(field, data)
    load = serialization.load_pem_public_key if b"-----BEGIN " in content[:200] else serialization.load_der_public_key
    try:
        key = load(content)
    except Exception:  # its exceptions quote what they were given
        raise InvalidRequest(
            f"{field}: its file holds no public key in PEM or DER; write the public half of the signing key"
        ) from None
    return _verifying(field, key, ec.EllipticCurvePublicKey, rsa.RSAPublicKey)


def _verifying(field: str, key: Any, elliptic: type[Any], rsa: type[Any]) -> VerifyingKey:
    if isinstance(key, rsa):
        if key.key_size < RSA_BITS_MIN:
            raise InvalidRequest(f"{field}: an RSA key of {key.key_size} bits is too short; use {RSA_BITS_MIN} or more")
        return _RsaKey(key)
    if isinstance(key, elliptic) and key.curve.name in _CURVES:
        return _EcKey(key, *_CURVES[key.curve.name])
    raise InvalidRequest(f"{field}: its key is neither RSA nor of the curves P-256, P-384 and P-521; use one of them")


def _hash(algorithm: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    return {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}[algorithm[2:]]


class _RsaKey:
    algorithms = frozenset({"RS256", "RS384", "RS512"})

    def __init__(self, key: Any) -> None:
        self._key = key

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import padding

        try:
            self._key.verify(signature, signed, padding.PKCS1v15(), _hash(algorithm))
        except InvalidSignature:
            return False
        return True


class _EcKey:
    def __init__(self, key: Any, algorithm: str, number_bytes: int) -> None:
        self._key, self.algorithms, self._number_bytes = key, frozenset({algorithm}), number_bytes

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        size = self._number_bytes
        if len(signature) != 2 * size:
            return False
        encoded = encode_dss_signature(int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big"))
        try:
            self._key.verify(encoded, signed, ec.ECDSA(_hash(algorithm)))
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """Signs tokens; `algorithm` is the first of its family, or the one of its curve."""

    def __init__(self, field: str, data: bytes) -> None:
        """Raises InvalidRequest naming `field`."""
        try:
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ec, rsa
        except ModuleNotFoundError:
            raise InvalidRequest(
                f"{field}: private keys need the package cryptography, which is not installed; install it"
            ) from None
        content = file_content(field, data)
        load = serialization.load_pem_private_key if b"-----BEGIN " in content[:200] else serialization.load_der_private_key
        try:
            self._key: Any = load(content, None)
        except Exception:  # its exceptions quote what they were given
            raise InvalidRequest(
                f"{field}: its file holds no unencrypted private key in PEM or DER; write one with openssl genpkey"
            ) from None
        public = _verifying(field, self._key.public_key(), ec.EllipticCurvePublicKey, rsa.RSAPublicKey)
        self.algorithm = min(public.algorithms)

    def sign(self, _algorithm: str, signed: bytes) -> bytes:
        """The signature of `signed` by `algorithm`."""
        from cryptography.hazmat.primitives.asymmetric import ec, padding
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        if self.algorithm.startswith("RS"):
            return bytes(self._key.sign(signed, padding.PKCS1v15(), _hash(self.algorithm)))
        size = next(size for algorithm, size in _CURVES.values() if algorithm == self.algorithm)
        first, second = decode_dss_signature(self._key.sign(signed, ec.ECDSA(_hash(self.algorithm))))
        return first.to_bytes(size, "big") + second.to_bytes(size, "big")

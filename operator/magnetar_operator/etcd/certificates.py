"""Certificates of a cluster's etcd.

Owns: making an authority and certificates under it, and the decision that one must be made again.
Imports: cryptography. Invariants: given the time, the decision is a function of the certificate;
keys are ECDSA P-256, PKCS#8, unencrypted; nothing that this module says about a pair (problem,
repr) holds key material.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
CLOCK_SKEW = timedelta(minutes=10)
"""Certificates are valid from this long before they are made: clocks of nodes differ."""
ROTATE_BEFORE = 2 * LEAF_LIFETIME
"""An authority is replaced so long before its end."""
RENEW_AT = 2 / 3
"""Share of its incarnation after which a certificate is made again."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is for: its common name and, for a server, the DNS names and addresses
    that it is reached under."""

    common_name: str
    names: tuple[str, ...] = ()


def make_authority(name: str, now_ms: int) -> Pair:
    """A certificate authority that signs itself; `now_ms`: milliseconds since the epoch."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key, now_ms, AUTHORITY_LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, subject: Subject, now_ms: int) -> Pair:
    """A new key and its certificate, which ends with its authority at the latest. Raises
    ValueError if `authority` cannot be read (see `authority_problem`)."""
    signer = _private_key(authority.key)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(LEAF_LIFETIME, issuer.not_valid_after_utc - _time(now_ms))
    builder = _builder(_name(subject.common_name), issuer.subject, key, now_ms, life)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(_usages(subject)), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
        critical=False,
    )
    if subject.names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in subject.names]),
            critical=False,
        )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def authority_problem(authority: Pair, now_ms: int) -> str:
    """Why the authority can issue nothing any more; "" if it can."""
    certificate, problem = _readable(authority)
    if certificate is None:
        return problem
    if not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        return "it is not a certificate authority"
    if _time(now_ms) >= certificate.not_valid_after_utc:
        return f"it has ended ({certificate.not_valid_after_utc:%Y-%m-%d})"
    return ""


def is_old(authority: Pair, now_ms: int) -> bool:
    """Whether an authority without a problem should be replaced by another one."""
    certificate = x509.load_pem_x509_certificate(authority.certificate)
    return _time(now_ms) + ROTATE_BEFORE > certificate.not_valid_after_utc


def end_ms(certificates: bytes) -> int | None:
    """When the first of these PEM certificates to end does, in milliseconds since the epoch;
    None if they cannot be read."""
    try:
        found = x509.load_pem_x509_certificates(certificates)
    except ValueError:
        return None
    return min((int(one.not_valid_after_utc.timestamp() * 1000) for one in found), default=None)


def leaf_problem(leaf: Pair, authority: Pair, subject: Subject, now_ms: int) -> str:
    """Why the certificate must be made again; "" if it is as it should be."""
    certificate, problem = _readable(leaf)
    if certificate is None:
        return problem
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return "another authority has issued it"
    if certificate.subject != _name(subject.common_name):
        return f"its common name is not {subject.common_name}"
    try:
        if _names_of(certificate) != {_general_name(name) for name in subject.names}:
            return "it is for other host names"
        usages = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return "its purpose is missing"
    if usages != set(_usages(subject)):
        return "it is for another purpose"
    if _time(now_ms) < certificate.not_valid_before_utc:
        return "it is not valid yet"
    if now_ms >= renewal_ms(certificate):
        return f"two thirds of its lifetime are over (it ends {certificate.not_valid_after_utc:%Y-%m-%d})"
    return ""


def renewal_ms(certificate: x509.Certificate) -> int:
    """When it is to be made again, in milliseconds since the epoch."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return int((begin + (end - begin) * RENEW_AT).timestamp() * 1000)


def fingerprint(certificate: bytes) -> str:
    """Names an authority; public."""
    return hashlib.sha256(certificate).hexdigest()[:16]


def material_problem(authority: bytes, certificate: bytes, key: bytes) -> str:
    """Why PEM of another issuer cannot be used for mutual TLS; "" if it can, as far as it
    alone shows."""
    try:
        if not x509.load_pem_x509_certificates(authority):
            return "ca.crt holds no certificate"
    except ValueError:
        return "ca.crt is not a PEM certificate"
    return chain_problem(certificate, key)


def chain_problem(certificate: bytes, key: bytes) -> str:
    """Why a chain of PEM certificates and a key cannot be used together; "" if they can."""
    try:
        chain = x509.load_pem_x509_certificates(certificate)
    except ValueError:
        return "tls.crt is not a PEM certificate"
    try:
        loaded = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        return "tls.key is not an unencrypted PEM key"
    return (
        ""
        if _public(loaded.public_key()) == _public(chain[0].public_key())
        else "tls.key does not belong to tls.crt"
    )


# --- parts ----------------------------------------------------------------------------------------


def _readable(pair: Pair) -> tuple[x509.Certificate | None, str]:
    """The certificate, or why the pair is unusable."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = _private_key(pair.key)
    except (ValueError, TypeError):
        return None, "it is missing or cannot be read"
    if _public(key.public_key()) != _public(certificate.public_key()):
        return None, "its key belongs to another certificate"
    return certificate, ""


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic curve key")
    return key


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]  # every kind of public key has it
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now_ms: int,
    life: timedelta,
) -> x509.CertificateBuilder:
    now = _time(now_ms)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _usages(subject: Subject) -> list[x509.ObjectIdentifier]:
    """A server is a client too: members of etcd call each other."""
    client = [ExtendedKeyUsageOID.CLIENT_AUTH]
    return [ExtendedKeyUsageOID.SERVER_AUTH, *client] if subject.names else client


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _names_of(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
    except x509.ExtensionNotFound:
        return set()


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _time(now_ms: int) -> datetime:
    """Whole seconds: certificates know no fractions."""
    return datetime.fromtimestamp(now_ms // 1000, UTC)

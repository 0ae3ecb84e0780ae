"""Certificates for tests and trials.

Owns: `Authority`: an authority of its own, or one below another, and directories as `--tls` takes
them. Imports: the operator's certificates. Invariant: what it makes is for the loopback interface
and for nobody's real cluster.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from magnetar_operator.etcd.certificates import Pair, Subject, issue, make_authority

LOOPBACK = ("127.0.0.1", "localhost")
LIFE = timedelta(days=365)


class Authority:
    """Signs certificates; `file` is the one to trust."""

    def __init__(self, directory: Path, *, below: bool = False) -> None:
        """`below`: it is below another one, as public ones are, and servers show its certificate
        beside their own."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        root = _signed("test root") if below else make_authority("test authority", _now_ms())
        self.pair = _signed("test authority", root) if below else root
        self._chain = self.pair.certificate if below else b""
        self.file = directory / "ca.crt"
        self.file.write_bytes(root.certificate)

    def server(
        self, name: str = "server", hosts: Sequence[str] = LOOPBACK, *, clients: bool = False
    ) -> Path:
        """A directory with a server's pair, and with the authority if clients show certificates
        of it. An existing one is replaced."""
        directory = self._write(name, issue(self.pair, Subject(name, tuple(hosts)), _now_ms()))
        if clients:
            (directory / "ca.crt").write_bytes(self.file.read_bytes())
        return directory

    def client(self, name: str) -> Path:
        """A directory with the pair of a client with this common name."""
        return self._write(name, issue(self.pair, Subject(name), _now_ms()))

    def context(self, client: str = "") -> ssl.SSLContext:
        """For connections to servers of this authority, showing a client's certificate if one is
        named."""
        context = ssl.create_default_context(cafile=str(self.file))
        if client:
            directory = self.client(client)
            context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        return context

    def _write(self, name: str, pair: Pair) -> Path:
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        (directory / "tls.crt").write_bytes(pair.certificate + self._chain)
        (directory / "tls.key").write_bytes(pair.key)
        return directory


def _signed(name: str, above: Pair | None = None) -> Pair:
    """An authority that `above` has signed, or it itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer = key
    if above is not None:
        issuer = x509.load_pem_x509_certificate(above.certificate).subject
        loaded = serialization.load_pem_private_key(above.key, password=None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    begin = datetime.now(UTC) - timedelta(minutes=5)
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), begin, begin + LIFE
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(builder.sign(signer, hashes.SHA256()).public_bytes(pem), private)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

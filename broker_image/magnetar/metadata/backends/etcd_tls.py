"""What mutual TLS to etcd needs.

Owns: `TlsMaterial` and where it comes from: files (`TlsFiles`), memory (`TlsBytes`), memory that is
replaced (`ReplaceableTls`). Imports: grpc, errors. Invariants: key material never appears in a text
(repr, log, error); `stamp` shows the holder of a connection that it should make another one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import grpc  # type: ignore[import-untyped]  # ships no type information

from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE


class TlsMaterial(Protocol):
    """Authority, certificate and key, as they are now."""

    def stamp(self) -> object:
        """Changes when the material does. Raises OSError if it cannot be read."""
        ...

    def credentials(self) -> Any:
        """gRPC's channel credentials. Raises OSError if the material cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of mutual TLS; read again when a connection is made after they changed."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def in_directory(cls, directory: Path) -> Self:
        """Files named as in a mounted secret: ca.crt, tls.crt, tls.key."""
        return cls(directory / AUTHORITY_FILE, directory / CERTIFICATE_FILE, directory / KEY_FILE)

    def stamp(self) -> object:
        states = [path.stat() for path in (self.authority, self.certificate, self.key)]
        return tuple((state.st_mtime_ns, state.st_ino) for state in states)

    def credentials(self) -> Any:
        return grpc.ssl_channel_credentials(
            self.authority.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )


@dataclass(frozen=True, slots=True)
class TlsBytes:
    """PEM of mutual TLS in memory."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def stamp(self) -> object:
        return hashlib.sha256(b"\0".join((self.authority, self.certificate, self.key))).digest()

    def credentials(self) -> Any:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


class ReplaceableTls:
    """Material that is replaced while stores use it: they take the new one when they next
    connect after a failure."""

    def __init__(self, material: TlsMaterial) -> None:
        self._material = material

    def replace(self, material: TlsMaterial) -> None:
        self._material = material

    def stamp(self) -> object:
        return self._material.stamp()

    def credentials(self) -> Any:
        return self._material.credentials()

"""Certificates for tests and trials.

Owns: `Authority`: an authority of its own, and directories as `--tls` takes them. Imports: the operator's certificates.
Invariant: what it makes is for the loopback interface and for nobody's real cluster.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from magnetar_operator.certificates import Pair, Subject, issue, make_authority

LOOPBACK = ("127.0.0.1", "localhost")


class Authority:
    """Signs certificates; its own is `file`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self.pair = directory, make_authority("test authority", _now_ms())
        self.file = directory / "ca.crt"
        self.file.write_bytes(self.pair.certificate)

    def server(self, name: str = "server", *, clients: bool = False) -> Path:
        """A directory with a server's pair, and with the authority if clients show certificates of it. An existing one is replaced."""
        directory = self._write(name, issue(self.pair, Subject(name, LOOPBACK), _now_ms()))
        if clients:
            (directory / "ca.crt").write_bytes(self.pair.certificate)
        return directory

    def client(self, name: str) -> Path:
        """A directory with the pair of a client with this common name."""
        return self._write(name, issue(self.pair, Subject(name), _now_ms()))

    def context(self, client: str = "") -> ssl.SSLContext:
        """For connections to servers of this authority, showing a client's certificate if one is named."""
        context = ssl.create_default_context(cafile=str(self.file))
        if client:
            directory = self.client(client)
            context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        return context

    def _write(self, name: str, pair: Pair) -> Path:
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        (directory / "tls.crt").write_bytes(pair.certificate)
        (directory / "tls.key").write_bytes(pair.key)
        return directory


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

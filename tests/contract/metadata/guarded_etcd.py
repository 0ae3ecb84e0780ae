"""An etcd with an authority of its own.

Owns: `Guarded`: one real etcd with mutual TLS, and certificates for it, made as the operator makes
them.
"""

from __future__ import annotations

from pathlib import Path

from dev.testbed.etcd_server import EtcdServer
from magnetar.clock import SystemClock
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.backends.etcd_tls import TlsBytes
from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar_operator.builders.etcd_tls import MEMBER
from magnetar_operator.etcd.certificates import Pair, Subject, issue, make_authority

CLOCK = SystemClock()
HERE = ("localhost", "127.0.0.1")


class Guarded:
    """One etcd with mutual TLS, and certificates for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = make_authority("test", CLOCK.wall_ms())
        self.write(issue(self.authority, Subject(MEMBER, HERE), CLOCK.wall_ms()))
        files = {
            name: str(directory / name) for name in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)
        }
        self.server = EtcdServer(
            directory,
            (
                *("--client-cert-auth=true", f"--trusted-ca-file={files[AUTHORITY_FILE]}"),
                *(f"--cert-file={files[CERTIFICATE_FILE]}", f"--key-file={files[KEY_FILE]}"),
                *("--tls-min-version=TLS1.3", "--enable-grpc-gateway=false"),
            ),
            scheme="https",
        )

    def write(self, member: Pair) -> None:
        (self.directory / AUTHORITY_FILE).write_bytes(self.authority.certificate)
        (self.directory / CERTIFICATE_FILE).write_bytes(member.certificate)
        (self.directory / KEY_FILE).write_bytes(member.key)

    def material(self, user: str) -> TlsBytes:
        pair = issue(self.authority, Subject(user), CLOCK.wall_ms())
        return TlsBytes(self.authority.certificate, pair.certificate, pair.key)

    def store(self, user: str) -> EtcdStore:
        return EtcdStore(
            [self.server.endpoint], self.material(user), clock=CLOCK, request_timeout_s=60.0
        )

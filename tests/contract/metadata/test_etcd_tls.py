"""Mutual TLS to a real etcd, and certificates that are replaced while the store is in use."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dev.testbed.etcd_server import EtcdServer
from magnetar.clock import SystemClock
from magnetar.errors import StoreUnavailable
from magnetar.metadata.backends.etcd import EtcdStore, TlsFiles
from tests.contract.metadata.backends import PatientStore

CLOCK = SystemClock()
pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]
EXTENSIONS = "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=IP:127.0.0.1\n"


async def run(store: EtcdStore, scenario: Callable[[EtcdStore], Coroutine[Any, Any, None]]) -> None:
    try:
        await asyncio.wait_for(scenario(store), 240)
    finally:
        await store.close()


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
            "/CN=authority -keyout ca.key -out ca.pem"
        )
        (directory / "extensions").write_text(EXTENSIONS)

    def _openssl(self, arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments.split()], cwd=self._directory, check=True, capture_output=True
        )

    def issue(self, name: str) -> TlsFiles:
        """Certificate and key for 127.0.0.1, as client and server."""
        self._openssl(
            f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout "
            f"{name}.key -out {name}.csr"
        )
        self._openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile "
            f"extensions -out {name}.pem"
        )
        return TlsFiles(
            self._directory / "ca.pem",
            self._directory / f"{name}.pem",
            self._directory / f"{name}.key",
        )


def tls_server(directory: Path, files: TlsFiles) -> EtcdServer:
    flags = (
        "--client-cert-auth=true",
        f"--trusted-ca-file={files.authority}",
        f"--cert-file={files.certificate}",
    )
    return EtcdServer(directory, (*flags, f"--key-file={files.key}"), scheme="https")


async def test_mutual_tls_admits_our_certificate_and_no_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    server = tls_server(tmp_path, authority.issue("server"))
    server.start()
    stranger = Authority(tmp_path / "theirs").issue("client")
    try:

        async def admitted(store: EtcdStore) -> None:
            await PatientStore(store).put("k", b"v")

        async def refused(store: EtcdStore) -> None:
            with pytest.raises(StoreUnavailable):
                await store.put("k", b"w")

        await run(EtcdStore([server.endpoint], authority.issue("client"), clock=CLOCK), admitted)
        await run(
            EtcdStore([server.endpoint], stranger, clock=CLOCK, request_timeout_s=0.5), refused
        )
    finally:
        server.kill()


async def test_replaced_certificates_are_picked_up_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    server = tls_server(tmp_path, authority.issue("server"))
    server.start()
    mounted = Authority(tmp_path / "mounted").issue("client")

    async def scenario(store: EtcdStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.put("k", b"v")
        fresh = authority.issue("client")
        for old, new in (
            (mounted.authority, fresh.authority),
            (mounted.certificate, fresh.certificate),
            (mounted.key, fresh.key),
        ):
            old.write_bytes(new.read_bytes())
        for _ in range(120):
            try:
                await store.put("k", b"v")
            except StoreUnavailable:
                continue
            return
        pytest.fail("still refused with the new certificates")

    try:
        await run(
            EtcdStore([server.endpoint], mounted, clock=CLOCK, request_timeout_s=1.0), scenario
        )
    finally:
        server.kill()

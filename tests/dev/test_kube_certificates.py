"""Certificates: names, uses, authorities, and when they are made again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dev.kube import certificates
from dev.kube.addresses import API_SERVICE_IP, BRIDGE_IP
from dev.kube.certificates import ISSUED


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    certificates.ensure(directory)
    return directory


def _text(path: Path, *parts: str) -> str:
    argv = ["openssl", "x509", "-in", str(path), "-noout", *parts]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_the_api_server_answers_to_every_name_pods_and_hosts_use(pki: Path) -> None:
    names = _text(pki / "apiserver.crt", "-ext", "subjectAltName")
    for name in (
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ):
        assert f"DNS:{name}" in names
    for address in ("127.0.0.1", API_SERVICE_IP, BRIDGE_IP):
        assert f"IP Address:{address}" in names


def test_the_kubelet_serves_its_bridge_address_and_is_a_node(pki: Path) -> None:
    """Logs and exec connect by address; the node authorizer reads the subject."""
    assert f"IP Address:{BRIDGE_IP}" in _text(pki / "kubelet.crt", "-ext", "subjectAltName")
    subject = _text(pki / "kubelet.crt", "-subject")
    assert "O = system:nodes" in subject
    assert "CN = system:node:magnetar" in subject


def test_no_issued_certificate_is_an_authority(pki: Path) -> None:
    for issued in ISSUED:
        assert "CA:FALSE" in _text(pki / f"{issued.name}.crt", "-ext", "basicConstraints")


def test_each_certificate_verifies_against_its_own_authority_only(pki: Path) -> None:
    """No cluster credential opens etcd, and the other way round."""
    for issued in ISSUED:
        for authority in (certificates.CLUSTER, certificates.ETCD):
            argv = [
                "openssl",
                "verify",
                "-CAfile",
                str(pki / f"{authority}.crt"),
                str(pki / f"{issued.name}.crt"),
            ]
            accepted = subprocess.run(argv, capture_output=True).returncode == 0
            assert accepted == (authority == issued.authority), issued.name


def test_keys_are_private(pki: Path) -> None:
    keys = list(pki.glob("*.key"))
    assert len(keys) == len(ISSUED) + 3
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}


def test_a_second_call_changes_nothing(pki: Path) -> None:
    before = {path.name: path.read_bytes() for path in pki.iterdir()}
    certificates.ensure(pki)
    assert {path.name: path.read_bytes() for path in pki.iterdir()} == before


@pytest.fixture
def copied(pki: Path, tmp_path: Path) -> Path:
    """The same certificates, to be damaged."""
    return shutil.copytree(pki, tmp_path / "certificates")


def test_a_changed_description_is_issued_again(copied: Path) -> None:
    before, kept = (copied / "admin.crt").read_bytes(), (copied / "proxy.crt").read_bytes()
    (copied / "admin.digest").write_text("an older description")
    certificates.ensure(copied)
    assert (copied / "admin.crt").read_bytes() != before
    assert (copied / "proxy.crt").read_bytes() == kept


def test_a_lost_authority_replaces_what_it_signed(copied: Path) -> None:
    before = {name: (copied / f"{name}.crt").read_bytes() for name in ("admin", "etcd")}
    (copied / "etcd-ca.crt").unlink()
    certificates.ensure(copied)
    assert (copied / "etcd.crt").read_bytes() != before["etcd"]
    assert (copied / "admin.crt").read_bytes() == before["admin"]

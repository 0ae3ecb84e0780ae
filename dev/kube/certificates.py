"""Certificates of the local node, made with openssl.

Owns: the cluster's and etcd's certificate authorities and what they signed. May import: report.
Invariants: etcd has an authority of its own, so no cluster credential opens it; a certificate that
exists, still matches its description and is not about to expire is kept; keys are readable by their
owner only.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dev.kube.addresses import API_SERVICE_IP, BRIDGE_IP, NODE_NAME
from dev.kube.report import run_quietly

VALID_DAYS = 365
RENEW_SECONDS = 30 * 24 * 3600
CLUSTER = "ca"
ETCD = "etcd-ca"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# openssl's own default configuration would mark every certificate as an authority.
_EMPTY_CONFIGURATION = "[req]\ndistinguished_name=dn\n[dn]\n"


@dataclass(frozen=True)
class Certificate:
    """One key pair: whom it names, who signs it, and what it may be used for."""

    name: str
    common_name: str
    organization: str = ""
    authority: str = CLUSTER
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    serves: bool = False
    is_client: bool = True

    @property
    def subject(self) -> str:
        return (f"/O={self.organization}" if self.organization else "") + f"/CN={self.common_name}"

    @property
    def alternative_names(self) -> str:
        return ",".join(
            [*(f"DNS:{name}" for name in self.dns_names), *(f"IP:{ip}" for ip in self.addresses)]
        )

    def extensions(self) -> list[str]:
        usages = [
            *(["serverAuth"] if self.serves else []),
            *(["clientAuth"] if self.is_client else []),
        ]
        found = ["basicConstraints=critical,CA:FALSE", f"extendedKeyUsage={','.join(usages)}"]
        return (
            [*found, f"subjectAltName={self.alternative_names}"]
            if self.alternative_names
            else found
        )

    @property
    def digest(self) -> str:
        return sha256(repr(self).encode()).hexdigest()


_API_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)

ISSUED = (
    Certificate(
        "apiserver", "kube-apiserver", dns_names=(*_API_NAMES, "localhost"),
        addresses=("127.0.0.1", API_SERVICE_IP, BRIDGE_IP), serves=True, is_client=False,
    ),
    Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
    Certificate(
        "kubelet", f"system:node:{NODE_NAME}", "system:nodes",
        dns_names=(NODE_NAME,), addresses=(BRIDGE_IP,), serves=True,
    ),
    Certificate("controller-manager", "system:kube-controller-manager", addresses=("127.0.0.1",), serves=True),
    Certificate("scheduler", "system:kube-scheduler", addresses=("127.0.0.1",), serves=True),
    Certificate("proxy", "system:kube-proxy"),
    Certificate("coredns", "system:coredns"),
    Certificate("admin", "magnetar-local-admin", "system:masters"),
    Certificate("etcd", "etcd", authority=ETCD, dns_names=("localhost",), addresses=("127.0.0.1",), serves=True),
    Certificate("apiserver-etcd-client", "kube-apiserver", authority=ETCD),
)  # fmt: skip


def ensure(directory: Path) -> None:
    """Make what is missing, changed or about to expire."""
    configuration = directory / "openssl.cnf"
    configuration.write_text(_EMPTY_CONFIGURATION)
    for authority in (CLUSTER, ETCD):
        if not _valid(directory / f"{authority}.crt"):
            _make_authority(directory, authority, configuration)
    for certificate in ISSUED:
        if not _up_to_date(directory, certificate):
            _issue(directory, certificate, configuration)
    signing_key = directory / "service-accounts.key"
    if not signing_key.exists():
        curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
        run_quietly(["openssl", "genpkey", *curve, "-out", signing_key])
        run_quietly(
            [
                "openssl",
                "pkey",
                "-in",
                signing_key,
                "-pubout",
                "-out",
                signing_key.with_suffix(".pub"),
            ]
        )
        signing_key.chmod(0o600)


def _make_authority(directory: Path, name: str, configuration: Path) -> None:
    key = directory / f"{name}.key"
    usage = [
        "-addext",
        "basicConstraints=critical,CA:TRUE",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",
    ]
    base: list[str | Path] = ["openssl", "req", "-x509", "-config", configuration, *_CURVE]
    request = [*base, "-days", str(VALID_DAYS), *usage]
    run_quietly(
        [
            *request,
            "-subj",
            f"/CN=magnetar-local-{name}",
            "-keyout",
            key,
            "-out",
            directory / f"{name}.crt",
        ]
    )
    key.chmod(0o600)
    for issued in ISSUED:
        if issued.authority == name:  # signed by the authority just replaced
            (directory / f"{issued.name}.digest").unlink(missing_ok=True)


def _issue(directory: Path, certificate: Certificate, configuration: Path) -> None:
    key, signed = directory / f"{certificate.name}.key", directory / f"{certificate.name}.crt"
    authority = directory / f"{certificate.authority}.crt"
    signer: list[str | Path] = [
        "-CA",
        authority,
        "-CAkey",
        authority.with_suffix(".key"),
        "-days",
        str(VALID_DAYS),
    ]
    extensions = [part for extension in certificate.extensions() for part in ("-addext", extension)]
    base: list[str | Path] = ["openssl", "req", "-x509", "-config", configuration, *_CURVE]
    request = [*base, *signer, *extensions]
    run_quietly([*request, "-subj", certificate.subject, "-keyout", key, "-out", signed])
    key.chmod(0o600)
    (directory / f"{certificate.name}.digest").write_text(certificate.digest)


def _up_to_date(directory: Path, certificate: Certificate) -> bool:
    digest = directory / f"{certificate.name}.digest"
    if not digest.exists() or digest.read_text() != certificate.digest:
        return False
    return _valid(directory / f"{certificate.name}.crt")


def _valid(path: Path) -> bool:
    if not path.exists():
        return False
    check = ["openssl", "x509", "-in", str(path), "-noout", "-checkend", str(RENEW_SECONDS)]
    return subprocess.run(check, capture_output=True).returncode == 0

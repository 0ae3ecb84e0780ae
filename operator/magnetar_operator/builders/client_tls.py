"""TLS between clients and the processes of a cluster.

Owns: ports, the mounted certificate, the process' settings about it, and the judgement on a secret
that the user made. Imports: builders.object, names, resources, cryptography. Pure. Invariants: a
template names the secret and nothing that it holds, so that a renewed certificate restarts no pod;
with TLS every process is known by the name that its service gives it, because a certificate cannot
name pods' addresses; nothing that is said of a pair holds key material.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509

from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import READABLE_BY_GROUP, content
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.etcd.certificates import chain_problem

PATH = "/etc/magnetar/tls"
AUTHORITY_PATH = f"{PATH}/{AUTHORITY_FILE}"
VOLUME = "tls"
PLAIN_PORTS = (("pulsar", names.BROKER_PORT), ("http", names.HTTP_PORT))
TLS_PORTS = (("pulsar-ssl", names.BROKER_TLS_PORT), ("https", names.HTTPS_PORT))
TYPES = ("kubernetes.io/tls", "Opaque")
WARN_BEFORE = timedelta(days=14)
WARN_SHARE = 0.25
"""Of a certificate with a shorter lifetime, this share of it: cert-manager renews when a third
is left."""


# --- pods -----------------------------------------------------------------------------------------


def ports_of(cluster: BrokerCluster) -> tuple[tuple[str, int], ...]:
    """Name and number of the ports that the cluster's processes open."""
    tls = cluster.spec.tls
    if tls is None:
        return PLAIN_PORTS
    return TLS_PORTS if tls.plain == "Closed" else (*PLAIN_PORTS, *TLS_PORTS)


def probe_target(cluster: BrokerCluster) -> tuple[str, str]:
    """Port and scheme of the probes."""
    return (
        ("https", "HTTPS")
        if ("http", names.HTTP_PORT) not in ports_of(cluster)
        else ("http", "HTTP")
    )


def tls_labels(cluster: BrokerCluster) -> dict[str, str]:
    """Who scrapes metrics must know which port there is."""
    return {names.PLAIN: "closed"} if ("http", names.HTTP_PORT) not in ports_of(cluster) else {}


def tls_arguments(cluster: BrokerCluster) -> list[str]:
    tls = cluster.spec.tls
    if tls is None:
        return []
    ports = ["--tls-port", str(names.BROKER_TLS_PORT), "--https-port", str(names.HTTPS_PORT)]
    return ["--tls", PATH, *ports, "--plain", tls.plain.lower()]


def advertised_host(cluster: BrokerCluster, service: str) -> str:
    """Where other processes and clients find a pod of `service`."""
    return (
        "$(POD_IP)"
        if cluster.spec.tls is None
        else f"$(POD_NAME).{service}.{cluster.namespace}.svc"
    )


def tls_volumes(cluster: BrokerCluster) -> list[Manifest]:
    """The whole secret: ca.crt may come or go, and its files must change at once."""
    tls = cluster.spec.tls
    if tls is None:
        return []
    return [
        {
            "name": VOLUME,
            "secret": {"secretName": tls.secret_name, "defaultMode": READABLE_BY_GROUP},
        }
    ]


def tls_mounts(cluster: BrokerCluster) -> list[Manifest]:
    return (
        [{"name": VOLUME, "mountPath": PATH, "readOnly": True}]
        if cluster.spec.tls is not None
        else []
    )


# --- certificates ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is to be known of a certificate: when it begins and ends, and which host names it is
    for."""

    begins: datetime
    ends: datetime
    names: tuple[str, ...]

    def soon(self) -> datetime:
        """From when on it ends soon."""
        return self.ends - min(WARN_BEFORE, (self.ends - self.begins) * WARN_SHARE)

    def is_for(self, host: str) -> bool:
        """Whether a client that wants `host` takes it (RFC 6125: a star stands for the first
        label)."""
        wanted = host.lower()
        return any(name in (wanted, f"*.{wanted.partition('.')[2]}") for name in self.names)


def secret_problem(cluster: BrokerCluster, secret: Manifest | None) -> Problem | None:
    """Why the secret cannot be used at all: pods that are made now would not start, or would
    keep out whom they should know."""
    assert cluster.spec.tls is not None
    name = cluster.spec.tls.secret_name
    if secret is None:
        return Problem(
            Reason.TLS_SECRET_MISSING,
            f"secret {name} does not exist. {Reason.TLS_SECRET_MISSING.remedy}",
        )
    if secret.get("type", "Opaque") not in TYPES:
        return Problem(
            Reason.TLS_SECRET_UNUSABLE,
            f"secret {name} has the type {secret['type']}; make it with type {TYPES[0]}",
        )
    missing = [file for file in (CERTIFICATE_FILE, KEY_FILE) if not content(secret, file)]
    if missing:
        return Problem(
            Reason.TLS_SECRET_UNUSABLE,
            f"secret {name} has no {' and no '.join(missing)}; add what is missing, as PEM",
        )
    wrong = chain_problem(content(secret, CERTIFICATE_FILE), content(secret, KEY_FILE))
    if wrong:
        return Problem(
            Reason.TLS_SECRET_UNUSABLE,
            f"secret {name}: {wrong}. {Reason.TLS_SECRET_UNUSABLE.remedy}",
        )
    authority = authority_of(secret)
    if content(secret, AUTHORITY_FILE).strip() and not authority:
        return Problem(
            Reason.TLS_SECRET_UNUSABLE,
            f"secret {name}: ca.crt is not a PEM certificate; correct it, or take it out",
        )
    if cluster.spec.auth is not None and cluster.spec.auth.client_certificates and not authority:
        return Problem(
            Reason.CLIENT_AUTHORITY_MISSING,
            f"secret {name} has no ca.crt. {Reason.CLIENT_AUTHORITY_MISSING.remedy}",
        )
    return None


def authority_of(secret: Manifest) -> bool:
    """Whether the secret has an authority."""
    try:
        return bool(x509.load_pem_x509_certificates(content(secret, AUTHORITY_FILE)))
    except ValueError:
        return False


def certificate_of(secret: Manifest) -> Certificate:
    """Of a secret in which `secret_problem` found nothing."""
    leaf = x509.load_pem_x509_certificates(content(secret, CERTIFICATE_FILE))[0]
    try:
        found = leaf.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        found = []
    return Certificate(
        leaf.not_valid_before_utc, leaf.not_valid_after_utc, tuple(name.lower() for name in found)
    )


def judged(certificate: Certificate, hosts: Sequence[str], wall_ms: int) -> tuple[Reason, str]:
    """How the certificate does at this time. The text stays the same while the answer does."""
    now, end = datetime.fromtimestamp(wall_ms / 1000, UTC), f"{certificate.ends:%Y-%m-%d %H:%M} UTC"
    if now >= certificate.ends:
        return Reason.CERTIFICATE_EXPIRED, f"it ended {end}. {Reason.CERTIFICATE_EXPIRED.remedy}"
    if now < certificate.begins:
        return (
            Reason.CERTIFICATE_EXPIRED,
            f"it is valid from {certificate.begins:%Y-%m-%d %H:%M} UTC only. Look at the clocks.",
        )
    if now >= certificate.soon():
        return Reason.CERTIFICATE_EXPIRES, f"it ends {end}. {Reason.CERTIFICATE_EXPIRES.remedy}"
    missing = [host for host in hosts if not certificate.is_for(host)]
    if missing:
        return (
            Reason.CERTIFICATE_NAMES,
            f"it is not for {', '.join(missing)}. {Reason.CERTIFICATE_NAMES.remedy}",
        )
    return Reason.AS_DESIRED, f"it ends {end}"


def broker_hosts(cluster: BrokerCluster) -> tuple[str, ...]:
    """Names under which clients inside the Kubernetes cluster reach brokers: the service's, and
    a broker's own."""
    pod = f"{names.broker_pod(cluster.name, 0)}.{names.brokers_service(cluster.name)}"
    return f"{cluster.name}.{cluster.namespace}.svc", f"{pod}.{cluster.namespace}.svc"


def coordinator_hosts(coordinators: str, namespace: str) -> tuple[str, ...]:
    """The name under which clients reach a transaction coordinator."""
    return (
        f"{names.coordinator_pod(coordinators, 0)}.{names.coordinators_service(coordinators)}.{namespace}.svc",
    )

"""The managed etcd's StatefulSet.

Owns: it and its pods' template. Imports: builders siblings, names. Pure. Invariants:
its volume comes from a claim template and is kept when the set goes; what goes into it is immutable
in the cluster's spec, because a StatefulSet cannot change it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.etcd import ManagedEtcd
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import MEMBER, MEMBERS_MAX, secret_volume
from magnetar_operator.builders.object import (
    Defaults,
    Manifest,
    cluster_object,
    container_security,
    field_variable,
    image_of,
    pod_security,
    pull_secrets,
)
from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.membership import Admission

DATA_PATH = "/var/lib/etcd"
TLS_VOLUME, TLS_PATH = "tls", "/etc/etcd/tls"
GRACE_S = 30
START = "start"
"""Container that decides whether the pod may start on what its volume holds."""


@dataclass(frozen=True, slots=True)
class EtcdShape:
    """What the plan of members says about the set. Empty images are those of the spec, or of the
    operator; `spare`: a node's drain may take one."""

    replicas: int = 1
    admission: Admission = field(default_factory=Admission)
    image: str = ""
    start_image: str = ""
    spare: bool = True


def peer_urls(cluster: BrokerCluster) -> dict[int, str]:
    """Where members reach each other, by ordinal."""
    hosts = (
        (ordinal, names.etcd_member_host(cluster.name, cluster.namespace, ordinal))
        for ordinal in range(MEMBERS_MAX)
    )
    return {ordinal: f"https://{host}:{names.ETCD_PEER_PORT}" for ordinal, host in hosts}


def etcd_set(
    cluster: BrokerCluster, managed: ManagedEtcd, defaults: Defaults, shape: EtcdShape
) -> Manifest:
    """The set with as many members as `shape` says, which may be more or fewer than wanted while
    members come and go."""
    name = names.etcd_set(cluster.name)
    stateful_set = cluster_object("apps/v1", "StatefulSet", cluster, name, names.ETCD)
    return stateful_set | {
        "spec": {
            "replicas": shape.replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            # The operator restarts members, because it knows which one can be spared.
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "selector": {"matchLabels": names.selector(cluster.name, names.ETCD)},
            "template": _template(cluster, managed, defaults, shape),
            "volumeClaimTemplates": [_claim(managed)],
        }
    }


def _claim(managed: ManagedEtcd) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": managed.storage.size}},
    }
    if managed.storage.storage_class_name:
        spec["storageClassName"] = managed.storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": spec,
    }


def _template(
    cluster: BrokerCluster, managed: ManagedEtcd, defaults: Defaults, shape: EtcdShape
) -> Manifest:
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **pull_secrets(cluster),
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(),
        "affinity": {
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": _apart(cluster)}
        },
        "initContainers": [_start_container(cluster, defaults, shape)],
        "containers": [_container(cluster, managed, defaults, shape)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            secret_volume(TLS_VOLUME, names.etcd_secret(cluster.name, names.ETCD_MEMBERS)),
        ],
    }
    metadata: Manifest = {"labels": names.labels(cluster.name, names.ETCD)}
    if cluster.status.etcd_authority.trust:
        metadata["annotations"] = {names.ETCD_TRUST: cluster.status.etcd_authority.trust}
    return {"metadata": metadata, "spec": pod}


def _apart(cluster: BrokerCluster) -> list[Manifest]:
    """On nodes of their own, in zones of their own, where there are as many."""
    chosen = {"labelSelector": {"matchLabels": names.selector(cluster.name, names.ETCD)}}
    topologies = (100, "kubernetes.io/hostname"), (50, "topology.kubernetes.io/zone")
    return [
        {"weight": weight, "podAffinityTerm": {**chosen, "topologyKey": key}}
        for weight, key in topologies
    ]


def _start_container(cluster: BrokerCluster, defaults: Defaults, shape: EtcdShape) -> Manifest:
    """A member that has forgotten what it voted for must not come back under its old id
    (`etcd.start`)."""
    image, pull_policy = image_of(cluster, defaults)
    return {
        "name": START,
        "image": shape.start_image or image,
        "imagePullPolicy": pull_policy,
        "args": ["python3", "-m", etcd_start.__name__, DATA_PATH],
        "env": [field_variable("POD_NAME", "metadata.name")],
        "envFrom": [{"configMapRef": {"name": names.etcd_set(cluster.name)}}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _container(
    cluster: BrokerCluster, managed: ManagedEtcd, defaults: Defaults, shape: EtcdShape
) -> Manifest:
    service = names.etcd_set(cluster.name)
    peer = f"https://$(POD_NAME).{service}.{cluster.namespace}.svc:{names.ETCD_PEER_PORT}"
    port = names.ETCD_CLIENT_PORT
    client = f"https://$(POD_NAME).{service}.{cluster.namespace}.svc:{port}"
    return {
        "name": "etcd",
        "image": shape.image or managed.image or defaults.etcd_image,
        "imagePullPolicy": image_of(cluster, defaults)[1],
        "command": [
            "/usr/local/bin/etcd",
            "--name=$(POD_NAME)",
            f"--data-dir={DATA_PATH}/{etcd_start.DATA}",
            f"--listen-client-urls=https://$(POD_IP):{port},https://127.0.0.1:{port}",
            f"--listen-peer-urls=https://$(POD_IP):{names.ETCD_PEER_PORT}",
            # Plain, and outside authentication: probes and metrics, which reveal nothing of the
            # content.
            f"--listen-metrics-urls=http://$(POD_IP):{names.ETCD_HEALTH_PORT}",
            f"--advertise-client-urls={client}",
            f"--initial-advertise-peer-urls={peer}",
            *_tls_flags(),
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1h",
            f"--quota-backend-bytes={managed.quota_mib << 20}",
        ],
        # With whom it begins or joins a cluster; a member with data ignores it.
        "envFrom": [{"configMapRef": {"name": names.etcd_set(cluster.name)}}],
        "env": [
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_IP", "status.podIP"),
            # A member is known by its authority and name; its address comes from DNS, which lags
            # behind a pod that was made again. As a variable, because etcd 3.5 and 3.6 know it by
            # this name, and one that knows it no more only warns.
            {"name": "ETCD_EXPERIMENTAL_PEER_SKIP_CLIENT_SAN_VERIFICATION", "value": "true"},
        ],
        "ports": [
            {"name": "client", "containerPort": names.ETCD_CLIENT_PORT, "protocol": "TCP"},
            {"name": "peer", "containerPort": names.ETCD_PEER_PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": names.ETCD_HEALTH_PORT, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": container_security(),
        "startupProbe": _probe("/readyz", period=1, failures=120),
        "readinessProbe": _probe("/readyz", period=3, failures=2),
        "livenessProbe": _probe("/livez", period=10, failures=6),
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": TLS_VOLUME, "mountPath": TLS_PATH, "readOnly": True},
        ],
    }


def _tls_flags() -> list[str]:
    """A client shows a certificate of the cluster's own authority, and a member that of a
    member. etcd reads renewed files by itself."""
    authority, certificate, key = (
        f"{TLS_PATH}/{file}" for file in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)
    )
    return [
        "--client-cert-auth=true", f"--trusted-ca-file={authority}", f"--cert-file={certificate}", f"--key-file={key}",
        "--peer-client-cert-auth=true", f"--peer-trusted-ca-file={authority}", f"--peer-cert-file={certificate}",
        f"--peer-key-file={key}", f"--peer-cert-allowed-cn={MEMBER}",
        "--tls-min-version=TLS1.3",
        # The gateway would speak for others with the member's own certificate.
        "--enable-grpc-gateway=false",
    ]  # fmt: skip


def _probe(path: str, period: int, failures: int) -> Manifest:
    get = {"path": path, "port": "health", "scheme": "HTTP"}
    return {
        "httpGet": get,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }

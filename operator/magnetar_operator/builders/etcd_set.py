"""The managed etcd's StatefulSet.

Owns: it and its pods' template. Imports: builders siblings, etcd_security, names. Pure.
Invariants: its volume comes from a claim template and is kept when the set goes; what goes into it is
immutable in the cluster's spec, because a StatefulSet cannot change it.
"""

from __future__ import annotations

from magnetar.metadata.etcd_tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import MEMBER, secret_volume
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
from magnetar_operator.etcd_security import Security
from magnetar_operator.models.broker_cluster import BrokerCluster, ManagedEtcd

DATA_PATH = "/var/lib/etcd"
TLS_VOLUME, TLS_PATH = "tls", "/etc/etcd/tls"
GRACE_S = 30
QUOTA_BYTES = 2 * 1024**3


def etcd_set(cluster: BrokerCluster, managed: ManagedEtcd, defaults: Defaults) -> Manifest:
    name = names.etcd_set(cluster.name)
    stateful_set = cluster_object("apps/v1", "StatefulSet", cluster, name, names.ETCD)
    return stateful_set | {
        "spec": {
            "replicas": managed.replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": names.selector(cluster.name, names.ETCD)},
            "template": _template(cluster, managed, defaults),
            "volumeClaimTemplates": [_claim(managed)],
        }
    }


def _claim(managed: ManagedEtcd) -> Manifest:
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": managed.storage.size}}}
    if managed.storage.storage_class_name:
        spec["storageClassName"] = managed.storage.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}


def _template(cluster: BrokerCluster, managed: ManagedEtcd, defaults: Defaults) -> Manifest:
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **pull_secrets(cluster),
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(),
        "containers": [_container(cluster, managed, defaults)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            secret_volume(TLS_VOLUME, names.etcd_secret(cluster.name, names.ETCD_MEMBERS)),
        ],
    }
    return {"metadata": {"labels": names.labels(cluster.name, names.ETCD)}, "spec": pod}


def _container(cluster: BrokerCluster, managed: ManagedEtcd, defaults: Defaults) -> Manifest:
    service = names.etcd_set(cluster.name)
    peer = f"https://$(POD_NAME).{service}.{cluster.namespace}.svc:{names.ETCD_PEER_PORT}"
    client = f"https://$(POD_NAME).{service}.{cluster.namespace}.svc:{names.ETCD_CLIENT_PORT}"
    return {
        "name": "etcd",
        "image": managed.image or defaults.etcd_image,
        "imagePullPolicy": image_of(cluster, defaults)[1],
        "command": [
            "/usr/local/bin/etcd",
            "--name=$(POD_NAME)",
            f"--data-dir={DATA_PATH}/data",
            f"--listen-client-urls={','.join(_client_urls(cluster))}",
            f"--listen-peer-urls=https://$(POD_IP):{names.ETCD_PEER_PORT}",
            # Plain, and outside authentication: probes and metrics, which tell nothing of the content.
            f"--listen-metrics-urls=http://$(POD_IP):{names.ETCD_HEALTH_PORT}",
            f"--advertise-client-urls={client}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=$(POD_NAME)={peer}",
            f"--initial-cluster-token={cluster.namespace}-{cluster.name}",
            *_tls_flags(),
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1h",
            f"--quota-backend-bytes={QUOTA_BYTES}",
        ],
        "env": [
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_IP", "status.podIP"),
            # A member is known by its authority and name; its address comes from DNS, which lags behind a pod that was made again. As a
            # variable, because etcd 3.5 and 3.6 know it by this name, and one that knows it no more only warns.
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


def _client_urls(cluster: BrokerCluster) -> list[str]:
    """One that was made without TLS listens for both on one port until all its clients have changed over (`etcd_security`)."""
    pod = f"$(POD_IP):{names.ETCD_CLIENT_PORT}"
    both = cluster.status.etcd_security in (Security.PLAIN, Security.MIXED)
    return [f"https://{pod}", *([f"http://{pod}"] if both else []), f"https://127.0.0.1:{names.ETCD_CLIENT_PORT}"]


def _tls_flags() -> list[str]:
    """Whoever comes shows a certificate of the cluster's own authority, and a member that of a member. etcd reads renewed files by itself."""
    authority, certificate, key = (f"{TLS_PATH}/{file}" for file in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE))
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
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}

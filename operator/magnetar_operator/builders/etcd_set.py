"""The managed etcd's StatefulSet.

Owns: it and its pods' template. Imports: builders.object, names. Pure.
Invariants: its volume comes from a claim template and is kept when the set goes; what goes into it is
immutable in the cluster's spec, because a StatefulSet cannot change it.
"""

from __future__ import annotations

from magnetar_operator import names
from magnetar_operator.builders.object import (
    Defaults,
    Manifest,
    cluster_object,
    container_security,
    field_variable,
    image_of,
    pod_security,
)
from magnetar_operator.models.broker_cluster import BrokerCluster, ManagedEtcd

DATA_PATH = "/var/lib/etcd"
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
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(),
        "containers": [_container(cluster, managed, defaults)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"metadata": {"labels": names.labels(cluster.name, names.ETCD)}, "spec": pod}


def _container(cluster: BrokerCluster, managed: ManagedEtcd, defaults: Defaults) -> Manifest:
    service = names.etcd_set(cluster.name)
    peer = f"http://$(POD_NAME).{service}.{cluster.namespace}.svc:{names.ETCD_PEER_PORT}"
    client = f"http://$(POD_NAME).{service}.{cluster.namespace}.svc:{names.ETCD_CLIENT_PORT}"
    return {
        "name": "etcd",
        "image": managed.image or defaults.etcd_image,
        "imagePullPolicy": image_of(cluster, defaults)[1],
        "command": [
            "/usr/local/bin/etcd",
            "--name=$(POD_NAME)",
            f"--data-dir={DATA_PATH}/data",
            # Inside the pod it listens to the pod's own address only; the network policy says who may connect.
            f"--listen-client-urls=http://$(POD_IP):{names.ETCD_CLIENT_PORT},http://127.0.0.1:{names.ETCD_CLIENT_PORT}",
            f"--listen-peer-urls=http://$(POD_IP):{names.ETCD_PEER_PORT}",
            f"--listen-metrics-urls=http://$(POD_IP):{names.ETCD_HEALTH_PORT}",
            f"--advertise-client-urls={client}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=$(POD_NAME)={peer}",
            f"--initial-cluster-token={cluster.namespace}-{cluster.name}",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1h",
            f"--quota-backend-bytes={QUOTA_BYTES}",
        ],
        "env": [field_variable("POD_NAME", "metadata.name"), field_variable("POD_IP", "status.podIP")],
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
        "volumeMounts": [{"name": "data", "mountPath": DATA_PATH}, {"name": "tmp", "mountPath": "/tmp"}],
    }


def _probe(path: str, period: int, failures: int) -> Manifest:
    get = {"path": path, "port": "health", "scheme": "HTTP"}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}

"""The pod that fills a metadata store again.

Owns: it. Imports: builders siblings, names, resources. Pure. Invariants: its name is a function of
the cluster and the request, so that it is made once; it shows the operator's certificate, because a
copy holds what only the operator may write; it is never restarted in place, and the store, not its
phase, says whether it has done its work.
"""

from __future__ import annotations

import hashlib

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.etcd import MetadataRestore
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import client_arguments, client_mounts, client_volumes
from magnetar_operator.builders.message_storage import (
    location,
    storage_environment,
    storage_mounts,
    storage_volumes,
)
from magnetar_operator.builders.object import (
    Defaults,
    Manifest,
    container_security,
    image_of,
    owner_of,
    pod_security,
    pull_secrets,
    store_url,
)

FROM_STORAGE = "Storage"


def restore_pod_name(cluster: BrokerCluster, request: str) -> str:
    digest = hashlib.sha256(f"{cluster.metadata.uid}/{request}".encode()).hexdigest()[:8]
    return f"{cluster.name}-restore-{digest}"


def restore_pod(cluster: BrokerCluster, defaults: Defaults, asked: MetadataRestore) -> Manifest:
    image, pull_policy = image_of(cluster, defaults)
    container = {
        "name": names.RESTORE,
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": [
            "magnetar", "metadata", "rebuild",
            "--store", store_url(cluster), *client_arguments(cluster, names.OPERATOR_USER),
            "--volume", location(cluster),
            "--request", asked.request,
            *_source(asked.source),
            *(["--force"] if asked.force else []),
        ],
        "env": storage_environment(cluster),
        # Its last words are the pod's message, which status.restore repeats.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # Brokers serve at the same time: it has to find room beside them.
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": container_security(),
        "volumeMounts": [
            *storage_mounts(cluster), {"name": "tmp", "mountPath": "/tmp"}, *client_mounts(cluster, names.OPERATOR_USER),
        ],
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": restore_pod_name(cluster, asked.request),
            "namespace": cluster.namespace,
            "labels": names.labels(cluster.name, names.RESTORE),
            "ownerReferences": [owner_of(cluster)],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **pull_secrets(cluster),
            "securityContext": pod_security(),
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_beside_brokers(cluster)]}},
            "containers": [container],
            "volumes": [
                *storage_volumes(cluster), {"name": "tmp", "emptyDir": {}}, *client_volumes(cluster, names.OPERATOR_USER),
            ],
        },
    }  # fmt: skip


def _beside_brokers(cluster: BrokerCluster) -> Manifest:
    """A volume that one node can mount is on theirs."""
    chosen = {
        "labelSelector": {"matchLabels": names.selector(cluster.name, names.BROKER)},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"weight": 100, "podAffinityTerm": chosen}


def _source(source: str) -> list[str]:
    if source == FROM_STORAGE:
        return ["--without-copy"]
    return ["--copy", source] if source else []

"""Parts that several child objects share.

Owns: metadata with owner, pod and container security, the inputs of all builders. Imports:
resources, names. Pure. Invariants: every object is labelled for the operator's watches; objects
that hold data have no owner, so that deleting the cluster keeps them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from magnetar.resources.base import API_VERSION, CustomResource
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names

Manifest = dict[str, Any]
SPARK_SUFFIX = "-spark"
"""The repository of Spark's image is the brokers' with this behind it."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The operator's settings of images; specs with empty fields take it from here."""

    image: str
    image_pull_policy: str
    etcd_image: str
    spark_image: str


def owner_of(resource: CustomResource) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "name": resource.name,
        "uid": resource.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def cluster_object(
    api_version: str,
    kind: str,
    cluster: BrokerCluster,
    name: str,
    component: str,
    *,
    owned: bool = True,
) -> Manifest:
    """An object of a cluster without its content."""
    metadata: Manifest = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": names.labels(cluster.name, component),
    }
    if owned:
        metadata["ownerReferences"] = [owner_of(cluster)]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def digest(value: Any) -> str:
    """Short hash of a JSON value, independent of key order."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()[:16]


def image_of(cluster: BrokerCluster, defaults: Defaults) -> tuple[str, str]:
    """Image of the cluster's pods, and the pull policy of theirs and of the jobs'."""
    image = cluster.spec.image
    return (
        f"{image.repository}:{image.tag}" if image.repository else defaults.image,
        image.pull_policy or defaults.image_pull_policy,
    )


def spark_image_of(cluster: BrokerCluster, defaults: Defaults) -> str:
    """Image of the cluster's jobs: of the brokers' tag, which alone holds Spark."""
    image = cluster.spec.image
    return (
        f"{image.repository}{SPARK_SUFFIX}:{image.tag}"
        if image.repository
        else defaults.spark_image
    )


def pull_secrets(cluster: BrokerCluster) -> Manifest:
    """The part of a pod that says how images are pulled; empty without secrets."""
    names_of = cluster.spec.image.pull_secrets
    return {"imagePullSecrets": [{"name": name} for name in names_of]} if names_of else {}


def pod_security() -> Manifest:
    """The `restricted` pod security standard, as the user of the image."""
    return {
        "runAsNonRoot": True,
        "runAsUser": names.USER_ID,
        "runAsGroup": names.USER_ID,
        "fsGroup": names.USER_ID,
        # A change of group on a large volume would otherwise visit every file at each start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def field_variable(name: str, path: str) -> Manifest:
    """An environment variable from the pod's own fields."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def claim_name(cluster: BrokerCluster) -> str:
    """The claim that holds the cluster's messages; "" if they are not in one."""
    claim = cluster.spec.storage.volume_claim
    return (claim.existing_claim or names.storage_claim(cluster.name)) if claim is not None else ""


def etcd_endpoints(cluster: BrokerCluster) -> tuple[str, ...]:
    """host:port of the cluster's metadata store, as its clients are given it: a managed etcd's
    change when it is as wanted, because each change restarts every client."""
    external, managed = cluster.spec.etcd.external, cluster.spec.etcd.managed
    if external is not None:
        return external.endpoints
    return cluster.status.etcd.endpoints or member_endpoints(
        cluster, managed.replicas if managed is not None else 1
    )


def member_endpoints(cluster: BrokerCluster, members: int) -> tuple[str, ...]:
    """host:port of a managed etcd of so many members."""
    if members == 1:
        return (names.etcd_endpoint(cluster.name, cluster.namespace),)
    # Every member by its name: one that hangs is left for another immediately, not when its connection
    # is found dead.
    hosts = (
        names.etcd_member_host(cluster.name, cluster.namespace, ordinal)
        for ordinal in range(members)
    )
    return tuple(f"{host}:{names.ETCD_CLIENT_PORT}" for host in hosts)


def uses_etcd_tls(cluster: BrokerCluster) -> bool:
    """Whether clients of the cluster's etcd use TLS; a managed one knows nothing else."""
    external = cluster.spec.etcd.external
    return external is None or external.tls is not None


def store_url(cluster: BrokerCluster) -> str:
    """What `--store` gets."""
    return "etcd://" + ",".join(
        endpoint.removeprefix("http://") for endpoint in etcd_endpoints(cluster)
    )

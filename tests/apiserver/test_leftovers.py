"""What another version of the operator made and this one does not want."""

from __future__ import annotations

from typing import Any

import pytest

from dev.testbed.control_plane import ControlPlane, EtcdProcess
from magnetar_operator import names
from magnetar_operator.engine.planning import DELETABLE_KINDS
from magnetar_operator.kube.kinds import BY_KIND
from tests.apiserver.stage import Scene, brokers_of, running_operator, until

pytestmark = pytest.mark.slow

CONTENT: dict[str, dict[str, Any]] = {
    "ConfigMap": {},
    "ServiceAccount": {},
    "Service": {"spec": {"ports": [{"port": 1}], "clusterIP": "None"}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
}
KEPT: dict[str, dict[str, Any]] = {
    "PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    },
}


async def test_children_of_another_version_are_removed_and_claims_are_not(
    control_plane: ControlPlane,
    namespace: str,
    cluster_etcd: EtcdProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every kind that holds no data; what is not the cluster's own stays, and so does every
    claim."""
    assert set(CONTENT) <= set(DELETABLE_KINDS)
    monkeypatch.setenv("KUBECONFIG", str(control_plane.operator_kubeconfig))
    scene = Scene(control_plane, namespace)

    def make(kind: str, name: str, owner: dict[str, Any] | None) -> str:
        resource = BY_KIND[kind]
        metadata: dict[str, Any] = {"name": name, "labels": names.labels("main", names.BROKER)}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        content = {**CONTENT, **KEPT}[kind]
        manifest = {
            "apiVersion": resource.api_version,
            "kind": kind,
            "metadata": metadata,
            **content,
        }
        control_plane.must("POST", resource.path(namespace), manifest)
        return resource.path(namespace, name)

    cluster = scene.create(
        "BrokerCluster", "main", {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}}
    )
    owner = {
        "apiVersion": cluster["apiVersion"], "kind": "BrokerCluster", "name": "main", "uid": cluster["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    leftovers = [make(kind, "main-of-old", owner) for kind in CONTENT]
    strangers = [make(kind, "main-of-others", None) for kind in CONTENT]
    claim = make("PersistentVolumeClaim", "main-of-old", owner)

    async with brokers_of(cluster_etcd.endpoint), running_operator(namespace):
        await until("they are gone", lambda: all(scene.get(path) is None for path in leftovers))
        await until("Events tell of each", lambda: len(scene.events("Removed")) == len(leftovers))
    assert all(scene.get(path) is not None for path in strangers)
    assert scene.get(claim) is not None

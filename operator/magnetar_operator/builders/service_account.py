"""Service accounts.

Owns: the brokers' account, which has no rights, and the Spark drivers' account with its binding. Imports: builders.object, names. Pure.
Invariant: the drivers' rights are those of the ClusterRole `magnetar-spark`, which the chart makes; the operator can bind it and nothing else.
"""

from __future__ import annotations

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.models.pod_template import PodTemplate


def broker_account(cluster: BrokerCluster) -> Manifest:
    account = cluster_object("v1", "ServiceAccount", cluster, names.broker_set(cluster.name), names.BROKER)
    return without_rights(account, cluster.spec.pod_template)


def without_rights(account: Manifest, additions: PodTemplate) -> Manifest:
    """An account that says who a pod is to others than the API server."""
    if additions.service_account_annotations:
        account["metadata"]["annotations"] = dict(additions.service_account_annotations)
    return account | {"automountServiceAccountToken": False}


def spark_account(namespace: str) -> Manifest:
    """One per Kubernetes namespace, shared by its jobs; it has no owner because no single job owns it."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _spark_metadata(namespace)}


def spark_binding(namespace: str) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _spark_metadata(namespace),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names.SPARK_ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": names.SPARK_ACCOUNT, "namespace": namespace}],
    }


def _spark_metadata(namespace: str) -> Manifest:
    return {
        "name": names.SPARK_ACCOUNT,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/name": "magnetar", names.COMPONENT: names.DRIVER, names.MANAGED_BY: names.FIELD_MANAGER},
    }

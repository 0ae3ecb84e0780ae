"""Service accounts.

Owns: the brokers' account and that of Spark's drivers and executors. Imports: builders.object,
names. Pure. Invariant: no account has a right, and no pod a token of it: the operator alone talks
to the API server.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.pod_template import PodTemplate
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object


def broker_account(cluster: BrokerCluster) -> Manifest:
    account = cluster_object(
        "v1", "ServiceAccount", cluster, names.broker_set(cluster.name), names.BROKER
    )
    return without_rights(account, cluster.spec.pod_template)


def without_rights(account: Manifest, additions: PodTemplate) -> Manifest:
    """An account that says who a pod is to others than the API server."""
    if additions.service_account_annotations:
        account["metadata"]["annotations"] = dict(additions.service_account_annotations)
    return account | {"automountServiceAccountToken": False}


def spark_account(namespace: str) -> Manifest:
    """One per Kubernetes namespace, shared by its jobs; it has no owner because no single job
    owns it."""
    labels = {
        "app.kubernetes.io/name": "magnetar",
        names.COMPONENT: names.DRIVER,
        names.MANAGED_BY: names.FIELD_MANAGER,
    }
    metadata = {"name": names.SPARK_ACCOUNT, "namespace": namespace, "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }

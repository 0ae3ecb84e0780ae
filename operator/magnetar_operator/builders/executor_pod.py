"""An executor's pod, as far as quotas, limits and admission judge it.

Owns: it. Imports: builders.object, job_pods, names. Pure.
Invariant: Spark makes the real ones in the driver; what this one asks for is what they ask for (a test compares it with the jobs' settings).
"""

from __future__ import annotations

from magnetar_operator import names
from magnetar_operator.builders.object import Defaults, Manifest, claim_name, container_security, image_of, pod_security
from magnetar_operator.job_pods import EXECUTORS
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.models.data_job import DataJob

OVERHEAD_MINIMUM_MIB, OVERHEAD_SHARE = 384, 0.4
"""Python's memory, outside the heap."""


def executor_pod(job: DataJob, cluster: BrokerCluster, defaults: Defaults, driver: str) -> Manifest:
    """One of those that the driver of this name makes."""
    executors, (label, _, value) = job.spec.executors, EXECUTORS.partition("=")
    memory = executors.memory_mib + max(OVERHEAD_MINIMUM_MIB, int(executors.memory_mib * OVERHEAD_SHARE))
    container = {
        "name": "executor",
        "image": image_of(cluster, defaults)[0],
        "resources": {
            "requests": {"cpu": executors.cpu or str(executors.cores), "memory": f"{memory}Mi"},
            "limits": {"memory": f"{memory}Mi"},
        },
        "securityContext": container_security(),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{driver}-exec", "namespace": job.namespace, "labels": {label: value}},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": names.SPARK_ACCOUNT,
            "automountServiceAccountToken": False,
            "securityContext": pod_security(),
            "containers": [container],
            "volumes": [{"name": "storage", "persistentVolumeClaim": {"claimName": claim_name(cluster)}}],
        },
    }

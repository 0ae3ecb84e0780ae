"""The Spark driver's pod.

Owns: it, and the command line of `magnetar_jobs.compact`. Imports: builders.object, names. Pure.
Invariants: its name is a function of (resource, run, attempt); it is never restarted in place: another attempt is another pod; its durable record,
not its phase, says whether the run succeeded.
"""

from __future__ import annotations

from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import client_arguments, client_mounts, client_volumes
from magnetar_operator.builders.object import (
    Defaults,
    Manifest,
    claim_name,
    container_security,
    field_variable,
    image_of,
    owner_of,
    pod_security,
    pull_secrets,
    store_url,
)
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.models.data_job import DataJob

MASTER = "k8s://https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"
GRACE_S = 30


def driver_pod(job: DataJob, cluster: BrokerCluster, defaults: Defaults, run: str, attempt: int) -> Manifest:
    image, pull_policy = image_of(cluster, defaults)
    memory = f"{job.spec.driver.memory_mib}Mi"
    container = {
        "name": "driver",
        "image": image,
        "imagePullPolicy": pull_policy,
        # Some of Spark's files go to the working directory.
        "workingDir": "/tmp",
        # The job leaves its last words itself; the log's last lines are for what it could not foresee.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "args": _arguments(job, cluster, image, run),
        "env": [field_variable("POD_NAME", "metadata.name"), field_variable("POD_IP", "status.podIP")],
        "resources": {"requests": {"cpu": job.spec.driver.cpu, "memory": memory}, "limits": {"memory": memory}},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "storage", "mountPath": names.VOLUME_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
            *client_mounts(cluster, names.JOB_USER),
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.driver_pod(job.name, job.metadata.uid, run, attempt),
            "namespace": job.namespace,
            "labels": names.labels(cluster.name, names.DRIVER)
            | {names.JOB: job.name, names.RUN: run[: names.LABEL_LENGTH_MAX], names.ATTEMPT: str(attempt)},
            "ownerReferences": [owner_of(job)],
        },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": names.SPARK_ACCOUNT,
            "enableServiceLinks": False,
            **pull_secrets(cluster),
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": pod_security(),
            "containers": [container],
            "volumes": [
                {"name": "storage", "persistentVolumeClaim": {"claimName": claim_name(cluster)}},
                {"name": "tmp", "emptyDir": {}},
                *client_volumes(cluster, names.JOB_USER),
            ],
        },
    }


def _arguments(job: DataJob, cluster: BrokerCluster, image: str, run: str) -> list[str]:
    compaction, executors = job.spec.compaction, job.spec.executors
    assert compaction is not None, "the model's rules admit no compaction job without a topic"
    arguments = [
        "python3", "-m", "magnetar_jobs.compact",
        "--topic", compaction.topic,
        "--store", store_url(cluster), *client_arguments(cluster, names.JOB_USER),
        "--volume", names.VOLUME_PATH,
        "--job", f"{job.namespace}/{job.name}",
        "--run", run,
        "--master", MASTER,
        "--executors", str(executors.instances),
        "--executor-memory-mib", str(executors.memory_mib),
        "--executor-cores", str(executors.cores),
        "--executor-cpu", executors.cpu or str(executors.cores),
        "--image", image,
        "--namespace", job.namespace,
        "--service-account", names.SPARK_ACCOUNT,
        "--claim", claim_name(cluster),
    ]  # fmt: skip
    return [*arguments, "--retain-keyless"] if compaction.retain_keyless else arguments

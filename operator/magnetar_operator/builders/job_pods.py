"""The pods of a DataJob: Spark's driver, and its executors.

Owns: them, what they share, and their command lines. Imports: resources, builders siblings, names. Pure. Invariants: a driver's name is a
function of (resource, run, attempt), an executor's of its driver and a number; a driver is never
restarted in place: another attempt is another pod; its durable record, not its phase, says whether
the run succeeded; an executor goes with its driver's pod; neither has a token of the API server,
and only the driver has a certificate for etcd.
"""

from __future__ import annotations

import base64

from magnetar.job_drivers import DRIVERS, SCRIPT
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.data_job import DataJob
from magnetar.resources.pod_template import JobPodTemplate
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import client_arguments, client_mounts, client_volumes
from magnetar_operator.builders.magnetar_pod import placement
from magnetar_operator.builders.message_storage import (
    has_pod_identity,
    location,
    storage_environment,
    storage_mounts,
    storage_volumes,
)
from magnetar_operator.builders.object import (
    Defaults,
    Manifest,
    container_security,
    field_variable,
    image_of,
    owner_of,
    pod_security,
    pull_secrets,
    spark_image_of,
    store_url,
)

GRACE_S = 30
SCRIPT_PATH = "/script"
SECRET_KEY, SECRET_VARIABLE = "key", "MAGNETAR_SPARK_SECRET"
SECRET_BYTES = 32
OVERHEAD_MIN_MIB, OVERHEAD_SHARE = 384, 0.4
"""Of an executor's pod, beside the heap: Spark's own memory and Python's, as Spark asks it for
Python applications."""


def driver_pod(
    job: DataJob,
    cluster: BrokerCluster,
    defaults: Defaults,
    run: str,
    attempt: int,
    deadline_s: int | None = None,
) -> Manifest:
    """The driver of one attempt, which the kubelet ends after `deadline_s` seconds."""
    memory = f"{job.spec.driver.memory_mib}Mi"
    container = {
        "name": names.DRIVER,
        "args": _driver_arguments(job, cluster, run),
        "env": [
            field_variable("POD_NAME", "metadata.name"), field_variable("POD_IP", "status.podIP"), _secret_variable(job),
        ],
        "resources": {"requests": {"cpu": job.spec.driver.cpu, "memory": memory}, "limits": {"memory": memory}},
    }  # fmt: skip
    chosen = job.spec.driver.pod_template
    pod = _pod(chosen, cluster, defaults, container, restart="Never", etcd=True)
    if deadline_s is not None:
        pod["spec"]["activeDeadlineSeconds"] = max(1, deadline_s)
    if job.spec.type == "PySpark":
        _add_script(pod, job)
    pod["metadata"] |= {
        "name": names.driver_pod(job.name, job.metadata.uid, run, attempt),
        "labels": job.spec.driver.pod_template.labels
        | _labels(job, cluster, names.DRIVER)
        | {names.RUN: run[: names.LABEL_LENGTH_MAX], names.ATTEMPT: str(attempt)},
        "ownerReferences": [owner_of(job)],
    }
    return pod


def executor_pod(
    job: DataJob, cluster: BrokerCluster, defaults: Defaults, driver: Manifest, number: int
) -> Manifest:
    """An executor of a driver that runs. One that ends by an error is started again in place: to
    its driver it is another one."""
    wanted, name = job.spec.executors, str(driver["metadata"]["name"])
    memory = (
        f"{wanted.memory_mib + max(OVERHEAD_MIN_MIB, int(wanted.memory_mib * OVERHEAD_SHARE))}Mi"
    )
    container = {
        "name": names.EXECUTOR,
        "args": [
            "python3", "-m", "magnetar_jobs.executor",
            "--driver", driver["status"]["podIP"],
            "--application", name,
            "--number", str(number),
            "--cores", str(wanted.cores),
            "--memory-mib", str(wanted.memory_mib),
        ],
        "env": [field_variable("POD_IP", "status.podIP"), _secret_variable(job)],
        "resources": {"requests": {"cpu": wanted.cpu or str(wanted.cores), "memory": memory}, "limits": {"memory": memory}},
    }  # fmt: skip
    chosen = wanted.pod_template
    pod = _pod(chosen, cluster, defaults, container, restart="OnFailure", etcd=False)
    pod["metadata"] |= {
        "name": names.executor_pod(name, number),
        "labels": wanted.pod_template.labels | _labels(job, cluster, names.EXECUTOR),
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": name,
                "uid": driver["metadata"]["uid"],
                "controller": True,
            }
        ],
    }
    return pod


def job_secret(job: DataJob, cluster: BrokerCluster, key: bytes) -> Manifest:
    """What driver and executors know each other by."""
    found = _owned("v1", "Secret", job, cluster)
    return found | {
        "type": "Opaque",
        "data": {SECRET_KEY: base64.b64encode(key.hex().encode()).decode()},
    }


def job_policy(job: DataJob, cluster: BrokerCluster) -> Manifest:
    """Only the job's own pods reach them."""
    own = {"podSelector": {"matchLabels": {names.JOB: job.name}}}
    ports = [
        {"protocol": "TCP", "port": port}
        for port in (names.SPARK_DRIVER_PORT, names.SPARK_BLOCK_PORT)
    ]
    return _owned("networking.k8s.io/v1", "NetworkPolicy", job, cluster) | {
        "spec": {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own], "ports": ports}]}
    }


def _labels(job: DataJob, cluster: BrokerCluster, component: str) -> dict[str, str]:
    return names.labels(cluster.name, component) | {names.JOB: job.name}


def _owned(api_version: str, kind: str, job: DataJob, cluster: BrokerCluster) -> Manifest:
    metadata = {
        "name": names.job_parts(job.name),
        "namespace": job.namespace,
        "labels": _labels(job, cluster, names.DRIVER),
        "ownerReferences": [owner_of(job)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _secret_variable(job: DataJob) -> Manifest:
    return {
        "name": SECRET_VARIABLE,
        "valueFrom": {"secretKeyRef": {"name": names.job_parts(job.name), "key": SECRET_KEY}},
    }


def _pod(
    chosen: JobPodTemplate,
    cluster: BrokerCluster,
    defaults: Defaults,
    container: Manifest,
    *,
    restart: str,
    etcd: bool,
) -> Manifest:
    image, pull_policy = spark_image_of(cluster, defaults), image_of(cluster, defaults)[1]
    user = names.JOB_USER
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": cluster.namespace}
        | ({"annotations": chosen.annotations} if chosen.annotations else {}),
        "spec": {
            "restartPolicy": restart,
            "serviceAccountName": _account(cluster),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **pull_secrets(cluster),
            **placement(chosen),
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": pod_security(),
            "containers": [
                container
                | {
                    "env": [
                        *container["env"],
                        *(variable.model_dump() for variable in chosen.env),
                        *storage_environment(cluster),  # the last of a name wins
                    ],
                    "image": image,
                    "imagePullPolicy": pull_policy,
                    # The job leaves its last words itself; the log's last lines are for what it
                    # could not foresee.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    # Some of Spark's files go to the working directory.
                    "workingDir": "/tmp",
                    "securityContext": container_security(),
                    "volumeMounts": [
                        *storage_mounts(cluster),
                        {"name": "tmp", "mountPath": "/tmp"},
                        *(client_mounts(cluster, user) if etcd else []),
                    ],
                }
            ],
            "volumes": [
                *storage_volumes(cluster),
                {"name": "tmp", "emptyDir": {}},
                *(client_volumes(cluster, user) if etcd else []),
            ],
        },
    }


def _account(cluster: BrokerCluster) -> str:
    """Where the brokers' identity opens the bucket, it does so for jobs as well."""
    return names.broker_set(cluster.name) if has_pod_identity(cluster) else names.SPARK_ACCOUNT


def _add_script(pod: Manifest, job: DataJob) -> None:
    """Executors get what they need of it from the driver."""
    assert job.spec.py_spark is not None, "the model's rules admit no such job without a script"
    source = {"name": "script", "configMap": {"name": job.spec.py_spark.config_map}}
    pod["spec"]["volumes"].append(source)
    mount = {"name": "script", "mountPath": SCRIPT_PATH, "readOnly": True}
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)


def _driver_arguments(job: DataJob, cluster: BrokerCluster, run: str) -> list[str]:
    shared = _shared_arguments(job, cluster, run)
    arguments = ["python3", "-m", DRIVERS[job.spec.type], *job.spec.driver_options(), *shared]
    if job.spec.type != SCRIPT:
        return arguments
    script = job.spec.py_spark
    assert script is not None, "the model's rules admit no such job without a script"
    return [*arguments, "--script", f"{SCRIPT_PATH}/{script.key}", "--", *script.arguments]


def _shared_arguments(job: DataJob, cluster: BrokerCluster, run: str) -> list[str]:
    executors = job.spec.executors
    return [
        "--store", store_url(cluster), *client_arguments(cluster, names.JOB_USER),
        "--volume", location(cluster),
        "--job", f"{job.namespace}/{job.name}",
        "--run", run,
        "--executors", str(executors.instances),
        "--executor-memory-mib", str(executors.memory_mib),
        "--executor-cores", str(executors.cores),
    ]  # fmt: skip

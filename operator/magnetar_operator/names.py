"""Names, labels and annotations of what the operator makes.

Owns: their spelling. Imports: resources.base (the group). Pure. No other module writes one of them
as a literal. Invariants: a child's name follows from its owner's name alone; selectors never
change, because a StatefulSet's cannot.
"""

from __future__ import annotations

import hashlib

from magnetar.resources.base import GROUP

FIELD_MANAGER = "magnetar-operator"

MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
PART_OF = "app.kubernetes.io/part-of"
INSTANCE = "app.kubernetes.io/instance"
CLUSTER = f"{GROUP}/cluster"
COORDINATORS = f"{GROUP}/coordinators"
"""Label on what is made for a TransactionCoordinator: its name."""
JOB = f"{GROUP}/job"
RUN = f"{GROUP}/run"
ATTEMPT = f"{GROUP}/attempt"
SENTINEL = f"{GROUP}/sentinel"
PLAIN = f"{GROUP}/plain"
"""Label on pods that open no port without TLS: `closed`. The chart's PodMonitors go by it."""
POD_NAME = "statefulset.kubernetes.io/pod-name"
REVISION = "controller-revision-hash"

BROKER, ETCD, DRIVER, EXECUTOR, COORDINATOR, RESTORE = (
    "broker",
    "etcd",
    "driver",
    "executor",
    "coordinator",
    "restore",
)

DESIRED_HASH = f"{GROUP}/desired-hash"
"""Annotation on every child: hash of what was applied, so that a field which is no longer wanted
is noticed too."""
CONFIG_HASH = f"{GROUP}/config-hash"
"""Annotation on broker pods: hash of their settings, so that a change of settings is a change of
the template."""
CREDENTIALS_HASH = f"{GROUP}/credentials-hash"
"""Annotation on brokers' and coordinators' pods: keyed digest of the storage's credentials, so
that new ones reach running processes."""
PAUSED = f"{GROUP}/paused"
REPLACE = f"{GROUP}/replace"
"""Annotation on a cluster: `<pod>@<uid>` of brokers to drain and delete so that they come back,
several with commas between them."""
BEGIN_ETCD = f"{GROUP}/begin-etcd"
"""Annotation of a cluster whose etcd is lost: its value is the lost one's status.etcd.clusterId,
and permits to begin an empty one."""
ROTATE_ETCD = f"{GROUP}/rotate-etcd-authority"
"""Annotation of a cluster: its value is status.etcdAuthority.id, and asks for another authority
in the place of that one."""
ROTATE_INTERNAL_KEY = f"{GROUP}/rotate-internal-key"
"""Annotation of a cluster: its value is that of `KEY_ID` on the secret of its processes' key,
and asks for another key in the place of that one."""
KEY_ID = f"{GROUP}/key-id"
"""Annotation of that secret: names the key that signs."""
ETCD_TRUST = f"{GROUP}/etcd-trust"
"""Annotation on etcd pods once an authority was rotated: which authorities they trust, so that a
change of these is a change of the template."""
SKIP_FINALIZER = f"{GROUP}/skip-finalizer"

WATCH_SELECTOR = f"{MANAGED_BY}={FIELD_MANAGER}"
SPARK_ACCOUNT = "magnetar-spark"
VOLUME_PATH = "/var/lib/magnetar"
BROKER_PORT, HTTP_PORT = 6650, 8080
BROKER_TLS_PORT, HTTPS_PORT = 6651, 8443
ETCD_CLIENT_PORT, ETCD_PEER_PORT, ETCD_HEALTH_PORT = 2379, 2380, 2381
USER_ID = 10001
ETCD_USERS = OPERATOR_USER, BROKER_USER, COORDINATOR_USER, JOB_USER = (
    "operator",
    "broker",
    "coordinator",
    "job",
)
"""etcd's users; each has a client certificate with this common name."""
ETCD_MEMBERS = "server"
"""Components whose pods are clients of etcd."""
ETCD_TLS_VOLUME, ETCD_TLS_PATH = "etcd-tls", "/etc/magnetar/etcd"
SPARK_DRIVER_PORT, SPARK_BLOCK_PORT = 7078, 7079
LABEL_LENGTH_MAX = 63


def labels(instance: str, component: str) -> dict[str, str]:
    """Labels of every object made for a cluster."""
    return {
        "app.kubernetes.io/name": "magnetar",
        INSTANCE: instance,
        COMPONENT: component,
        PART_OF: "magnetar",
        MANAGED_BY: FIELD_MANAGER,
        CLUSTER: instance,
    }


def selector(instance: str, component: str) -> dict[str, str]:
    """Labels that choose the pods of one component."""
    return {CLUSTER: instance, COMPONENT: component}


def selector_text(labels_wanted: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels_wanted.items()))


def broker_set(cluster: str) -> str:
    """StatefulSet, ConfigMap, service account and disruption budget of the brokers."""
    return f"{cluster}-broker"


def brokers_service(cluster: str) -> str:
    """Headless service of the brokers."""
    return f"{cluster}-brokers"


def listener_addresses(stateful_set: str) -> str:
    """ConfigMap with the addresses under which each pod's listeners are reached."""
    return f"{stateful_set}-listeners"


def security(cluster: str) -> str:
    """ConfigMap that says who clients are and what they may do."""
    return f"{cluster}-security"


def internal_secret(cluster: str) -> str:
    """Secret with the key by which the cluster's processes know each other."""
    return f"{cluster}-internal"


def listener_service(stateful_set: str, listener: str, ordinal: int | None) -> str:
    """Service of a listener: of one pod, or (None) of all of them."""
    return (
        f"{stateful_set}-{listener}" if ordinal is None else f"{stateful_set}-{ordinal}-{listener}"
    )


def etcd_set(cluster: str) -> str:
    """StatefulSet, headless service and network policy of a managed etcd."""
    return f"{cluster}-etcd"


def etcd_authority(cluster: str) -> str:
    """Secret with the certificate authority of a managed etcd."""
    return f"{etcd_set(cluster)}-ca"


def etcd_secret(cluster: str, component: str) -> str:
    """Secret with the certificate of the members or of one kind of client."""
    return f"{etcd_set(cluster)}-{component}"


def storage_claim(cluster: str) -> str:
    return f"{cluster}-storage"


def broker_pod(cluster: str, ordinal: int) -> str:
    return f"{broker_set(cluster)}-{ordinal}"


def is_broker_pod(cluster: str, pod: str) -> bool:
    """Whether a pod's name is one that the brokers' StatefulSet gives: a copy made for debugging
    has its labels, and another name."""
    return pod.removeprefix(f"{broker_set(cluster)}-").isdecimal()


def ordinal_of(pod: str) -> int:
    """Number at the end of a StatefulSet pod's name: names must be ordered by it, never as text
    (broker-10 comes after broker-9)."""
    return int(pod.rpartition("-")[2])


def coordinator_set(coordinators: str) -> str:
    """StatefulSet, ConfigMap, service account, network policy and disruption budget of a
    TransactionCoordinator."""
    return f"{coordinators}-coordinator"


def coordinators_service(coordinators: str) -> str:
    """Headless service of the transaction coordinators."""
    return f"{coordinators}-coordinators"


def coordinator_pod(coordinators: str, tcid: int) -> str:
    """The pod whose ordinal is the coordinator's number."""
    return f"{coordinator_set(coordinators)}-{tcid}"


def coordinator_labels(coordinators: str, cluster: str) -> dict[str, str]:
    """Labels of every object made for a TransactionCoordinator: those of its cluster, which let
    its pods reach etcd, and its name."""
    return labels(cluster, COORDINATOR) | {COORDINATORS: coordinators}


def coordinator_selector(coordinators: str, cluster: str) -> dict[str, str]:
    """Labels that choose the pods of one TransactionCoordinator."""
    return selector(cluster, COORDINATOR) | {COORDINATORS: coordinators}


def etcd_endpoint(cluster: str, namespace: str) -> str:
    return f"{etcd_set(cluster)}.{namespace}.svc:{ETCD_CLIENT_PORT}"


def etcd_member(cluster: str, ordinal: int) -> str:
    """Pod of one member."""
    return f"{etcd_set(cluster)}-{ordinal}"


def etcd_member_host(cluster: str, namespace: str, ordinal: int) -> str:
    return f"{etcd_member(cluster, ordinal)}.{etcd_set(cluster)}.{namespace}.svc"


def run_id(token: str, uid: str) -> str:
    """Id of a job's run. The uid is in it so that a resource made again under the same name is
    not mistaken for its predecessor."""
    return f"{token}-{uid[:8]}"


def driver_pod(job: str, uid: str, run: str, attempt: int) -> str:
    """Deterministic per (resource, run, attempt): creating it twice is refused by the API
    server."""
    digest = hashlib.sha256(f"{uid}/{run}".encode()).hexdigest()[:8]
    return f"{job}-{digest}-{attempt}"


def executor_pod(driver: str, number: int) -> str:
    """Deterministic per driver's pod: making it twice is refused."""
    return f"{driver}-exec-{number}"


def job_parts(job: str) -> str:
    """Secret and network policy of a job's driver and executors."""
    return f"{job}-spark"

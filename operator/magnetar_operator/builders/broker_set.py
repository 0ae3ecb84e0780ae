"""The brokers' StatefulSet.

Owns: it and its pods' template. Imports: builders siblings, names. Pure.
Invariants: the pods' grace period is longer than their drain; the operator restarts them (OnDelete), so an upgrade of the operator that renders the
same template restarts nothing; they hold no rights and write nowhere but to the volume and /tmp.
"""

from __future__ import annotations

from magnetar_operator import names
from magnetar_operator.builders.config_map import settings_of
from magnetar_operator.builders.object import (
    Defaults,
    Manifest,
    claim_name,
    cluster_object,
    container_security,
    digest,
    field_variable,
    image_of,
    pod_security,
    store_url,
)
from magnetar_operator.models.broker_cluster import BrokerCluster

GRACE_BEYOND_DRAIN_S = 30
"""After the drain: sealing the log, leaving the store, ending the process."""


def broker_set(cluster: BrokerCluster, defaults: Defaults, replicas: int) -> Manifest:
    """`replicas` comes from the scaling plan, which may keep more pods than the spec wants while they drain."""
    name = names.broker_set(cluster.name)
    stateful_set = cluster_object("apps/v1", "StatefulSet", cluster, name, names.BROKER)
    return stateful_set | {
        "spec": {
            "replicas": replicas,
            "serviceName": names.brokers_service(cluster.name),
            # Brokers need no order among themselves, and one that is stuck must not hold up the others.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(cluster.name, names.BROKER)},
            "template": _template(cluster, defaults),
        }
    }


def _template(cluster: BrokerCluster, defaults: Defaults) -> Manifest:
    chosen = cluster.spec.pod_template
    pod: Manifest = {
        "serviceAccountName": names.broker_set(cluster.name),
        "automountServiceAccountToken": False,
        # Hundreds of services in a namespace would otherwise become thousands of variables.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": cluster.spec.drain_timeout_seconds + GRACE_BEYOND_DRAIN_S,
        "securityContext": pod_security(),
        "topologySpreadConstraints": [_spread(cluster, key) for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")],
        "containers": [_container(cluster, defaults)],
        "volumes": [
            {"name": "storage", "persistentVolumeClaim": {"claimName": claim_name(cluster)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if chosen.node_selector:
        pod["nodeSelector"] = dict(chosen.node_selector)
    if chosen.tolerations:
        pod["tolerations"] = [
            {key: value for key, value in toleration.model_dump().items() if value} for toleration in chosen.tolerations
        ]
    annotations = chosen.annotations | {names.CONFIG_HASH: digest(settings_of(cluster))}
    return {
        "metadata": {"labels": chosen.labels | names.labels(cluster.name, names.BROKER), "annotations": annotations},
        "spec": pod,
    }


def _spread(cluster: BrokerCluster, topology: str) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(cluster.name, names.BROKER)},
    }


def _container(cluster: BrokerCluster, defaults: Defaults) -> Manifest:
    image, pull_policy = image_of(cluster, defaults)
    resources = {key: dict(value) for key, value in cluster.spec.resources.model_dump().items() if value}
    return {
        "name": "broker",
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": [
            "magnetar", "broker",
            "--name", "$(POD_NAME)",
            "--store", store_url(cluster),
            "--volume", names.VOLUME_PATH,
            "--advertised-address", "$(POD_IP)",
            "--broker-port", str(names.BROKER_PORT),
            "--http-port", str(names.HTTP_PORT),
        ],
        "env": [field_variable("POD_NAME", "metadata.name"), field_variable("POD_IP", "status.podIP")],
        "envFrom": [{"configMapRef": {"name": names.broker_set(cluster.name)}}],
        "ports": [
            {"name": "pulsar", "containerPort": names.BROKER_PORT, "protocol": "TCP"},
            {"name": "http", "containerPort": names.HTTP_PORT, "protocol": "TCP"},
        ],
        "resources": resources,
        "securityContext": container_security(),
        # A broker starts in under a second, but first waits for etcd: the start may take minutes, silence afterwards may not.
        "startupProbe": _probe("/live", period=1, failures=300),
        "readinessProbe": _probe("/ready", period=2, failures=2),
        "livenessProbe": _probe("/live", period=10, failures=3),
        "volumeMounts": [{"name": "storage", "mountPath": names.VOLUME_PATH}, {"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip


def _probe(path: str, period: int, failures: int) -> Manifest:
    get = {"path": path, "port": "http", "scheme": "HTTP"}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}

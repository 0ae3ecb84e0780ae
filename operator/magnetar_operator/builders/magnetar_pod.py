"""Pods that run our image and stay.

Owns: what the pods of every long-running component share: account, security, placement, probes,
environment, volumes, the additions that users may make. Imports: builders.object,
builders.etcd_tls, names, resources. Pure. Invariants: the pods hold no rights and write nowhere but
to the volume and /tmp; a user's additions never replace what is the operator's; the same parts give
the same template, byte for byte, because a template that differs restarts every pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.resources.broker_cluster import BrokerCluster, Resources
from magnetar.resources.pod_template import PodAdditions, PodTemplate, TopologySpread
from magnetar_operator import names
from magnetar_operator.builders.client_tls import (
    advertised_host,
    ports_of,
    probe_target,
    tls_arguments,
    tls_labels,
    tls_mounts,
    tls_volumes,
)
from magnetar_operator.builders.etcd_tls import client_arguments, client_mounts, client_volumes
from magnetar_operator.builders.listeners import (
    Fleet,
    listener_arguments,
    listener_environment,
    listener_mounts,
    listener_ports,
    listener_volumes,
)
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
    digest,
    field_variable,
    image_of,
    pod_security,
    pull_secrets,
    store_url,
)
from magnetar_operator.builders.security import (
    security_arguments,
    security_mounts,
    security_volumes,
)

GRACE_BEYOND_DRAIN_S = 30
"""After the drain: sealing the log, leaving the store, ending the process."""
SPREAD = tuple(
    TopologySpread(topology_key=key)
    for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
)
"""As evenly as possible over hosts and zones, unless the spec says otherwise."""


@dataclass(frozen=True, slots=True)
class PodParts:
    """What one component has of its own.

    `component` names the container, the command (`magnetar <component>`) and the user of etcd;
    `account` is the service account and the ConfigMap with `settings`; `service` the headless one
    that names the pods; `labels` are all labels of the pod and `selector` those that choose it;
    `fleet` has its listeners; `credentials` is the digest of the storage's ("" = it has none).
    """

    component: str
    account: str
    service: str
    settings: Mapping[str, str]
    labels: Mapping[str, str]
    selector: Mapping[str, str]
    resources: Resources
    additions: PodTemplate
    drain_timeout_s: int
    fleet: Fleet
    credentials: str


def set_spec(
    cluster: BrokerCluster, defaults: Defaults, parts: PodParts, replicas: int
) -> Manifest:
    """The spec of the component's StatefulSet."""
    return {
        "replicas": replicas,
        "serviceName": parts.service,
        # Pods need no order among themselves, and one that is stuck must not hold up the others.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": parts.selector},
        "template": pod_template(cluster, defaults, parts),
    }


def pod_template(cluster: BrokerCluster, defaults: Defaults, parts: PodParts) -> Manifest:
    """The template of a StatefulSet whose pods run `magnetar <component>` on the cluster's store
    and volume."""
    chosen = parts.additions
    pod: Manifest = {
        "serviceAccountName": parts.account,
        "automountServiceAccountToken": False,
        # Hundreds of services in a namespace would otherwise become thousands of variables.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": parts.drain_timeout_s + GRACE_BEYOND_DRAIN_S,
        "securityContext": pod_security(),
        "topologySpreadConstraints": [
            _spread(parts, chosen)
            for chosen in parts.additions.topology_spread_constraints or SPREAD
        ],
        "containers": [_container(cluster, defaults, parts)],
        "volumes": [
            *storage_volumes(cluster),
            {"name": "tmp", "emptyDir": {}},
            *client_volumes(cluster, parts.component),
            *tls_volumes(cluster),
            *security_volumes(cluster),
            *listener_volumes(parts.fleet),
        ],
    }
    pod |= pull_secrets(cluster) | placement(chosen)
    annotations = chosen.annotations | {names.CONFIG_HASH: digest(dict(parts.settings))}
    if parts.credentials:
        annotations |= {names.CREDENTIALS_HASH: parts.credentials}
    labels = chosen.labels | dict(parts.labels) | tls_labels(cluster)
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def placement(chosen: PodAdditions) -> Manifest:
    """What a user says of where pods go; nothing that is empty."""
    wanted = {
        "nodeSelector": chosen.node_selector,
        "tolerations": _filled(
            [toleration.model_dump(by_alias=True) for toleration in chosen.tolerations]
        ),
        "affinity": _filled(chosen.affinity.model_dump(by_alias=True)),
        "priorityClassName": chosen.priority_class_name,
    }
    return {key: value for key, value in wanted.items() if value}


def _filled(value: Any) -> Any:
    """Without what is empty, at any depth."""
    if isinstance(value, dict):
        kept = {key: _filled(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in ("", {}, [])}
    return [_filled(item) for item in value] if isinstance(value, list | tuple) else value


def _spread(parts: PodParts, chosen: TopologySpread) -> Manifest:
    return {
        "maxSkew": chosen.max_skew,
        "topologyKey": chosen.topology_key,
        "whenUnsatisfiable": chosen.when_unsatisfiable,
        "labelSelector": {"matchLabels": dict(parts.selector)},
    }


def _container(cluster: BrokerCluster, defaults: Defaults, parts: PodParts) -> Manifest:
    image, pull_policy = image_of(cluster, defaults)
    return {
        "name": parts.component,
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": [
            "magnetar", parts.component,
            "--name", "$(POD_NAME)",
            "--store", store_url(cluster), *client_arguments(cluster, parts.component),
            "--volume", location(cluster),
            "--advertised-address", advertised_host(cluster, parts.service),
            "--broker-port", str(names.BROKER_PORT),
            "--http-port", str(names.HTTP_PORT),
            *tls_arguments(cluster), *security_arguments(cluster),
            *listener_arguments(parts.fleet),
        ],
        "env": [
            field_variable("POD_NAME", "metadata.name"), field_variable("POD_IP", "status.podIP"),
            *storage_environment(cluster), *listener_environment(parts.fleet),
        ],
        "envFrom": [{"configMapRef": {"name": parts.account}}],
        "ports": [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in (*ports_of(cluster), *listener_ports(parts.fleet))],
        "resources": {key: dict(value) for key, value in parts.resources.model_dump().items() if value},
        "securityContext": container_security(),
        # Conditions repeat the last words of a process that ended by an error.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # A process starts in under a second, but first waits for etcd: the start may take minutes,
        # silence afterwards may not.
        "startupProbe": _probe(cluster, "/live", period=1, failures=300),
        "readinessProbe": _probe(cluster, "/ready", period=2, failures=2),
        "livenessProbe": _probe(cluster, "/live", period=10, failures=3),
        "volumeMounts": [
            *storage_mounts(cluster), {"name": "tmp", "mountPath": "/tmp"},
            *client_mounts(cluster, parts.component), *tls_mounts(cluster), *security_mounts(cluster),
            *listener_mounts(parts.fleet),
        ],
    }  # fmt: skip


def _probe(cluster: BrokerCluster, path: str, period: int, failures: int) -> Manifest:
    port, scheme = probe_target(cluster)
    get = {"path": path, "port": port, "scheme": scheme}
    return {
        "httpGet": get,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }

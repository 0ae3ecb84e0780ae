"""What Kubernetes says of the cluster that the brokers are.

Owns: finding a cluster's custom resources by its storage, their conditions as rows and sentences.
Imports: kubernetes, failures. Invariants: resources of another cluster are never taken for this
one's, whatever the kubeconfig points to; without the `kubernetes` package, an API server or rights
there is nothing to show and no error, unless a namespace or context was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.cli.failures import CommandFailed
from magnetar.cli.kubernetes import Kubernetes, Manifest

LOOK_TIMEOUT_S = 5.0
"""The command may be about brokers only: it waits no longer for Kubernetes."""
MANY = ("TopicNamespace", "DataJob")
"""Of these only what is not Ready gets rows."""
SHOWN = ("Degraded", "Progressing", "Autoscaling")


def look(namespace: str, context: str, storage_id: str) -> tuple[list[dict[str, Any]], str]:
    """The cluster's resources, or none and why; raises CommandFailed if a namespace or context
    was asked for and cannot be read."""
    asked = bool(namespace or context)
    try:
        found = resources_of(Kubernetes(namespace, context, LOOK_TIMEOUT_S), storage_id)
    except CommandFailed as error:
        if asked:
            raise
        return [], str(error)
    return found, "" if found else "no BrokerCluster of this namespace has this storage"


def resources_of(kubernetes: Kubernetes, storage_id: str) -> list[dict[str, Any]]:
    """The BrokerClusters on this storage and what refers to them, in one Kubernetes namespace.
    Raises CommandFailed."""
    from magnetar_operator.kube.kinds import (
        BROKER_CLUSTER,
        DATA_JOB,
        TOPIC_NAMESPACE,
        TRANSACTION_COORDINATOR,
    )

    clusters = [
        item
        for item in kubernetes.list(BROKER_CLUSTER)
        if storage_id and item.get("status", {}).get("storageId") == storage_id
    ]
    if not clusters:
        return []
    known = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in clusters}
    dependents = (
        item
        for resource in (TRANSACTION_COORDINATOR, TOPIC_NAMESPACE, DATA_JOB)
        for item in kubernetes.list(resource)
        if _cluster_of(item) in known
    )
    return [_resource(item) for item in (*clusters, *dependents)]


def _cluster_of(item: Manifest) -> tuple[str, str]:
    reference = item["spec"].get("clusterRef", {})
    return reference.get("namespace") or item["metadata"]["namespace"], reference.get("name", "")


def _resource(item: Manifest) -> dict[str, Any]:
    conditions = [
        {
            "type": condition["type"],
            "status": condition["status"],
            "reason": condition.get("reason", ""),
            "message": condition.get("message", ""),
            "since": condition.get("lastTransitionTime", ""),
        }
        for condition in item.get("status", {}).get("conditions", [])
    ]
    metadata, troubles = item["metadata"], item.get("status", {}).get("troubles", [])
    name = {"kind": item["kind"], "namespace": metadata["namespace"], "name": metadata["name"]}
    return {**name, "conditions": conditions, "troubles": troubles}


def problems_of(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the operator says is wrong, one sentence each; what is only under way is none."""
    found = []
    for resource in resources:
        conditions = {condition["type"]: condition for condition in resource["conditions"]}
        degraded, ready = conditions.get("Degraded"), conditions.get("Ready")
        if resource["kind"] == "TopicNamespace":
            wrong = ready if ready is not None and ready["status"] == "False" else None
        else:
            wrong = degraded if degraded is not None and degraded["status"] == "True" else None
        if wrong is not None:
            name = f"{resource['kind']} {resource['namespace']}/{resource['name']}"
            found += [
                f"{name}: {one['reason']}: {one.get('message', '')}"
                for one in _troubles(resource, wrong)
            ]
    return found


def _troubles(resource: Mapping[str, Any], named: Mapping[str, str]) -> list[Mapping[str, str]]:
    """Everything that is wrong, beginning with what the condition `named` says: of a spec that
    cannot be read, the list knows nothing."""
    listed: list[Mapping[str, str]] = resource["troubles"]
    return listed if listed and listed[0]["reason"] == named["reason"] else [named, *listed]


def rows_of(resources: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, ...]], str]:
    """(resource, condition, status, reason, message) of what people look at, and a line about
    what is left out ("" = nothing is)."""
    rows: list[tuple[str, ...]] = []
    ready: dict[str, int] = {}
    for resource in resources:
        conditions = {condition["type"]: condition for condition in resource["conditions"]}
        first = conditions.get(
            "Ready",
            {
                "type": "Ready",
                "status": "Unknown",
                "reason": "",
                "message": "the operator has not reconciled it yet",
            },
        )
        if resource["kind"] in MANY and first["status"] == "True":
            ready[resource["kind"]] = ready.get(resource["kind"], 0) + 1
            continue
        others = [conditions[kind] for kind in SHOWN if kind in conditions]
        # A reason that Ready gives already is not said twice.
        shown = [
            first,
            *(
                one
                for one in others
                if one["status"] == "True" and one["reason"] != first["reason"]
            ),
        ]
        shown += [
            {"type": "Degraded", "status": "True", "message": "", **one}
            for one in _troubles(resource, first)[1:]
        ]
        for number, one in enumerate(shown):
            name = (
                f"{resource['kind']} {resource['namespace']}/{resource['name']}"
                if number == 0
                else ""
            )
            rows.append((name, one["type"], one["status"], one["reason"], one["message"]))
    return rows, ", ".join(
        f"{count} {kind}{'s' if count > 1 else ''} Ready" for kind, count in ready.items()
    )

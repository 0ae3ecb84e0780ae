"""The CustomResourceDefinitions.

Owns: names, short names, printer columns and subresources of every kind. Imports: the resources,
resources.schema. Pure. Invariants: the definitions depend on the models alone (`python -m dev.crds`
writes them, a test fails when they differ); helm never deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magnetar.resources import KINDS
from magnetar.resources.base import GROUP, VERSION, CustomResource
from magnetar.resources.schema import complete_default, structural_schema, without_defaults


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; priority 1 = only with -o wide."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0

    def manifest(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class Naming:
    """How a kind is called and shown."""

    plural: str
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    scalable: bool = False


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_READY = Column("Ready", _condition("Ready", "status"))
_REASON = Column("Reason", _condition("Ready", "reason"))
# The annotation itself: it stops the operator whether or not one runs.
_PAUSED = Column("Paused", r".metadata.annotations.magnetar\.io/paused")
_MESSAGE = Column("Message", _condition("Ready", "message"), priority=1)

NAMINGS = {
    "BrokerCluster": Naming(
        "brokerclusters",
        ("bc",),
        (
            Column("Desired", ".spec.replicas", "integer"),
            Column("Current", ".status.replicas", "integer"),
            Column("Brokers Ready", ".status.readyReplicas", "integer"),
            _READY, _REASON, _PAUSED,
            Column("Balance", ".status.balance.imbalance"),
            Column("Service", ".status.endpoints.serviceUrl", priority=1), _MESSAGE, _AGE,
        ),
        scalable=True,
    ),
    "TransactionCoordinator": Naming(
        "transactioncoordinators",
        ("tc",),
        (
            Column("Cluster", ".spec.clusterRef.name"),
            Column("Desired", ".spec.replicas", "integer"),
            Column("Current", ".status.replicas", "integer"),
            Column("Announced", ".status.announced", "integer"),
            _READY, _REASON, _PAUSED, _MESSAGE, _AGE,
        ),
        scalable=True,
    ),
    "TopicNamespace": Naming(
        "topicnamespaces",
        ("tns",),
        (
            Column("Cluster", ".spec.clusterRef.name"),
            Column("Tenant", ".spec.tenant"),
            Column("Namespace", ".spec.namespace"),
            Column("Bundles", ".status.bundles", "integer"),
            _READY, _REASON, _PAUSED, _MESSAGE, _AGE,
        ),
    ),
    "DataJob": Naming(
        "datajobs",
        ("dj",),
        (
            Column("Type", ".spec.type", priority=1),
            Column("Cluster", ".spec.clusterRef.name"),
            Column(
                "Topics",
                ".spec['compaction','transactionLogCompaction']['topic','namespace']",
            ),
            Column("Schedule", ".spec.schedule"),
            Column("State", ".status.state"),
            Column("Phase", ".status.progress.phase"),
            Column("Progress", ".status.progress.complete"),
            _REASON, _PAUSED,
            Column("Last Run", ".status.history[0].startedAt", "date"),
            # kubectl shows a date that is to come as invalid
            Column("Next Run", ".status.nextScheduleTime"),
            Column("Run", ".status.run", priority=1),
            Column("Attempt", ".status.attempt", "integer"),
            Column("Driver", ".status.driverPod", priority=1), _MESSAGE, _AGE,
        ),
    ),
}  # fmt: skip


def definitions() -> dict[str, dict[str, Any]]:
    """Every CustomResourceDefinition by its object name, `<plural>.<group>`."""
    return {
        f"{NAMINGS[kind].plural}.{GROUP}": _definition(kind, model, NAMINGS[kind])
        for kind, model in KINDS.items()
    }


def _definition(kind: str, model: type[CustomResource], naming: Naming) -> dict[str, Any]:
    subresources: dict[str, Any] = {"status": {}}
    if naming.scalable:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{naming.plural}.{GROUP}",
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": naming.plural,
                "singular": kind.lower(),
                "shortNames": list(naming.short_names),
                "categories": ["magnetar", "all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.manifest() for column in naming.columns],
                    "schema": {"openAPIV3Schema": root_schema(model)},
                }
            ],
        },
    }


def root_schema(model: type[CustomResource]) -> dict[str, Any]:
    """Schema of the whole object: metadata is the API server's own business, except for rules
    about the name."""
    spec, status = (
        structural_schema(model.model_fields[part].annotation)  # type: ignore[arg-type]
        for part in ("spec", "status")
    )
    root: dict[str, Any] = {
        "type": "object",
        "description": (model.__doc__ or "").strip(),
        "required": ["spec"] if spec.get("required") else [],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": "Kind of this object."},
            "metadata": {"type": "object"},
            "spec": spec if spec.get("required") else {**spec, "default": complete_default(spec)},
            "status": without_defaults(status),
        },
    }
    if not root["required"]:
        del root["required"]
    if model.RULES:
        root["x-kubernetes-validations"] = [rule.manifest() for rule in model.RULES]
    return root

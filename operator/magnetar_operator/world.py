"""What every reconciler works with.

Owns: the bundle of ports, reading a custom resource, writing its status, pausing. Imports: kubernetes_api, stores, events, models, conditions.
Invariants: a resource that cannot be understood gets a condition, never a crash; a status is written only when it differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from magnetar.clock import Clock
from magnetar.errors import MagnetarError
from magnetar_operator import names
from magnetar_operator.builders.object import Defaults, Manifest, etcd_endpoints
from magnetar_operator.conditions import Finding, Reason, Type, merged
from magnetar_operator.events import Events
from magnetar_operator.kubernetes_api import KubernetesApi
from magnetar_operator.models.base import API_VERSION, Condition, CustomResource, StatusModel, sentence_of
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.planning import differences
from magnetar_operator.resources import BROKER_CLUSTER, CUSTOM
from magnetar_operator.stores import ClusterStore, Stores
from magnetar_operator.work_queue import Key

R = TypeVar("R", bound=CustomResource)


class InvalidResource(MagnetarError):
    """The stored object does not fit this operator's model."""


@dataclass(frozen=True, slots=True)
class World:
    """Ports of the reconcilers."""

    api: KubernetesApi
    stores: Stores
    events: Events
    clock: Clock
    defaults: Defaults
    namespaces: tuple[str, ...]

    async def read(self, key: Key, model: type[R]) -> R | None:
        """The resource, or None if it is gone. Raises InvalidResource, KubernetesError."""
        found = await self.api.get(CUSTOM[key.kind], key.namespace, key.name)
        return parsed(found, model) if found is not None else None

    async def cluster(self, namespace: str, name: str) -> BrokerCluster | None:
        """A cluster that other resources refer to. Raises InvalidResource, KubernetesError."""
        found = await self.api.get(BROKER_CLUSTER, namespace, name)
        return parsed(found, BrokerCluster) if found is not None else None

    async def store_of(self, cluster: BrokerCluster) -> ClusterStore:
        """The cluster's metadata store; connects when first used. Raises StoreError if its credentials are missing."""
        return self.stores.of(etcd_endpoints(cluster))

    async def list_everywhere(self, kind: str) -> list[Manifest]:
        """All objects of a kind in the namespaces that this operator watches. Raises KubernetesError."""
        found: list[Manifest] = []
        for namespace in self.namespaces or ("",):
            found += await self.api.list(CUSTOM[kind], namespace)
        return found

    async def write_status(self, resource: CustomResource, status: StatusModel) -> bool:
        """Write `status` if it differs from the one that was read; whether it did. Raises KubernetesError."""
        wanted = as_manifest(status)
        current = as_manifest(resource.status)  # type: ignore[attr-defined]
        if wanted == current:
            return False
        await self.api.apply(
            {
                "apiVersion": API_VERSION,
                "kind": resource.kind,
                "metadata": {"name": resource.name, "namespace": resource.namespace},
                "status": wanted,
            },
            "status",
        )
        return True

    def conditions(
        self, resource: CustomResource, previous: Iterable[Condition], findings: Iterable[Finding]
    ) -> tuple[Condition, ...]:
        return merged(previous, findings, resource.metadata.generation, self.clock.wall_ms())


def parsed(found: Manifest, model: type[R]) -> R:
    """The typed resource. Raises InvalidResource with a sentence that names the field."""
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise InvalidResource(sentence_of(error)) from error


def as_manifest(status: StatusModel) -> dict[str, Any]:
    return status.model_dump(by_alias=True, mode="json")


def is_paused(resource: CustomResource) -> bool:
    return resource.metadata.annotations.get(names.PAUSED, "").lower() in ("true", "yes", "1")


def stopped_status(found: Manifest, reason: Reason, message: str, clock: Clock) -> Manifest | None:
    """Status for an object whose spec cannot be read: only conditions are touched. None if it says so already."""
    previous = [Condition.model_validate(item) for item in found.get("status", {}).get("conditions", [])]
    findings = [Finding(Type.READY, False, reason, message), Finding(Type.DEGRADED, True, reason, message)]
    generation = found["metadata"].get("generation", 0)
    known = [condition for condition in previous if condition.type not in ("Ready", "Degraded")]
    conditions = [*merged(previous, findings, generation, clock.wall_ms()), *known]
    wanted = {"conditions": [condition.model_dump(by_alias=True, mode="json") for condition in conditions]}
    if not list(differences(wanted, {"conditions": found.get("status", {}).get("conditions", [])})):
        return None
    metadata = {"name": found["metadata"]["name"], "namespace": found["metadata"]["namespace"]}
    kept = {key: value for key, value in found.get("status", {}).items() if key != "conditions"}
    return {"apiVersion": API_VERSION, "kind": found["kind"], "metadata": metadata, "status": kept | wanted}

"""What every reconciler works with.

Owns: the bundle of ports, reading a custom resource, writing its status, pausing. Imports:
kube.api, kube.cache, stores, events, resources, conditions. Invariants: a resource that cannot be
understood gets a condition, never a crash; a field that only newer definitions have is skipped, and
reported once; a status is written only when it differs; what is read comes from the caches, which
hold at least what this process wrote; what cannot be taken back is decided on a look at the API
server itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from pydantic import ValidationError

from magnetar.clock import Clock
from magnetar.errors import MagnetarError, StoreUnavailable
from magnetar.resources.base import API_VERSION, Condition, CustomResource, StatusModel, sentence_of
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.topic_namespace import TopicNamespace
from magnetar_operator import names
from magnetar_operator.brokers.autoscaling_metrics import AutoscalingMetrics
from magnetar_operator.builders.object import Defaults, Manifest, etcd_endpoints
from magnetar_operator.conditions import Finding, Reason, Type, merged
from magnetar_operator.engine.planning import differences
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.etcd.credentials import EtcdCredentials
from magnetar_operator.jobs.metrics import JobMetrics
from magnetar_operator.jobs.waiting import Waits
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.cache import OWNER_LABELS, ObjectCache, Shown, claim_slot, label_slot
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import BROKER_CLUSTER
from magnetar_operator.stores.connections import ClusterStore, Stores
from magnetar_operator.stores.restore import is_held

log = structlog.get_logger(__name__)

R = TypeVar("R", bound=CustomResource)
UNKNOWN_FIELDS_MAX = 1000


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
    cache: ObjectCache
    credentials: EtcdCredentials
    autoscaling: AutoscalingMetrics
    refused: Callable[[str], bool]
    """Whether a namespace may not be read now: what the cache does not show there may exist."""
    jobs: JobMetrics = field(default_factory=JobMetrics)
    waits: Waits = field(default_factory=Waits)
    leftovers: dict[Key, float] = field(default_factory=dict)
    """TransactionCoordinators that may still be announced by another cluster than theirs, from
    one of their name before them, and when (monotonic) to look again."""
    look_at: Callable[[Key], None] = lambda _: None
    """Has another resource reconciled soon, for what it depends on has changed."""

    async def read(self, key: Key, model: type[R]) -> R | None:
        """The resource, or None if it is gone. Raises InvalidResource."""
        found = self.cache.get(key.kind, key.namespace, key.name)
        return parsed_json(found.data, model) if found is not None else None

    async def cluster(self, namespace: str, name: str) -> BrokerCluster | None:
        """A cluster that other resources refer to. Raises InvalidResource."""
        found = self.cache.get("BrokerCluster", namespace, name)
        return _cluster_of(found) if found is not None else None

    async def store_of(self, cluster: BrokerCluster) -> ClusterStore:
        """The cluster's metadata store; connects when first used.

        Raises StoreError if its credentials are missing or the cluster is gone, KubernetesError.
        """
        tls = await self.credentials.of(cluster)
        if self.cache.get(cluster.kind, cluster.namespace, cluster.name) is None:
            # who has waited for so long must not open it again
            raise StoreUnavailable(f"{cluster.reference} is gone")
        store = self.stores.of((cluster.namespace, cluster.name), etcd_endpoints(cluster), tls)
        store.restoring = is_held(cluster.status.restore)
        return store

    def retain_stores(self) -> None:
        """Close the stores of clusters that are gone."""
        self.stores.retain((key.namespace, key.name) for key in self.keys(BROKER_CLUSTER.kind))

    async def list_everywhere(self, kind: str) -> list[Manifest]:
        """All objects of a kind in the namespaces that this operator watches."""
        return [found.manifest for found in self.cache.all(kind)]

    def keys(self, kind: str) -> list[Key]:
        """The same, names only."""
        return [Key(kind, *found.name) for found in self.cache.all(kind)]

    def claimants(
        self, cluster: tuple[str, str], tenant: str, namespace: str
    ) -> list[TopicNamespace]:
        """All resources that speak for one Pulsar namespace of one cluster; one that cannot be
        understood cannot act, and is left out."""
        found = []
        for item in self.cache.find("TopicNamespace", claim_slot(cluster, tenant, namespace)):
            with contextlib.suppress(InvalidResource):
                found.append(parsed_json(item.data, TopicNamespace))
        return found

    def referring(self, namespace: str, name: str) -> list[Shown]:
        """TopicNamespaces that refer to a cluster, be it there or not."""
        cluster = claim_slot((namespace, name), "", "")[:3]
        return [
            found for found in self.cache.all("TopicNamespace") if found.slots[0][:3] == cluster
        ]

    def labelled(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Objects of a watched kind with these labels, which must name their owner
        (`kube.cache.OWNER_LABELS`)."""
        owner = next(label for label in OWNER_LABELS if label in labels)
        found = [
            item.manifest
            for item in self.cache.find(kind, label_slot(namespace, owner, labels[owner]))
        ]
        return [
            item for item in found if labels.items() <= item["metadata"].get("labels", {}).items()
        ]

    async def write_status(self, resource: CustomResource, status: StatusModel) -> bool:
        """Write `status` if it differs from the one that was read; whether it did. Raises
        KubernetesError."""
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

    async def write_outcome(
        self,
        stored: CustomResource,
        status: StatusModel,
        previous: Iterable[Condition],
        ready: Finding,
    ) -> None:
        """Write the status if it differs from that of `stored`, and an Event if the resource has
        become Ready. Raises KubernetesError."""
        await self.write_status(stored, status)
        was_ready = any(found.type == "Ready" and found.status == "True" for found in previous)
        if ready.holds and not was_ready:
            await self.events.normal(stored, "Ready", ready.message)

    def conditions(
        self, resource: CustomResource, previous: Iterable[Condition], findings: Iterable[Finding]
    ) -> tuple[Condition, ...]:
        return merged(previous, findings, resource.metadata.generation, self.clock.wall_ms())


def parsed(found: Manifest, model: type[R]) -> R:
    """The typed resource, without the fields that only newer definitions have. Raises
    InvalidResource with a sentence that names the field.

    The API server stores no field that its definitions lack, so that one unknown here is no typing
    error; by a default every object may have it.
    """
    try:
        return model.model_validate(found)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        unknown = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    for place in unknown:
        if place[:2] not in model.NEVER_DEFAULTED:
            found = _without(found, place)
            _report_unknown(
                model.__name__, ".".join("*" if isinstance(part, int) else part for part in place)
            )
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise InvalidResource(sentence_of(error)) from error


def parsed_json(data: bytes, model: type[R]) -> R:
    """The same from JSON. Raises InvalidResource."""
    try:
        return model.model_validate_json(data)
    except ValidationError:
        return parsed(json.loads(data), model)


def _without(value: Any, place: tuple[int | str, ...]) -> Any:
    """The document without what is at `place`; as it is if nothing is there."""
    if isinstance(value, Mapping) and place[0] in value:
        if len(place) == 1:
            return {name: item for name, item in value.items() if name != place[0]}
        return {**value, place[0]: _without(value[str(place[0])], place[1:])}
    if isinstance(value, list) and len(place) > 1:
        return [
            _without(item, place[1:]) if number == place[0] else item
            for number, item in enumerate(value)
        ]
    return value


@functools.lru_cache(maxsize=UNKNOWN_FIELDS_MAX)
def _report_unknown(kind: str, field: str) -> None:
    """Of a field that thousands of objects have, once."""
    log.warning(
        "field.unknown",
        kind=kind,
        field=field,
        remedy="the definitions are newer than this operator, which skips it: upgrade it",
    )


@functools.lru_cache(maxsize=64)
def _cluster_of(found: Shown) -> BrokerCluster:
    """Thousands of namespaces ask for the same version of the same cluster."""
    return parsed_json(found.data, BrokerCluster)


def as_manifest(status: StatusModel) -> dict[str, Any]:
    """What is written of a status: fields that say nothing are left out."""
    found: dict[str, Any] = _notifying(status.model_dump(by_alias=True, mode="json"))
    return found


def _notifying(value: Any) -> Any:
    """Without empty texts and objects."""
    if isinstance(value, dict):
        return {
            name: item
            for name, part in value.items()
            if (item := _notifying(part)) not in ("", {}, None)
        }
    return [_notifying(item) for item in value] if isinstance(value, list) else value


def is_paused(resource: CustomResource) -> bool:
    return resource.metadata.annotations.get(names.PAUSED, "").lower() in ("true", "yes", "1")


def stopped_status(found: Manifest, reason: Reason, message: str, clock: Clock) -> Manifest | None:
    """Status for an object whose spec cannot be read: only conditions are touched. None if it
    says so already."""
    previous = [
        Condition.model_validate(item) for item in found.get("status", {}).get("conditions", [])
    ]
    findings = [
        Finding(Type.READY, False, reason, message),
        Finding(Type.DEGRADED, True, reason, message),
    ]
    generation = found["metadata"].get("generation", 0)
    known = [condition for condition in previous if condition.type not in ("Ready", "Degraded")]
    conditions = [*merged(previous, findings, generation, clock.wall_ms()), *known]
    wanted = {
        "conditions": [condition.model_dump(by_alias=True, mode="json") for condition in conditions]
    }
    if not list(differences(wanted, {"conditions": found.get("status", {}).get("conditions", [])})):
        return None
    metadata = {"name": found["metadata"]["name"], "namespace": found["metadata"]["namespace"]}
    kept = {key: value for key, value in found.get("status", {}).items() if key != "conditions"}
    return {
        "apiVersion": API_VERSION,
        "kind": found["kind"],
        "metadata": metadata,
        "status": kept | wanted,
    }

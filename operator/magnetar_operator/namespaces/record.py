"""What a `TopicNamespace` wants of the records of its namespace and its tenant.

Owns: the decision which fields are set, removed and left alone, and the text about a change.
Imports: resources, magnetar.metadata. Pure. Invariants: wanting is idempotent; only fields that the
resource sets, or has set before, ever change; boundaries never change, and those of a record that
was lost fit the bundles that still hold messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from magnetar.metadata import keys
from magnetar.metadata.owned_fields import (
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    tenant_value,
    value_of,
    with_fields,
)
from magnetar.metadata.records import BundleRecord, BundleState, NamespaceRecord, TenantRecord
from magnetar.metadata.store import KeyValue
from magnetar.names import (
    CLUSTER_NAME,
    BundleName,
    NamespaceName,
    fitting_boundaries,
    initial_boundaries,
    partition_of,
)
from magnetar.policies import KEPT_POLICIES
from magnetar.resources.topic_namespace import TopicNamespace

TENANT_FIELDS: Mapping[str, tuple[str, ...]] = {ADMIN_ROLES: (), ALLOWED_CLUSTERS: (CLUSTER_NAME,)}
"""Fields of a tenant, and their defaults."""
VALUE_LENGTH_MAX = 200
NOTIFIED_MAX = 20


@dataclass(frozen=True, slots=True)
class Change:
    """One field before and after; None is unset."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.old)} -> {_shown(self.new)}"


def _shown(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value, sort_keys=True)
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[:VALUE_LENGTH_MAX]}..."


def changes_text(changes: Sequence[Change]) -> str:
    """The changes as one message."""
    more = f"; and {len(changes) - NOTIFIED_MAX} more" if len(changes) > NOTIFIED_MAX else ""
    return "; ".join(map(str, changes[:NOTIFIED_MAX])) + more


def owner_text(resource: TopicNamespace) -> str:
    """How a record names its resource."""
    return f"{resource.namespace}/{resource.name}"


def seniority(resource: TopicNamespace) -> tuple[str, str, str]:
    """Order among resources for the same namespace: the oldest first, names where the second is
    the same."""
    return resource.metadata.creation_timestamp, resource.namespace, resource.name


# --- the namespace --------------------------------------------------------------------------------


def desired_record(
    resource: TopicNamespace, current: NamespaceRecord | None, living: Sequence[BundleName] = ()
) -> NamespaceRecord:
    """The record as this resource wants it: its fields set, those that it has set before and sets
    no longer removed.

    Without a record there is a new one; `living` are bundles that hold messages though the record
    is gone: the boundaries fit them, and until policies are set nothing in them expires.
    """
    fields, owner = resource.spec.fields(), owner_text(resource)
    if current is None:
        boundaries = fitting_boundaries(initial_boundaries(resource.spec.bundles), living)
        current = NamespaceRecord(
            boundaries,
            dict(KEPT_POLICIES) if living else {},
            bundles_created=len(boundaries) - 1,
        )
    dropped = (
        [field for field in current.owned if field not in fields] if current.owner == owner else []
    )
    changed = {
        field: value
        for field, value in fields.items()
        if value_of(current.policies, field) != value
    }
    policies = with_fields(current.policies, {**dict.fromkeys(dropped), **changed})
    return NamespaceRecord(
        current.boundaries,
        policies,
        owner,
        tuple(sorted(fields)),
        bundles_created=current.bundles_created,
    )


def record_changes(old: NamespaceRecord, new: NamespaceRecord) -> list[Change]:
    """What a person should know of the difference: fields with their values, then the owner."""
    fields = sorted({*old.owned, *new.owned})
    pairs = (
        (field, value_of(old.policies, field), value_of(new.policies, field)) for field in fields
    )
    changes = [Change(field, before, after) for field, before, after in pairs if before != after]
    if old.owner != new.owner:
        changes.append(Change("owner", old.owner or None, new.owner or None))
    return changes


def released_record(current: NamespaceRecord) -> NamespaceRecord:
    """The record without an owner; every value stays."""
    return replace(current, owner="", owned=())


def cleared_record(current: NamespaceRecord) -> NamespaceRecord:
    """The record without an owner and without what the owner set."""
    return replace(
        released_record(current),
        policies=with_fields(current.policies, dict.fromkeys(current.owned)),
    )


# --- the tenant -----------------------------------------------------------------------------------


def desired_tenant(resource: TopicNamespace, current: TenantRecord | None) -> TenantRecord:
    """The tenant as this resource wants it, which owns it if it sets a field. What it sets no
    longer has its default again."""
    fields, owner = resource.spec.tenant_fields(), owner_text(resource)
    before = (
        current
        if current is not None
        else TenantRecord(allowed_clusters=TENANT_FIELDS[ALLOWED_CLUSTERS])
    )
    dropped = (
        [field for field in before.owned if field not in fields] if before.owner == owner else []
    )
    values = {field: tenant_value(before, field) for field in TENANT_FIELDS}
    values |= {field: TENANT_FIELDS[field] for field in dropped} | fields
    return TenantRecord(
        values[ADMIN_ROLES],
        values[ALLOWED_CLUSTERS],
        owner if fields else "",
        tuple(sorted(fields)),
    )


def tenant_changes(old: TenantRecord | None, new: TenantRecord) -> list[Change]:
    """As `record_changes`."""
    before = old if old is not None else TenantRecord()
    pairs = (
        (field, tenant_value(before, field), tenant_value(new, field)) for field in TENANT_FIELDS
    )
    changes = [
        Change(field, list(value) or None, list(after) or None)
        for field, value, after in pairs
        if value != after
    ]
    if before.owner != new.owner:
        changes.append(Change("owner", before.owner or None, new.owner or None))
    return changes


def differing_tenant_fields(resource: TopicNamespace, current: TenantRecord) -> list[str]:
    """Fields of the tenant that this resource sets otherwise than they are."""
    return [
        field
        for field, value in resource.spec.tenant_fields().items()
        if tenant_value(current, field) != value
    ]


def released_tenant(current: TenantRecord) -> TenantRecord:
    """The tenant without an owner; every value stays."""
    return replace(current, owner="", owned=())


# --- what a namespace holds -----------------------------------------------------------------------


def living_bundles(items: Iterable[KeyValue]) -> dict[BundleName, BundleRecord]:
    """Bundles among the store's records that have not been split or removed."""
    found = {
        BundleName.parse(item.key.removeprefix(keys.BUNDLES)): BundleRecord.decode(item.value)
        for item in items
    }
    return {
        name: record for name, record in found.items() if record.state is not BundleState.DELETED
    }


def unknown_contents(bundles: Mapping[BundleName, BundleRecord]) -> list[BundleName]:
    """Bundles whose contents are not known now: the brokers that serve the others have
    entered all their topics."""

    def has_held_nothing(record: BundleRecord) -> bool:
        return record.state is BundleState.FREE and record.checkpoint is None and not record.chain

    return [
        name
        for name, record in bundles.items()
        if record.state is not BundleState.OWNED and not has_held_nothing(record)
    ]


def number_of_topics(name: NamespaceName, items: Iterable[KeyValue]) -> int:
    """Topics that these entries stand for; the partitions of one count as one."""
    start = len(keys.partitioned_topics_in(name))
    return len({_base(item.key[start:]) for item in items})


def _base(entry: str) -> str:
    index = partition_of(entry)
    return entry.removesuffix(f"-partition-{index}") if index >= 0 else entry

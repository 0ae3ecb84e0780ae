"""Fields of namespaces and tenants that a custom resource owns.

Owns: how such a field is named, read and changed, and the refusal of a change by other clients.
Imports: errors, records. Pure. Names: `policies.<key>`, `policies.backlog_quota_map.<type>`,
`permissions.<role>`, `properties.<key>`; of tenants `tenantConfig.<key>`. Invariants: fields do not
overlap, so what one owner sets is never part of what another sets; a writer that compares the
record's revision when it writes cannot slip past an owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magnetar.errors import OwnedByResource
from magnetar.metadata.records import NamespaceRecord, TenantRecord

POLICIES, PERMISSIONS, PROPERTIES, TENANT = (
    "policies.",
    "permissions.",
    "properties.",
    "tenantConfig.",
)
QUOTAS, GRANTS, GRANTS_BY_ROLE, PROPERTIES_KEY = (
    "backlog_quota_map",
    "auth_policies",
    "namespace_auth",
    "properties",
)
ADMIN_ROLES, ALLOWED_CLUSTERS = f"{TENANT}adminRoles", f"{TENANT}allowedClusters"
OWNER_KIND = "TopicNamespace"


def place_of(field: str) -> tuple[str, ...]:
    """Where a field of a namespace stands in the record's policies."""
    if field.startswith(PERMISSIONS):
        return GRANTS, GRANTS_BY_ROLE, field.removeprefix(PERMISSIONS)
    if field.startswith(PROPERTIES):
        return PROPERTIES_KEY, field.removeprefix(PROPERTIES)
    key = field.removeprefix(POLICIES)
    return (QUOTAS, key.removeprefix(f"{QUOTAS}.")) if key.startswith(f"{QUOTAS}.") else (key,)


def value_of(policies: Mapping[str, Any], field: str) -> Any:
    """The value of a field, None if it is not set."""
    found: Any = policies
    for step in place_of(field):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def with_fields(policies: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `policies` with these fields set, or removed where the value is None, and
    with them what is empty then."""
    changed = dict(policies)
    for field, value in changes.items():
        _set(changed, place_of(field), value)
    return changed


def _set(policies: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    step, rest = place[0], place[1:]
    if rest:
        inner = dict(found) if isinstance(found := policies.get(step), Mapping) else {}
        _set(inner, rest, value)
        value = inner or None
    if value is None:
        policies.pop(step, None)
    else:
        policies[step] = value


def changed_field(
    before: Mapping[str, Any], after: Mapping[str, Any], fields: Iterable[str]
) -> str:
    """The first of `fields` that differs, "" if none does."""
    return next(
        (field for field in fields if value_of(before, field) != value_of(after, field)), ""
    )


def refuse_edit(record: NamespaceRecord, after: Mapping[str, Any]) -> None:
    """Raises OwnedByResource if policies `after` an edit differ in a field that a custom
    resource owns."""
    field = changed_field(record.policies, after, record.owned) if record.owner else ""
    if field:
        raise OwnedByResource(
            f"{OWNER_KIND} {record.owner} owns {field}; edit that resource instead"
        )


def refuse_deletion(name: object, record: NamespaceRecord) -> None:
    """Raises OwnedByResource if a custom resource owns the namespace."""
    if record.owner:
        raise OwnedByResource(
            f"{OWNER_KIND} {record.owner} owns namespace {name}; delete that resource instead"
        )


# --- tenants --------------------------------------------------------------------------------------


def tenant_value(record: TenantRecord, field: str) -> tuple[str, ...]:
    """The value of a field of a tenant."""
    return record.admin_roles if field == ADMIN_ROLES else record.allowed_clusters


def refuse_tenant_edit(name: str, before: TenantRecord, after: TenantRecord) -> None:
    """Raises OwnedByResource if `after` differs in a field that a custom resource owns."""
    for field in before.owned if before.owner else ():
        if tenant_value(before, field) != tenant_value(after, field):
            raise OwnedByResource(
                f"{OWNER_KIND} {before.owner} owns {field} of tenant {name}; edit that resource "
                "instead"
            )


def refuse_tenant_deletion(name: str, record: TenantRecord) -> None:
    """Raises OwnedByResource if a custom resource owns the tenant's configuration."""
    if record.owner:
        raise OwnedByResource(
            f"{OWNER_KIND} {record.owner} owns tenant {name}; delete that resource instead"
        )

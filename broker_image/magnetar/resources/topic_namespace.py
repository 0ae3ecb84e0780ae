"""`TopicNamespace`: a Pulsar namespace of a cluster.

Owns: its fields, defaults, limits and rules. Imports: resources.base, resources.namespace_policies,
magnetar.names, magnetar.metadata.owned_fields. Invariant: the resource owns only the fields it
sets; absent ones belong to the administrators who set them by REST.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from magnetar.metadata.owned_fields import (
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    PERMISSIONS,
    POLICIES,
    PROPERTIES,
)
from magnetar.names import (
    BUNDLES_MAX,
    DEFAULT_BUNDLES,
    PART_LENGTH_MAX,
    PART_PATTERN,
    SYSTEM_NAMESPACE,
    NamespaceName,
)
from magnetar.resources.base import (
    CONDITIONS,
    Condition,
    CustomResource,
    Model,
    Rule,
    StatusModel,
    immutable,
)
from magnetar.resources.namespace_policies import (
    CHECKED,
    PROPERTY_NAME_LENGTH_MAX,
    ROLE_LENGTH_MAX,
    Actions,
    Policies,
    TenantConfig,
)

FINALIZER = "magnetar.io/topic-namespace"


class ClusterReference(Model):
    """The cluster that holds the namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the BrokerCluster.")
    namespace: str = Field(
        default="",
        max_length=63,
        description="Its Kubernetes namespace; empty = the same. Another one must allow this one "
        "in spec.allowedNamespaces.",
    )


class TopicNamespaceSpec(Model):
    """What the namespace should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.tenant != '{SYSTEM_NAMESPACE.tenant}' || self.namespace != "
            f"'{SYSTEM_NAMESPACE.namespace}'",
            f"namespace {SYSTEM_NAMESPACE} belongs to the brokers; choose another one",
            lambda spec: spec.name != SYSTEM_NAMESPACE,
        ),
        Rule(
            "self.clusterRef == oldSelf.clusterRef",
            "clusterRef is immutable: make a new TopicNamespace for another cluster",
        ),
        Rule(
            f"self.permissions.all(role, size(role) >= 1 && size(role) <= {ROLE_LENGTH_MAX})",
            f"permissions: a role has a name of 1 to {ROLE_LENGTH_MAX} characters; correct the key",
            lambda spec: all(1 <= len(role) <= ROLE_LENGTH_MAX for role in spec.permissions),
        ),
        Rule(
            "self.properties.all(name, size(name) >= 1 && size(name) <= "
            f"{PROPERTY_NAME_LENGTH_MAX})",
            f"properties: a property has a name of 1 to {PROPERTY_NAME_LENGTH_MAX} characters; "
            "correct the key",
            lambda spec: all(
                1 <= len(name) <= PROPERTY_NAME_LENGTH_MAX for name in spec.properties
            ),
        ),
    )

    cluster_ref: ClusterReference = Field(description="The cluster that holds the namespace.")
    tenant: str = Field(
        min_length=1,
        max_length=PART_LENGTH_MAX,
        pattern=f"^{PART_PATTERN}$",
        description="Pulsar tenant, for example public.",
        json_schema_extra=immutable("make a new TopicNamespace"),
    )
    namespace: str = Field(
        min_length=1,
        max_length=PART_LENGTH_MAX,
        pattern=f"^{PART_PATTERN}$",
        description="Pulsar namespace inside the tenant.",
        json_schema_extra=immutable("make a new TopicNamespace"),
    )
    bundles: int = Field(
        default=DEFAULT_BUNDLES,
        ge=1,
        le=BUNDLES_MAX,
        description="Number of bundles at creation. Afterwards brokers split those with too much load.",
        json_schema_extra=immutable(
            "it is the initial number; bundles are split by the brokers afterwards"
        ),
    )
    policies: Policies = Field(
        default_factory=Policies,
        description="Policies that this resource owns, under Pulsar's names. One that you take out "
        "again is removed from the namespace.",
    )
    permissions: dict[str, Actions] = Field(
        default={},
        max_length=256,
        description="What each role may do; this resource owns the roles named here, others are "
        f"granted by REST. {CHECKED}",
    )
    properties: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        default={},
        max_length=64,
        description="Properties of the namespace; this resource owns those named here.",
    )
    tenant_config: TenantConfig | None = Field(
        default=None,
        description="The tenant's configuration. Of several resources for one tenant the oldest "
        "that has this decides. Absent: not owned here.",
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="What deleting this resource does: Retain leaves the namespace alone, Delete "
        "removes it if it is empty.",
    )

    @property
    def name(self) -> NamespaceName:
        return NamespaceName(self.tenant, self.namespace)

    def fields(self) -> dict[str, Any]:
        """Every field of the namespace that this resource sets, as `owned_fields` names them,
        with its value."""
        return {
            **{f"{POLICIES}{key}": value for key, value in self.policies.declared().items()},
            **{
                f"{PERMISSIONS}{role}": sorted(actions)
                for role, actions in self.permissions.items()
            },
            **{f"{PROPERTIES}{name}": value for name, value in self.properties.items()},
        }

    def tenant_fields(self) -> dict[str, tuple[str, ...]]:
        """The same of the tenant."""
        config = self.tenant_config or TenantConfig.model_construct(
            admin_roles=None, allowed_clusters=None
        )
        found = {ADMIN_ROLES: config.admin_roles, ALLOWED_CLUSTERS: config.allowed_clusters}
        return {field: tuple(sorted(value)) for field, value in found.items() if value is not None}


class TopicNamespaceStatus(StatusModel):
    """What the namespace is."""

    observed_generation: int = Field(
        default=0, description="Generation of the spec that this status speaks of."
    )
    applied_generation: int = Field(
        default=0,
        description="Generation of the spec whose policies, permissions and properties the cluster "
        "was given last.",
    )
    bundles: int = Field(default=0, description="Bundles that the namespace has now.")
    owns_tenant: bool = Field(
        default=False, description="Whether the tenant's configuration is the one of this resource."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(), description="Ready.", json_schema_extra=CONDITIONS
    )


class TopicNamespace(CustomResource):
    """A Pulsar namespace of a cluster."""

    # A newer operator may own fields of the records by these; skipping one here would take it away
    # there.
    NEVER_DEFAULTED: ClassVar[frozenset[tuple[str, ...]]] = CustomResource.NEVER_DEFAULTED | {
        ("spec", "policies"),
        ("spec", "tenantConfig"),
    }

    spec: TopicNamespaceSpec
    status: TopicNamespaceStatus = TopicNamespaceStatus()

    @property
    def cluster_key(self) -> tuple[str, str]:
        """Kubernetes namespace and name of the cluster."""
        return self.spec.cluster_ref.namespace or self.namespace, self.spec.cluster_ref.name

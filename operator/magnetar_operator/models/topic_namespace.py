"""`TopicNamespace`: a Pulsar namespace of a cluster.

Owns: its fields, defaults, limits and rules. Imports: models.base, magnetar.names.
Invariant: the resource owns only the policies it sets; absent ones belong to whoever sets them by REST.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from magnetar.names import BUNDLES_MAX, DEFAULT_BUNDLES, NamespaceName
from magnetar_operator.models.base import CONDITIONS, Condition, CustomResource, Model, Rule, StatusModel, immutable

PART_PATTERN = "^[-=:.0-9A-Za-z_]+$"
FINALIZER = "magnetar.io/topic-namespace"


class ClusterReference(Model):
    """The cluster that holds the namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the BrokerCluster.")
    namespace: str = Field(
        default="",
        max_length=63,
        description="Its Kubernetes namespace; empty = the same. Another one must allow this one in spec.allowedNamespaces.",
    )


class PolicyModel(Model):
    """Policies carry Pulsar's own names, so that a manifest, REST and pulsar-admin speak of the same words."""

    model_config = ConfigDict(alias_generator=None, extra="forbid", frozen=True)


class RetentionPolicies(PolicyModel):
    """How long acknowledged messages are kept."""

    retentionTimeInMinutes: int = Field(default=0, ge=-1, description="Minutes; 0 = not at all, -1 = for ever.")
    retentionSizeInMB: int = Field(default=0, ge=-1, description="Megabytes per topic; 0 = none, -1 = unlimited.")


class Policies(PolicyModel):
    """Namespace policies. An absent one is not owned by this resource."""

    retention_policies: RetentionPolicies | None = Field(
        default=None, description="How long acknowledged messages are kept. Absent: not owned here."
    )
    message_ttl_in_seconds: int | None = Field(
        default=None, ge=0, description="Unacknowledged messages older than this are skipped; 0 = never. Absent: not owned here."
    )
    deduplicationEnabled: bool | None = Field(
        default=None, description="Whether brokers drop messages that a producer repeats. Absent: not owned here."
    )

    def owned(self) -> dict[str, object]:
        """The policies that are set, as they stand in the namespace's record."""
        return self.model_dump(exclude_none=True)


class TopicNamespaceSpec(Model):
    """What the namespace should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("self.clusterRef == oldSelf.clusterRef", "clusterRef is immutable: make a new TopicNamespace for another cluster"),
    )

    cluster_ref: ClusterReference = Field(description="The cluster that holds the namespace.")
    tenant: str = Field(
        min_length=1,
        max_length=200,
        pattern=PART_PATTERN,
        description="Pulsar tenant, for example public.",
        json_schema_extra=immutable("make a new TopicNamespace"),
    )
    namespace: str = Field(
        min_length=1,
        max_length=200,
        pattern=PART_PATTERN,
        description="Pulsar namespace inside the tenant.",
        json_schema_extra=immutable("make a new TopicNamespace"),
    )
    bundles: int = Field(
        default=DEFAULT_BUNDLES,
        ge=1,
        le=BUNDLES_MAX,
        description="Number of bundles at creation; afterwards they are split as load asks for it.",
        json_schema_extra=immutable("it is the initial number; bundles are split by the brokers afterwards"),
    )
    policies: Policies = Field(default_factory=Policies, description="Policies that this resource owns.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="What deleting this resource does: Retain leaves the namespace alone, Delete removes it if it is empty.",
    )

    @property
    def name(self) -> NamespaceName:
        return NamespaceName(self.tenant, self.namespace)


class TopicNamespaceStatus(StatusModel):
    """What the namespace is."""

    observed_generation: int = Field(default=0, description="Generation of the spec that this status speaks of.")
    bundles: int = Field(default=0, description="Bundles that the namespace has now.")
    conditions: tuple[Condition, ...] = Field(default=(), description="Ready.", json_schema_extra=CONDITIONS)


class TopicNamespace(CustomResource):
    """A Pulsar namespace of a cluster."""

    spec: TopicNamespaceSpec
    status: TopicNamespaceStatus = TopicNamespaceStatus()

    @property
    def cluster_key(self) -> tuple[str, str]:
        """Kubernetes namespace and name of the cluster."""
        return self.spec.cluster_ref.namespace or self.namespace, self.spec.cluster_ref.name

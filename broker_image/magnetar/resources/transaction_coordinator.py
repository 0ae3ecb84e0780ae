"""`TransactionCoordinator`: the transaction coordinators of a cluster.

Owns: its fields, defaults, limits and rules. Imports: resources siblings. Invariants: a
coordinator's number (TCID) is its pod's ordinal; the cluster cannot change, because transaction ids
carry the number and belong to that cluster's store; `spec.config` admits only settings that a
coordinator has.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from magnetar.metadata.records import COORDINATORS_MAX
from magnetar.resources.base import (
    BY_NAME,
    CONDITIONS,
    NAME_LENGTH_MAX,
    TROUBLES,
    TROUBLES_DESCRIPTION,
    Condition,
    CustomResource,
    Model,
    Rule,
    StatusModel,
    Trouble,
    keyed_by,
)
from magnetar.resources.broker_cluster import PendingRestart, Resources
from magnetar.resources.broker_config import CoordinatorConfig
from magnetar.resources.listeners import CoordinatorAddress, CoordinatorListeners
from magnetar.resources.pod_template import PodTemplate

LISTENED_NAME_LENGTH_MAX = 36
"""The names of its listeners' services begin with it, and have at most 63 characters."""
_NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


class CoordinatedCluster(Model):
    """The cluster that the coordinators serve; in the same Kubernetes namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the BrokerCluster.")


class TransactionCoordinatorSpec(Model):
    """What the coordinators should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.clusterRef == oldSelf.clusterRef",
            "clusterRef is immutable: make a new TransactionCoordinator for another cluster",
        ),
    )

    cluster_ref: CoordinatedCluster = Field(description="The cluster that the coordinators serve.")
    replicas: int = Field(
        default=1,
        ge=0,
        le=COORDINATORS_MAX,
        description="Number of coordinators. Lowering it lets the transactions of the highest ones "
        "end before their pods go; "
        "0 switches transactions off.",
    )
    resources: Resources = Field(
        default_factory=lambda: Resources(requests={"cpu": "100m", "memory": "256Mi"}),
        description="Compute resources of each coordinator.",
        json_schema_extra={
            "default": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {}}
        },
    )
    listeners: CoordinatorListeners = ()
    config: CoordinatorConfig = Field(
        default_factory=CoordinatorConfig,
        description="Settings by their own names, as numbers. A change rolls the coordinators.",
    )
    pod_template: PodTemplate = Field(
        default_factory=PodTemplate, description="Additions to the coordinators' pods."
    )
    drain_timeout_seconds: int = Field(
        default=30,
        ge=1,
        le=3600,
        description="How long a stopping coordinator may take to finish what it has begun.",
    )


class CoordinatorStatus(StatusModel):
    """One coordinator."""

    name: str = Field(description="Its pod.")
    tcid: int = Field(
        default=0, description="Its number, which the ids of its transactions begin with."
    )
    incarnation: str = Field(
        default="", description="Its current incarnation; empty while no process holds its number."
    )
    open_transactions: int = Field(
        default=0, description="Transactions that it has not decided yet, as it last reported."
    )
    phase: str = Field(
        default="", description="Pending, Starting, Ready, Retiring, Terminating or Failed."
    )
    addresses: tuple[CoordinatorAddress, ...] = Field(
        default=(),
        description="Addresses that clients of its listeners get, as far as they are known.",
        json_schema_extra=keyed_by("listener"),
    )


class TransactionCoordinatorStatus(StatusModel):
    """What the coordinators are."""

    observed_generation: int = Field(
        default=0, description="Generation of the spec that this status speaks of."
    )
    replicas: int = Field(default=0, description="Coordinator pods that exist.")
    ready_replicas: int = Field(default=0, description="Coordinator pods that answer.")
    announced: int = Field(
        default=0, description="Number of coordinators that are announced to clients."
    )
    selector: str = Field(
        default="", description="Label selector of the coordinators' pods, for autoscalers."
    )
    coordinators: tuple[CoordinatorStatus, ...] = Field(
        default=(),
        description="Every coordinator.",
        json_schema_extra=BY_NAME,
    )
    pending_restarts: tuple[PendingRestart, ...] = Field(
        default=(),
        description="Pods to be restarted, and why.",
        json_schema_extra=BY_NAME,
    )
    troubles: tuple[Trouble, ...] = Field(
        default=(), description=TROUBLES_DESCRIPTION, json_schema_extra=TROUBLES
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        description="Available, Progressing, Degraded, Ready; Certificate if the cluster has "
        "spec.tls.",
        json_schema_extra=CONDITIONS,
    )


class TransactionCoordinator(CustomResource):
    """The transaction coordinators of a cluster."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {NAME_LENGTH_MAX} && "
            f"self.metadata.name.matches('{_NAME_PATTERN}')",
            f"metadata.name: use at most {NAME_LENGTH_MAX} lower-case letters, digits and -, "
            "beginning with a letter",
            lambda found: (
                len(found.name) <= NAME_LENGTH_MAX
                and re.fullmatch(_NAME_PATTERN, found.name) is not None
            ),
        ),
        Rule(
            f"self.metadata.name.size() <= {LISTENED_NAME_LENGTH_MAX} || size(self.spec.listeners) "
            "== 0",
            "listeners: their services' names begin with metadata.name, which may have at most "
            f"{LISTENED_NAME_LENGTH_MAX} characters then",
            lambda found: len(found.name) <= LISTENED_NAME_LENGTH_MAX or not found.spec.listeners,
        ),
    )

    spec: TransactionCoordinatorSpec
    status: TransactionCoordinatorStatus = TransactionCoordinatorStatus()

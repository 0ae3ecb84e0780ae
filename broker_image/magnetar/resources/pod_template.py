"""`spec.podTemplate`: what may be added to pods. An allow-list: the rest of the pod belongs to the
operator.

Owns: its fields and limits, in the shape that they have in a pod. Imports: resources.base.
Invariants: probes, the grace period, security and containers cannot be given, because drains,
fencing and the pod security standard depend on them; whatever is left empty is absent from the pod.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from magnetar.resources.base import BY_NAME, Model, Rule

ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
RESERVED_VARIABLES = "^(JAVA_|LD_|MAGNETAR_|POD_|PYSPARK_|PYTHON|SPARK_|_SPARK_|PATH$)"
"""Variables by which driver and executors know each other, and what they run."""
PROFILE_ANNOTATIONS = ("apparmor.security", "seccomp.security")
LabelKey = Annotated[str, Field(min_length=1, max_length=316)]
LabelValue = Annotated[str, Field(max_length=63)]


class Toleration(Model):
    """A taint that pods put up with, as in a pod."""

    key: str = Field(
        default="", max_length=316, description="Taint key; empty with operator Exists = every key."
    )
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", description="How `value` is compared."
    )
    value: str = Field(default="", max_length=63, description="Taint value, for operator Equal.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="", description="Taint effect; empty = all."
    )


class NodeRequirement(Model):
    """A condition on a label of nodes."""

    key: LabelKey = Field(description="Label key.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        default="In", description="How it is compared."
    )
    values: tuple[LabelValue, ...] = Field(
        default=(),
        max_length=64,
        description="Values for In and NotIn; one number for Gt and Lt.",
        json_schema_extra=ATOMIC,
    )


class NodeTerm(Model):
    """Conditions that hold together."""

    match_expressions: tuple[NodeRequirement, ...] = Field(
        min_length=1, max_length=16, description="All of them must hold.", json_schema_extra=ATOMIC
    )


class RequiredNodes(Model):
    """Where pods may run."""

    node_selector_terms: tuple[NodeTerm, ...] = Field(
        default=(),
        max_length=16,
        description="One of them must hold; empty = every node will do.",
        json_schema_extra=ATOMIC,
    )


class PreferredNodes(Model):
    """Where pods had better run."""

    weight: int = Field(ge=1, le=100, description="How much that counts beside other preferences.")
    preference: NodeTerm = Field(description="The nodes that are preferred.")


class NodeAffinity(Model):
    """Nodes by their labels."""

    required_during_scheduling_ignored_during_execution: RequiredNodes = Field(
        default_factory=RequiredNodes, description="Without such a node the pod waits."
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodes, ...] = Field(
        default=(), max_length=16, description="Taken if there is room.", json_schema_extra=ATOMIC
    )


class LabelRequirement(Model):
    """A condition on a label of pods."""

    key: LabelKey = Field(description="Label key.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        default="In", description="How it is compared."
    )
    values: tuple[LabelValue, ...] = Field(
        default=(), max_length=64, description="Values for In and NotIn.", json_schema_extra=ATOMIC
    )


class LabelSelector(Model):
    """Pods by their labels."""

    match_labels: dict[str, LabelValue] = Field(
        default={}, max_length=16, description="Labels that a pod must have."
    )
    match_expressions: tuple[LabelRequirement, ...] = Field(
        default=(),
        max_length=16,
        description="More conditions; all must hold.",
        json_schema_extra=ATOMIC,
    )


class PodTerm(Model):
    """Pods, and what counts as near to them."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "size(self.labelSelector.matchLabels) + size(self.labelSelector.matchExpressions) > 0",
            "affinity: a term needs labelSelector.matchLabels or matchExpressions; say which pods "
            "are meant",
            lambda term: bool(
                term.label_selector.match_labels or term.label_selector.match_expressions
            ),
        ),
    )

    label_selector: LabelSelector = Field(default_factory=LabelSelector, description="Which pods.")
    topology_key: LabelKey = Field(
        description="Label of nodes that are one place, such as kubernetes.io/hostname."
    )
    namespaces: tuple[LabelValue, ...] = Field(
        default=(),
        max_length=16,
        description="Namespaces of those pods; empty = the pod's own.",
        json_schema_extra=ATOMIC,
    )


class PreferredPods(Model):
    """Pods that it had better be near to, or away from."""

    weight: int = Field(ge=1, le=100, description="How much that counts beside other preferences.")
    pod_affinity_term: PodTerm = Field(description="The pods.")


class PodAffinity(Model):
    """Places by the pods that are there."""

    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] = Field(
        default=(),
        max_length=16,
        description="Without such a place the pod waits.",
        json_schema_extra=ATOMIC,
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredPods, ...] = Field(
        default=(), max_length=16, description="Taken if there is room.", json_schema_extra=ATOMIC
    )


class Affinity(Model):
    """Where pods go, in the shape that it has in a pod."""

    node_affinity: NodeAffinity = Field(
        default_factory=NodeAffinity, description="Nodes by their labels."
    )
    pod_affinity: PodAffinity = Field(
        default_factory=PodAffinity, description="Near to which pods."
    )
    pod_anti_affinity: PodAffinity = Field(
        default_factory=PodAffinity, description="Away from which pods."
    )


class TopologySpread(Model):
    """How evenly pods are spread over one kind of place; which pods are counted is the
    operator's."""

    max_skew: int = Field(
        default=1, ge=1, le=100, description="How many more pods one place may have than another."
    )
    topology_key: LabelKey = Field(
        description="Label of nodes that are one place, such as topology.kubernetes.io/zone."
    )
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = Field(
        default="ScheduleAnyway",
        description="DoNotSchedule makes pods wait rather than spread unevenly.",
    )


class PodAdditions(Model):
    """What may be added to every kind of pod."""

    labels: dict[str, str] = Field(
        default={}, max_length=32, description="More labels; those of the operator win."
    )
    annotations: dict[str, str] = Field(
        default={}, max_length=32, description="More annotations; those of the operator win."
    )
    node_selector: dict[str, str] = Field(
        default={}, max_length=16, description="Labels that a node must have."
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(),
        max_length=16,
        description="Taints that do not matter.",
        json_schema_extra=ATOMIC,
    )
    affinity: Affinity = Field(
        default_factory=Affinity, description="Nodes and pods to be near to, or away from."
    )
    priority_class_name: str = Field(
        default="", max_length=253, description="Priority of the pods; empty = the default."
    )


class PodTemplate(PodAdditions):
    """What may be added to pods. An allow-list: the rest of the pod belongs to the operator."""

    topology_spread_constraints: tuple[TopologySpread, ...] = Field(
        default=(),
        max_length=8,
        description="Instead of an even spread over hosts and zones, where that is possible.",
        json_schema_extra=ATOMIC,
    )
    service_account_annotations: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        default={},
        max_length=16,
        description="Annotations of the pods' service account, by which clouds know an identity.",
    )


class EnvironmentVariable(Model):
    """A variable of a container. Secrets do not belong here: everyone who may read the resource
    sees it."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.matches('{RESERVED_VARIABLES}')",
            "env: names that begin with JAVA_, LD_, MAGNETAR_, POD_, PYSPARK_, PYTHON or SPARK_, "
            "and PATH, are the operator's; choose another name",
            lambda variable: re.match(RESERVED_VARIABLES, variable.name) is None,
        ),
    )

    name: str = Field(
        min_length=1, max_length=128, pattern="^[A-Za-z_][A-Za-z0-9_]*$", description="Its name."
    )
    value: str = Field(default="", max_length=4096, description="Its value; not a secret.")


def _is_harmless(annotations: dict[str, str]) -> dict[str, str]:
    for name in annotations:
        if any(part in name for part in PROFILE_ANNOTATIONS):
            raise ValueError(
                f"annotation {name!r} would replace the security profile of the pod; remove it"
            )
    return annotations


class JobPodTemplate(PodAdditions):
    """What may be added to pods of Spark jobs. An allow-list: account, privileges, volumes and
    the security context belong to the operator."""

    annotations: Annotated[dict[str, str], Field(max_length=32), AfterValidator(_is_harmless)] = (
        Field(default={}, description="More annotations; those of the operator win.")
    )
    env: tuple[EnvironmentVariable, ...] = Field(
        default=(),
        max_length=64,
        description="More variables of the container.",
        json_schema_extra=BY_NAME,
    )

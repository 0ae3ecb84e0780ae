"""The parts of a `BrokerCluster` that speak of its number of brokers.

Owns: the fields of `spec.autoscaling`, `status.autoscaling` and `status.scaling`, their defaults,
limits and rules. Imports: resources.base. Invariants: every field has a default; an empty part of
the status means that nothing of the kind is under way.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from magnetar.resources.base import Model, Rule, StatusModel

BROKERS_MAX = 200
MESSAGES_PER_SECOND_MAX = 10_000_000
BYTES_PER_SECOND_MAX = 100 * 10**9


class Targets(Model):
    """What one broker should carry; 0 = do not look at it. The target that asks for most brokers
    decides."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.cpuPercent > 0 || self.memoryPercent > 0 || self.messagesPerSecond > 0 || "
            "self.bytesPerSecond > 0",
            "targets: set at least one of cpuPercent, memoryPercent, messagesPerSecond and "
            "bytesPerSecond above 0",
            lambda targets: any(
                (
                    targets.cpu_percent,
                    targets.memory_percent,
                    targets.messages_per_second,
                    targets.bytes_per_second,
                )
            ),
        ),
    )

    cpu_percent: int = Field(
        default=60,
        ge=0,
        le=100,
        description="CPU of a broker, as a share of what it can use: its cores, or its limit if "
        "that is less.",
    )
    memory_percent: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Resident memory of a broker, as a share of its limit. Memory that caches fill "
        "does not fall with more brokers.",
    )
    messages_per_second: int = Field(
        default=0,
        ge=0,
        le=MESSAGES_PER_SECOND_MAX,
        description="Messages per second and broker, published and delivered together.",
    )
    bytes_per_second: int = Field(
        default=0,
        ge=0,
        le=BYTES_PER_SECOND_MAX,
        description="Bytes per second and broker, published and delivered together.",
    )


class ScaleUpPace(Model):
    """How fast brokers are added."""

    stabilization_window_seconds: int = Field(
        default=30,
        ge=0,
        le=3600,
        description="For so long every look at the load must ask for more brokers.",
    )
    max_step: int = Field(
        default=2, ge=1, le=BROKERS_MAX, description="Brokers added at a time, at most."
    )


class ScaleDownPace(Model):
    """How fast brokers are removed."""

    stabilization_window_seconds: int = Field(
        default=300,
        ge=0,
        le=86_400,
        description="For so long every look at the load must ask for fewer brokers.",
    )
    max_step: int = Field(
        default=1,
        ge=1,
        le=BROKERS_MAX,
        description="Brokers removed at a time, at most; they drain one by one.",
    )


class ForecastUse(Model):
    """Brokers ahead of the load, by the forecast of load analytics."""

    enabled: bool = Field(
        default=True,
        description="Whether a forecast counts while a DataJob of type LoadAnalytics gives one. It "
        "only ever asks for more brokers than the load does.",
    )
    lead_seconds: int = Field(
        default=900,
        ge=60,
        le=86_400,
        description="How far ahead: brokers for the highest load within this time are wanted now.",
    )
    percent: int = Field(
        default=70,
        ge=50,
        le=95,
        description="How likely the load is to stay below what brokers are wanted for: 50, 70 or "
        "95, others are taken as the next higher. More costs brokers, less costs minutes above the "
        "target.",
    )


class Autoscaling(Model):
    """Number of brokers by their own load reports."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "autoscaling: minReplicas must not be above maxReplicas",
            lambda spec: spec.min_replicas <= spec.max_replicas,
        ),
    )

    enabled: bool = Field(
        default=False,
        description="Write spec.replicas by load. Leave replicas out of your manifest then.",
    )
    dry_run: bool = Field(
        default=False,
        description="With enabled: true, only say in status.autoscaling and in Events what would "
        "be done.",
    )
    min_replicas: int = Field(default=1, ge=1, le=BROKERS_MAX, description="Never fewer brokers.")
    max_replicas: int = Field(default=3, ge=1, le=BROKERS_MAX, description="Never more brokers.")
    targets: Targets = Field(default_factory=Targets, description="What one broker should carry.")
    tolerance_percent: int = Field(
        default=10,
        ge=0,
        le=50,
        description="More brokers are added only when so far above a target, and removed only if "
        "the rest would stay so far below it.",
    )
    scale_up: ScaleUpPace = Field(
        default_factory=ScaleUpPace, description="How fast brokers are added."
    )
    scale_down: ScaleDownPace = Field(
        default_factory=ScaleDownPace, description="How fast brokers are removed."
    )
    forecast: ForecastUse = Field(
        default_factory=ForecastUse, description="Brokers ahead of the load."
    )


class AutoscalingStatus(StatusModel):
    """The last decision of the autoscaler; empty while spec.autoscaling.enabled is false."""

    mode: str = Field(default="", description="Active or DryRun.")
    decision: str = Field(
        default="",
        description="Steady, ScaleUpSoon, ScaleUp, ScaleDownSoon, ScaleDown, Waiting, SteppedBack "
        "or Off.",
    )
    current_replicas: int = Field(default=0, description="spec.replicas at that decision.")
    wanted_replicas: int = Field(
        default=0, description="Brokers that the load asks for, within the bounds."
    )
    message: str = Field(
        default="", description="The arithmetic in words, as it was when the decision was made."
    )
    since: str = Field(default="", description="When the decision was made, RFC 3339.")
    last_scale_time: str = Field(
        default="", description="When spec.replicas was last written, RFC 3339."
    )
    last_scale: str = Field(default="", description="What was written then, such as 3 -> 4.")
    forecast: str = Field(
        default="",
        description="Whose forecast counts and until when, or why it is ignored; absent: none was "
        "given, or it is switched off.",
    )


class ScalingStatus(StatusModel):
    """The change of the number of brokers, or the replacement of one, that is under way; empty
    while none is."""

    action: str = Field(default="", description="ScaleUp, ScaleDown or Replace.")
    from_replicas: int = Field(default=0, description="Brokers when it began.")
    to_replicas: int = Field(default=0, description="Brokers when it ends.")
    started_at: str = Field(default="", description="When it began, RFC 3339.")
    broker: str = Field(
        default="", description="The broker that is drained, removed or replaced now."
    )
    drain_started_at: str = Field(default="", description="When its drain began, RFC 3339.")
    bundles: int = Field(default=0, description="Bundles that it had then.")

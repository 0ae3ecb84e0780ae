"""The parts of a `BrokerCluster` that speak of load balancing.

Owns: the fields of `spec.loadBalancing` and `status.balance`, their limits and rules, and which of
Pulsar's settings each field sets. Imports: resources.base, balance.settings. Invariants: a field
that is not given sets nothing, so that a newer broker's defaults and what administrators have set
by hand hold; a setting has one place in the resource, a field here or its name in `spec.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from magnetar.balance.settings import AVERAGE, FIELDS, STRATEGIES, text_of
from magnetar.resources.base import Model, Rule, StatusModel

Strategy = Literal[
    "Planner",
    "OverloadShedder",
    "ThresholdShedder",
    "UniformLoadShedder",
    "AvgShedder",
    "TransferShedder",
]
Placement = Literal[
    "Planner",
    "LeastLongTermMessageRate",
    "LeastResourceUsageWithWeight",
    "RoundRobinBrokerSelector",
    "AvgShedder",
]
TRIGGER_PER_BAND = 2.5
"""As the planner's defaults have it: 5 % to 2 %."""
SETS: Mapping[str, tuple[str, ...]] = {
    "enabled": ("loadBalancerEnabled",),
    "strategy": STRATEGIES,
    "placement": STRATEGIES,
    "interval_seconds": ("plannerIntervalSeconds", "loadBalancerSheddingIntervalMinutes"),
    "band_percent": ("plannerBand", "plannerTriggerBand"),
    "moves_parallel_max": ("plannerMovesParallelMax",),
    "splits": ("loadBalancerAutoBundleSplitEnabled",),
    "merges": ("plannerMergeEnabled",),
    "failure_domains": ("failureDomainsEnabled",),
}
"""Pulsar's settings by the field that sets them."""


class LoadBalancing(Model):
    """How bundles are spread over the brokers. A field that is absent leaves its settings to the
    brokers' defaults, or to what pulsar-admin has set. No change here restarts a broker."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.placement) || (self.placement == '{AVERAGE}') == "
            f"(has(self.strategy) && self.strategy == '{AVERAGE}')",
            "loadBalancing: AvgShedder works only as both strategy and placement; set placement to "
            "AvgShedder exactly when strategy is, or leave placement out",
            lambda given: (
                given.placement is None
                or (given.placement == AVERAGE) == (given.strategy == AVERAGE)
            ),
        ),
    )

    enabled: bool | None = Field(
        default=None,
        description="false: no bundle is moved, split or merged; those without a broker still get "
        "one. Default: true.",
    )
    strategy: Strategy | None = Field(
        default=None,
        description="Which bundles leave a broker: Planner, or one of Pulsar's shedders by its "
        "name. AvgShedder is the placement as well. Default: Planner.",
    )
    placement: Placement | None = Field(
        default=None,
        description="Which broker a bundle without one gets, when no plan says it. Default: "
        "Planner.",
    )
    interval_seconds: int | None = Field(
        default=None,
        ge=1,
        le=3600,
        description="Time between two decisions of the strategy. Default: 5 of the Planner, 60 of "
        "Pulsar's shedders.",
    )
    band_percent: float | None = Field(
        default=None,
        ge=0.1,
        le=40,
        description="The Planner brings every broker so close to the mean load, once one is 2.5 "
        "times as far from it. Default: 2.",
    )
    moves_parallel_max: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Bundles that the leader moves at the same time. Default: 64.",
    )
    splits: bool | None = Field(
        default=None, description="Whether hot bundles are split. Default: true."
    )
    merges: bool | None = Field(
        default=None, description="Whether cold neighbours may be merged. Default: true."
    )
    failure_domains: bool | None = Field(
        default=None,
        description="Whether namespaces of an anti-affinity group are kept in different failure "
        "domains: those that were registered, else the zones of the brokers' nodes. Default: true.",
    )

    def settings(self) -> dict[str, object]:
        """By Pulsar's names, as far as fields are given."""
        seconds, band = self.interval_seconds, self.band_percent
        average = self.strategy == AVERAGE
        found = {
            "loadBalancerEnabled": self.enabled,
            STRATEGIES[0]: self.strategy,
            STRATEGIES[1]: AVERAGE if average else self.placement,
            "plannerIntervalSeconds": seconds,
            "loadBalancerSheddingIntervalMinutes": seconds and round(seconds / 60, 6),
            "plannerBand": band and round(band / 100, 6),
            "plannerTriggerBand": band and round(TRIGGER_PER_BAND * band / 100, 6),
            "plannerMovesParallelMax": self.moves_parallel_max,
            "loadBalancerAutoBundleSplitEnabled": self.splits,
            "plannerMergeEnabled": self.merges,
            "failureDomainsEnabled": self.failure_domains,
        }
        return {name: value for name, value in found.items() if value is not None}


class BalanceStatus(StatusModel):
    """How even the load is. The figures are those of `time`; newer ones are written when they
    differ by more than a little."""

    strategy: str = Field(
        default="", description="The shedding strategy in force; Off = nothing is moved."
    )
    imbalance: str = Field(
        default="",
        description="Load of the fullest broker over the mean, as the Planner weighs it; 1.00 = all "
        "are even. Absent while brokers report no load.",
    )
    moves_under_way: int = Field(
        default=0, description="Bundles that load balancing was moving then."
    )
    moves_last_hour: int = Field(
        default=0, description="Moves that brokers began as leaders in the hour before."
    )
    last_move_time: str = Field(default="", description="When the last of them began, RFC 3339.")
    time: str = Field(default="", description="When the figures were taken, RFC 3339.")


def _once(name: str, settings: tuple[str, ...]) -> Rule:
    """A setting is either a field's or named in `spec.config`."""
    field = to_camel(name)
    given = " || ".join(f"has(self.config.{setting})" for setting in settings)
    return Rule(
        f"!has(self.loadBalancing.{field}) || !({given})",
        f"loadBalancing.{field} sets {' and '.join(settings)}: leave them out of config, or leave "
        "the field out",
        lambda spec: (
            getattr(spec.load_balancing, name) is None
            or all(getattr(spec.config, setting) is None for setting in settings)
        ),
    )


ONE_PLACE = tuple(_once(name, settings) for name, settings in SETS.items())
"""Rules of a spec with both parts."""


def named_settings(chosen: Mapping[str, object], balancing: LoadBalancing) -> dict[str, str]:
    """All settings of load balancing that a resource names, as text: of those `chosen` in its
    `config`, and of its fields."""
    of_config = {name: value for name, value in chosen.items() if name in FIELDS}
    return {
        name: text_of(value)
        for name, value in sorted({**of_config, **balancing.settings()}.items())
    }

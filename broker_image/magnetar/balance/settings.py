"""Settings of load balancing, by Pulsar's names.

Owns: every setting of the balancer: Pulsar's name, default and bounds (docs/load-balancing.md says
what each does); the planner's own begin with `planner`, those of load analytics with `load`. Imports: errors. Pure. Invariant: a value
that is out of bounds is refused with a sentence that names the setting; nothing is clamped
silently.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.errors import InvalidRequest

PLANNER, AVERAGE = "Planner", "AvgShedder"
STRATEGIES = ("loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy")
"""Either may be any, but AvgShedder is both or neither."""
SHEDDERS = (
    PLANNER,
    *(f"{kind}Shedder" for kind in ("Overload", "Threshold", "UniformLoad", "Avg", "Transfer")),
)
PLACEMENTS = (
    PLANNER, "LeastLongTermMessageRate", "LeastResourceUsageWithWeight", "RoundRobinBrokerSelector",
    "AvgShedder",
)  # fmt: skip
ALGORITHMS = (
    "range_equally_divide", "topic_count_equally_divide", "specified_positions_divide",
    "flow_or_qps_equally_divide",
)  # fmt: skip
MIB = 1 << 20
_MANY = float(1 << 31)


def _setting(default: Any, name: str, *bounds: Any) -> Any:
    """A field: lowest and highest value of a number, the choices of a text, none for others."""
    return field(default=default, metadata={"name": name, "bounds": bounds})


def _percent(default: float, name: str) -> Any:
    return _setting(default, name, 0, 1000)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decisions depend on besides load. `read` takes Pulsar's names."""

    # strategies
    enabled: bool = _setting(True, "loadBalancerEnabled")
    shedder: str = _setting("ThresholdShedder", "loadBalancerLoadSheddingStrategy", *SHEDDERS)
    placement: str = _setting(
        "LeastLongTermMessageRate", "loadBalancerLoadPlacementStrategy", *PLACEMENTS
    )
    shedding: bool = _setting(True, "loadBalancerSheddingEnabled")
    shed_minutes: float = _setting(1, "loadBalancerSheddingIntervalMinutes", 0.01, 1440)
    # reports
    report_percent: float = _percent(10, "loadBalancerReportUpdateThresholdPercentage")
    look_ms: int = _setting(5000, "loadBalancerReportUpdateMinIntervalMillis", 100, _MANY)
    report_max_minutes: float = _setting(
        15, "loadBalancerReportUpdateMaxIntervalMinutes", 0.01, 1440
    )
    top_max: int = _setting(10, "loadBalancerMaxNumberOfBundlesInBundleLoadReport", -1, 1000)
    report_ttl_s: float = _setting(1800, "loadBalancerBrokerLoadDataTTLInSeconds", 1, _MANY)
    nic_gbps: float = _setting(0, "loadBalancerOverrideBrokerNicSpeedGbps", 0, 10_000)
    # weights of resources
    cpu_weight: float = _setting(1.0, "loadBalancerCPUResourceWeight", 0, 100)
    memory_weight: float = _setting(0.0, "loadBalancerMemoryResourceWeight", 0, 100)
    direct_memory_weight: float = _setting(0.0, "loadBalancerDirectMemoryResourceWeight", 0, 100)
    bandwidth_in_weight: float = _setting(1.0, "loadBalancerBandwidthInResourceWeight", 0, 100)
    bandwidth_out_weight: float = _setting(1.0, "loadBalancerBandwidthOutResourceWeight", 0, 100)
    history: float = _setting(0.9, "loadBalancerHistoryResourcePercentage", 0, 1)
    # placement and filters
    overloaded_percent: float = _percent(85, "loadBalancerBrokerOverloadedThresholdPercentage")
    broker_topics_max: int = _setting(50000, "loadBalancerBrokerMaxTopics", 1, _MANY)
    even_bundles: bool = _setting(True, "loadBalancerDistributeBundlesEvenlyEnabled")
    usage_gap_percent: float = _percent(
        10, "loadBalancerAverageResourceUsageDifferenceThresholdPercentage"
    )
    later_versions: bool = _setting(False, "preferLaterVersions")
    failure_domains: bool = _setting(False, "failureDomainsEnabled")
    # shedding
    grace_minutes: float = _setting(30, "loadBalancerSheddingGracePeriodMinutes", 0, 100000)
    excluded_namespaces: tuple[str, ...] = _setting((), "loadBalancerSheddingExcludedNamespaces")
    bundles_with_policies: bool = _setting(False, "loadBalancerSheddingBundlesWithPoliciesEnabled")
    threshold_percent: float = _percent(10, "loadBalancerBrokerThresholdShedderPercentage")
    lower_boundary: bool = _setting(False, "lowerBoundarySheddingEnabled")
    unload_mib_min: float = _setting(10, "loadBalancerBundleUnloadMinThroughputThreshold", 0, _MANY)
    rate_gap_percent: float = _setting(
        50, "loadBalancerMsgRateDifferenceShedderThreshold", -1, _MANY
    )
    flow_multiple: float = _setting(
        4, "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold", -1, _MANY
    )
    unload_messages_min: float = _setting(1000, "minUnloadMessage", 0, _MANY)
    unload_bytes_min: float = _setting(MIB, "minUnloadMessageThroughput", 0, 1 << 50)
    unload_share: float = _setting(0.2, "maxUnloadPercentage", 0, 1)
    unload_bundles_max: int = _setting(-1, "maxUnloadBundleNumPerShedding", -1, _MANY)
    low_points: float = _percent(15, "loadBalancerAvgShedderLowThreshold")
    high_points: float = _percent(40, "loadBalancerAvgShedderHighThreshold")
    low_hits: int = _setting(8, "loadBalancerAvgShedderHitCountLowThreshold", 1, 10000)
    high_hits: int = _setting(2, "loadBalancerAvgShedderHitCountHighThreshold", 1, 10000)
    target_std: float = _setting(0.25, "loadBalancerBrokerLoadTargetStd", 0, 100)
    transfer_hits: int = _setting(3, "loadBalancerSheddingConditionHitCountThreshold", 0, 10000)
    transfer: bool = _setting(True, "loadBalancerTransferEnabled")
    transfer_pairs: int = _setting(3, "loadBalancerMaxNumberOfBrokerSheddingPerCycle", 1, 10000)
    transfer_delay_s: float = _setting(180, "loadBalanceSheddingDelayInSeconds", 0, _MANY)
    # splits
    split: bool = _setting(True, "loadBalancerAutoBundleSplitEnabled")
    split_minutes: float = _setting(1, "loadBalancerSplitIntervalMinutes", 0.01, 1440)
    unload_children: bool = _setting(True, "loadBalancerAutoUnloadSplitBundlesEnabled")
    split_algorithm: str = _setting(
        "range_equally_divide", "defaultNamespaceBundleSplitAlgorithm", *ALGORITHMS
    )
    topics_max: int = _setting(1000, "loadBalancerNamespaceBundleMaxTopics", 1, _MANY)
    sessions_max: int = _setting(1000, "loadBalancerNamespaceBundleMaxSessions", -1, _MANY)
    bundle_rate_max: float = _setting(30000, "loadBalancerNamespaceBundleMaxMsgRate", 1, _MANY)
    bundle_mib_max: float = _setting(
        100, "loadBalancerNamespaceBundleMaxBandwidthMbytes", 0.001, _MANY
    )
    namespace_bundles_max: int = _setting(128, "loadBalancerNamespaceMaximumBundles", 1, 4096)
    flow_percent: float = _percent(10, "flowOrQpsDifferenceThresholdPercentage")
    split_hits: int = _setting(
        3, "loadBalancerNamespaceBundleSplitConditionHitCountThreshold", 0, 10000
    )
    splits_max: int = _setting(10, "loadBalancerMaxNumberOfBundlesToSplitPerCycle", 1, 1000)
    split_share: float = _setting(0.25, "plannerSplitShare", 0, 100)
    split_rate_min: float = _setting(100, "plannerSplitRateMin", 0, _MANY)
    merge: bool = _setting(True, "plannerMergeEnabled")
    merge_share: float = _setting(0.1, "plannerMergeShare", 0, 0.5)
    merge_bundles_min: int = _setting(4, "plannerMergeBundlesMin", 1, 4096)
    merge_hits: int = _setting(60, "plannerMergeHits", 0, 10000)
    # planner
    plan_interval_s: float = _setting(5, "plannerIntervalSeconds", 0.1, 3600)
    band: float = _setting(0.02, "plannerBand", 0.001, 1)
    band_trigger: float = _setting(0.05, "plannerTriggerBand", 0.001, 10)
    moves_max: int = _setting(1000, "plannerMovesMax", 1, 1000000)
    moves_parallel: int = _setting(64, "plannerMovesParallelMax", 1, 10000)
    repeat_change: float = _setting(0.2, "plannerRepeatChange", 0, 100)
    message_bytes: float = _setting(4096, "plannerMessageBytes", 1, 1 << 30)
    bundle_cost: float = _setting(2.0, "plannerBundleCost", 0.001, _MANY)
    # load analytics
    advice: bool = _setting(True, "loadAnalyticsAdviceEnabled")
    history_sample_s: float = _setting(60, "loadHistorySampleSeconds", 0, 3600)
    history_write_s: float = _setting(300, "loadHistoryWriteSeconds", 0.1, 3600)
    history_days: float = _setting(14, "loadHistoryDays", 0.001, 3650)
    history_mib_max: float = _setting(256, "loadHistoryMebibytesMax", 1, _MANY)

    @property
    def split_interval_s(self) -> float:
        """How often owners look for bundles to split: the planner's moves may wait for it."""
        return self.plan_interval_s if self.shedder == PLANNER else 60 * self.split_minutes

    @staticmethod
    def read(given: Mapping[str, object]) -> Settings:
        """Settings by Pulsar's names, as text or JSON. Raises InvalidRequest."""
        unknown = sorted(given.keys() - FIELDS.keys())
        if unknown:
            raise InvalidRequest(f"{unknown[0]}: no such setting of load balancing")
        values: dict[str, Any] = {
            FIELDS[name].name: _value(FIELDS[name], item) for name, item in given.items()
        }
        return Settings(**values)._check()

    def _check(self) -> Settings:
        if (self.shedder == AVERAGE) != (self.placement == AVERAGE):
            raise InvalidRequest(f"{', '.join(STRATEGIES)}: AvgShedder works only if it is both")
        return self

    def named(self) -> dict[str, object]:
        """All settings by Pulsar's names."""
        return {name: getattr(self, entry.name) for name, entry in FIELDS.items()}


def text_of(value: object) -> str:
    """A value as `Settings.read` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


FIELDS: dict[str, dataclasses.Field[Any]] = {
    entry.metadata["name"]: entry for entry in dataclasses.fields(Settings)
}


def _value(entry: dataclasses.Field[Any], given: object) -> object:
    """`given` as the type of its field. Raises InvalidRequest."""
    name, kind = entry.metadata["name"], str(entry.type).split("[")[0]
    if kind == "tuple":
        parts = given.split(",") if isinstance(given, str) else given
        if not isinstance(parts, list | tuple):
            raise InvalidRequest(f"{name}: {given!r} is not a list")
        return tuple(str(part).strip() for part in parts if str(part).strip())
    if kind == "bool":
        found = {"true": True, "false": False}.get(str(given).strip().lower())
        if found is None:
            raise InvalidRequest(f"{name}: {given!r} is not a switch; use true or false")
        return found
    if kind == "str":
        text = str(given).strip().rpartition(".")[2]
        if text not in entry.metadata["bounds"]:
            raise InvalidRequest(
                f"{name}: {given!r} is not offered; use one of "
                f"{', '.join(entry.metadata['bounds'])}"
            )
        return text
    return _as_number(entry, given)


def _as_number(entry: dataclasses.Field[Any], given: object) -> float:
    name, (low, high) = entry.metadata["name"], entry.metadata["bounds"]
    try:
        number = float(str(given))
    except ValueError:
        raise InvalidRequest(f"{name}: {given!r} is not a number") from None
    if not (math.isfinite(number) and low <= number <= high):
        raise InvalidRequest(f"{name}: {given!r} is out of range; use {low:g} to {high:g}")
    if entry.type != "int":
        return number
    if number != int(number):
        raise InvalidRequest(f"{name}: {given!r} is not a whole number")
    return int(number)


def companions(name: str, value: object) -> dict[str, object]:
    """AvgShedder sheds and places, or does neither."""
    return dict.fromkeys(STRATEGIES, value) if name in STRATEGIES and is_average(value) else {}


def is_average(value: object) -> bool:
    """Whether a strategy is AvgShedder, with its package or without."""
    return str(value).rpartition(".")[2] == AVERAGE


def followed(
    defaults: Settings, given: Mapping[str, object]
) -> tuple[Settings, dict[str, InvalidRequest]]:
    """The settings in force once `given` values change the defaults, and why others are refused,
    by name: one that this version does not take leaves the rest in force."""
    values = defaults.named()
    try:
        return Settings.read({**values, **given}), {}
    except InvalidRequest:
        refused = {}
    for name, value in sorted(given.items()):
        try:
            Settings.read({name: value} | companions(name, value))
        except InvalidRequest as error:
            refused[name] = error
        else:
            values |= {name: value} | companions(name, value)
    return Settings.read(values), refused


BALANCE = Settings(shedder=PLANNER, placement=PLANNER, report_max_minutes=1, failure_domains=True)
"""A broker's defaults, of which four are not Pulsar's: the autoscaler reads the reports, too, and
failure domains are known without set-up."""

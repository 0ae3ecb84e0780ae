"""What the autoscaler sees and decides, as metrics.

Owns: the series of every cluster that is autoscaled. Imports: autoscaling, prometheus_client.
Invariants: a series shows the last look of this process while it leads, and vanishes with its
cluster, with `spec.autoscaling.enabled`, and with the lead; the only names of objects among the
labels are those of BrokerClusters, which are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnetar.resources.scaling import AutoscalingStatus
from magnetar_operator.brokers.autoscaling import DECISIONS, Input
from magnetar_operator.conditions import wall_ms_of

PREFIX = "magnetar_operator_autoscaling"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one cluster; `window_ends_ms` is when a target that lasts becomes a decision, 0
    while nothing waits; `forecast_used` whether a forecast of load analytics counts."""

    status: AutoscalingStatus
    inputs: Sequence[Input]
    window_ends_ms: int
    forecast_used: bool = False


class WallClock(Protocol):
    """The part of a clock that is asked."""

    def wall_ms(self) -> int: ...


class AutoscalingMetrics(Collector):
    """The last look at each cluster, read when scraped (from another thread)."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}
        self._clock: WallClock | None = None

    def note(self, cluster: str, look: Look, clock: WallClock) -> None:
        """What was seen of `cluster` (namespace/name), and decided."""
        self._clock = clock
        self._looks = {**self._looks, cluster: look}

    def forget(self, cluster: str) -> None:
        """The cluster is not autoscaled (any more)."""
        if cluster in self._looks:
            self._looks = {name: look for name, look in self._looks.items() if name != cluster}

    def clear(self) -> None:
        """This process does not lead (any more)."""
        self._looks = {}

    def collect(self) -> Iterator[Metric]:
        looks = sorted(self._looks.items())
        yield from _decisions(looks)
        yield from self._times(looks)
        load = GaugeMetricFamily(
            f"{PREFIX}_load",
            "Load of the brokers as the autoscaler weighs it, and its target: shares of 1, or per "
            "second",
            labels=["cluster", "input", "measure"],
        )
        for cluster, look in looks:
            for one in look.inputs:
                for measure, value in (
                    ("mean", one.mean),
                    ("hottest", one.hottest),
                    ("weighed", one.weighed),
                    ("target", one.target),
                ):
                    load.add_metric([cluster, one.name, measure], value)
        yield load

    def _times(self, looks: Sequence[tuple[str, Look]]) -> Iterator[Metric]:
        window = GaugeMetricFamily(
            f"{PREFIX}_window_seconds",
            "Time until a wish that lasts becomes a decision, 0 if none waits",
            labels=["cluster"],
        )
        last = GaugeMetricFamily(
            f"{PREFIX}_last_scale_timestamp_seconds",
            "When spec.replicas was last written by the autoscaler, 0 = never",
            labels=["cluster"],
        )
        now_ms = self._clock.wall_ms() if self._clock is not None else 0
        for cluster, look in looks:
            window.add_metric([cluster], max(0, look.window_ends_ms - now_ms) / 1000)
            last.add_metric(
                [cluster],
                wall_ms_of(look.status.last_scale_time) / 1000
                if look.status.last_scale_time
                else 0,
            )
        yield from (window, last)


def _decisions(looks: Sequence[tuple[str, Look]]) -> Iterator[Metric]:
    decision = GaugeMetricFamily(
        f"{PREFIX}_decision",
        "1 for the autoscaler's decision (of status.autoscaling.decision) that stands",
        labels=["cluster", "decision"],
    )
    current = GaugeMetricFamily(
        f"{PREFIX}_replicas", "spec.replicas when the autoscaler decided", labels=["cluster"]
    )
    wanted = GaugeMetricFamily(
        f"{PREFIX}_wanted_replicas",
        "Brokers that the load asks for, within the bounds, by the autoscaler's decision",
        labels=["cluster"],
    )
    used = GaugeMetricFamily(
        f"{PREFIX}_forecast_used",
        "1 while a forecast of load analytics counts, 0 without one or while it is ignored",
        labels=["cluster"],
    )
    for cluster, look in looks:
        used.add_metric([cluster], int(look.forecast_used))
        for word in DECISIONS:
            decision.add_metric([cluster, word], int(look.status.decision == word))
        current.add_metric([cluster], look.status.current_replicas)
        wanted.add_metric([cluster], look.status.wanted_replicas)
    yield from (decision, current, wanted, used)

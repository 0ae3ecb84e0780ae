"""What was measured, as the analysis takes it.

Owns: the values between the job's queries and the analysis. Imports: balance.load, siblings. Pure.
Loads are in messages/s, as the planner weighs them (`balance.planner.cost`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.balance.load import Rates
from magnetar_jobs.analysis.forecast import Series
from magnetar_jobs.analysis.profiles import Profile


@dataclass(frozen=True, slots=True)
class MeasuredTopic:
    """One topic that was hot. `load` is its mean over the samples of its bundle, those in which it
    was not named counting as none."""

    name: str
    position: int
    load: float


@dataclass(frozen=True, slots=True)
class MeasuredBundle:
    """One bundle. `usual` and `peak` are means and 99 % of windows; `now` is the load of the last
    day (all, if less is known). `broker` had it last. `days` is the time from its first sample to its last."""

    name: str
    broker: str
    usual: Rates
    peak: Rates
    load: Profile
    now: float
    days: float = 0.0
    topics: tuple[MeasuredTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredBroker:
    """One broker: the course of its load and of its cores, of which it has `cpu_limit`."""

    name: str
    load: Series
    cpu: Series
    cpu_limit: float = 0.0
    memory_share: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """What storage holds of a topic: of its compacted view, before its horizon, and behind it.

    `keys` of `sampled` messages behind the horizon differ (0 of 0: none were looked at).
    """

    topic: str
    view_bytes: int = 0
    view_entries: int = 0
    before_entries: int = 0
    behind_bytes: int = 0
    behind_entries: int = 0
    sampled: int = 0
    keys: int = 0

    @property
    def compacted(self) -> bool:
        return self.view_entries > 0


@dataclass(frozen=True, slots=True)
class Measured:
    """All of a history. `totals` are courses of all brokers together, by measure; `damaged` lines
    could not be read."""

    from_ms: int
    to_ms: int
    samples: int = 0
    damaged: int = 0
    bundles: tuple[MeasuredBundle, ...] = ()
    brokers: tuple[MeasuredBroker, ...] = ()
    totals: Mapping[str, Series] = field(default_factory=dict)
    stored: tuple[StoredTopic, ...] = ()

    @property
    def load(self) -> float:
        """Of all bundles now."""
        return sum(bundle.now for bundle in self.bundles)

    @property
    def mean_broker(self) -> float:
        """The load of a mean broker now."""
        return self.load / max(1, len(self.brokers))

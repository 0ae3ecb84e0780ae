"""What a broker reports about its load.

Owns: `LoadReport` and its JSON; rates of bundles over time; when a report is worth writing.
Imports: errors, metadata.codec, balance.settings. Pure. Invariants: no rate, usage or limit is
negative, infinite or not a number, whatever was measured or decoded; a report has a bounded size;
the history of a bundle continues when its owner changes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from magnetar.balance.settings import Settings
from magnetar.errors import StoreError
from magnetar.metadata.codec import Record

REPORT_BYTES_MAX = 1 << 20
"""Of an encoded report: etcd takes no larger request."""
REPORTED_BUNDLES_MAX = 1000
HOT_TOPICS_MAX = 8
"""Per bundle: enough to isolate the ones that matter."""
NUMBER_MAX = 1e15
SAMPLE_BYTES = 4096.0
"""Bytes that weigh as much as a message when rates are compared."""
SHORT_SAMPLES, LONG_SAMPLES, LEVEL_SAMPLES = 10, 1000, 120
LEVEL_CHANGE = 0.25
"""Two successive samples that differ from the level by more than this begin a new level."""


def bounded(value: float) -> float:
    """`value` as a number that decisions can use: garbage is 0."""
    return float(value) if 0 < value <= NUMBER_MAX else 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second."""

    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def __post_init__(self) -> None:
        for name in ("messages_in", "messages_out", "bytes_in", "bytes_out"):
            object.__setattr__(self, name, bounded(getattr(self, name)))

    @property
    def messages(self) -> float:
        return self.messages_in + self.messages_out

    @property
    def throughput(self) -> float:
        return self.bytes_in + self.bytes_out

    @property
    def size(self) -> float:
        """One number to compare rates by."""
        return self.messages + self.throughput / SAMPLE_BYTES

    @property
    def _all(self) -> tuple[float, float, float, float]:
        return self.messages_in, self.messages_out, self.bytes_in, self.bytes_out

    def __add__(self, other: Rates) -> Rates:
        return Rates(*map(operator.add, self._all, other._all))

    def toward(self, other: Rates, share: float) -> Rates:
        """This, moved towards `other` by a share of the difference."""
        pairs = zip(self._all, other._all, strict=True)
        return Rates(*(ours + share * (theirs - ours) for ours, theirs in pairs))

    def rounded(self) -> Rates:
        """To four digits: what is reported and recorded."""
        return Rates(*(float(f"{value:.4g}") for value in self._all))

    def side(self, other: Rates, share: float) -> int:
        """1 or -1 if this is above or below `other` by more than a share of it, else 0."""
        difference = self.size - other.size
        if abs(difference) <= share * other.size:
            return 0
        return 1 if difference > 0 else -1


UNKNOWN = Rates(50.0, 50.0, 50_000.0, 50_000.0)
"""What Pulsar assumes about a bundle that was never measured."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A running mean whose number of samples is capped: Pulsar's time average."""

    rates: Rates = UNKNOWN
    samples: int = 0

    def observe(self, sample: Rates, samples_max: int) -> Mean:
        """The mean after one more sample; the first one replaces the default."""
        samples = min(max(0, self.samples) + 1, samples_max)
        return Mean(self.rates.toward(sample, 1 / samples), samples)


@dataclass(frozen=True, slots=True)
class Level:
    """A mean since the last change of level: slow under noise, two samples behind a step.

    `outlier` is a sample far from the mean. If the next one is as far on the same side, the two
    begin a new level; otherwise both count as noise.
    """

    mean: Mean = Mean()
    outlier: Rates | None = None

    def observe(self, sample: Rates) -> Level:
        mean = self.mean
        side = sample.side(mean.rates, LEVEL_CHANGE) if mean.samples else 0
        if self.outlier is None:
            return replace(self, outlier=sample) if side else self._with(sample)
        if side and side == self.outlier.side(mean.rates, LEVEL_CHANGE):
            return Level(Mean(self.outlier.toward(sample, 0.5), 2))
        return self._with(self.outlier)._with(sample)

    def _with(self, sample: Rates) -> Level:
        return Level(self.mean.observe(sample, LEVEL_SAMPLES))


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a bundle's rates. The new owner continues with its predecessor's."""

    short: Mean = Mean()
    long: Mean = Mean()
    level: Level = Level()

    def observe(self, sample: Rates) -> History:
        return History(
            self.short.observe(sample, SHORT_SAMPLES),
            self.long.observe(sample, LONG_SAMPLES),
            self.level.observe(sample),
        )

    def rounded(self) -> History:
        short, long, level = (
            Mean(mean.rates.rounded(), mean.samples)
            for mean in (self.short, self.long, self.level.mean)
        )
        outlier = self.level.outlier and self.level.outlier.rounded()
        return History(short, long, Level(level, outlier))

    @staticmethod
    def steady(rates: Rates, samples: int = LONG_SAMPLES) -> History:
        """Of a bundle that had the same rates throughout."""
        mean = Mean(rates, samples)
        return History(mean, mean, Level(mean))


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """One topic inside a hot bundle. `position` is its hash."""

    name: str
    position: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """One bundle in a report. `hot` are its hottest topics, hottest first."""

    name: str
    history: History
    topics: int = 0
    producers: int = 0
    consumers: int = 0
    hot: tuple[TopicLoad, ...] = ()


@dataclass(frozen=True, slots=True)
class Resource:
    """Usage against a limit, in the resource's own unit; limit 0 = unknown."""

    usage: float = 0.0
    limit: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "usage", bounded(self.usage))
        object.__setattr__(self, "limit", bounded(self.limit))

    @property
    def percent(self) -> float:
        """May be above 100; 0 without a limit."""
        return bounded(100 * self.usage / self.limit) if self.limit else 0.0

    @property
    def share(self) -> float:
        """Usage over limit, in four digits."""
        return round(self.percent / 100, 4)


@dataclass(frozen=True, slots=True)
class LoadReport(Record):
    """`load/<id>`, bound to the broker's lease. CPU is in percent of a core, memory resident in
    bytes, bandwidth in bytes/s. `top` are the bundles with most load; `moves` how many it began as a
    leader in the last hour, and `moved_ms` when the last of all (0 = none)."""

    SCHEMA = 4

    broker: str
    updated_ms: int
    cpu: Resource = Resource()
    memory: Resource = Resource()
    bandwidth_in: Resource = Resource()
    bandwidth_out: Resource = Resource()
    rates: Rates = Rates()
    bundles: int = 0
    topics: int = 0
    producers: int = 0
    consumers: int = 0
    version: str = ""
    moves: int = 0
    moved_ms: int = 0
    top: tuple[BundleLoad, ...] = field(default=())

    @staticmethod
    def read(data: bytes) -> LoadReport:
        """Decode a report. Raises StoreError for one that is too large or malformed."""
        if len(data) > REPORT_BYTES_MAX:
            raise StoreError(f"load report of {len(data)} bytes; at most {REPORT_BYTES_MAX}")
        report = LoadReport.decode(data)
        if len(report.top) > REPORTED_BUNDLES_MAX:
            raise StoreError(
                f"load report of {report.broker} has {len(report.top)} bundles; at most "
                f"{REPORTED_BUNDLES_MAX}"
            )
        return report

    def weighted_usage(self, settings: Settings) -> float:
        """The highest usage of a resource by its weight: 1.0 = its whole limit."""
        memory_weight = max(settings.memory_weight, settings.direct_memory_weight)
        return (
            max(
                self.cpu.percent * settings.cpu_weight,
                self.memory.percent * memory_weight,
                self.bandwidth_in.percent * settings.bandwidth_in_weight,
                self.bandwidth_out.percent * settings.bandwidth_out_weight,
            )
            / 100
        )

    def fresh(self, now_ms: int, settings: Settings) -> bool:
        return now_ms - self.updated_ms <= settings.report_ttl_s * 1000


def report_due(written: LoadReport | None, current: LoadReport, settings: Settings) -> str | None:
    """Why `current` replaces the report that was `written` last; None if it does not yet."""
    if written is None:
        return "first report"
    age_ms = current.updated_ms - written.updated_ms
    if age_ms >= settings.report_max_minutes * 60_000:
        return f"report is {age_ms // 1000} s old"
    changes = {
        "message rate": _change_percent(written.rates.messages, current.rates.messages),
        "throughput": _change_percent(written.rates.throughput, current.rates.throughput),
        "bundles": _change_percent(written.bundles, current.bundles),
        "load of bundles": _moved_percent(written.top, current.top),
        "usage": 100 * abs(current.weighted_usage(settings) - written.weighted_usage(settings)),
    }
    name, change = max(changes.items(), key=lambda item: item[1])
    if change > settings.report_percent:
        return f"{name} changed by {change:.0f} %"
    return None


def _moved_percent(before: Iterable[BundleLoad], after: Iterable[BundleLoad]) -> float:
    """How much of the load of the bundles that both reports name has changed its level."""
    levels = {load.name: load.history.level.mean.rates.size for load in before}
    pairs = [
        (levels[load.name], load.history.level.mean.rates.size)
        for load in after
        if load.name in levels
    ]
    return _change_percent(
        sum(level for level, _ in pairs),
        sum(level for level, _ in pairs) + sum(abs(now - level) for level, now in pairs),
    )


def _change_percent(before: float, after: float) -> float:
    if not before:
        return float("inf") if after else 0.0
    return 100 * abs(after - before) / before

"""Which brokers may have a bundle.

Owns: namespace isolation policies, anti-affinity groups, failure domains, and the pipeline of
filters before a placement strategy. Imports: errors, balance.cluster, balance.settings. Pure.
Invariants: a draining broker is never a candidate; isolation is never given up for another filter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from magnetar.balance.advice import LoadAdvice
from magnetar.balance.cluster import Bundle, Cluster, Memory, pick
from magnetar.balance.load import Rates
from magnetar.balance.settings import Settings
from magnetar.balance.top_k import SYSTEM_TENANTS, namespace_of, tenant_of
from magnetar.errors import InvalidRequest

DEFAULT_DOMAIN = "default"


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """Pulsar's namespace isolation: regular expressions of namespaces and of brokers, by
    host or name.

    Secondaries join once fewer than `primaries_min` primaries are available, that is alive and not
    above `usage_max_percent`.
    """

    name: str
    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    primaries_min: int = 0
    usage_max_percent: float = 1000.0

    def check(self) -> None:
        """Raises InvalidRequest for an expression that cannot be compiled."""
        for expression in (*self.namespaces, *self.primary, *self.secondary):
            if _compiled(expression) is None:
                raise InvalidRequest(
                    f"isolation policy {self.name}: {expression!r} is not a regular expression"
                )


@dataclass(frozen=True, slots=True)
class Policies:
    """Isolation policies (the first that matches wins), the anti-affinity group by namespace, and
    how many bundles a namespace keeps at least."""

    isolation: tuple[IsolationPolicy, ...] = ()
    groups: dict[str, str] = field(default_factory=dict)
    bundles_min: dict[str, int] = field(default_factory=dict)

    def isolating(self, namespace: str) -> IsolationPolicy | None:
        return next(
            (policy for policy in self.isolation if matches(policy.namespaces, namespace)), None
        )

    def group(self, namespace: str) -> str:
        """Its anti-affinity group in lower case, "" = none."""
        return self.groups.get(namespace, "").lower()

    def bind(self, namespace: str) -> bool:
        return self.isolating(namespace) is not None or bool(self.group(namespace))


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one decision reads; `seed` is its chance, `advice` that of load analytics."""

    cluster: Cluster
    memory: Memory = field(default_factory=Memory)
    policies: Policies = field(default_factory=Policies)
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    advice: LoadAdvice | None = None

    def usage(self, broker: str) -> float:
        """Weighted maximum usage, 0 without a fresh report."""
        report = self.cluster.report(broker, self.settings)
        return report.weighted_usage(self.settings) if report is not None else 0.0

    def rates(self, broker: str) -> Rates:
        report = self.cluster.report(broker, self.settings)
        return report.rates if report is not None else Rates()

    def overloaded(self, broker: str) -> bool:
        return 100 * self.usage(broker) > self.settings.overloaded_percent

    def any_of(self, names: Sequence[str], bundle: str) -> str:
        return names[pick(self.seed, bundle, len(names))]


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> re.Pattern[str] | None:
    try:
        return re.compile(expression)
    except re.error:
        return None


def matches(expressions: Iterable[str], *texts: str) -> bool:
    """Whether one of the expressions is the whole of one of the texts."""
    return any(
        pattern is not None and any(pattern.fullmatch(text) for text in texts)
        for pattern in map(_compiled, expressions)
    )


def allowed(situation: Situation, namespace: str, staying: bool = False) -> tuple[str, ...]:
    """Brokers that isolation permits for a namespace, by name; with `staying` those too where a
    bundle may remain, the secondaries. Without a policy of its own a namespace has the shared
    brokers, which are no policy's primary."""
    policies = situation.policies
    serving = sorted(
        (broker.name, broker.host) for broker in situation.cluster.brokers if not broker.draining
    )
    policy = policies.isolating(namespace)
    if policy is None:
        return tuple(
            name
            for name, host in serving
            if not any(matches(other.primary, name, host) for other in policies.isolation)
        )
    primary = [name for name, host in serving if matches(policy.primary, name, host)]
    available = [
        name for name in primary if 100 * situation.usage(name) <= policy.usage_max_percent
    ]
    if len(available) >= policy.primaries_min and not staying:
        return tuple(primary)
    secondary = [name for name, host in serving if matches(policy.secondary, name, host)]
    return tuple(sorted({*primary, *secondary}))


@dataclass(frozen=True, slots=True)
class Candidates:
    """Brokers a strategy chooses from, those that isolation permits, and what each filter did."""

    names: tuple[str, ...]
    allowed: tuple[str, ...]
    notes: tuple[str, ...] = ()


def candidates(situation: Situation, bundle: Bundle) -> Candidates:
    """The pipeline in Pulsar's order. A filter that leaves no broker makes the rest fall back to
    isolation alone; a maximum of topics that leaves none is ignored."""
    permitted = allowed(situation, bundle.namespace)
    names, notes = permitted, []
    for what, step in _STEPS:
        left = step(situation, names, bundle) if names else names
        if len(left) < len(names):
            notes.append(f"{what}: {len(left)} of {len(names)} brokers")
        names = left
    if not names:
        return Candidates(permitted, permitted, (*notes, "none left: isolation alone"))
    return Candidates(names, permitted, tuple(notes))


def _with_room(situation: Situation, names: tuple[str, ...], _bundle: Bundle) -> tuple[str, ...]:
    cluster, settings = situation.cluster, situation.settings
    coming = Counter[str]()
    for name, broker in situation.memory.preallocated.items():
        if name in cluster.bundle:
            coming[broker] += cluster.bundle[name].topics

    def topics(name: str) -> int:
        report = cluster.report(name, settings)
        return (report.topics if report is not None else 0) + coming[name]

    return tuple(name for name in names if topics(name) <= settings.broker_topics_max) or names


def group_counts(situation: Situation, group: str) -> Counter[str]:
    """Namespaces of an anti-affinity group by broker, those on their way included."""
    coming = {
        (namespace_of(bundle), broker) for bundle, broker in situation.memory.preallocated.items()
    }
    return Counter(
        broker
        for namespace, broker in coming | situation.cluster.namespace_counts.keys()
        if broker and situation.policies.group(namespace) == group
    )


def _apart(situation: Situation, names: tuple[str, ...], bundle: Bundle) -> tuple[str, ...]:
    group = situation.policies.group(bundle.namespace)
    if not group:
        return names
    counts = group_counts(situation, group)
    if situation.settings.failure_domains:
        brokers = situation.cluster.by_name
        domain_of = {name: brokers[name].domain or DEFAULT_DOMAIN for name in brokers}
        totals = Counter[str]()
        for name, count in counts.items():
            totals[domain_of.get(name, DEFAULT_DOMAIN)] += count
        names = _lowest(names, {name: totals[domain_of[name]] for name in names})
    return _lowest(names, counts)


def _lowest(names: tuple[str, ...], counts: Mapping[str, int]) -> tuple[str, ...]:
    lowest = min(counts[name] for name in names)
    return tuple(name for name in names if counts[name] == lowest)


def _fewest(situation: Situation, names: tuple[str, ...], bundle: Bundle) -> tuple[str, ...]:
    namespace = bundle.namespace
    if not situation.settings.even_bundles and tenant_of(namespace) not in SYSTEM_TENANTS:
        return names
    coming = Counter(
        broker
        for other, broker in situation.memory.preallocated.items()
        if namespace_of(other) == namespace
    )
    owned = situation.cluster.namespace_counts
    return _lowest(names, {name: owned[namespace, name] + coming[name] for name in names})


def _newest(situation: Situation, names: tuple[str, ...], _bundle: Bundle) -> tuple[str, ...]:
    if not situation.settings.later_versions:
        return names
    brokers = situation.cluster.by_name
    versions = {name: _version(brokers[name].version) for name in names}
    newest = max(versions.values())
    return tuple(name for name in names if versions[name] == newest)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text))


_STEPS: tuple[tuple[str, Callable[[Situation, tuple[str, ...], Bundle], tuple[str, ...]]], ...] = (
    ("topics", _with_room),
    ("anti-affinity", _apart),
    ("fewest bundles", _fewest),
    ("newest version", _newest),
)


def kept(situation: Situation, bundle: Bundle) -> str | None:
    """Why policies keep a bundle on its broker; None if they do not."""
    permitted = allowed(situation, bundle.namespace)
    if set(permitted) <= {bundle.broker}:
        return "isolation leaves no other broker"
    group = situation.policies.group(bundle.namespace)
    if not group:
        return None
    counts = group_counts(situation, group)
    at = {counts[name] for name in permitted}
    if min(at) == 0 or counts[bundle.broker] > min(at) or len(at) > 1:
        return None
    return f"anti-affinity group {group} is even"

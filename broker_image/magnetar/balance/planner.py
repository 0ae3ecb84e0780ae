"""The planner: sheds and places in one plan.

Owns: loads of bundles and capacities of brokers as the planner sees them, and the plan that brings
every broker into a band around the mean with few moves. Imports: balance.cluster, balance.filters,
balance.rebalance, balance.settings, balance.top_k. Pure. Invariants: no bundle goes to a broker
that is draining, unknown or excluded by isolation; a plan has at most `moves_max` moves and moves
no bundle twice; equal inputs give equal plans.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from magnetar.balance.advice import LoadAdvice
from magnetar.balance.cluster import ARRIVAL_MS, NOTES_MAX, Bundle, Cluster, Move, Moved, Outcome
from magnetar.balance.filters import Situation, allowed, candidates
from magnetar.balance.load import Rates
from magnetar.balance.rebalance import LEAVING, ORPHAN, Problem, rebalance
from magnetar.balance.settings import Settings
from magnetar.balance.top_k import is_excluded, namespace_of

CAPACITY_RATIO_MAX = 16.0
NOTHING = "nothing to balance: one broker, or no load"
"""Of a broker to the median one: a limit that is reported wrong must not draw all load."""
REPEAT_MS = 15_000
"""How long a bundle stays after its first move, however uneven the load is; twice as long after
each further one."""


def cost(rates: Rates, settings: Settings) -> float:
    """What a bundle costs, in messages/s: its level, plus what an idle one costs."""
    return (
        settings.bundle_cost
        + rates.messages_in
        + rates.messages_out
        + (rates.bytes_in + rates.bytes_out) / settings.message_bytes
    )


def loads(situation: Situation) -> list[float]:
    """The load of every bundle, in the order of `cluster.bundles`.

    A bundle that no report names has the load with which it moved lately; else what load analytics
    knows as its usual one; else it gets an equal share of what its broker's report has beyond the
    bundles that it names, those that have left since included.
    """
    cluster, settings = situation.cluster, situation.settings
    lately_ms = cluster.now_ms - ARRIVAL_MS
    moved = {name: at.load for name, at in situation.memory.moved.items() if at.at_ms > lately_ms}
    usual = situation.advice.by_bundle if situation.advice is not None else {}
    known = {name: cost(found.usual, settings) for name, found in usual.items()} | moved
    found = [
        cost(bundle.level, settings) if bundle.history else known.get(bundle.name, -1.0)
        for bundle in cluster.bundles
    ]
    if min(found, default=0.0) >= 0:
        return found
    unknown = Counter(
        bundle.broker for bundle, load in zip(cluster.bundles, found, strict=True) if load < 0
    )
    share = {name: _unnamed(situation, name, count) for name, count in unknown.items()}
    return [
        load if load >= 0 else share[bundle.broker]
        for bundle, load in zip(cluster.bundles, found, strict=True)
    ]


def unmeasured(cluster: Cluster, advice: LoadAdvice | None) -> LoadAdvice | None:
    """What advice says of bundles that no report names: all that a plan takes from it."""
    if advice is None:
        return None
    found = advice.about(bundle.name for bundle in cluster.bundles if bundle.history is None)
    return found if found.bundles else None


def _unnamed(situation: Situation, broker: str, count: int) -> float:
    """The load of each bundle that the report of its broker does not name."""
    cluster, settings = situation.cluster, situation.settings
    report = cluster.report(broker, settings) if broker in cluster.by_name else None
    if report is None:
        return settings.bundle_cost
    named = sum(cost(load.history.level.mean.rates, settings) for load in report.top)
    rest = cost(report.rates, settings) - named
    return max(settings.bundle_cost, rest / max(report.bundles - len(report.top), count))


def capacities(situation: Situation) -> dict[str, float]:
    """Relative capacity by broker, 1 = the median: the scarcest of the weighted resources whose
    limit every report has, within `CAPACITY_RATIO_MAX`."""
    settings = situation.settings
    weights = (settings.cpu_weight, settings.bandwidth_in_weight, settings.bandwidth_out_weight)
    limits: dict[str, list[float]] = {}
    for broker in situation.cluster.brokers:
        if (report := broker.report) is not None:
            resources = (report.cpu, report.bandwidth_in, report.bandwidth_out)
            pairs = zip(resources, weights, strict=True)
            limits[broker.name] = [resource.limit * bool(weight) for resource, weight in pairs]
    known = [at for at in range(3) if limits and all(limit[at] for limit in limits.values())]
    middle = {at: statistics.median(limit[at] for limit in limits.values()) for at in known}
    found = dict.fromkeys(situation.cluster.by_name, 1.0)
    for name, limit in limits.items():
        ratio = min((limit[at] / middle[at] for at in known), default=1.0)
        found[name] = min(max(ratio, 1 / CAPACITY_RATIO_MAX), CAPACITY_RATIO_MAX)
    return found


def plan(situation: Situation) -> Outcome:
    """Place orphans and what draining brokers have; then, if a broker is outside of the trigger
    band, bring all of them within the band."""
    cluster = situation.cluster
    memory = situation.memory.observe(cluster, situation.settings)
    destinations = sorted(broker.name for broker in cluster.brokers if not broker.draining)
    if not destinations:
        return Outcome(memory, "no broker takes bundles")
    known = loads(situation)
    result = rebalance(_problem(replace(situation, memory=memory), destinations, known))
    moves = []
    moved, coming = dict(memory.moved), dict(memory.preallocated)
    for step in result.steps:
        bundle, destination = cluster.bundles[step.bundle], destinations[step.destination]
        moves.append(Move(bundle.name, bundle.broker, destination, step.reason))
        before = moved.get(bundle.name)
        moved[bundle.name] = Moved(
            cluster.now_ms,
            known[step.bundle],
            (bundle.broker, destination),
            before.times + 1 if before is not None else 1,
        )
        coming[bundle.name] = destination
    notes = (f"{cluster.bundles[at].name}: no broker may have it" for at in result.homeless)
    return Outcome(
        replace(memory, moved=moved, preallocated=coming),
        result.reason or NOTHING,
        tuple(moves),
        notes=tuple(itertools.islice([*_advised(situation), *notes], NOTES_MAX)),
    )


def _advised(situation: Situation) -> list[str]:
    """That advice took part."""
    advice = unmeasured(situation.cluster, situation.advice)
    if advice is None:
        return []
    count = len(advice.bundles)
    which = (
        "1 bundle that no report names counts"
        if count == 1
        else f"{count} bundles that no report names count"
    )
    return [f"{which} with the usual load that load analytics knows"]


def _problem(situation: Situation, destinations: Sequence[str], known: list[float]) -> Problem:
    """The plan's inputs by number instead of name."""
    cluster, settings = situation.cluster, situation.settings
    number = {name: at for at, name in enumerate(destinations)}
    capacity = capacities(situation)
    owner = {broker.name: number.get(broker.name, LEAVING) for broker in cluster.brokers}
    coming = {
        name: number[to] for name, to in situation.memory.preallocated.items() if to in number
    }
    active = settings.enabled and settings.shedding
    owners = [
        coming[bundle.name] if bundle.name in coming else owner.get(bundle.broker, ORPHAN)
        for bundle in cluster.bundles
    ]
    return Problem(
        loads=known,
        owners=owners,
        capacities=[capacity[name] for name in destinations],
        fixed=_fixed(situation, known, repeats=active and _needs_repeats(situation, known)),
        allowed={**_allowed(situation, number), **_apart(situation, number, owners)},
        closed={number[name] for name in destinations if situation.overloaded(name)},
        band=settings.band if active else math.inf,
        trigger=settings.band_trigger if active else math.inf,
        moves_max=settings.moves_max,
    )


def _fixed(situation: Situation, known: Sequence[float], *, repeats: bool) -> set[int]:
    """Bundles that stay: pinned, excluded, kept apart by anti-affinity, on their way, or moved
    lately at nearly the same load.

    "Lately" is the grace period; with `repeats` as long as the bundle's moves so far make it wait.
    """
    cluster, memory, settings = situation.cluster, situation.memory, situation.settings
    stays: dict[str, bool] = {}
    found = set()
    for at, bundle in enumerate(cluster.bundles):
        name = bundle.name
        namespace = namespace_of(name)
        if namespace not in stays:
            group = situation.policies.group(namespace)
            stays[namespace] = bool(group) or is_excluded(name, settings)
        if bundle.pinned or stays[namespace] or name in memory.preallocated:
            found.add(at)
        elif name in memory.moved:
            last = memory.moved[name]
            waits = not repeats or cluster.now_ms < last.at_ms + (REPEAT_MS << last.times - 1)
            if waits and abs(known[at] - last.load) <= settings.repeat_change * last.load:
                found.add(at)
    return found


def _allowed(situation: Situation, number: Mapping[str, int]) -> dict[int, frozenset[int]]:
    """Brokers by bundle; empty without isolation policies, when every broker may have all. A bundle
    on a secondary may stay there when the primaries are back, so that it does not go back and forth
    with their usage."""
    if not situation.policies.isolation:
        return {}
    permitted: dict[str, tuple[frozenset[int], frozenset[int]]] = {}
    found = {}
    for at, bundle in enumerate(situation.cluster.bundles):
        if bundle.namespace not in permitted:
            go, stay = (
                frozenset(number[name] for name in allowed(situation, bundle.namespace, staying))
                for staying in (False, True)
            )
            permitted[bundle.namespace] = go, stay
        go, stay = permitted[bundle.namespace]
        owner = number.get(bundle.broker, ORPHAN)
        found[at] = go | {owner} if owner in stay else go
    return found


def _apart(
    situation: Situation, number: Mapping[str, int], owners: Sequence[int]
) -> dict[int, frozenset[int]]:
    """The broker of each bundle of an anti-affinity group that has none: the filters choose."""
    found: dict[int, frozenset[int]] = {}
    if not situation.policies.groups:
        return found
    coming = dict(situation.memory.preallocated)
    now = replace(situation, memory=replace(situation.memory, preallocated=coming))
    for at, bundle in enumerate(situation.cluster.bundles):
        if owners[at] < 0 and situation.policies.group(bundle.namespace):
            names = candidates(now, bundle).names
            if names:
                coming[bundle.name] = situation.any_of(names, bundle.name)
                found[at] = frozenset({number[coming[bundle.name]]})
    return found


def least_loaded(bundle: Bundle, names: Sequence[str], situation: Situation) -> str:
    """The candidate with the lowest load for its capacity once it has the bundle."""
    cluster, settings = situation.cluster, situation.settings
    now = filled(situation)
    known, capacity, totals = now.loads, now.capacities, dict(now.totals)

    def move(name: str, load: float, broker: str) -> None:
        if name in cluster.bundle and cluster.bundle[name].broker in totals:
            totals[cluster.bundle[name].broker] -= load
        if broker in totals:
            totals[broker] += load

    for other, broker in situation.memory.preallocated.items():
        if other != bundle.name:
            move(other, known.get(other, settings.bundle_cost), broker)
    own = known.get(bundle.name, settings.bundle_cost)
    move(bundle.name, own, "")
    return min(names, key=lambda name: ((totals[name] + own) / capacity[name], name))


@dataclass(frozen=True, slots=True)
class Filled:
    """Loads by bundle, capacities and loads by broker."""

    loads: dict[str, float]
    capacities: dict[str, float]
    totals: dict[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """The load of each broker for its capacity over the mean; 1 without load."""
        load, capacity = sum(self.totals.values()), sum(self.capacities.values())
        if not load > 0:
            return dict.fromkeys(self.totals, 1.0)
        return {
            name: total / self.capacities[name] * (capacity / load)
            for name, total in self.totals.items()
        }

    @property
    def imbalance(self) -> float:
        """The fullest broker over the mean; 1 without load."""
        return max(self.shares.values(), default=1.0)


def filled(situation: Situation, known: Sequence[float] | None = None) -> Filled:
    """How full brokers are; computed once per cluster and settings. `known`: the loads of all
    bundles, if the caller has them."""
    cluster, key = situation.cluster, ("filled", situation.settings)
    if key not in cluster.derived:
        totals, by_name = dict.fromkeys(cluster.by_name, 0.0), {}
        known = loads(situation) if known is None else known
        for bundle, load in zip(cluster.bundles, known, strict=True):
            by_name[bundle.name] = load
            if bundle.broker in totals:
                totals[bundle.broker] += load
        cluster.derived[key] = Filled(by_name, capacities(situation), totals)
    found: Filled = cluster.derived[key]
    return found


def gain(situation: Situation, now: Filled) -> float:
    """By how much of the mean moves from the fullest broker to one other could lower its load: 0
    within the trigger band, and where no move helps, as with one hot bundle or a few equal ones.
    `now` is how full brokers are in `situation`."""
    if now.imbalance <= 1 + situation.settings.band_trigger:
        return 0.0
    fullest = min(now.shares, key=lambda name: (-now.shares[name], name))
    own = [bundle for bundle in situation.cluster.bundles if bundle.broker == fullest]
    return _gain_of(fullest, own, situation, now)


def _needs_repeats(situation: Situation, known: list[float]) -> bool:
    """Whether bundles that moved lately, moved again, would lower the load of a broker beyond the
    trigger band by more than the band: then they need not stay for the whole grace period."""
    if not situation.memory.moved:
        return False
    now, trigger = filled(situation, known), situation.settings.band_trigger
    uneven: dict[str, list[Bundle]] = {
        name: [] for name, share in now.shares.items() if share > 1 + trigger
    }
    for bundle in situation.cluster.bundles if uneven else ():
        if bundle.broker in uneven:
            uneven[bundle.broker].append(bundle)
    return any(_gain_of(name, own, situation, now) > trigger for name, own in uneven.items())


def _gain_of(fullest: str, own: Sequence[Bundle], situation: Situation, now: Filled) -> float:
    """By how much of the mean moves of its `own` bundles to one other broker could lower it."""
    cluster, shares = situation.cluster, now.shares
    stays = _fixed(
        replace(situation, cluster=replace(cluster, bundles=tuple(own))),
        [now.loads[bundle.name] for bundle in own],
        repeats=True,
    )
    by_target: dict[str, list[float]] = {}
    targets: dict[str, str] = {}
    for at, bundle in enumerate(own):
        if at in stays:
            continue
        if bundle.namespace not in targets:
            names = [name for name in allowed(situation, bundle.namespace) if name != fullest]
            targets[bundle.namespace] = min(
                names, key=lambda name: (shares[name], name), default=""
            )
        by_target.setdefault(targets[bundle.namespace], []).append(now.loads[bundle.name])
    by_target.pop("", None)
    mean = sum(now.totals.values()) / sum(now.capacities.values())
    found = (_lowered(now, fullest, to, movable) for to, movable in by_target.items())
    return max(found, default=0.0) / mean


def _lowered(now: Filled, source: str, target: str, movable: Sequence[float]) -> float:
    """By how much moves lower the higher load of two brokers, at least."""
    at_source, at_target = now.capacities[source], now.capacities[target]
    level = now.totals[source] / at_source
    ideal = (level - now.totals[target] / at_target) / (1 / at_source + 1 / at_target)
    moved, best = 0.0, 0.0
    for load in sorted(movable, reverse=True):
        if moved + load <= ideal:
            moved += load
        else:
            best = max(best, level - (now.totals[target] + moved + load) / at_target)
    return max(best, moved / at_source)

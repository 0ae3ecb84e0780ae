"""The planner: sheds and places in one plan.

Owns: loads of bundles and capacities of brokers as the planner sees them, and the plan that brings
every broker into a band around the mean with few moves. Imports: balance.cluster, balance.filters,
balance.rebalance, balance.settings, balance.top_k. Pure. Invariants: no bundle goes to a broker
that is draining, unknown or excluded by isolation; a plan has at most `moves_max` moves and moves
no bundle twice; equal inputs give equal plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from magnetar.balance.cluster import NOTES_MAX, Bundle, Cluster, Move, Moved, Outcome
from magnetar.balance.filters import Situation, allowed
from magnetar.balance.load import Rates
from magnetar.balance.rebalance import LEAVING, ORPHAN, Problem, rebalance
from magnetar.balance.settings import Settings
from magnetar.balance.top_k import is_excluded


def cost(rates: Rates, settings: Settings) -> float:
    """What a bundle costs, in messages/s: its level, plus what an idle one costs."""
    return (
        settings.bundle_cost
        + rates.messages_in
        + rates.messages_out
        + (rates.bytes_in + rates.bytes_out) / settings.message_bytes
    )


def loads(cluster: Cluster, settings: Settings) -> list[float]:
    """The load of every bundle, in the order of `cluster.bundles`.

    A bundle that no report names gets an equal share of what its broker measured beyond the bundles
    that are named.
    """
    found = [
        cost(bundle.level, settings) if bundle.history is not None else -1.0
        for bundle in cluster.bundles
    ]
    if min(found, default=0.0) >= 0:
        return found
    rest = {
        broker.name: cost(cluster.rates(broker.name, settings), settings)
        for broker in cluster.brokers
    }
    unknown = dict.fromkeys(rest, 0)
    for bundle, load in zip(cluster.bundles, found, strict=True):
        if bundle.broker in rest:
            if load < 0:
                unknown[bundle.broker] += 1
            else:
                rest[bundle.broker] -= load
    share = {
        name: max(settings.bundle_cost, rest[name] / count)
        for name, count in unknown.items()
        if count
    }
    return [
        load if load >= 0 else share.get(bundle.broker, settings.bundle_cost)
        for bundle, load in zip(cluster.bundles, found, strict=True)
    ]


def capacities(cluster: Cluster, settings: Settings) -> dict[str, float]:
    """Relative capacity by broker, 1 on average: the scarcest of the weighted resources whose limit
    every broker reports."""
    reports = {broker.name: broker.report for broker in cluster.brokers}
    known = [report for report in reports.values() if report is not None]
    resources = []
    if known:
        resources = [
            [name, sum(getattr(report, name).limit for report in known) / len(known)]
            for name, weight in (
                ("cpu", settings.cpu_weight),
                ("bandwidth_in", settings.bandwidth_in_weight),
                ("bandwidth_out", settings.bandwidth_out_weight),
            )
            if weight and all(getattr(report, name).limit for report in known)
        ]
    return {
        name: min(
            (getattr(report, str(field)).limit / mean for field, mean in resources), default=1.0
        )
        if report is not None
        else 1.0
        for name, report in reports.items()
    }


def plan(situation: Situation) -> Outcome:
    """Place orphans and what draining brokers have; then, if a broker is outside of the trigger
    band, bring all of them within the band."""
    cluster = situation.cluster
    memory = situation.memory.observe(cluster, situation.settings)
    takers = sorted(broker.name for broker in cluster.brokers if not broker.draining)
    if not takers:
        return Outcome(memory, "no broker takes bundles")
    known = loads(cluster, situation.settings)
    result = rebalance(_problem(replace(situation, memory=memory), takers, known))
    moves = []
    moved = dict(memory.moved)
    for step in result.steps:
        bundle, destination = cluster.bundles[step.bundle], takers[step.destination]
        moves.append(Move(bundle.name, bundle.broker, destination, step.reason))
        moved[bundle.name] = Moved(cluster.now_ms, known[step.bundle], (bundle.broker, destination))
    notes = (f"{cluster.bundles[at].name}: no broker may have it" for at in result.homeless)
    return Outcome(
        replace(memory, moved=moved),
        result.reason,
        tuple(moves),
        notes=tuple(itertools.islice(notes, NOTES_MAX)),
    )


def _problem(situation: Situation, takers: Sequence[str], known: list[float]) -> Problem:
    """The plan's inputs by number instead of name."""
    cluster, settings = situation.cluster, situation.settings
    number = {name: at for at, name in enumerate(takers)}
    capacity = capacities(cluster, settings)
    owner = {broker.name: number.get(broker.name, LEAVING) for broker in cluster.brokers}
    return Problem(
        loads=known,
        owners=[owner.get(bundle.broker, ORPHAN) for bundle in cluster.bundles],
        capacities=[capacity[name] for name in takers],
        fixed=_fixed(situation, known),
        allowed=_allowed(situation, number),
        closed={number[name] for name in takers if situation.overloaded(name)},
        band=settings.band,
        trigger=settings.band_trigger,
        moves_max=settings.moves_max,
    )


def _fixed(situation: Situation, known: list[float]) -> set[int]:
    """Bundles that stay: pinned, excluded, kept apart by anti-affinity, or moved a while ago at
    nearly the same load."""
    cluster, moved, settings = situation.cluster, situation.memory.moved, situation.settings
    stays: dict[str, bool] = {}
    found = set()
    for at, bundle in enumerate(cluster.bundles):
        namespace = bundle.name.rpartition("/")[0]
        if namespace not in stays:
            group = situation.policies.group(namespace)
            stays[namespace] = bool(group) or is_excluded(bundle.name, settings)
        if bundle.pinned or stays[namespace]:
            found.add(at)
        elif bundle.name in moved:
            last = moved[bundle.name].load
            if abs(known[at] - last) <= settings.repeat_change * last:
                found.add(at)
    return found


def _allowed(situation: Situation, number: Mapping[str, int]) -> dict[int, frozenset[int]]:
    """Brokers by bundle; empty without isolation policies, when every broker may have all."""
    if not situation.policies.isolation:
        return {}
    found: dict[str, frozenset[int]] = {}
    for bundle in situation.cluster.bundles:
        if bundle.namespace not in found:
            found[bundle.namespace] = frozenset(
                number[name] for name in allowed(situation, bundle.namespace)
            )
    return {at: found[bundle.namespace] for at, bundle in enumerate(situation.cluster.bundles)}


def least_loaded(situation: Situation, bundle: Bundle, names: Sequence[str]) -> str:
    """The candidate with the lowest load for its capacity once it has the bundle."""
    cluster, settings = situation.cluster, situation.settings
    capacity = capacities(cluster, settings)
    totals, own = dict.fromkeys(capacity, 0.0), settings.bundle_cost
    for other, load in zip(cluster.bundles, loads(cluster, settings), strict=True):
        if other.name == bundle.name:
            own = load
            continue
        broker = situation.memory.preallocated.get(other.name, other.broker)
        if broker in totals:
            totals[broker] += load
    return min(names, key=lambda name: ((totals[name] + own) / capacity[name], name))

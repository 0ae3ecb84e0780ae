"""When bundles are split or merged by load, and where.

Owns: the conditions of splits and merges, boundaries by topics and by rates, isolation of a hot
topic. Imports: errors, names, ownership.splits, balance. Pure. Invariants: boundaries lie strictly
inside the bundle; a bundle with fewer than two topics is not split (#12527); what a split made is
too large to be merged again, or was cold for long since; a merged bundle would not be split under
twice its load; a namespace keeps `plannerMergeBundlesMin` bundles, and those it was created with.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from magnetar.balance.cluster import NOTES_MAX, Bundle, Merge, Outcome, Split, joined
from magnetar.balance.filters import Situation
from magnetar.balance.load import History, Level, LoadReport, Mean, Rates, TopicLoad
from magnetar.balance.planner import cost, loads
from magnetar.balance.settings import ALGORITHMS, MIB, PLANNER, Settings
from magnetar.balance.top_k import is_excluded
from magnetar.errors import InvalidRequest, NotAllowed
from magnetar.names import BundleName
from magnetar.ownership.splits import (
    CHILDREN_MAX,
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    range_equally_divide,
    specified_positions_divide,
)

TOPIC_COUNT_EQUALLY_DIVIDE = ALGORITHMS[1]
FLOW_OR_QPS_EQUALLY_DIVIDE = ALGORITHMS[3]
ADVISED = "as load analytics advises"
EARLY_MERGE_SHARE = 0.25
"""Of `plannerMergeHits`: after so many checks neighbours are merged that load analytics knows as cold
throughout its history."""
ISOLATED_SHARE = 0.5
"""Of its bundle's load: a topic with more gets a bundle of its own."""
MERGES_MAX = 4
"""Of one check of one broker: each is a short pause for the clients of both bundles."""


NO_RATES = Rates()


def boundaries(
    bundle: BundleName, algorithm: str, topics: Sequence[TopicLoad], settings: Settings
) -> tuple[int, ...]:
    """Where an algorithm splits a bundle with these topics; () if it cannot. Raises
    InvalidRequest for an algorithm that needs positions, or is none."""
    if algorithm == RANGE_EQUALLY_DIVIDE:
        try:
            return range_equally_divide(bundle)
        except NotAllowed:
            return ()
    if algorithm == TOPIC_COUNT_EQUALLY_DIVIDE:
        return topic_count_equally_divide(bundle, (topic.position for topic in topics))
    if algorithm == FLOW_OR_QPS_EQUALLY_DIVIDE:
        return flow_or_qps_equally_divide(bundle, topics, settings)
    raise InvalidRequest(
        f"splitAlgorithmName: {algorithm!r} is not for automatic splits; use one of "
        f"{', '.join(name for name in ALGORITHMS if name != SPECIFIED_POSITIONS_DIVIDE)}"
    )


def topic_count_equally_divide(bundle: BundleName, positions: Iterable[int]) -> tuple[int, ...]:
    """As many topics on one side as on the other; a topic at the boundary belongs to the right."""
    found = sorted(positions)
    if len(found) < 2:
        return ()
    left, right = found[max(len(found) // 2 - 1, 0)], found[len(found) // 2]
    return specified_positions_divide(bundle, (left + (right - left) // 2,))


def flow_or_qps_equally_divide(
    bundle: BundleName, topics: Iterable[TopicLoad], settings: Settings
) -> tuple[int, ...]:
    """Parts of at most the message rate and throughput of one bundle, in hash order."""
    rate_max, bytes_max = settings.bundle_rate_max, settings.bundle_mib_max * MIB
    busy = sorted(
        (topic for topic in topics if topic.rates.messages or topic.rates.throughput),
        key=lambda topic: (topic.position, topic.name),
    )
    total = sum((topic.rates for topic in busy), Rates())
    excess = 100 + settings.flow_percent
    if len(busy) < 2 or (
        100 * total.messages < rate_max * excess and 100 * total.throughput < bytes_max * excess
    ):
        return ()
    found, part = [], busy[0].rates
    for before, topic in itertools.pairwise(busy):
        whole = part + topic.rates
        if whole.messages > rate_max or whole.throughput > bytes_max:
            found.append(before.position + (topic.position - before.position) // 2 + 1)
            part = topic.rates
        else:
            part = whole
    return specified_positions_divide(bundle, found)[: CHILDREN_MAX - 1]


def isolate(bundle: BundleName, position: int) -> tuple[int, ...]:
    """The topic at a position in a bundle of its own."""
    return specified_positions_divide(bundle, (position, position + 1))


def split(situation: Situation) -> Outcome:
    """Bundles that have been too hot for more than `split_hits` cycles, hottest first."""
    cluster, settings = situation.cluster, situation.settings
    memory = situation.memory
    if not (settings.enabled and settings.split):
        return Outcome(memory, "splits are off")
    hot = _too_hot(situation)
    hits = {bundle.name: memory.split_hits.get(bundle.name, 0) + 1 for bundle, _, _ in hot}
    counts = Counter(bundle.namespace for bundle in cluster.bundles)
    splits: list[Split] = []
    notes: list[str] = []
    edges: set[tuple[str, int]] = set()
    for bundle, reason, part_max in hot:
        name = BundleName.parse(bundle.name)
        ends = {(bundle.namespace, name.low), (bundle.namespace, name.high)}
        if hits[bundle.name] <= settings.split_hits or len(splits) == settings.splits_max:
            continue
        if counts[bundle.namespace] >= settings.namespace_bundles_max:
            notes.append(f"{bundle.name}: its namespace has {counts[bundle.namespace]} bundles")
        elif ends & edges:
            notes.append(f"{bundle.name}: a neighbour is split first")
        else:
            room = settings.namespace_bundles_max - counts[bundle.namespace]
            cuts = _cuts(situation, bundle.name, room)
            splits.append(_split_of(bundle, name, reason, part_max, settings, cuts))
            counts[bundle.namespace] += max(1, len(splits[-1].boundaries))
            edges |= ends
            del hits[bundle.name]
    return Outcome(
        replace(memory, split_hits=hits),
        f"{len(hot)} bundle{'s are' if len(hot) > 1 else ' is'} too hot",
        splits=tuple(splits),
        notes=tuple(notes[:NOTES_MAX]),
    )


def _cuts(situation: Situation, bundle: str, room: int) -> tuple[int, ...]:
    """Where load analytics advises to cut, if that makes at most `room` bundles more."""
    advised = situation.advice.cuts.get(bundle, ()) if situation.advice is not None else ()
    return advised if len(advised) <= room else ()


def _split_of(
    bundle: Bundle,
    name: BundleName,
    reason: str,
    part_max: float,
    settings: Settings,
    cuts: tuple[int, ...],
) -> Split:
    if cuts:
        return Split(bundle.name, SPECIFIED_POSITIONS_DIVIDE, f"{reason}; cut {ADVISED}", cuts)
    for topic in bundle.hot:
        load = cost(topic.rates, settings)
        own = isolate(name, topic.position)
        if own and load > ISOLATED_SHARE * cost(bundle.level, settings):
            return Split(
                bundle.name, SPECIFIED_POSITIONS_DIVIDE, f"{reason}; {topic.name} is hot", own
            )
    if part_max:
        return Split(bundle.name, FLOW_OR_QPS_EQUALLY_DIVIDE, reason, part_max=part_max)
    return Split(bundle.name, settings.split_algorithm, reason)


def heavy(situation: Situation, known: Sequence[float]) -> float:
    """The load above which the planner splits a bundle; infinite with Pulsar's shedders."""
    cluster, settings = situation.cluster, situation.settings
    if settings.shedder != PLANNER or not settings.split_share or not cluster.brokers:
        return math.inf
    mean = sum(known) / len(cluster.brokers)
    return max(settings.split_share * mean, settings.split_rate_min)


def may_split(report: LoadReport, settings: Settings) -> bool:
    """Whether `split` could find a bundle of this broker, whatever the others report."""
    owners = {load.name: report.broker for load in report.top}
    least = settings.split_rate_min if settings.shedder == PLANNER else math.inf
    return any(
        cost(bundle.level, settings) > least or _exceeded(bundle, settings)
        for bundle in joined(owners, [report])
    )


def _too_hot(situation: Situation) -> list[tuple[Bundle, str, float]]:
    """Bundles, why each is too hot, and the most load of a part (0 = as the limits say)."""
    cluster, settings = situation.cluster, situation.settings
    known = loads(situation)
    most = heavy(situation, known)
    found = []
    for bundle, load in zip(cluster.bundles, known, strict=True):
        if bundle.history is None or bundle.topics < 2 or is_excluded(bundle.name, settings):
            continue
        name = BundleName.parse(bundle.name)
        reason, part_max = _exceeded(bundle, settings), 0.0
        if not reason and load > most:
            reason, part_max = "its load is a large share of a broker's", most / 2
        if reason and name.high - name.low > 1:
            found.append((load, bundle, reason, part_max))
    found.sort(key=lambda item: (-item[0], item[1].name))
    return [item[1:] for item in found]


def _exceeded(bundle: Bundle, settings: Settings) -> str:
    """The first limit that a bundle exceeds; "" if none."""
    return next((what for what, share in _shares(bundle, settings) if share > 1), "")


def _shares(bundle: Bundle, settings: Settings, peak: Rates = NO_RATES) -> list[tuple[str, float]]:
    """How much of each limit of one bundle it uses, by what its level and long-term rates say, and
    a peak that it is known to have."""
    rates, past = bundle.level, bundle.long
    sessions = settings.sessions_max
    messages = max(rates.messages, past.messages, peak.messages)
    bytes_ = max(rates.throughput, past.throughput, peak.throughput)
    return [
        (f"{bundle.topics} topics", bundle.topics / settings.topics_max),
        (f"{bundle.sessions} sessions", bundle.sessions / sessions if sessions > 0 else 0.0),
        (f"{messages:.0f} messages/s", messages / settings.bundle_rate_max),
        (f"{bytes_ / MIB:.0f} MiB/s", bytes_ / MIB / settings.bundle_mib_max),
    ]


def may_merge(own: Iterable[str]) -> bool:
    """Whether any two of these bundles are neighbours, without a look at the cluster."""
    names = [BundleName.parse(name) for name in own]
    begins = {(name.namespace, name.low) for name in names}
    return any((name.namespace, name.high) in begins for name in names)


def merge(situation: Situation) -> Outcome:
    """Pairs of neighbours on one broker that together have used little of every limit for more
    than `merge_hits` checks in a row, a few at a time. A bundle that was not measured, moved lately
    or is pinned is left alone."""
    settings, memory, least = situation.settings, situation.memory, situation.policies.bundles_min
    if not (settings.enabled and settings.merge):
        return Outcome(memory, "merges are off")
    namespaces: dict[str, list[Bundle]] = {}
    for bundle in situation.cluster.bundles:
        namespaces.setdefault(bundle.namespace, []).append(bundle)
    hits: dict[str, int] = {}
    due: list[Merge] = []
    for namespace, bundles in namespaces.items():
        bundles.sort(key=lambda bundle: BundleName.parse(bundle.name))
        spare = len(bundles) - max(settings.merge_bundles_min, least.get(namespace, 0))
        pairs = itertools.pairwise(bundles) if spare > 0 else ()
        taken = ""
        for left, right in pairs:
            found = _merge_of(left, right, situation)
            if found is None:
                continue
            hits[found.merged] = memory.merge_hits.get(found.merged, 0) + 1
            if (
                hits[found.merged] > _merge_hits(found, situation)
                and spare > 0
                and left.name != taken
            ):
                due.append(found)
                spare, taken = spare - 1, right.name
    merges = _cold_as_one(due, situation)[:MERGES_MAX]
    for chosen in merges:
        del hits[chosen.merged]
    return Outcome(
        replace(memory, merge_hits=hits),
        f"neighbours that are cold: {len(due)} pair{'' if len(due) == 1 else 's'}",
        merges=tuple(merges),
    )


def _cold_as_one(due: Sequence[Merge], situation: Situation) -> list[Merge]:
    """The merges that no split would undo, also under twice the load."""
    if not due:
        return []
    known = situation.cluster.bundle
    parts = {name for found in due for name in found.bundles}
    whole = tuple(
        _both(known[found.bundles[0]], known[found.bundles[1]], found.merged) for found in due
    )
    rest = tuple(bundle for bundle in situation.cluster.bundles if bundle.name not in parts)
    after = replace(situation, cluster=replace(situation.cluster, bundles=(*rest, *whole)))
    hot = {bundle.name for bundle, _, _ in _too_hot(after)}
    return [found for found in due if found.merged not in hot]


def _both(left: Bundle, right: Bundle, name: str) -> Bundle:
    """One bundle instead of two, under twice their load."""
    level, long = left.level + right.level, left.long + right.long
    history = History(Mean(level + level), Mean(long + long), Level(Mean(level + level)))
    topics, sessions = left.topics + right.topics, left.sessions + right.sessions
    return Bundle(name, left.broker, history, topics, sessions)


def _merge_of(left: Bundle, right: Bundle, situation: Situation) -> Merge | None:
    settings, moved = situation.settings, situation.memory.moved
    for bundle in (left, right):
        if (
            bundle.history is None
            or bundle.pinned
            or bundle.name in moved
            or is_excluded(bundle.name, settings)
        ):
            return None
    known = situation.advice.by_bundle if situation.advice is not None else {}
    shares = zip(
        *(
            _shares(one, settings, known[one.name].peak if one.name in known else NO_RATES)
            for one in (left, right)
        ),
        strict=True,
    )
    used = max(ours + theirs for (_, ours), (_, theirs) in shares)
    low, high = BundleName.parse(left.name), BundleName.parse(right.name)
    if left.broker != right.broker or low.high != high.low or used > settings.merge_share:
        return None
    name = str(BundleName(low.namespace, low.low, high.high))
    reason = f"together {used:.1%} of a bundle's limits"
    if situation.advice is not None and (left.name, right.name) in situation.advice.cold:
        reason += f"; soon, {ADVISED}"
    return Merge((left.name, right.name), name, reason)


def _merge_hits(found: Merge, situation: Situation) -> int:
    """After how many checks in a row neighbours are merged."""
    hits = situation.settings.merge_hits
    advised = situation.advice is not None and found.bundles in situation.advice.cold
    return int(hits * EARLY_MERGE_SHARE) if advised else hits

"""The planner's arithmetic: loads on brokers, all by number.

Owns: the placement of homeless bundles, heaviest first, and the moves that bring brokers into a
band around the mean. Imports: nothing of ours. Pure. Invariants: a move (or an exchange of two
bundles) lowers the higher fill of its two brokers; no bundle moves twice; so a plan ends, and its
moves never raise the highest fill.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

ORPHAN, LEAVING = -1, -2
SHORT, LONG = 0.3, 0.75
"""How far from the mean a move may leave a broker, in bands: less moves more load, more moves more
bundles (0.3 and 0.75 are measured on the cases of `dev.bench.balance`)."""
GAIN_MIN = 0.25
"""Least drop of the donor's fill per fill moved: a move that gains less would go back under
noise."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Bundles by number: loads and owners (or `ORPHAN`, `LEAVING` a broker that takes part no
    longer). Brokers by number: relative capacities.

    `fixed` bundles leave only a broker that they may not have. `allowed` has the brokers of those
    bundles that may not have all. `closed` brokers are not filled up further.
    """

    loads: Sequence[float]
    owners: Sequence[int]
    capacities: Sequence[float]
    fixed: Set[int] = frozenset()
    allowed: Mapping[int, frozenset[int]] = field(default_factory=dict)
    closed: Set[int] = frozenset()
    band: float = 0.02
    trigger: float = 0.05
    moves_max: int = 1000


_FORCED = {ORPHAN: "no broker has it", LEAVING: "its broker is draining"}


class Step(NamedTuple):
    bundle: int
    destination: int
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """Steps in the order in which they help; `homeless` bundles have no broker that may have
    them."""

    steps: tuple[Step, ...]
    homeless: tuple[int, ...]
    reason: str


def rebalance(problem: Problem) -> Result:
    """Place what is homeless, then rebalance every group of brokers that is out of its band."""
    work = _Work(problem)
    homeless, filled = work.place()
    reasons = [work.balance(group, filled) for group in _groups(problem)]
    return Result(
        tuple(work.steps), tuple(homeless), "; ".join(dict.fromkeys(filter(None, reasons)))
    )


def _groups(problem: Problem) -> list[list[int]]:
    """Brokers that can exchange bundles, however indirectly."""
    brokers = set(range(len(problem.capacities)))
    if not problem.allowed or len(problem.allowed) < len(problem.loads):
        return [sorted(brokers)]
    groups = [{broker} for broker in brokers]
    for together in dict.fromkeys(problem.allowed.values()):
        apart = [group for group in groups if not group & together]
        groups = [*apart, set(together).union(*(group for group in groups if group & together))]
    return sorted(sorted(group) for group in groups if group)


class _Work:
    """Totals and bundles of brokers while a plan is made."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.moves_left = problem.moves_max
        self._totals = [0.0] * len(problem.capacities)
        self._members: list[list[int]] = [[] for _ in problem.capacities]
        self._stray: list[int] = []
        self.steps: list[Step] = []
        totals, members, allowed = self._totals, self._members, problem.allowed
        for bundle, (owner, load) in enumerate(zip(problem.owners, problem.loads, strict=True)):
            if owner >= 0:
                totals[owner] += load
                if not allowed or owner in allowed.get(bundle, (owner,)):
                    members[owner].append(bundle)
                    continue
            self._stray.append(bundle)

    def fill(self, broker: int) -> float:
        return self._totals[broker] / self._problem.capacities[broker]

    def movable(self, broker: int) -> list[int]:
        """The bundles that a broker had at first and may give, lightest first."""
        loads, fixed = self._problem.loads, self._problem.fixed
        found = [
            bundle for bundle in self._members[broker] if loads[bundle] > 0 and bundle not in fixed
        ]
        found.sort(key=loads.__getitem__)
        return found

    def put(self, bundle: int, source: int, destination: int, reason: str) -> None:
        load = self._problem.loads[bundle]
        if source >= 0:
            self._totals[source] -= load
        if source != ORPHAN:
            self.moves_left -= 1
        self._totals[destination] += load
        self.steps.append(Step(bundle, destination, reason))

    def pool(self, brokers: Iterable[int]) -> tuple[float, float]:
        """Load and capacity of some brokers."""
        found = list(brokers)
        return (
            sum(self._totals[broker] for broker in found),
            sum(self._problem.capacities[broker] for broker in found),
        )

    def place(self) -> tuple[list[int], set[int]]:
        """Put each homeless or forbidden bundle on the emptiest broker that may have it, heaviest
        first; orphans before the others, and whatever their number. Returns those that no broker
        may have, and the brokers that got one."""
        problem, homeless, filled = self._problem, list[int](), set[int]()
        heaps: dict[frozenset[int] | None, list[tuple[float, int]]] = {}
        self._stray.sort(
            key=lambda bundle: (problem.owners[bundle] != ORPHAN, -problem.loads[bundle], bundle)
        )
        for bundle in self._stray:
            brokers, owner = problem.allowed.get(bundle), problem.owners[bundle]
            if brokers not in heaps:
                some: Iterable[int] = range(len(problem.capacities)) if brokers is None else brokers
                heaps[brokers] = sorted((self.fill(broker), broker) for broker in some)
            heap = heaps[brokers]
            if not heap:
                homeless.append(bundle)
                continue
            if owner != ORPHAN and self.moves_left <= 0:
                break
            while heap[0][0] != self.fill(heap[0][1]):
                heapq.heapreplace(heap, (self.fill(heap[0][1]), heap[0][1]))
            broker = heap[0][1]
            self.put(bundle, owner, broker, _FORCED.get(owner, "isolation forbids its broker"))
            filled.add(broker)
        return homeless, filled

    def balance(self, group: list[int], filled: Set[int]) -> str:
        """Bring the brokers of a group into the band, if one is beyond the trigger or placement
        lifted one above the band. Returns why it acted or did not."""
        problem = self._problem
        load, capacity = self.pool(group)
        if len(group) < 2 or not load > 0:
            return ""
        fills = {broker: self.fill(broker) * capacity / load for broker in group}
        high, low = max(fills.values()), min(fills.values())
        lifted = max((fills[broker] for broker in filled & fills.keys()), default=0.0)
        span = f"brokers at {100 * low:.1f} to {100 * high:.1f} % of the mean"
        if max(high - 1, 1 - low) <= problem.trigger and lifted - 1 <= problem.band:
            return f"{span}: within the trigger band"
        before = len(self.steps)
        _Levelling(problem, self, group).run()
        return span if len(self.steps) > before else f"{span}: no move helps"


class _Levelling:
    """Moves among one group of brokers, from the fullest to the emptiest.

    A broker above the band that can give nothing leaves the mean: the others cannot reach it.
    """

    def __init__(self, problem: Problem, work: _Work, group: list[int]) -> None:
        self._problem, self._work = problem, work
        self._load, self._capacity = work.pool(group)
        self._movable: dict[int, list[int]] = {}
        fills = [(work.fill(broker), broker) for broker in group]
        self._donors = [(-fill, broker) for fill, broker in fills]
        open_ = [entry for entry in fills if entry[1] not in problem.closed]
        self._receivers = open_ or fills
        heapq.heapify(self._donors)
        heapq.heapify(self._receivers)
        self._constrained = bool(problem.allowed)
        self._spent: set[int] = set()

    def run(self) -> None:
        work = self._work
        while self._donors and work.moves_left > 0 and self._load > 0 and self._capacity > 0:
            fill, donor = self._donors[0]
            if donor in self._spent:
                heapq.heappop(self._donors)
            elif -fill != work.fill(donor):
                heapq.heapreplace(self._donors, (-work.fill(donor), donor))
            elif not self._give(donor):
                if self._settled(donor):
                    return
                self._spent.add(donor)
                if self._above(donor):
                    load, capacity = work.pool([donor])
                    self._load -= load
                    self._capacity -= capacity

    def _above(self, broker: int) -> bool:
        limit = self._load / self._capacity * (1 + self._problem.band)
        return self._work.fill(broker) > limit

    def _below(self, broker: int) -> bool:
        limit = self._load / self._capacity * (1 - self._problem.band)
        return self._work.fill(broker) < limit

    def _settled(self, donor: int) -> bool:
        return not self._above(donor) and not self._below(self._emptiest())

    def _emptiest(self) -> int:
        work, heap = self._work, self._receivers
        while heap[0][0] != work.fill(heap[0][1]):
            heapq.heapreplace(heap, (work.fill(heap[0][1]), heap[0][1]))
        return heap[0][1]

    def _give(self, donor: int) -> bool:
        """Move one bundle of `donor`; False if none should move."""
        for receiver in self._order():
            if receiver == donor or not (self._above(donor) or self._below(receiver)):
                return False
            at = self._choice(donor, receiver)
            if at is not None:
                self._move(donor, receiver, at)
                return True
        return self._above(donor) and self._exchange(donor, self._emptiest())

    def _order(self) -> Iterator[int]:
        """The emptiest receiver; where permissions differ, the others too, emptiest first."""
        yield self._emptiest()
        if self._constrained:
            fills = sorted((self._work.fill(broker), broker) for _, broker in self._receivers)
            yield from (broker for _, broker in fills[1:])

    def _move(self, donor: int, receiver: int, at: int) -> None:
        work, mean = self._work, self._load / self._capacity
        before = 100 * work.fill(donor) / mean
        bundle = self._list(donor).pop(at)
        reason = f"from {before:.0f} to {100 * work.fill(receiver) / mean:.0f} % of the mean"
        work.put(bundle, donor, receiver, reason)
        heapq.heappush(self._donors, (-work.fill(receiver), receiver))

    def _list(self, broker: int) -> list[int]:
        if broker not in self._movable:
            self._movable[broker] = self._work.movable(broker)
        return self._movable[broker]

    def _takes(self, receiver: int, bundle: int) -> bool:
        return receiver in self._problem.allowed.get(bundle, (receiver,))

    def _choice(self, donor: int, receiver: int) -> int | None:
        """Which of the donor's bundles brings both brokers nearest to the mean, by position."""
        found, loads = self._list(donor), self._problem.loads
        positions: Sequence[int] = range(len(found))
        if self._constrained:
            positions = [at for at in positions if self._takes(receiver, found[at])]
        least, wanted, most = self._wanted(donor, receiver)
        at = bisect_left(positions, least, key=lambda at: loads[found[at]])
        order = [positions[at] for at in (at, at - 1) if 0 <= at < len(positions)]
        order.sort(key=lambda at: (loads[found[at]] > most, abs(loads[found[at]] - wanted)))
        return next((at for at in order if self._gains(donor, receiver, loads[found[at]])), None)

    def _exchange(self, donor: int, receiver: int) -> bool:
        """Swap the lightest two bundles whose difference is what the donor should give."""
        ours, loads = self._list(donor), self._problem.loads
        least, _, most = self._wanted(donor, receiver)
        for back, other in enumerate(self._list(receiver)):
            at = bisect_left(ours, loads[other] + least, key=loads.__getitem__)
            if at == len(ours) or self._work.moves_left < 2:
                return False
            net = loads[ours[at]] - loads[other]
            fits = self._takes(donor, other) and self._takes(receiver, ours[at])
            if fits and net <= most and self._gains(donor, receiver, net):
                self._move(donor, receiver, at)
                self._move(receiver, donor, back)
                return True
        return False

    def _wanted(self, donor: int, receiver: int) -> tuple[float, float, float]:
        """The least load, the best and the most that brings one of the two into the band without
        driving the other out of it; both to the same fill if the mean is not between them."""
        capacities, work = self._problem.capacities, self._work
        mean = self._load / self._capacity
        ours, theirs = capacities[donor], capacities[receiver]
        give = (work.fill(donor) - mean) * ours
        take = (mean - work.fill(receiver)) * theirs
        if give > 0 and take > 0:
            wanted, slack = min(give, take), self._problem.band * mean * min(ours, theirs)
            return max(wanted - SHORT * slack, 0.0), wanted, wanted + LONG * slack
        even = (work.fill(donor) - work.fill(receiver)) * ours * theirs / (ours + theirs)
        return even, even, even

    def _gains(self, donor: int, receiver: int, load: float) -> bool:
        work, capacities = self._work, self._problem.capacities
        before = work.fill(donor)
        after = max(
            before - load / capacities[donor], work.fill(receiver) + load / capacities[receiver]
        )
        return before - after >= GAIN_MIN * load / capacities[donor]

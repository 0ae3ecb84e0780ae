"""Where a hot bundle is cut.

Owns: `cut`, boundaries by load. Imports: names, ownership.splits. Pure. Invariants: boundaries lie
strictly inside the bundle, in order; no part has more load than asked for unless one hash position
has; of all cuts into as many parts the one whose largest part is smallest, on the load that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.names import BundleName
from magnetar.ownership.splits import CHILDREN_MAX

SLICES = 256
"""What of the load no topic is named for is taken as even over the range, in so many slices."""
SEARCHES = 40


@dataclass(frozen=True, slots=True)
class Cut:
    """Boundaries, and the load of the parts between them."""

    boundaries: tuple[int, ...]
    parts: tuple[float, ...]

    @property
    def largest(self) -> float:
        return max(self.parts)


def cut(
    bundle: BundleName, topics: Iterable[tuple[int, float]], rest: float, part_max: float
) -> Cut:
    """Cut a bundle into as few parts as keep each below `part_max`. `topics` are hash positions
    and loads, `rest` the load of all others."""
    atoms = _atoms(bundle, topics, rest)
    heaviest = max((load for _, load in atoms), default=0.0)
    most = max(part_max, heaviest)
    parts = _filled(atoms, most)
    if len(parts) > CHILDREN_MAX:
        low, high = most, sum(load for _, load in atoms)
        parts = _least(atoms, low, high, CHILDREN_MAX)
    elif len(parts) > 1:
        parts = _least(atoms, heaviest, most, len(parts))
    ends = [atoms[begin - 1][0] for begin, _ in parts[1:]]
    begins = [atoms[begin][0] for begin, _ in parts[1:]]
    boundaries = tuple(
        before + (after - before + 1) // 2 for before, after in zip(ends, begins, strict=True)
    )
    return Cut(boundaries, tuple(load for _, load in parts))


def _atoms(
    bundle: BundleName, topics: Iterable[tuple[int, float]], rest: float
) -> list[tuple[int, float]]:
    """Load by hash position, in order. What is at one position cannot be parted, nor the last
    position of the hash range from the one before."""
    found: dict[int, float] = {}
    for position, load in topics:
        if bundle.low <= position <= bundle.high and load > 0:
            place = min(position, bundle.high - 1)
            found[place] = found.get(place, 0.0) + load
    width = bundle.high - bundle.low
    slices = min(SLICES, width)
    for at in range(slices if rest > 0 else 0):
        position = bundle.low + width * (2 * at + 1) // (2 * slices)
        found[position] = found.get(position, 0.0) + rest / slices
    return sorted(found.items())


def _filled(atoms: Sequence[tuple[int, float]], most: float) -> list[tuple[int, float]]:
    """The first atom and the load of each part, if parts are filled one after another."""
    parts: list[tuple[int, float]] = []
    for at, (_, load) in enumerate(atoms):
        if parts and parts[-1][1] + load <= most * (1 + 1e-9):
            parts[-1] = parts[-1][0], parts[-1][1] + load
        else:
            parts.append((at, load))
    return parts or [(0, 0.0)]


def _least(
    atoms: Sequence[tuple[int, float]], low: float, high: float, count: int
) -> list[tuple[int, float]]:
    """At most `count` parts whose largest is smallest; it is between `low` and `high`."""
    for _ in range(SEARCHES):
        middle = (low + high) / 2
        if len(_filled(atoms, middle)) <= count:
            high = middle
        else:
            low = middle
    return _filled(atoms, high)

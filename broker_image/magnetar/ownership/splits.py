"""Where a bundle is divided.

Owns: the boundaries that a split makes, by Pulsar's algorithms, and the bundles between them.
Imports: errors, names. Pure. Invariants: boundaries lie strictly inside the bundle, in order, each
once; the children cover the parent without gap or overlap, and the last one is closed at the top
exactly if the parent was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from magnetar.errors import InvalidRequest, NotAllowed, PreconditionFailed
from magnetar.names import BundleName

RANGE_EQUALLY_DIVIDE = "range_equally_divide"
SPECIFIED_POSITIONS_DIVIDE = "specified_positions_divide"
ALGORITHMS = (RANGE_EQUALLY_DIVIDE, SPECIFIED_POSITIONS_DIVIDE)
CHILDREN_MAX = 32
"""Of one split: all of them are written in one transaction, whose operations are counted by the
store."""


def boundaries_of(
    bundle: BundleName, algorithm: str, positions: Sequence[int] = ()
) -> tuple[int, ...]:
    """Where `algorithm` ("" = the default) divides the bundle. Raises NotAllowed if it cannot be
    divided so, InvalidRequest."""
    if algorithm in ("", RANGE_EQUALLY_DIVIDE):
        if positions:
            raise InvalidRequest(
                f"splitBoundaries: they are for {SPECIFIED_POSITIONS_DIVIDE} only; name that "
                "algorithm, or send none"
            )
        return range_equally_divide(bundle)
    if algorithm != SPECIFIED_POSITIONS_DIVIDE:
        raise PreconditionFailed(
            "Unsupported namespace bundle split algorithm, supported algorithms are "
            f"[{', '.join(ALGORITHMS)}]",
            f"{algorithm!r} is none of them",
        )
    if not positions:
        raise PreconditionFailed(
            f"With {SPECIFIED_POSITIONS_DIVIDE} split algorithm, splitBoundaries must not be empty",
            "send at least one position in the body, a JSON list",
        )
    found = specified_positions_divide(bundle, positions)
    if not found:
        raise NotAllowed(
            f"splitBoundaries: none of {list(positions)[:8]} lies inside bundle {bundle}; choose "
            "some between its ends"
        )
    return found


def range_equally_divide(bundle: BundleName) -> tuple[int, ...]:
    """Two halves of the range. Raises NotAllowed for a bundle that is too narrow."""
    middle = bundle.low + (bundle.high - bundle.low) // 2
    if middle <= bundle.low:
        raise NotAllowed(
            f"bundle {bundle} is too narrow to be split; move its topics to another namespace, or "
            "the bundle to a free broker"
        )
    return (middle,)


def specified_positions_divide(bundle: BundleName, positions: Iterable[int]) -> tuple[int, ...]:
    """Those of the positions that lie strictly inside, each once; () if none does."""
    return tuple(
        sorted({position for position in positions if bundle.low < position < bundle.high})
    )


def children_of_split(bundle: BundleName, boundaries: Sequence[int]) -> list[BundleName]:
    """The bundles that `boundaries` make of one, in order. Raises NotAllowed for boundaries that
    are none, outside, or out of order."""
    if not boundaries or len(boundaries) >= CHILDREN_MAX:
        raise NotAllowed(
            f"boundaries: a split makes 2..{CHILDREN_MAX} bundles of one, {len(boundaries) + 1} "
            "were asked for"
        )
    edges = [bundle.low, *boundaries, bundle.high]
    if any(low >= high for low, high in itertools.pairwise(edges)):
        raise NotAllowed(
            f"boundaries: {[f'0x{edge:08x}' for edge in boundaries]} must lie inside bundle "
            f"{bundle}, in order, each once"
        )
    return [BundleName(bundle.namespace, low, high) for low, high in itertools.pairwise(edges)]


def with_boundaries(
    boundaries: Sequence[int], bundle: BundleName, added: Iterable[int]
) -> tuple[int, ...] | None:
    """The boundaries of a namespace in which `bundle` is divided at `added`; None if it is not
    one of its bundles (any more)."""
    if (bundle.low, bundle.high) not in itertools.pairwise(boundaries):
        return None
    return tuple(sorted({*boundaries, *added}))

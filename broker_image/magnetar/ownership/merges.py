"""Which bundles can become one.

Owns: `Neighbours`, two bundles of a namespace that share an edge, and the boundaries of the
namespace once they are one. Imports: errors, names. Pure. Invariant: the merged bundle covers both
without gap or overlap, and removes one boundary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.errors import NotAllowed
from magnetar.names import BundleName


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two bundles, the right one of which begins where the left one ends. Raises NotAllowed for
    others."""

    left: BundleName
    right: BundleName

    def __post_init__(self) -> None:
        if self.left.namespace != self.right.namespace or self.left.high != self.right.low:
            raise NotAllowed(
                f"bundles: {self.right} does not begin where {self.left} ends; merge a bundle with "
                "its right neighbour"
            )

    @property
    def merged(self) -> BundleName:
        """The bundle that replaces both."""
        return BundleName(self.left.namespace, self.left.low, self.right.high)

    @property
    def edges(self) -> tuple[int, int, int]:
        """Low end, common edge, high end."""
        return self.left.low, self.left.high, self.right.high


def right_neighbour(boundaries: Sequence[int], bundle: BundleName) -> Neighbours:
    """The bundle with the one behind it. Raises NotAllowed if it has none, or is none of the
    bundles between these boundaries (any more)."""
    spans = list(itertools.pairwise(boundaries))
    if (bundle.low, bundle.high) not in spans:
        raise NotAllowed(
            f"{bundle.range} is not a bundle of namespace {bundle.namespace}; GET .../bundles "
            "lists them"
        )
    at = spans.index((bundle.low, bundle.high)) + 1
    if at == len(spans):
        raise NotAllowed(
            f"bundle {bundle} is the last of its namespace and has no right neighbour; merge the "
            "bundle before it instead"
        )
    return Neighbours(bundle, BundleName(bundle.namespace, *spans[at]))


def without_edge(boundaries: Sequence[int], pair: Neighbours) -> tuple[int, ...] | None:
    """The boundaries of a namespace in which the two are one bundle; None if they are not two
    bundles of it (any more)."""
    spans = set(itertools.pairwise(boundaries))
    low, edge, high = pair.edges
    if not {(low, edge), (edge, high)} <= spans:
        return None
    return tuple(known for known in boundaries if known != edge)

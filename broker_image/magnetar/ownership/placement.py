"""Which broker gets a bundle.

Owns: the `Placement` interface and the strategies behind it. Imports: metadata.records. Pure.
Invariants: the answer depends on the arguments only, chance included (`tie_break`), and not on the
order of the mapping; who must not be chosen (draining, cordoned, filtered out) is left out by the
caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from magnetar.metadata.records import LoadRecord


class Placement(Protocol):
    """A strategy: candidates (incarnation -> newest load report, None if it has not reported) to
    the chosen incarnation."""

    def __call__(
        self,
        candidates: Mapping[str, LoadRecord | None],
        owned_counts: Mapping[str, int],
        tie_break: int,
    ) -> str: ...


def least_loaded(
    candidates: Mapping[str, LoadRecord | None], owned_counts: Mapping[str, int], tie_break: int
) -> str:
    """The candidate with the lowest message rate (in + out, 1/s), then the fewest bundles;
    `tie_break` picks among equals by name.

    `owned_counts` are bundles per incarnation as the caller knows them now, which is newer than any
    report: what a broker has gained or lost since its report counts with the mean rate of a bundle,
    so that hundreds of orphans placed between two reports do not all go to one broker. A broker
    that has not reported yet counts as idle before. `candidates` must not be empty.
    """
    assert candidates, "no candidates: the caller answers that no broker takes bundles"
    assert tie_break >= 0, tie_break
    reports = [report for report in candidates.values() if report is not None]
    bundles = sum(report.bundles for report in reports)
    mean = (
        sum(report.message_rate_in + report.message_rate_out for report in reports) / bundles
        if bundles
        else 0.0
    )

    def load_of(incarnation: str) -> tuple[float, int]:
        report, owned = candidates[incarnation], owned_counts.get(incarnation, 0)
        rate, reported = (
            (report.message_rate_in + report.message_rate_out, report.bundles)
            if report is not None
            else (0.0, 0)
        )
        return max(0.0, rate + (owned - reported) * mean), owned

    lowest = min(map(load_of, candidates))
    equals = sorted(incarnation for incarnation in candidates if load_of(incarnation) == lowest)
    return equals[tie_break % len(equals)]

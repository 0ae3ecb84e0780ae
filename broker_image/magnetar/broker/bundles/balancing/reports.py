"""Load reports of brokers, those that are gone included.

Owns: `Reports`: the newest report of each live incarnation, and the last ones of incarnations that
are gone, from which the rates of their bundles continue elsewhere. Imports: balance.load, views.
Invariant: what is remembered of former incarnations is bounded in number and age.
"""

from __future__ import annotations

from magnetar.balance.load import BundleLoad, LoadReport
from magnetar.clock import Clock
from magnetar.hosting.views import ClusterViews

FORMER_MAX = 256
FORMER_AGE_MAX_MS = 3_600_000


class Reports:
    """Reports by incarnation."""

    def __init__(self, clock: Clock, views: ClusterViews) -> None:
        self._clock, self._view = clock, views.load
        self._live: dict[str, LoadReport] = {}
        self._former: dict[str, LoadReport] = {}
        self._view.listen(self._changed)
        self._changed(list(self._view.items))

    def _changed(self, names: list[str]) -> None:
        for name in names:
            viewed = self._view.get(name)
            if viewed is not None:
                self._live[name] = viewed.record
                self._former.pop(name, None)
            elif name in self._live:
                self._former[name] = self._live.pop(name)
        while len(self._former) > FORMER_MAX:
            del self._former[next(iter(self._former))]

    def get(self, incarnation: str) -> LoadReport | None:
        """The newest report of a live incarnation."""
        return self._live.get(incarnation)

    def all(self) -> list[LoadReport]:
        """Live reports, and former ones that are not too old."""
        since_ms = self._clock.wall_ms() - FORMER_AGE_MAX_MS
        former = (found for found in self._former.values() if found.updated_ms >= since_ms)
        return [*former, *self._live.values()]

    def loads(self) -> dict[str, BundleLoad]:
        """The newest load of each bundle that any report names."""
        found: dict[str, BundleLoad] = {}
        for report in sorted(self.all(), key=lambda report: report.updated_ms):
            found.update((load.name, load) for load in report.top)
        return found

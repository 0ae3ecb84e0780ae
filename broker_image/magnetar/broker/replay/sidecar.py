"""Where the entries of open transactions lie.

Owns: `SidecarRuns`: the runs of one topic's sidecar by position, until their transactions end.
Imports: entry_index. Invariants: a run is of one transaction, and leaves as a whole, once; what is
not known here lies in a sealed file that the bundle's manifest lists.
"""

from __future__ import annotations

from magnetar.broker.reading.entry_index import ELSEWHERE, Run, run_elsewhere
from magnetar.transactions.participant_records import Place


class SidecarRuns:
    """Runs by the position of their first entry."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[Place, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, first: Place, run: Run) -> None:
        """Entries that are durable; what replay brings again replaces what was there."""
        self._runs[first] = run

    def drop(self, span: tuple[int, int, int]) -> list[Run]:
        """Remove the runs of (ledger, first, count), and return those that were known here."""
        return [run for run in self.take(span) if run.incarnation != ELSEWHERE]

    def take(self, span: tuple[int, int, int]) -> list[Run]:
        """Remove the runs of (ledger, first, count), and return them; what is not known as runs
        that lie elsewhere."""
        ledger, at, end = span[0], span[1], span[1] + span[2]
        found = []
        while at < end:
            run = self._runs.pop((ledger, at), None)
            if run is None:
                following = at + 1
                while following < end and (ledger, following) not in self._runs:
                    following += 1
                run = run_elsewhere(0, following - at)
            found.append(run)
            at += run.count
        return found

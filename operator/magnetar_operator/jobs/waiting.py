"""Since when drivers wait to start.

Owns: what this process saw pass. Imports: nothing. Invariants: times are those of one clock that
never goes back, so that neither a wall clock that jumps nor one that differs from the API server's
makes a driver late; a restart of the operator begins a wait again; memory is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

REMEMBERED_MAX = 10_000


class Waits:
    """Pods of jobs that wait, and since when (monotonic)."""

    def __init__(self) -> None:
        self._since: dict[str, Mapping[str, float]] = {}

    def seen(self, job: str, waiting: Collection[str], now_s: float) -> Mapping[str, float]:
        """For how long each of these pods (uids) of the job waits: all that wait now."""
        known = self._since.pop(job, {})
        if not waiting:
            return {}
        if len(self._since) >= REMEMBERED_MAX:
            self._since.clear()
        self._since[job] = {pod: known.get(pod, now_s) for pod in waiting}
        return {pod: now_s - since for pod, since in self._since[job].items()}

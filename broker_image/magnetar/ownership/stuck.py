"""Bundles whose transfer, split or merge does not progress.

Owns: `StuckStates`: which bundles have been in transition for too long although the acting
incarnation is registered, and the remedy. Imports: metadata.records. Pure. Source: PIP-192's
monitor of in-flight states. Remedies: a destination that has not begun its term is replaced; a
source that does not release may have written RELEASE already, so its incarnation is fenced and all
its bundles are taken over. Invariants: time is how long the caller has seen a record unchanged,
never a clock in the record; after each replacement a bundle waits twice as long for the next, so
that one that no broker can recover does not wander; a bundle of a dead incarnation is an orphan,
not stuck.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from magnetar.metadata.records import BundleRecord, BundleState

REPLACEMENTS_MAX = 5
"""Doublings of the patience; beyond it the wait does not grow any more."""


class Remedy(enum.Enum):
    """What the leader does: give a bundle to another destination, or fence the incarnation that
    holds it."""

    REPLACE = "replace"
    FENCE = "fence"


REMEDIES: Mapping[BundleState, Remedy] = {
    BundleState.ASSIGNING: Remedy.REPLACE,
    BundleState.RELEASING: Remedy.FENCE,
    BundleState.SPLITTING: Remedy.FENCE,
    BundleState.MERGING: Remedy.FENCE,
}


@dataclass(frozen=True, slots=True)
class Stuck:
    """A bundle without progress for `seconds`."""

    bundle: str
    record: BundleRecord
    revision: int
    seconds: float
    remedy: Remedy


@dataclass(slots=True)
class _Watched:
    """A bundle in transition: since when its record is unchanged, and how often its destination
    has been replaced."""

    revision: int
    since: float
    replacements: int = 0


class StuckStates:
    """Watches bundle records for one leader; `patience_s` is how long a change of hands may
    take."""

    def __init__(self, patience_s: float) -> None:
        assert patience_s > 0, patience_s
        self._patience_s = patience_s
        self._watched: dict[str, _Watched] = {}

    def look(
        self, now_s: float, records: Mapping[str, tuple[BundleRecord, int]], live: Collection[str]
    ) -> list[Stuck]:
        """What is stuck as of `now_s` (a monotonic clock): `records` are (record, mod_revision)
        by bundle, `live` the registered incarnations."""
        found = []
        for name, (record, revision) in records.items():
            remedy = REMEDIES.get(record.state)
            if remedy is None or record.incarnation not in live:
                self._watched.pop(name, None)
                continue
            watched = self._watched.get(name)
            if watched is None:
                self._watched[name] = _Watched(revision, now_s)
                continue
            if watched.revision != revision:
                watched.revision, watched.since = revision, now_s
            patience = self._patience_s * (1 << min(watched.replacements, REPLACEMENTS_MAX))
            if now_s - watched.since >= patience:
                found.append(Stuck(name, record, revision, now_s - watched.since, remedy))
        self._watched = {
            name: watched for name, watched in self._watched.items() if name in records
        }
        return found

    def overdue(self, now_s: float) -> frozenset[str]:
        """Bundles in transition without progress for the patience as of `now_s`, or whose
        destination was replaced for that."""
        found = self._watched.items()
        return frozenset(
            name
            for name, watched in found
            if watched.replacements or now_s - watched.since >= self._patience_s
        )

    def replaced(self, bundle: str) -> None:
        """Its destination has been replaced."""
        if bundle in self._watched:
            self._watched[bundle].replacements += 1

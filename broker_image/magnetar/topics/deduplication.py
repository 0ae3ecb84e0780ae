"""What deduplication knows of a topic's producers.

Owns: the highest sequence ids pushed (given to the log) and persisted (durable) of each producer
name, and which names are forgotten. Imports: nothing. Pure. Source: Pulsar's deduplication: a
message whose lowest sequence id is not above the highest persisted one is stored already; one
between pushed and persisted may still fail with its broker; of a chunked message only the last
chunk is tested and recorded. Invariants: persisted <= pushed; what is admitted has a lowest id
above everything admitted before under its name; at most `remembered_max` names are kept besides
those of connected producers; replay forgets no name, and for RETURN_MS after it the limit does not
apply, since the log does not say which producers were connected; a producer that was forgotten
starts again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

NO_SEQUENCE = (1 << 64) - 1
"""In the log, the sequence id of an entry that deduplication does not record: a chunk before the
last of its message."""
NOTHING = -1
RETURN_MS = 120_000
"""Producers that were connected to the former owner are back by then: official clients wait for
a minute at most before they try again."""


class Verdict(enum.Enum):
    """NEW: publish. DUPLICATE: durable already, a success. UNKNOWN: in flight to storage; the
    client is to try again."""

    NEW = enum.auto()
    DUPLICATE = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class DeduplicationLimits:
    """How many names are remembered, and how long (ms) one without a connected producer."""

    remembered_max: int = 10_000
    inactive_ms: int = 360 * 60 * 1000


class Deduplication:
    """The sequence ids of one topic while deduplication is on. Times are in ms of one clock that
    never goes back."""

    def __init__(self, limits: DeduplicationLimits | None = None) -> None:
        self.limits = limits or DeduplicationLimits()
        self._pushed: dict[str, int] = {}
        self._persisted: dict[str, int] = {}
        self._inactive: dict[str, int] = {}
        self._bounded_from_ms = 0

    def __len__(self) -> int:
        return len(self._pushed)

    # --- publishing -------------------------------------------------------------------------------

    def judge(self, name: str, sequence: int) -> Verdict:
        """What to do with an entry whose lowest sequence id is this."""
        if sequence > self._pushed.get(name, NOTHING):
            return Verdict.NEW
        return (
            Verdict.DUPLICATE if sequence <= self._persisted.get(name, NOTHING) else Verdict.UNKNOWN
        )

    def push(self, name: str, highest: int) -> None:
        """An entry that is NEW goes to the log; `highest` is its highest sequence id."""
        self._pushed[name] = highest

    def push_run(self, name: str, lowest: Sequence[int], highest: Sequence[int]) -> bool:
        """Push a whole run if every entry is NEW; False, having changed nothing, if each must be
        judged alone."""
        last = self._pushed.get(name, NOTHING)
        for low, high in zip(lowest, highest, strict=True):
            if low <= last:
                return False
            last = max(low, high)
        self.push(name, last)
        return True

    def persist(self, name: str, highest: int) -> None:
        """An entry pushed before is durable. Comes in the order of `push`; has no effect on a name
        that was forgotten in between."""
        if name in self._pushed:
            self._persisted[name] = highest

    # --- producers come and go --------------------------------------------------------------------

    def connected(self, name: str, now_ms: int) -> None:
        """A producer of this name is here: it is remembered while it stays, unless it has been
        away for too long."""
        since = self._inactive.pop(name, None)
        if since is not None and now_ms - since >= self.limits.inactive_ms:
            self._forget(name)
        self._expire(now_ms)

    def disconnected(self, name: str, now_ms: int) -> None:
        """The producer of this name has left. Forgets those that left too long ago, and the oldest
        of too many."""
        if name in self._pushed:
            self._inactive.pop(name, None)
            self._inactive[name] = now_ms
        self._expire(now_ms)

    def last_sequence(self, name: str) -> int:
        """The highest durable sequence id of a name; -1 for none."""
        return self._persisted.get(name, NOTHING)

    def settled(self, name: str) -> bool:
        """Whether everything pushed under this name is durable."""
        return self._pushed.get(name) == self._persisted.get(name)

    def _expire(self, now_ms: int) -> None:
        too_many = len(self._inactive) - self.limits.remembered_max
        if too_many > 0 and now_ms >= self._bounded_from_ms:
            for name in list(islice(self._inactive, too_many)):
                self._forget(name)
        while self._inactive:
            name, since = next(iter(self._inactive.items()))
            if now_ms - since < self.limits.inactive_ms:
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._inactive.pop(name, None)
        self._pushed.pop(name, None)
        self._persisted.pop(name, None)

    # --- checkpoint and recovery ------------------------------------------------------------------

    def to_state(self) -> tuple[tuple[str, int], ...]:
        """(name, highest durable sequence id), those disconnected longest first."""
        left = [name for name in self._inactive if name in self._persisted]
        here = [name for name in self._persisted if name not in self._inactive]
        return tuple((name, self._persisted[name]) for name in (*left, *here))

    def apply(self, name: str, sequences: Iterable[int]) -> None:
        """Replay a run of entries (the highest sequence id of each, NO_SEQUENCE where it does not
        count), or a name of a checkpoint.

        The last one counts, also if it is lower than before: then the name had been forgotten in
        between.
        """
        last = NOTHING
        for sequence in sequences:
            if sequence != NO_SEQUENCE:
                last = sequence
        if last == NOTHING:
            return
        self._pushed[name] = self._persisted[name] = last
        self._inactive.pop(name, None)
        self._inactive[name] = 0

    def recovered(self, limits: DeduplicationLimits, now_ms: int) -> None:
        """Replay is over: producers that do not return from now on are forgotten in time."""
        self.limits = limits
        self._inactive = dict.fromkeys(self._inactive, now_ms)
        self._bounded_from_ms = now_ms + RETURN_MS

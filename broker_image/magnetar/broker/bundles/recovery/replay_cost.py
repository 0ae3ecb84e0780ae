"""What replaying a bundle's log would cost.

Owns: `ReplayCost`: how many records of one bundle a successor would apply, and when a checkpoint is
due. Imports: typing only. Pure. Invariants: what is counted is about what lies behind the last
checkpoint (a file that had just been begun may hold some thousands that are not); a checkpoint is
asked for again only after half the bound in further records, so that one which fails, or takes
long, is not followed by another at once; a bundle whose checkpoint is large may be behind by more.
"""

from __future__ import annotations

from collections.abc import Callable

METADATA_BYTES_PER_RECORD = 1024
"""A record costs its successor some microseconds, and as much again for about so many bytes of
what precedes its entries."""
CHECKPOINT_BYTES_PER_RECORD = 256
"""A checkpoint is written once per so many of its own bytes at most: with tens of megabytes it
costs more than what it saves."""


class ReplayCost:
    """Counts in records. `due` is called when a checkpoint should be written; it may do so
    later, or not at all."""

    __slots__ = ("_ask_at", "_bound", "_covered", "_due", "_records_max", "total")

    def __init__(self, records_max: int, begun: int, due: Callable[[], None]) -> None:
        """`begun`: what recovery has applied, none of which our own checkpoints hold yet."""
        assert records_max > 0 <= begun, (records_max, begun)
        self._records_max = self._bound = records_max
        self._due = due
        self._covered = 0
        self.total = begun
        self._ask_at = max(records_max, begun + records_max // 2)

    @property
    def behind(self) -> int:
        """What a successor would apply."""
        return self.total - self._covered

    @property
    def is_due(self) -> bool:
        """Whether that is too much."""
        return self.behind >= self._bound

    def add(self, metadata_bytes: int) -> None:
        """A record was written; `metadata_bytes` of it are not entries."""
        self.total += 1 + metadata_bytes // METADATA_BYTES_PER_RECORD
        if self.total >= self._ask_at:
            self._ask_at = self.total + self._half
            self._due()

    def covered(self, total: int, checkpoint_bytes: int) -> None:
        """A checkpoint of so many bytes holds everything up to when `total` was what it is here,
        and is pointed to."""
        assert self._covered <= total <= self.total, (self._covered, total, self.total)
        self._covered = total
        self._bound = max(self._records_max, checkpoint_bytes // CHECKPOINT_BYTES_PER_RECORD)
        self._ask_at = max(total + self._bound, self.total + self._half)

    @property
    def _half(self) -> int:
        return max(1, self._bound // 2)

"""The layout of ledger ids, and their allocation.

Owns: the layout of ledger ids, and `LedgerIds`, which allocates those of one term. Imports: errors,
metadata.records (what epochs are). Pure. Layout, 63 bits from the highest: epoch (44: restore
number 8, store revision 36), number (18), 1 for a partition and 0 for its transaction sidecar. Why
a number: clients keep track of unacknowledged messages by (ledger, entry) without the topic, so no
two topics may share a ledger id.

Invariants: an epoch is of one term of one bundle in one incarnation, or of the children of one
split, which share their `LedgerIds`: so an id is given once in a cluster, and a number needs no
memory beyond its term. A topic takes one number per term, at the first entry of its partition or
sidecar; deleted and created again, it takes another, greater one. Ids of a later term are greater.
No id is that of LATEST, which is all ones.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.errors import LedgerIdsExhausted, LimitExceeded
from magnetar.metadata.records import RESTORE_STRIDE, RESTORES_MAX

NUMBER_BITS = 18
NUMBERS_MAX = (1 << NUMBER_BITS) - 1
"""Numbers of a term: all but the one of which every bit is set."""
EPOCH_END = (RESTORES_MAX + 1) * RESTORE_STRIDE
"""Epochs are smaller."""
_EPOCH_SHIFT = NUMBER_BITS + 1


def ledger_of(epoch: int, number: int) -> int:
    """Ledger id of the partition that has this number in the term `epoch`."""
    return (epoch << NUMBER_BITS | number) << 1 | 1


def sidecar_ledger(ledger: int) -> int:
    """Ledger id of the sidecar of the partition that has `ledger`."""
    return ledger & ~1


def is_sidecar(position: tuple[int, int]) -> bool:
    """Whether a position names an entry of a sidecar."""
    return position[0] >= 0 and not position[0] & 1


def epoch_of(ledger: int) -> int:
    """The term in which a ledger was written."""
    return ledger >> _EPOCH_SHIFT


class LedgerIds:
    """The ledger ids of one term. `floor`: those of this term are not below it, and those of
    earlier terms are.

    Once three quarters of the ids are allocated, every further allocation calls `running_low`: a
    new epoch is needed.
    """

    __slots__ = ("_limit", "_low", "_taken", "epoch", "floor", "running_low")

    def __init__(self, epoch: int) -> None:
        """Raises LimitExceeded for an epoch that ids have no room for."""
        if not 0 <= epoch < EPOCH_END:
            raise LimitExceeded(
                f"epoch {epoch} does not fit into ledger ids, {EPOCH_END - 1} is the last one; "
                "move the topics to a cluster of new storage"
            )
        self.epoch, self.floor = epoch, epoch << _EPOCH_SHIFT
        self._limit, self._low = NUMBERS_MAX, NUMBERS_MAX * 3 // 4
        self._taken = 0
        self.running_low: Callable[[LedgerIds], None] | None = None

    def take(self) -> int:
        """The id of a partition that has none in this term yet. Raises LedgerIdsExhausted."""
        if self._taken >= self._low and self.running_low is not None:
            self.running_low(self)
        if self._taken == self._limit:
            raise LedgerIdsExhausted(
                f"this bundle is being unloaded: all {self._limit} ledger ids of its epoch "
                f"{self.epoch} are given; send again after a lookup"
            )
        number = self._taken
        self._taken = number + 1
        return ledger_of(self.epoch, number)

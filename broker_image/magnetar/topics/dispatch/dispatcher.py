"""The interface of a dispatcher.

Owns: `Dispatcher`, which one class per subscription type implements. Imports: base, unacknowledged.
Pure. Invariant: what cannot be delivered stays where the next read begins.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Protocol

from magnetar.topics.dispatch.base import (
    Consumer,
    CursorView,
    Delivery,
    DispatchLimits,
    EntryTraits,
    Postponed,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
)
from magnetar.topics.dispatch.unacknowledged import Unacknowledged


class Dispatcher(Protocol):
    """How one subscription type gives entries to its consumers.

    Exists from the first consumer's arrival to the last one's departure.
    """

    kind: ClassVar[SubscriptionType]
    traits_wanted: ClassVar[TraitsWanted]
    cursor: CursorView
    unacknowledged: Unacknowledged

    @property
    def active(self) -> Consumer | None:
        """The one consumer that is served, of types that have one; its turn may not have begun."""
        ...

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        """Hashes by consumer's handle, as inclusive ranges (Key_Shared only)."""
        ...

    @property
    def outstanding(self) -> bool:
        """Whether a consumer was given something that is not acknowledged."""
        ...

    @property
    def postponed(self) -> Postponed:
        """How many entries were read and are to be delivered later."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy or ConsumerAssignError if the consumer cannot be served."""
        ...

    def remove(self, consumer: Consumer) -> None:
        """Its entries are delivered again to the others."""
        ...

    def flow(self, consumer: Consumer, permits: int) -> None:
        """More permits; banked while the consumer is blocked."""
        ...

    def limit(self, limits: DispatchLimits) -> None:
        """Apply other limits: a policy has changed."""
        ...

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """The entries [start, end) are acknowledged, by `consumer` if it is still connected; True
        if that unblocked delivery."""
        ...

    def acknowledged_partly(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        """`remaining` messages of the entry are still unacknowledged; True if that unblocked
        delivery."""
        ...

    def deferred(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """A transaction of `consumer` holds the entries [start, end) for now; True if that
        unblocked delivery."""
        ...

    def returned(self, start: int, end: int) -> None:
        """A transaction releases the entries [start, end), or messages of theirs: they are
        delivered again, also those that a consumer holds now."""
        ...

    def redeliver(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int
    ) -> None:
        """Redeliver these entries of the consumer, or all of them (None)."""
        ...

    def rewind(self) -> None:
        """After a seek: drop deliveries and permits; read from the mark-delete."""
        ...

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        """Let time pass; the handles to notify now whether they are active (Failover only)."""
        ...

    def next_read(self, limit_entries: int, now_ms: int) -> ReadRequest | None:
        """What to fetch next, or None while nothing can be delivered."""
        ...

    def dispatch(
        self,
        first: int,
        message_counts: Sequence[int],
        traits: Sequence[EntryTraits | None] | None = None,
    ) -> list[Delivery]:
        """Give fetched entries to consumers.

        `message_counts[i]` (>= 1) and `traits[i]` belong to entry first+i. Traits are given as
        `traits_wanted` asks; None is an entry, or a run, without special traits. Entries that are
        not due any more are skipped.
        """
        ...

    def next_wakeup_ms(self) -> int | None:
        """When, on the clock of `now_ms`, to look at `next_read` again although nothing
        happened; None if never."""
        ...

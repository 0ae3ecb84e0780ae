"""Unacknowledged entries that dispatch must not deliver.

Owns: `DeliveryView`, a subscription's cursor without what pending acknowledgements of transactions
hold. Imports: cursor, intervals. Pure. Source: PIP-31 (PENDING_ACK: not delivered, not redelivered;
a normal acknowledgement of it is dropped; only the transaction's end changes it). Invariants: an
entry is hidden if it is deferred as a whole, or if each message of it is deferred or acknowledged;
the view shows what the cursor shows, without hidden entries. A subscription has a view while
something is deferred: all others pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from magnetar.topics.cursor import Cursor
from magnetar.topics.intervals import IntervalSet, known_within


class DeliveryView:
    """A cursor as dispatch sees it: entries by ordinal, messages of a batch as masks (bit 1 =
    deferred)."""

    __slots__ = (
        "_cursor",
        "_full",
        "_hidden",
        "_messages_end",
        "_moved",
        "_partial",
        "_touched",
        "entries",
        "messages",
        "sizes",
    )

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.entries = IntervalSet()
        self.messages: dict[int, int] = {}
        self.sizes: dict[int, int] = {}  # messages of each batch in `messages`
        self._hidden = IntervalSet()
        self._full: set[int] = set()  # hidden because each of its messages is
        # Deliverable messages while `messages` has any, but for the touched ones.
        self._partial: dict[int, int] = {}
        self._touched: set[int] = set()
        self._moved = False  # all of them are
        self._messages_end = 0

    def __bool__(self) -> bool:
        return bool(self.entries) or bool(self.messages)

    @property
    def deferred_entries(self) -> int:
        """How many entries are deferred, wholly or partly."""
        return self.entries.size + len(self.messages)

    # --- what changes it --------------------------------------------------------------------------

    def defer(self, start: int, end: int) -> None:
        """Take out the entries [start, end), also those of which messages were deferred."""
        for ordinal in known_within(self.messages, start, end):
            self.release_messages(ordinal, self.messages[ordinal])
        self.entries.add(start, end)
        self._hidden.add(start, end)

    def release(self, start: int, end: int) -> None:
        """Show the entries [start, end) again."""
        self.entries.remove(start, end)
        self._hidden.remove(start, end)

    def defer_messages(self, ordinal: int, messages: int, size: int) -> None:
        """Take out some messages of a batch of `size`."""
        if not self.messages:
            self._moved, self._messages_end = True, 0
        self._messages_end = max(self._messages_end, ordinal + 1)
        self.messages[ordinal] = self.messages.get(ordinal, 0) | messages
        self.sizes[ordinal] = max(size, self.sizes.get(ordinal, 0))
        self._touched.add(ordinal)

    def release_messages(self, ordinal: int, messages: int) -> None:
        """Show these messages again."""
        left = self.messages[ordinal] & ~messages
        if left:
            self.messages[ordinal] = left
        else:
            del self.messages[ordinal], self.sizes[ordinal]
            if ordinal in self._full:
                self._full.remove(ordinal)
                self._hidden.remove(ordinal, ordinal + 1)
        self._touched.add(ordinal)

    def forget_below(self, ordinal: int) -> None:
        """Entries below `ordinal` exist no more."""
        self.entries.remove_below(ordinal)
        self._hidden.remove_below(ordinal)
        for known in [known for known in self.messages if known < ordinal]:
            self._full.discard(known)
            del self.messages[known], self.sizes[known]
        self._moved = True

    def changed(
        self, ranges: Iterable[tuple[int, int]], partial: Iterable[tuple[int, int]]
    ) -> None:
        """The cursor has acknowledged these (as `Subscription.acknowledge` takes them): what is
        left of batches is to be looked at again."""
        if not self.messages:
            return
        self._touched.update(ordinal for ordinal, _ in partial)
        for start, end in ranges:
            self._touched.update(known_within(self._partial, start, end))
            self._touched.update(known_within(self.messages, start, end))

    def moved(self) -> None:
        """The cursor may have changed anyhow."""
        self._moved = True

    # --- what acknowledgements may touch ----------------------------------------------------------

    def acknowledgeable(
        self, ranges: Iterable[tuple[int, int]], partial: Iterable[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Of a normal acknowledgement (as `Subscription.acknowledge` takes it) what is not
        deferred."""
        cursor, entries, messages = self._cursor, self.entries, self.messages
        free: list[tuple[int, int]] = []
        masks = [
            (ordinal, mask | messages.get(ordinal, 0))
            for ordinal, mask in partial
            if ordinal not in entries and ordinal < cursor.end
        ]
        for wanted, end in ranges:
            start = max(wanted, cursor.mark_delete)
            for low, high in entries.missing(start, min(end, cursor.end)) if start < end else ():
                for ordinal in known_within(messages, low, high):
                    masks.append((ordinal, messages[ordinal]))
                    free.append((low, ordinal))
                    low = ordinal + 1
                free.append((low, high))
        return free, masks

    def remaining(self, ordinal: int) -> int:
        """Mask of what may be delivered of a batch in `messages`."""
        known = self._cursor.partial.get(ordinal, (1 << self.sizes[ordinal]) - 1)
        return 0 if self._cursor.is_acknowledged(ordinal) else known & ~self.messages[ordinal]

    # --- what dispatch asks -----------------------------------------------------------------------

    def _refresh(self) -> None:
        """A batch without deliverable messages is hidden: its mask is not needed."""
        if self._moved:
            self._moved = False
            self._partial = dict(self._cursor.partial)
            self._touched.update(self.messages)
        if not self._touched:
            return
        for ordinal in self._touched:
            deferred = ordinal in self.messages
            left = self.remaining(ordinal) if deferred else self._cursor.partial.get(ordinal)
            if left:
                self._partial[ordinal] = left
            else:
                self._partial.pop(ordinal, None)
            if left and ordinal in self._full:
                self._full.remove(ordinal)
                self._hidden.remove(ordinal, ordinal + 1)
            elif deferred and not left and ordinal not in self._full:
                self._full.add(ordinal)
                self._hidden.add(ordinal, ordinal + 1)
        self._touched.clear()

    @property
    def mark_delete(self) -> int:
        return self._cursor.mark_delete

    @property
    def end(self) -> int:
        return self._cursor.end

    @property
    def saturated(self) -> bool:
        return self._cursor.saturated

    @property
    def acknowledged_end(self) -> int:
        """One more than the greatest ordinal that is acknowledged or deferred, wholly or partly
        (or was partly, lately)."""
        self._refresh()
        last = self._messages_end if self.messages else 0
        return max(self._cursor.acknowledged_end, self._hidden.end if self._hidden else 0, last)

    @property
    def partial(self) -> Mapping[int, int]:
        """Masks of the messages that may be delivered, by ordinal of entries of which not all
        may."""
        if not self.messages:
            return self._cursor.partial
        self._refresh()
        return self._partial

    def first_unacknowledged(self, ordinal: int) -> int:
        self._refresh()
        while True:
            found = self._hidden.first_gap(self._cursor.first_unacknowledged(ordinal))
            if found == ordinal:
                return found
            ordinal = found

    def unacknowledged(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        self._refresh()
        for low, high in self._cursor.unacknowledged(start, end):
            yield from self._hidden.missing(low, high)

"""Acknowledgements of one subscription, plain and pending.

Owns: `Acknowledgements`, which applies them to the cursor and reports them to the dispatcher, and
which part of the cursor transactions hold. Imports: cursor, dispatch. Pure. Source: Pulsar's ACK;
PIP-31 (PENDING_ACK). Invariants: what transactions hold is neither delivered nor acknowledged by
others; a subscription without pending acknowledgements has no view.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import Consumer, CursorView
from magnetar.topics.dispatch.deferred import DeliveryView
from magnetar.topics.dispatch.dispatcher import Dispatcher


class Acknowledgements:
    """`dispatcher` is the subscription's present one, `view` what it sees while transactions hold
    something."""

    __slots__ = ("_consumers", "_cursor", "dispatcher", "view")

    def __init__(
        self, cursor: Cursor, dispatcher: Dispatcher, consumers: Mapping[Hashable, Consumer]
    ) -> None:
        self._cursor, self._consumers = cursor, consumers
        self.dispatcher = dispatcher
        self.view: DeliveryView | None = None

    @property
    def visible(self) -> CursorView:
        """What dispatchers may deliver from."""
        return self._cursor if self.view is None else self.view

    def acknowledge(
        self,
        handle: Hashable | None,
        ranges: Iterable[tuple[int, int]],
        partial: Iterable[tuple[int, int]],
    ) -> bool:
        """As `Subscription.acknowledge`, of entries and messages that no transaction holds."""
        cursor, dispatcher, view = self._cursor, self.dispatcher, self.view
        consumer = self._consumers.get(handle) if handle is not None else None
        saturated = cursor.saturated
        unblocked = False
        for start, end in ranges:
            start, end = max(start, cursor.mark_delete), min(end, cursor.end)
            if start < end and cursor.acknowledge(start, end):
                unblocked |= dispatcher.acknowledged(consumer, start, end)
        for ordinal, mask in partial:
            if cursor.is_acknowledged(ordinal) or ordinal >= cursor.end:
                continue
            remaining = cursor.acknowledge_partial(ordinal, mask)
            if view is not None and ordinal in view.messages:
                remaining = view.remaining(ordinal)
            if not remaining and cursor.is_acknowledged(ordinal):
                unblocked |= dispatcher.acknowledged(consumer, ordinal, ordinal + 1)
            else:
                unblocked |= self._remain(consumer, ordinal, remaining)
        return unblocked or (saturated and not cursor.saturated)

    def _remain(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        """Of the entry, which is not acknowledged, the messages of the mask `remaining` may be
        delivered."""
        if remaining:
            return self.dispatcher.acknowledged_partly(consumer, ordinal, remaining.bit_count())
        return self.dispatcher.deferred(consumer, ordinal, ordinal + 1)

    def trim(self, ordinal: int) -> None:
        """The entries below `ordinal` are about to be dropped, even if a transaction holds
        them."""
        if self.view is not None:
            self.view.forget_below(ordinal)
            self._look_through(self.view or None)

    # --- pending ----------------------------------------------------------------------------------

    def defer(
        self,
        handle: Hashable | None,
        ranges: Iterable[tuple[int, int]],
        messages: Iterable[tuple[int, int, int]] = (),
    ) -> bool:
        """A transaction of `handle` holds these entries, and these `messages` (ordinal, mask,
        messages in the batch): no consumer gets them.

        Neither must be acknowledged. Returns as `Subscription.acknowledge`.
        """
        view = self.view if self.view is not None else DeliveryView(self._cursor)
        self._look_through(view)
        unblocked = False
        consumer = self._consumers.get(handle) if handle is not None else None
        for start, end in ranges:
            view.defer(start, end)
            unblocked |= self.dispatcher.deferred(consumer, start, end)
        for ordinal, mask, size in messages:
            view.defer_messages(ordinal, mask, size)
            unblocked |= self._remain(consumer, ordinal, view.remaining(ordinal))
        return unblocked

    def release(
        self,
        ranges: Sequence[tuple[int, int]],
        messages: Sequence[tuple[int, int]] = (),
        *,
        again: bool = True,
    ) -> None:
        """The transaction holds these no more; with `again` they are delivered again. Entries that
        were dropped since are skipped."""
        view = self.view
        if view is None:
            return
        for start, end in ranges:
            view.release(start, end)
        found = [(ordinal, mask) for ordinal, mask in messages if ordinal in view.messages]
        for ordinal, mask in found:
            view.release_messages(ordinal, mask)
        self._look_through(view or None)
        if again:
            for start, end in (*ranges, *((ordinal, ordinal + 1) for ordinal, _ in found)):
                self.dispatcher.returned(start, end)

    def settle(self, ranges: Sequence[tuple[int, int]], partial: Sequence[tuple[int, int]]) -> bool:
        """The transaction has committed: what it held, and has released, is acknowledged. Arguments
        and result as of `Subscription.acknowledge`."""
        if self.view is not None:
            self.view.changed(ranges, partial)
        return self.acknowledge(None, ranges, partial)

    def _look_through(self, view: DeliveryView | None) -> None:
        self.view = view
        self.dispatcher.cursor = self.visible

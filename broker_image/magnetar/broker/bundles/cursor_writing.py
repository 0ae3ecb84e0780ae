"""Writing a bundle's cursors into the log.

Owns: `CursorWriter`: which cursors have deltas that are not in the log, when they are written, and
the confirmations of their clients. Imports: storage formats, ports. Invariants: a confirmation runs
once everything acknowledged before it is durable; a cursor that cannot be written delays no other;
while the volume has no room the log's queue does not grow with acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import structlog

from magnetar.broker.ports import ServedBundle, ServedSubscription
from magnetar.errors import LimitExceeded
from magnetar.storage.log.format import CursorOperation, encode_cursor
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.writer import Durable
from magnetar.topics.state import CursorDelta

log = structlog.get_logger(__name__)

Confirmed = Callable[[], None]
"""Runs once an acknowledgement is durable."""

DIRTY_RETRY_S = 1.0
DELTAS_PER_BLOCK = 5
"""A delta's ranges take such a part of a block, and its masks, the last of them, its properties and
names as much each."""
UNWRITTEN_MAX = 2_000
"""Ranges and masks of one cursor that wait for the log: writing them takes some 10 ms."""
CONFIRMATIONS_MAX = 10_000
"""Acknowledgements of one subscription that wait for space."""


class CursorWriter:
    """Cursors of one bundle."""

    def __init__(self, bundle: ServedBundle) -> None:
        self._bundle, self._context = bundle, bundle.context
        self._dirty: dict[ServedSubscription, list[Confirmed]] = {}
        """Cursors with deltas that are not in the log, and their confirmations."""
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: dict[ServedSubscription, None] = {}
        """Those of them that are written in the next turn of the loop."""

    def note(self, subscription: ServedSubscription) -> None:
        """Acknowledgements wait to be written; they are in the log at most `ack_write_delay_s`
        later, or once there are many of them."""
        if (
            subscription.core.cursor.unwritten > UNWRITTEN_MAX
            and self._context.log.space.stalled is None
        ):
            with contextlib.suppress(LimitExceeded):
                self._append_deltas(subscription, self._dirty.pop(subscription, ()))
            return
        self._dirty.setdefault(subscription, [])
        self._write_in(self._context.settings.ack_write_delay_s)

    def confirm(self, subscription: ServedSubscription, confirmed: Confirmed) -> None:
        """As `write`, in the next turn of the loop, together with this cursor's other deltas of
        this turn.

        While there is no space the delta waits in the cursor. Confirmations beyond
        CONFIRMATIONS_MAX are dropped then: the consumer asks again.
        """
        waiting = self._dirty.setdefault(subscription, [])
        if self._context.log.space.stalled is None or not self._bundle.serving:
            waiting.append(confirmed)
            if not self._awaited:
                asyncio.get_running_loop().call_soon(self._write_awaited)
            self._awaited[subscription] = None
            return
        if len(waiting) < CONFIRMATIONS_MAX:
            waiting.append(confirmed)
        self._write_in(DIRTY_RETRY_S)

    def write(self, subscription: ServedSubscription, confirmed: Confirmed) -> None:
        """Write what is not in the log yet of one cursor; `confirmed` runs when all of it, earlier
        deltas included, is durable.

        Raises LimitExceeded if the log does not take it: it is written later then, and `confirmed`
        runs after that.
        """
        self._append_deltas(subscription, [*self._dirty.pop(subscription, ()), confirmed])

    def forget(self, subscription: ServedSubscription) -> None:
        """The subscription is gone."""
        self._dirty.pop(subscription, None)

    def write_all(self) -> None:
        """Write every cursor now."""
        dirty, self._dirty = self._dirty, {}
        self._write(dirty)

    def stop(self) -> None:
        """Write nothing later."""
        if self._timer is not None:
            self._timer.cancel()

    def _write_in(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._write_if_room)

    def _write_if_room(self) -> None:
        self._timer = None
        if self._context.log.space.stalled is not None and self._bundle.serving:
            self._write_in(DIRTY_RETRY_S)
        else:
            self.write_all()

    def _write_awaited(self) -> None:
        awaited, self._awaited = self._awaited, {}
        self._write(
            {
                subscription: self._dirty.pop(subscription)
                for subscription in awaited
                if self._dirty.get(subscription)
            }
        )

    def _write(self, dirty: dict[ServedSubscription, list[Confirmed]]) -> None:
        for subscription, confirmed in dirty.items():
            try:
                self._append_deltas(subscription, confirmed)
            except LimitExceeded as error:
                log.error(
                    "cursor.write_delayed",
                    topic=str(subscription.topic.name),
                    subscription=subscription.core.name,
                    error=str(error),
                )
            except Exception as error:
                about = {
                    "topic": str(subscription.topic.name),
                    "subscription": subscription.core.name,
                }
                self._context.metrics.surprises.note("cursors", error, **about)

    def _append_deltas(
        self, subscription: ServedSubscription, confirmed: Sequence[Confirmed]
    ) -> None:
        topic, bundle = subscription.topic, self._bundle
        if bundle.topics.get(str(topic.name)) is not topic:
            return  # deleted
        if not bundle.serving:
            if bundle.buffered is not None:
                for confirm in confirmed:
                    bundle.buffered.confirmation(subscription, confirm)
            # else the client gets no confirmation, and acknowledges again at the new owner
            return
        then = _confirming(confirmed)
        room = self._context.log.append_bytes_max // DELTAS_PER_BLOCK
        while (delta := subscription.core.take_delta(room)) is not None:
            last = not subscription.core.dirty
            try:
                self._append_delta(subscription, delta, then if last else None)
            except LimitExceeded:
                subscription.core.put_back(delta)
                self._dirty.setdefault(subscription, []).extend(confirmed)
                self._write_in(DIRTY_RETRY_S)
                raise
            if last:
                return
        if then is not None:
            self._context.log.append((), 0, 0, then)  # behind all that is under way

    def _append_delta(
        self, subscription: ServedSubscription, delta: CursorDelta, on_durable: Durable | None
    ) -> None:
        encoded = encode_cursor(
            epoch=self._bundle.epoch,
            topic=str(subscription.topic.name),
            subscription=subscription.core.name,
            operation=CursorOperation.RESET if delta.reset else CursorOperation.ACKNOWLEDGE,
            mark_delete=delta.mark_delete,
            ranges=delta.ranges,
            partial=delta.partial,
            properties=delta.properties,
        )
        self._bundle.append(encoded, on_durable)
        subscription.traffic.written(delta.mark_delete)


def _confirming(confirmed: Sequence[Confirmed]) -> Durable | None:
    """Runs the confirmations when a record is durable."""
    if not confirmed:
        return None

    def confirm_all(_place: RecordPlace) -> None:
        for confirm in confirmed:
            confirm()

    return confirm_all

"""A subscription whose watermark is followed.

Owns: `Followed`: its generator, and what its consumers are sent. Imports: ports, watermarks.
Invariants: a durable subscription's generator follows the mark-delete that is in the log, since an
acknowledgement that a crash undoes brings messages back; what is sent is lower than before only
under another (term, resets).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from magnetar.broker.ports import AttachedConsumer, ServedSubscription
from magnetar.watermarks.generator import Effect, Generator
from magnetar.watermarks.records import NOWHERE, Place
from magnetar.watermarks.timeline import Timeline


class Followed:
    """The watermark of one subscription. `generation` is (term, resets) of what it sends."""

    def __init__(
        self,
        subscription: ServedSubscription,
        timeline: Timeline,
        durable_to: Place,
        generation: tuple[int, int],
    ) -> None:
        """`durable_to`: a mark-delete that is in the log."""
        self.subscription, self.generation = subscription, generation
        self.generator = Generator(timeline, durable_to)
        self._asked = self._seen = NOWHERE
        self._still_s: tuple[float, float] | None = None

    @property
    def stalled_s(self) -> float:
        """How long acknowledgements have gone on without moving the watermark."""
        return self._still_s[1] - self._still_s[0] if self._still_s is not None else 0.0

    @property
    def watermark_ms(self) -> int | None:
        return self.generator.watermark_ms

    @property
    def _mark_delete(self) -> Place:
        return self.subscription.core.cursor.mark_delete_position

    def send(self, session: AttachedConsumer) -> None:
        """What a consumer that has just attached is to know."""
        session.send_watermark(self.watermark_ms, *self.generation)

    def report(self) -> dict[str, Any]:
        """For administrators."""
        generator, holder = self.generator, self.generator.holder()
        held: dict[str, Any] | None = None
        if holder is not None:
            held = {"producer": holder.producer, "eventTime": holder.event_ms}
            if holder.txn is not None:
                held["transaction"] = str(holder.txn)
        return {
            "watermark": generator.watermark_ms,
            "boundedBy": held,
            "activeProducers": generator.active_count,
            "clamped": generator.clamped,
        }

    def advance(self, durable_to: Place | None = None) -> bool:
        """The timeline has grown, or the log has the mark-delete. Whether there is more to read."""
        self._broadcast(self.generator.advance(durable_to))
        return self.generator.behind

    def look(self) -> None:
        """The cursor may have moved: have its mark-delete written where that leads further."""
        place = self._mark_delete
        if place > self._seen:
            now = self.subscription.topic.context.clock.monotonic()
            self._seen = place
            self._still_s = (self._still_s[0] if self._still_s is not None else now), now
        if place <= self._asked or not self.generator.gains(place):
            return
        if not self.subscription.core.durable:
            self._advance_all(place)
            return
        self._asked = place
        confirmed = partial(self._confirmed, self.generation, place)
        self.subscription.topic.bundle.confirm_cursor(self.subscription, confirmed)

    def begin_term(self) -> None:
        """What was asked of the bundle before its split may not come."""
        self._asked = NOWHERE
        self.look()

    def sought(self, generation: tuple[int, int]) -> None:
        """The subscription was moved to where its cursor is; `generation` is used if that is
        back."""
        place = self._mark_delete
        if place < self.generator.mark_delete:
            self.generation, self._asked = generation, NOWHERE
            self._broadcast(self.generator.seek(place))
        else:
            self.look()

    def trimmed(self, dropped_to: Place) -> None:
        """The topic has dropped its entries up to there, durably."""
        self._broadcast(self.generator.trimmed(dropped_to))

    def _confirmed(self, generation: tuple[int, int], place: Place) -> None:
        if generation == self.generation:
            self._advance_all(place)

    def _advance_all(self, place: Place) -> None:
        while self.advance(place):
            pass

    def _broadcast(self, effect: Effect | None) -> None:
        if effect is None:
            return
        self._still_s = None
        for session in self.subscription.sessions():
            if session.takes_watermarks:
                session.send_watermark(effect.event_ms, *self.generation)

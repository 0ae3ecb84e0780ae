"""The watermark of one subscription.

Owns: `Generator`. Imports: records, standing, timeline. Pure. Invariants: what is delivered at a
mark-delete depends on records behind acknowledged entries only; a delivered watermark never goes
back, except by `Reset`; a watermark w is delivered only if no producer that keeps its promises has
a message older than w behind the mark-delete.

The host gives a durable subscription's mark-delete as it is *in the log*. Acknowledgements that a
crash may undo bring messages back, and these would be late.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.watermarks.records import Assertion, End, Place, Record
from magnetar.watermarks.standing import Holder
from magnetar.watermarks.timeline import Timeline

RECORDS_A_TURN_MAX = 2_000
"""Records that one call reads, unless the caller sets another limit."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """To every consumer of the subscription that asked for watermarks, behind the messages that
    were sent to it."""

    event_ms: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The subscription went back: messages older than former watermarks follow. None: there is no
    watermark yet."""

    event_ms: int | None


Effect = Watermark | Reset


class Generator:
    """Follows the timeline of the topic up to a mark-delete, which is the position of the last
    entry of the acknowledged beginning.

    `clamped` counts assertions below the delivered watermark, `late` counts messages below it. Where
    the mark-delete moves on by more than a snapshot interval, assertions in between are not read.
    """

    __slots__ = (
        "_delivered_ms",
        "_mark_delete",
        "_next",
        "_standing",
        "_timeline",
        "clamped",
        "late",
    )

    def __init__(
        self, timeline: Timeline, mark_delete: Place, *, delivered_ms: int | None = None
    ) -> None:
        """A new subscription, or one after a recovery; `delivered_ms` is what is known to be
        delivered. `attach` has the first watermark."""
        self._timeline = timeline
        self._mark_delete = mark_delete
        self._delivered_ms = delivered_ms
        self._standing, self._next = timeline.standing_at(mark_delete)
        self.clamped = self.late = 0
        self._settled()

    # --- questions --------------------------------------------------------------------------------

    @property
    def watermark_ms(self) -> int | None:
        """The last one delivered: `getLastWatermark`, and what each new consumer is sent."""
        return self._delivered_ms

    @property
    def mark_delete(self) -> Place:
        return self._mark_delete

    @property
    def behind(self) -> bool:
        """Whether `advance` has more to read."""
        return self.gains(self._mark_delete)

    def gains(self, mark_delete: Place) -> bool:
        """Whether an advance to there would read anything."""
        timeline = self._timeline
        if self._next < timeline.first:
            return timeline.knows(mark_delete) or self._exceeds(timeline.bound_ms(mark_delete))
        return bool(timeline.run(self._next, mark_delete, 1))

    @property
    def active_count(self) -> int:
        return self._standing.active_count

    def holder(self) -> Holder | None:
        """Who keeps the watermark where it is."""
        return self._standing.holder()

    # --- events -----------------------------------------------------------------------------------

    def attach(self) -> Watermark | None:
        """A consumer attached or came back: what to send it."""
        return None if self._delivered_ms is None else Watermark(self._delivered_ms)

    def advance(
        self, mark_delete: Place | None = None, at_most: int = RECORDS_A_TURN_MAX
    ) -> Effect | None:
        """The mark-delete moved on (by acknowledgement, expiry, skipping or clearing), or the
        timeline has grown. Nothing is delivered while `behind`: call again."""
        if mark_delete is not None and mark_delete > self._mark_delete:
            self._mark_delete = mark_delete
        if self._next < self._timeline.first or self._timeline.is_far(
            self._next, self._mark_delete
        ):
            # what it would read next is gone, or it is much: a snapshot has it, or a bound
            self._standing, self._next = self._timeline.standing_at(self._mark_delete)
            return self._settled()
        run = self._timeline.run(self._next, self._mark_delete, at_most)
        if not run:
            return self._settled()
        delivered = self._delivered_ms
        for record in run:
            if delivered is not None:
                self._count(record, delivered)
            self._standing.apply(record)
        self._next += len(run)
        return None if len(run) == at_most and self.behind else self._settled()

    def seek(self, mark_delete: Place) -> Effect | None:
        """SEEK, by id or by time: the entry after `mark_delete` comes next. Forward is an
        advance."""
        if mark_delete >= self._mark_delete:
            return self.advance(mark_delete)
        self._mark_delete = mark_delete
        self._standing, self._next = self._timeline.standing_at(mark_delete)
        self._delivered_ms = None
        self._settled()
        return Reset(self._delivered_ms)

    def trimmed(self, mark_delete: Place) -> Effect | None:
        """The topic dropped entries, the timeline too, and the cursor is at `mark_delete` since.
        Acknowledged or not, they do not come again."""
        self._mark_delete = max(self._mark_delete, mark_delete)
        return self.advance()

    def saw(self, event_ms: int) -> bool:
        """A message is being delivered: whether it is late, which is counted."""
        late = self._delivered_ms is not None and event_ms < self._delivered_ms
        self.late += late
        return late

    def _count(self, record: Record, delivered: int) -> None:
        if isinstance(record, Assertion):
            if record.event_ms < delivered and record.txn is None:
                self.clamped += 1
        elif isinstance(record, End) and record.committed:
            self.clamped += self._standing.asserted_below(record.txn, delivered)

    def _settled(self) -> Watermark | None:
        """The exact minimum, if it is more than what was delivered."""
        exact = self._standing.exact_ms
        if exact is None or not self._exceeds(exact):
            return None
        self._delivered_ms = exact
        return Watermark(exact)

    def _exceeds(self, event_ms: int | None) -> bool:
        delivered = self._delivered_ms
        return event_ms is not None and (delivered is None or event_ms > delivered)

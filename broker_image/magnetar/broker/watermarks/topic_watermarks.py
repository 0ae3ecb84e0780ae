"""The watermarks of one topic that is served here.

Owns: `ServedWatermarks`: what producers assert becomes control records of the log, and what is
durable moves the watermarks of subscriptions; the idle policy; snapshots. Imports: ports, replay,
storage formats, watermarks. Invariants: a record is applied once it is durable under this owner's
claim; a transaction's hold is in the log before its first message, and its end behind the marker:
where a crash parts them the hold stays until `_settle`; nothing is written before the first use,
for then the term has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from magnetar.broker.ports import AttachedConsumer, ServedSubscription, ServedTopic
from magnetar.broker.watermarks.followed import Followed
from magnetar.broker.watermarks.sent import Spoken, spoken
from magnetar.clock import elapsed_ms
from magnetar.errors import LimitExceeded, MagnetarError, NotAllowed
from magnetar.storage.log.format import encode_watermark
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Outcome
from magnetar.watermarks.codec import encode
from magnetar.watermarks.idle import IdlePolicy
from magnetar.watermarks.records import NOWHERE, Assertion, End, Hold, Idle, Place, Record
from magnetar.watermarks.timeline import Anchored, SnapshotInterval, Timeline

if TYPE_CHECKING:
    from magnetar.policies import Policies

log = structlog.get_logger(__name__)

IDLE_CHECKS_PER_TIMEOUT = 8
IDLE_CHECK_S_MAX = 30.0
IDLE_PER_CHECK_MAX = 1_000
"""Records that one check writes."""

Confirmed = Callable[[], None]


class ServedWatermarks:
    """Made by the first assertion on a topic, or by recovery of one that had any."""

    def __init__(self, topic: ServedTopic, timeline: Timeline | None = None) -> None:
        self._topic, self._loop = topic, asyncio.get_running_loop()
        self._encoded_name = str(topic.name).encode()
        self.timeline = Timeline() if timeline is None else timeline
        self._idle = IdlePolicy(0)
        self._used = timeline is None
        self._holds: dict[TxnId, set[str]] = {}
        self._pending: dict[TxnId, set[str]] = {}
        """Who has sent, and asserted, in which open transaction; queued records included."""
        self._followed: dict[ServedSubscription, Followed] = {}
        self._resets = self.late = 0
        self._advancing = False
        self._timer: asyncio.TimerHandle | None = None
        self.refresh_policies()
        if timeline is None:
            used = topic.transactions
            for txn, producer in used.buffer.open_producers() if used is not None else ():
                self._append(Hold(producer, txn))
                self._holds.setdefault(txn, set()).add(producer)
            for subscription in topic.subscriptions.values():
                if any(session.takes_watermarks for session in subscription.sessions()):
                    self.follow(subscription, NOWHERE)
        else:
            standing = timeline.head.to_snapshot()
            for txn, producer, _ in standing.holds:
                self._holds.setdefault(txn, set()).add(producer)
            for txn, producer, _ in standing.pending:
                self._pending.setdefault(txn, set()).add(producer)

    @property
    def _now_ms(self) -> int:
        return elapsed_ms(self._topic.context.clock)

    def refresh_policies(self) -> None:
        policy = self._topic.policies.watermarks
        self._idle.timeout_ms = 1000 * policy.idle_timeout_s
        self.timeline.interval = SnapshotInterval(policy.snapshot_records)
        self._arm()

    def begin_term(self) -> None:
        """Continue in the bundle that a split has made."""
        self._arm()
        for found in self._followed.values():
            found.begin_term()

    def _use(self) -> None:
        """Before the first record of this term, or the first watermark to a consumer."""
        if not self._used:
            self._used = True
            now_ms = self._now_ms
            for producer in self.timeline.head.active():
                self._idle.asserted(producer, now_ms)
            self._settle()
            self._arm()

    def _settle(self) -> None:
        """End transactions whose end became durable without its record here."""
        used = self._topic.transactions
        for txn in [*{**self._holds, **self._pending}]:
            outcome = used.buffer.outcome(txn) if used is not None else Outcome.ENDED
            begun = used is not None and used.buffer.is_open(txn)
            if outcome is not None or (txn in self._holds and not begun):
                self.ended(txn, committed=outcome is Outcome.COMMITTED)

    # --- what producers assert --------------------------------------------------------------------

    def set(
        self, producer: str, event_ms: int | None, txn: TxnId | None, confirmed: Confirmed
    ) -> None:
        """A producer asserts an event time, or (None) that it is idle; with `txn` when that
        commits. `confirmed` runs when it is durable.

        The caller has checked that something can be written. Raises LimitExceeded, NotAllowed.
        """
        self._use()
        head = self.timeline.head
        if event_ms is None:
            self.timeline.check_hold()
        else:
            self.timeline.check_room(producer, event_ms)
        if txn is not None:
            self._check_open(txn)
            self._pending.setdefault(txn, set()).add(producer)
        elif event_ms is None:
            self._idle.left(producer)
        else:
            self._idle.asserted(producer, self._now_ms)
            self._arm()
        if txn is None and not self.timeline.in_flight and head.asserted_ms(producer) == event_ms:
            # known: a client sends its last assertion again after a reconnect
            self._topic.context.log.append((), 0, 0, lambda _place: confirmed())
        elif event_ms is None:
            self._append(Idle(producer, txn), confirmed)
        else:
            self._append(Assertion(producer, event_ms, txn), confirmed)

    def _check_open(self, txn: TxnId) -> None:
        used = self._topic.transactions
        if used is not None and used.buffer.outcome(txn) is not None:
            raise NotAllowed(
                f"transaction {txn} has ended on topic {self._topic.name}: begin another one, and "
                "assert in that"
            )

    def sent(self, producer: str, message_bytes: int) -> None:
        """A producer has sent messages of so many bytes."""
        self._idle.sent(producer, self._now_ms)
        self.timeline.grew(message_bytes)

    def take(self, producer: str, said: Spoken, txn: TxnId | None) -> None:
        """What the messages of a run assert, behind them. The messages are stored; an assertion
        that is not taken only leaves the watermark where it is."""
        self.late += said.late
        if not said.asserts:
            return
        try:
            self.set(producer, said.event_ms, txn, _nobody_waits)
        except MagnetarError as error:
            log.warning(
                "watermarks.property_refused",
                topic=str(self._topic.name),
                producer=producer,
                error=str(error),
            )

    @property
    def delivered_ms(self) -> int | None:
        """The greatest watermark of its subscriptions."""
        known = (found.watermark_ms for found in self._followed.values())
        return max((found for found in known if found is not None), default=None)

    # --- transactions -----------------------------------------------------------------------------

    def check_sending(self, txn: TxnId, producer: str) -> None:
        """Whether a producer may send in a transaction. Raises LimitExceeded."""
        if producer not in self._holds.get(txn, ()):
            self.timeline.check_hold()

    def sends_in(self, txn: TxnId, producer: str) -> None:
        """A producer's message in a transaction goes to the log behind this. Raises
        LimitExceeded."""
        self._use()
        producers = self._holds.setdefault(txn, set())
        if producer not in producers:
            self._append(Hold(producer, txn))
            producers.add(producer)

    def ended(self, txn: TxnId, *, committed: bool) -> None:
        """The record of its end went to the log, now or before; what it held is free behind the
        topic's last entry, which is that of its marker."""
        if txn not in self._holds and txn not in self._pending:
            return
        self._append(End(txn, committed))
        self._holds.pop(txn, None)
        asserted = self._pending.pop(txn, ())
        if committed:
            for producer in asserted:
                self._idle.asserted(producer, self._now_ms)

    # --- the log ----------------------------------------------------------------------------------

    def _append(self, record: Record, confirmed: Confirmed | None = None) -> None:
        anchored = self.timeline.queue(self._topic.core.last_published, record)
        self._write(anchored, partial(self._durable, anchored, confirmed))

    def _write(self, anchored: Anchored, durable: Callable[[object], None]) -> None:
        """Raises LimitExceeded if the log does not take it."""
        bundle, controls = self._topic.bundle, encode(anchored)
        try:
            for number, control in enumerate(controls, 1):
                encoded = encode_watermark(
                    epoch=bundle.epoch, topic=self._encoded_name, control=control
                )
                bundle.append(encoded, durable if number == len(controls) else None)
        except LimitExceeded:
            self.timeline.withdraw()
            raise

    def _durable(self, anchored: Anchored, confirmed: Confirmed | None, _place: object) -> None:
        self.timeline.apply(*anchored)
        self.timeline.thin()
        if confirmed is not None:
            confirmed()
        if not self._advancing:
            self._advancing = True
            self._loop.call_soon(self._advance)
        if self.timeline.snapshot_due and not self._topic.frozen:
            snapshot = self.timeline.snapshot(self._topic.core.last_published)
            try:
                self._write(snapshot, partial(self._durable, snapshot, None))
            except LimitExceeded as error:  # the next record tries again
                log.info(
                    "watermarks.snapshot_delayed", topic=str(self._topic.name), error=str(error)
                )

    def trimmed(self) -> None:
        """The topic has dropped its first entries, durably."""
        ledgers = self._topic.core.ledgers
        dropped_to = ledgers.position_before(ledgers.first)
        self.timeline.trim_to(dropped_to)
        for subscription, found in self._followed.items():
            core = subscription.core
            # One that reads the compacted view still gets what that has of the dropped entries.
            mark = core.cursor.mark_delete_position
            found.trimmed(min(dropped_to, mark) if core.reads_view else dropped_to)

    # --- subscriptions ----------------------------------------------------------------------------

    def follow(self, subscription: ServedSubscription, durable_to: Place) -> Followed:
        """Follow the watermark of a subscription; the log has `durable_to` of its mark-delete."""
        self._use()
        found = self._followed.get(subscription)
        if found is None:
            found = Followed(subscription, self.timeline, durable_to, self._next_generation())
            self._followed[subscription] = found
            found.look()
        return found

    def _next_generation(self) -> tuple[int, int]:
        self._resets += 1
        return self._topic.bundle.epoch, self._resets

    def attached(self, session: AttachedConsumer, subscription: ServedSubscription) -> None:
        """A consumer that takes watermarks has been answered: it gets the last one."""
        self.follow(subscription, NOWHERE).send(session)

    def acknowledged(self, subscription: ServedSubscription) -> None:
        """Its cursor may have moved."""
        found = self._followed.get(subscription)
        if found is not None:
            found.look()

    def sought(self, subscription: ServedSubscription) -> None:
        """Its cursor was moved by a seek, durably."""
        found = self._followed.get(subscription)
        if found is not None:
            found.sought(self._next_generation())

    def forget(self, subscription: ServedSubscription) -> None:
        """It exists no more."""
        self._followed.pop(subscription, None)

    def last_ms(self, subscription: ServedSubscription) -> int | None:
        """What its consumers were sent last."""
        return self.follow(subscription, NOWHERE).watermark_ms

    def report(self, subscription: ServedSubscription, durable_to: Place) -> dict[str, Any]:
        """For administrators; as `follow`."""
        return {**self.follow(subscription, durable_to).report(), "late": self.late}

    @property
    def followed(self) -> Iterator[Followed]:
        """Subscriptions whose watermarks are followed."""
        return iter(self._followed.values())

    def _advance(self) -> None:
        """What has become durable lately, for all subscriptions at once."""
        self._advancing = False
        for found in list(self._followed.values()):
            if found.advance():
                self._advancing = True
            else:
                found.look()
        if self._advancing:
            self._loop.call_soon(self._advance)

    # --- idle producers ---------------------------------------------------------------------------

    def _arm(self) -> None:
        timeout_s = self._idle.timeout_ms / 1000
        if self._timer is None and timeout_s and self._used and self._idle.active:
            delay_s = min(timeout_s / IDLE_CHECKS_PER_TIMEOUT, IDLE_CHECK_S_MAX)
            self._timer = self._loop.call_later(delay_s, self._check_idle)

    def _check_idle(self) -> None:
        self._timer = None
        bundle = self._topic.bundle
        if self._topic.leaving or not (bundle.serving or bundle.buffered is not None):
            return  # where it is served next, each producer has a whole timeout again
        with self._topic.context.metrics.surprises.contained(
            "watermarks", topic=str(self._topic.name)
        ):
            self._mark_idle(self._idle.due(self._now_ms, IDLE_PER_CHECK_MAX))
        self._arm()

    def _mark_idle(self, due: Iterable[str]) -> None:
        """Write the decision, or take it again later."""
        for producer in due:
            try:
                self._topic.check_writable()
                self._append(Idle(producer))
            except MagnetarError:
                self._idle.asserted(producer, self._now_ms)
            else:
                log.info("watermarks.idle", topic=str(self._topic.name), producer=producer)


class MarkedTopic(Protocol):
    """A topic that may have watermarks."""

    @property
    def policies(self) -> Policies: ...
    @property
    def watermarks(self) -> ServedWatermarks | None: ...
    def used_with_watermarks(self) -> ServedWatermarks: ...


def note_sent(
    topic: MarkedTopic,
    producer: str,
    entries: Sequence[memoryview],
    size: int,
    txn: TxnId | None = None,
) -> None:
    """A producer's run went to the log of a topic that has watermarks, or whose messages may
    assert."""
    known = topic.watermarks
    if topic.policies.watermarks.in_properties:
        said = spoken(entries, known.delivered_ms if known is not None else None)
        if said.asserts or known is not None:
            topic.used_with_watermarks().take(producer, said, txn)
    if topic.watermarks is not None:
        topic.watermarks.sent(producer, size)


def _nobody_waits() -> None:
    """The messages' receipts say nothing of what they assert."""

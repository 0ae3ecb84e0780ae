"""One topic, one durable subscription and one consumer, by random steps.

Owns: `World`, which plays the host of the pure package: a log of bytes with checkpoints, a cursor
whose acknowledgements are durable later, deliveries, recoveries; and what it checks at each step.
Imports: the package, topics (cursor and ledgers), reference. Steps are (name, number, number), and
any list of them is a history. Producers keep their promises: a message is not older than what its
producer has in force.

Checks, each with its name in the failure: "invariant 7", "exact" (the delivered watermark is the
reference's), "recovery" (checkpoint and tail give what was there), "liveness".
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from magnetar.topics.cursor import Cursor
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.state import CursorState
from magnetar.transactions.ids import TxnId
from magnetar.watermarks import records
from magnetar.watermarks.codec import Decoder, encode
from magnetar.watermarks.combination import Combination
from magnetar.watermarks.generator import Effect, Generator, Reset
from magnetar.watermarks.records import Assertion, End, Event, Hold, Idle, Place
from magnetar.watermarks.timeline import Anchored, SnapshotInterval, Timeline, TimelineState
from tests.unit.watermarks.reference import Reference

Step = tuple[str, int, int]
PRODUCERS = ("a", "b", "c")
WEIGHTS = {
    "assert": 6,
    "idle": 2,
    "send": 6,
    "send in a transaction": 6,
    "assert in a transaction": 3,
    "idle in a transaction": 1,
    "commit": 3,
    "abort": 1,
    "deliver": 6,
    "acknowledge one": 3,
    "acknowledge part of a batch": 1,
    "acknowledge all delivered": 4,
    "skip": 1,
    "write acknowledgements": 5,
    "redeliver": 1,
    "seek": 1,
    "trim": 1,
    "snapshot": 1,
    "checkpoint": 1,
    "recover": 1,
}
CHECKS = frozenset({"invariant 7", "exact", "recovery", "liveness"})


class Message(NamedTuple):
    """`sent` and `began`: how many events there were as it was sent, and as its producer's first
    message of the transaction was."""

    producer: str
    event_ms: int
    sent: int
    began: int


class World:
    """`checks` are those that count; the others are left out."""

    def __init__(self, checks: Iterable[str] = CHECKS) -> None:
        self.checks = frozenset(checks)
        self.events: list[Event] = []
        self.places: list[Place] = []
        self.reference = Reference(self.events)
        self.ledgers, self.ledger = LedgerTable(), 1
        self.messages: list[Message] = []
        self.open: dict[TxnId, list[Message]] = {}
        self.transactions = 0
        self.timeline = Timeline(interval=SnapshotInterval(records=4))
        self.checkpoint: tuple[TimelineState, tuple[str, ...]] = (self.timeline.to_state(), ())
        self.log: list[bytes] = []
        self.cursor = Cursor(self.ledgers, 0)
        self.written: CursorState = self.cursor.to_state()
        self.generator = Generator(self.timeline, self.cursor.mark_delete_position)
        self.delivered_ms: int | None = None
        self.client, self.cut = Combination(["topic"]), 0
        self.next = 0

    # --- checks -----------------------------------------------------------------------------------

    def check(self, name: str, holds: bool, *found: object) -> None:
        assert holds or name not in self.checks, f"{name}: {found}"

    def _cut_now(self) -> int:
        return sum(place <= self.generator.mark_delete for place in self.places)

    def took(self, effect: Effect | None) -> None:
        """An effect of the generator reaches the consumer."""
        cut = self._cut_now()
        exact = self.reference.exact(cut)
        if isinstance(effect, Reset):
            self.delivered_ms = None
        if exact is not None and (self.delivered_ms is None or exact > self.delivered_ms):
            self.delivered_ms = exact
        got = self.generator.watermark_ms
        self.check("exact", got == self.delivered_ms, got, self.delivered_ms, cut)
        if effect is None:
            return
        before, combined = self.client.watermark_ms, self.client.apply("topic", effect)
        now = self.client.watermark_ms
        self.check(
            "exact", isinstance(combined, Reset) or before is None or (now or 0) >= before, combined
        )
        if combined is not None:
            self.cut = cut

    def on_time(self, message: Message) -> bool:
        """Whether the consumer's watermark took the producer into account, and the message broke
        no promise made before it."""
        find, name = self.reference.in_force, message.producer
        joined = (
            find(name, message.sent) is not None
            and self.reference.joined(name, message.sent) < self.cut
        )
        if not joined and find(name, self.cut) is None:
            return False
        first = min(self.cut, message.began)
        promised = (find(name, cut) for cut in range(first, message.sent + 1))
        return all(ms is None or message.event_ms >= ms for ms in promised)

    # --- steps ------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        name, one, other = step
        getattr(self, "_" + name.replace(" ", "_"))(one, other)

    @property
    def last(self) -> Place:
        return self.ledgers.last_position

    def take(self, event: Event, place: Place | None = None) -> None:
        """A control record becomes durable; the subscription sees that the timeline has grown."""
        anchored = self.timeline.queue(place or self.last, event)
        self.events.append(event)
        self.places.append(self.last)
        self.log += encode(anchored)
        self._apply(anchored)

    def _apply(self, anchored: Anchored) -> None:
        self.timeline.apply(*anchored)
        self.timeline.thin()
        self.took(self.generator.advance())

    def _assert(self, one: int, other: int) -> None:
        self.take(Assertion(PRODUCERS[one % 3], other))

    def _idle(self, one: int, _other: int) -> None:
        self.take(Idle(PRODUCERS[one % 3]))

    def _message(self, producer: str, ahead: int, began: int | None = None) -> Message:
        sent = len(self.events)
        promised = self.reference.in_force(producer, sent) or 0
        return Message(producer, promised + ahead % 4, sent, sent if began is None else began)

    def _publish(self, messages: list[Message]) -> Place:
        count = self.last[1] + 1 if self.last[0] == self.ledger else 0
        self.ledgers.append(self.ledger, count, len(messages))
        self.messages += messages
        return self.ledger, count

    def _send(self, one: int, other: int) -> None:
        self._publish([self._message(PRODUCERS[one % 3], other)])

    def _txn(self, number: int) -> TxnId:
        """One that is open, or a new one."""
        known = [*self.open]
        at = number % 4
        if at < len(known):
            return known[at]
        self.transactions += 1
        txn = TxnId(0, self.transactions)
        self.open[txn] = []
        return txn

    def _send_in_a_transaction(self, one: int, other: int) -> None:
        producer, txn = PRODUCERS[one % 3], self._txn(one // 3)
        mine = [sent for sent in self.open[txn] if sent.producer == producer]
        message = self._message(producer, other, mine[0].began if mine else None)
        if not self.timeline.head.holds(txn, producer):
            self.take(Hold(producer, txn))
        self.open[txn].append(message)

    def _assert_in_a_transaction(self, one: int, other: int) -> None:
        self.take(Assertion(PRODUCERS[one % 3], other, self._txn(one // 3)))

    def _idle_in_a_transaction(self, one: int, _other: int) -> None:
        self.take(Idle(PRODUCERS[one % 3], self._txn(one // 3)))

    def _commit(self, one: int, _other: int) -> None:
        if self.open:
            txn = [*self.open][one % len(self.open)]
            messages = self.open.pop(txn)
            marker = self._publish(messages) if messages else records.NOWHERE
            self.take(End(txn, True), records.marker_end(marker, len(messages), self.last))

    def _abort(self, one: int, _other: int) -> None:
        if self.open:
            txn = [*self.open][one % len(self.open)]
            del self.open[txn]
            self.take(End(txn, False))

    def _deliver(self, one: int, _other: int) -> None:
        for _ in range(one % 4 + 1):
            ordinal = self.cursor.first_unacknowledged(self.next)
            if ordinal >= self.ledgers.end:
                return
            self.next, message = ordinal + 1, self.messages[ordinal]
            watermark = self.client.watermark_ms
            if watermark is not None and message.event_ms < watermark:
                self.check("invariant 7", not self.on_time(message), message, watermark, self.cut)
            late = self.generator.saw(message.event_ms)
            delivered = self.generator.watermark_ms
            self.check("exact", late == (delivered is not None and message.event_ms < delivered))

    def acknowledge(self, start: int, end: int) -> None:
        self.cursor.acknowledge(start, end)

    def _acknowledge_one(self, one: int, _other: int) -> None:
        if self.next > self.ledgers.first:
            ordinal = self.ledgers.first + one % (self.next - self.ledgers.first)
            self.acknowledge(ordinal, ordinal + 1)

    def _acknowledge_part_of_a_batch(self, one: int, _other: int) -> None:
        if self.next > self.cursor.mark_delete:
            self.cursor.acknowledge_partial(self.cursor.mark_delete + one % 2, 0b10)

    def _acknowledge_all_delivered(self, _one: int, _other: int) -> None:
        self.acknowledge(self.cursor.mark_delete, self.next)

    def _skip(self, one: int, _other: int) -> None:
        """Expiry, skipping and clearing: the broker acknowledges what was not delivered."""
        self.acknowledge(self.cursor.mark_delete, self.cursor.mark_delete + one % 3)
        self.next = max(self.next, self.cursor.mark_delete)

    def _write_acknowledgements(self, _one: int, _other: int) -> None:
        self.written = self.cursor.to_state()
        effect = self.generator.advance(self.written.mark_delete, 2)
        for _ in self.events:
            if not self.generator.behind:
                break
            self.check("exact", effect is None, effect)
            effect = self.generator.advance(None, 2)
        self.took(effect)

    def _redeliver(self, _one: int, _other: int) -> None:
        self.next = self.cursor.mark_delete

    def _seek(self, one: int, _other: int) -> None:
        first, end = self.ledgers.first, self.ledgers.end
        self.cursor.reset(first + one % (end - first + 1))
        self.next = self.cursor.mark_delete
        self.written = self.cursor.to_state()
        self.took(self.generator.seek(self.written.mark_delete))

    def _trim(self, one: int, _other: int) -> None:
        """Up to what is acknowledged, in the log; sometimes beyond."""
        mark = self.ledgers.ordinal_after(self.written.mark_delete)
        ordinal = min(mark + (2 if one % 4 == 0 else 0), self.ledgers.end)
        if ordinal == self.ledgers.first:
            return
        horizon = self.timeline.horizon(self.ledgers.position(ordinal - 1))
        if horizon is not None:
            self.log += encode(horizon, horizon=True)
            self.timeline.trim(horizon)
        self.cursor.acknowledge(self.cursor.mark_delete, ordinal)
        self.ledgers.drop_before(ordinal)
        self.next = max(self.next, ordinal)
        self.written = self.cursor.to_state()
        self.took(self.generator.trimmed(self.written.mark_delete))

    def _snapshot(self, _one: int, _other: int) -> None:
        if self.timeline.snapshot_due:
            anchored = self.timeline.snapshot(self.last)
            self.log += encode(anchored)
            self._apply(anchored)

    def _checkpoint(self, _one: int, _other: int) -> None:
        """Some records of the log that it holds are replayed all the same."""
        self.checkpoint = self.timeline.to_state(), ()
        self.log = self.log[-5:]

    def _recover(self, _one: int, _other: int) -> None:
        """The owner's memory is gone; the consumer and its watermark are not."""
        before = self.timeline
        self.timeline = Timeline(self.checkpoint[0], before.interval)
        decoder = Decoder()
        for data in self.log:
            found = decoder.feed(data)
            assert found is not None
            anchored, horizon = found
            if horizon:
                self.timeline.trim(anchored)
            else:
                self.timeline.apply(*anchored)
                self.timeline.thin()
        here, there = (one.head.to_snapshot() for one in (self.timeline, before))
        self.check("recovery", here == there, here, there)
        self.check("recovery", self.timeline.to_state() == before.to_state())
        self.ledger += 1
        self.cursor = Cursor(self.ledgers, 0)
        self.cursor.apply_delta(self.written.as_delta())
        self.next = self.cursor.mark_delete
        self.generator = Generator(self.timeline, self.cursor.mark_delete_position)
        self.delivered_ms = None
        self.took(self.generator.attach())

    # --- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything ends well: the watermark reaches the minimum."""
        while self.open:
            self._commit(0, 0) if len(self.open) % 2 else self._abort(0, 0)
        promised = [ms for _, _, ms in self.reference.changes(len(self.events)) if ms is not None]
        active = self.reference.active(len(self.events))
        for ahead, name in enumerate(active):
            self.take(Assertion(name, max(promised) + 2 - ahead))
        while self.cursor.first_unacknowledged(self.next) < self.ledgers.end:
            self._deliver(3, 0)
        self.next = self.ledgers.end  # what is left was acknowledged before it was delivered
        self._acknowledge_all_delivered(0, 0)
        self._write_acknowledgements(0, 0)
        exact, got = self.reference.exact(len(self.events)), self.client.watermark_ms
        reached = got == exact if active else exact is None or (got is not None and got >= exact)
        self.check("liveness", reached, got, exact)


def random_steps(seed: int, count: int = 60) -> list[Step]:
    chance = random.Random(seed)
    names = chance.choices([*WEIGHTS], [*WEIGHTS.values()], k=count)
    return [(name, chance.randrange(12), chance.randrange(20)) for name in names]


def play(steps: Iterable[Step], checks: Iterable[str] = CHECKS) -> World:
    world = World(checks)
    for step in steps:
        world.step(step)
    world.settle()
    return world

"""A random course of one subscription beside a model of it.

Owns: `Course`: the events, the model (sets and dicts that say what the subscription must do), and
the checks after every step that hold for all types. A subscription type is a subclass that says
what delivery owes its consumers. Imports: magnetar.topics.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import (
    ChunkTrait,
    Delivery,
    DispatchLimits,
    EntryTraits,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
)
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.state import CursorDelta
from magnetar.topics.subscription import Subscription

RANGES_MAX = 12
CONSUMER_MAX, SUBSCRIPTION_MAX, TURN_MAX = 16, 30, 3
TICK_MS = 50
LIMITS = DispatchLimits(
    unacknowledged_per_consumer_messages_max=CONSUMER_MAX,
    unacknowledged_per_subscription_messages_max=SUBSCRIPTION_MAX,
    turn_entries_max=TURN_MAX,
    acknowledged_ranges_max=RANGES_MAX,
    delay_tick_ms=TICK_MS,
    delayed_runs_max=2,
    failover_delay_ms=60,
)
TOPIC, PARTITION = "persistent://public/default/t-partition-1", 1
BATCH_MAX = 4
KEYS = 8
STEPS = 400
NOTHING_SPECIAL = EntryTraits()


class Course:
    """One random course of a type that delivers strictly in order to one consumer, and does not
    track what it delivered."""

    kind: ClassVar[SubscriptionType]
    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.NONE
    consumers_max: ClassVar[int] = 1
    cumulative: ClassVar[bool] = True

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ledgers = LedgerTable()
        self.now_ms = 1_000_000
        self.subscription = self.new_subscription()
        self.batch_sizes: list[int] = []
        self.traits: list[EntryTraits] = []
        self.acknowledged: set[int] = set()
        self.masks: dict[int, int] = {}
        self.held: dict[int, set[int]] = {}  # by consumer: what it was given and has not given back
        self.permits: dict[int, int] = {}
        self.priorities: dict[int, int] = {}
        self.deltas: list[CursorDelta] = []
        self.durable: tuple[set[int], dict[int, int]] = set(), {}
        # everything below has been delivered once, in this connection's or seek's time
        self.read = 0
        self.delivered = 0
        self.events: list[tuple[int, Callable[[], None]]] = [
            (16, self.publish),
            (12, self.connect),
            (3, self.disconnect),
            (20, self.flow),
            (50, self.deliver),
            (30, self.acknowledge_held),
            (4, self.acknowledge_anything),
            (10, self.acknowledge_partly),
            (3, self.acknowledge_cumulatively),
            (8, self.redeliver),
            (1, self.seek),
            (8, self.write_log),
            (1, self.write_checkpoint),
            (1, self.crash),
            (20, self.time_passes),
        ]

    def new_subscription(self) -> Subscription:
        cursor = Cursor(self.ledgers, 0, acknowledged_ranges_max=RANGES_MAX)
        return Subscription("s", True, cursor, limits=LIMITS, topic=TOPIC)

    def run(self) -> None:
        weights = [weight for weight, _ in self.events]
        for _ in range(STEPS):
            self.random.choices(self.events, weights)[0][1]()
            self.check_state()
        self.check_restart()
        self.check_everything_is_delivered()

    # --- what types differ in: delivery in order, a redelivery begins again at the mark-delete ----

    def joined(self) -> None:
        """The first consumer has come: delivery begins at the mark-delete."""
        self.read = self.subscription.cursor.mark_delete

    def left(self, held: set[int]) -> None:
        """A consumer has gone with what it held."""

    def disconnect_for_seek(self) -> None:
        """Everybody is sent away, or loses at least all permits."""
        self.permits = dict.fromkeys(self.permits, 0)

    def sought(self, ordinal: int) -> None:
        self.read = ordinal

    def notified(self, handle: int, active: bool) -> None:
        raise AssertionError(
            f"{self.kind} notifies no consumer that it is active: {handle}, {active}"
        )

    def given_back(self, handle: int, ranges: list[tuple[int, int]] | None) -> None:
        """REDELIVER of a connected consumer."""
        del ranges
        self.held[handle].clear()
        self.joined()

    def forgotten(self, ordinals: set[int]) -> None:
        """These are acknowledged."""

    def check_read(self, request: ReadRequest) -> None:
        """Whether this is what ought to be fetched next."""

    def check_delivery(self, handle: int, delivery: Delivery) -> None:
        """Whether these entries are due, and due to this consumer."""
        self.check_next(delivery)
        assert delivery.redelivery_counts is None, "Exclusive does not count redeliveries"
        self.read = delivery.first + delivery.entries
        self.held[handle].update(range(delivery.first, self.read))

    def check_next(self, delivery: Delivery) -> None:
        due = next(
            ordinal
            for ordinal in range(self.read, self.ledgers.end)
            if ordinal not in self.acknowledged
        )
        assert delivery.first == due, "new entries go out in order, none left out"

    def check_consumer(self, handle: int) -> None:
        """Whether the subscription tracks what this consumer holds."""

    # --- chance -----------------------------------------------------------------------------------

    def any_ordinal(self) -> int:
        """Mostly near where something is going on, sometimes out of bounds."""
        return self.random.randint(
            max(0, self.subscription.cursor.mark_delete - 5), self.ledgers.end + 2
        )

    def any_consumer(self) -> int:
        """Mostly a connected one."""
        return (
            self.random.choice(sorted(self.held))
            if self.held and self.random.random() < 0.9
            else self.random.randint(0, 4)
        )

    # --- events -----------------------------------------------------------------------------------

    def publish(self) -> None:
        sizes = [
            self.random.choice((1, 1, 1, self.random.randint(2, BATCH_MAX)))
            for _ in range(self.random.randint(1, 12))
        ]
        traits = [self.any_traits() for _ in sizes]
        if self.random.random() < 0.2:
            count = self.random.randint(2, 5)
            key_hash, uuid = self.random.randint(1, KEYS), f"message-{len(self.traits)}"
            chunks = [
                EntryTraits(key_hash, chunk=ChunkTrait(uuid, number, count))
                for number in range(count)
            ]
            for at, chunk in zip(
                sorted(self.random.choices(range(len(sizes) + 1), k=count)), chunks, strict=True
            ):
                traits.insert(at + chunk.chunk.id, chunk)  # type: ignore[union-attr]  # other producers' entries between them
                sizes.insert(at + chunk.chunk.id, 1)  # type: ignore[union-attr]
        ledger = self.ledgers.last_ledger
        if ledger < 0 or self.random.random() < 0.2:
            ledger, first = ledger + 2, 0
        else:
            first = self.ledgers.last_position.entry + 1
        self.ledgers.append(ledger, first, len(sizes))
        self.batch_sizes += sizes
        self.traits += traits

    def any_traits(self) -> EntryTraits:
        deliver_at = (
            self.now_ms + self.random.randint(-100, 1500) if self.random.random() < 0.2 else 0
        )
        return EntryTraits(self.random.randint(1, KEYS), deliver_at)

    def connect(self) -> None:
        handle = self.random.randint(0, 4)
        if handle in self.held or len(self.held) >= self.consumers_max:
            return
        if not self.held:
            self.joined()
        priority = self.random.choice((0, 0, 1))
        self.subscription.add_consumer(handle, self.kind, name=f"c{handle}", priority=priority)
        self.held[handle], self.permits[handle], self.priorities[handle] = set(), 0, priority

    def disconnect(self) -> None:
        handle = self.any_consumer()
        self.subscription.remove_consumer(handle)
        if handle in self.held:
            del self.permits[handle]
            self.left(self.held.pop(handle))

    def advance(self) -> None:
        """Time goes on: what the host does before it delivers."""
        for handle, active in self.subscription.advance(self.now_ms):
            assert isinstance(handle, int)
            self.notified(handle, active)

    def flow(self) -> None:
        handle, permits = self.any_consumer(), self.random.randint(1, 12)
        self.subscription.flow(handle, permits)
        if handle in self.permits:
            self.permits[handle] += permits

    def time_passes(self) -> None:
        """Often as long as the subscription wants to be left alone."""
        self.advance()
        wakeup = self.subscription.next_wakeup_ms()
        if wakeup is not None and self.random.random() < 0.5:
            self.now_ms = max(self.now_ms, wakeup)
        else:
            self.now_ms += self.random.randint(0, 200)

    def deliver(self) -> None:
        """One read and its dispatch; sometimes something else happens while the read is under
        way."""
        self.advance()
        limit = self.random.randint(1, 15)
        request = self.subscription.next_read(limit, self.now_ms)
        if request is None:
            return
        assert 1 <= request.entries <= limit
        assert (
            self.ledgers.first
            <= request.first
            <= request.first + request.entries
            <= self.ledgers.end
        )
        self.check_read(request)
        if self.random.random() < 0.2:
            self.random.choice(
                [
                    self.redeliver,
                    self.acknowledge_anything,
                    self.acknowledge_partly,
                    self.disconnect,
                    self.seek,
                ]
            )()
            self.flow()
        self.dispatch(request)

    def dispatch(self, request: ReadRequest) -> list[Delivery]:
        span = slice(request.first, request.first + request.entries)
        traits: list[EntryTraits | None] | None = None
        if self.traits_wanted is TraitsWanted.ALL:
            traits = list(self.traits[span])
        elif self.traits_wanted is TraitsWanted.SPECIAL:
            traits = [
                found if found.deliver_at_ms or found.chunk else None for found in self.traits[span]
            ]
        deliveries = self.subscription.dispatch(request.first, self.batch_sizes[span], traits)
        for delivery in deliveries:
            self.take(delivery)
        return deliveries

    def take(self, delivery: Delivery) -> None:
        handle = delivery.consumer
        assert isinstance(handle, int)
        ordinals = delivery.ordinals
        costs = [self.cost(ordinal) for ordinal in ordinals]
        assert delivery.messages == sum(costs)
        assert self.permits[handle] - sum(costs[:-1]) > 0, (
            "only the last entry may overdraw the permits"
        )
        for index, ordinal in enumerate(ordinals):
            assert ordinal not in self.acknowledged, "an acknowledged entry is never delivered"
            words = delivery.ack_sets[index] if delivery.ack_sets is not None else ()
            assert words == ((self.masks[ordinal],) if ordinal in self.masks else ())
        self.check_delivery(handle, delivery)
        self.permits[handle] -= delivery.messages
        self.delivered += delivery.entries

    def acknowledge_held(self) -> None:
        """What a well-behaved client does: acknowledge what it was given, often the oldest
        first."""
        handle = self.any_consumer()
        held = sorted(self.held.get(handle, ()))
        if held:
            ordinal = held[0] if self.random.random() < 0.6 else self.random.choice(held)
            self.acknowledge(handle, ordinal, ordinal + self.random.randint(1, 3))

    def acknowledge_anything(self) -> None:
        start = self.any_ordinal()
        self.acknowledge(self.any_consumer(), start, start + self.random.randint(1, 6))

    def acknowledge(self, handle: int, start: int, end: int) -> None:
        self.subscription.acknowledge(handle, [(start, end)])
        self.settle(range(start, min(end, self.ledgers.end)))

    def acknowledge_partly(self) -> None:
        if not self.batch_sizes:
            return
        ordinal = self.random.randint(self.subscription.cursor.mark_delete, self.ledgers.end)
        size = self.batch_sizes[ordinal] if ordinal < self.ledgers.end else 1
        mask = self.random.getrandbits(size)
        self.subscription.acknowledge(self.any_consumer(), [], [(ordinal, mask)])
        if ordinal in self.acknowledged or ordinal >= self.ledgers.end:
            return
        self.masks[ordinal] = self.masks.get(ordinal, mask) & mask
        if not self.masks[ordinal]:
            self.settle(range(ordinal, ordinal + 1))

    def acknowledge_cumulatively(self) -> None:
        handle, ordinal = self.any_consumer(), self.any_ordinal()
        self.subscription.acknowledge_cumulative(handle, ordinal)
        if self.cumulative and handle in self.held:
            self.settle(range(min(ordinal + 1, self.ledgers.end)))

    def settle(self, ordinals: range) -> None:
        gone = set(ordinals)
        self.acknowledged |= gone
        for ordinal in ordinals:
            self.masks.pop(ordinal, None)
        for held in self.held.values():
            held -= gone
        self.forgotten(gone)

    def redeliver(self) -> None:
        handle, start = self.any_consumer(), self.any_ordinal()
        ranges = (
            None if self.random.random() < 0.4 else [(start, start + self.random.randint(1, 9))]
        )
        self.subscription.redeliver(handle, ranges)
        if handle in self.held:
            self.given_back(handle, ranges)

    def seek(self) -> None:
        ordinal = self.random.randint(0, self.ledgers.end)
        size = self.batch_sizes[ordinal] if ordinal < self.ledgers.end else 1
        mask = self.random.randint(1, (1 << size) - 1) if self.random.random() < 0.5 else None
        self.disconnect_for_seek()
        self.subscription.reset(ordinal, mask)
        self.acknowledged = set(range(ordinal))
        self.masks = {ordinal: mask} if mask is not None and ordinal < self.ledgers.end else {}
        for held in self.held.values():
            held.clear()
        self.sought(ordinal)

    def write_log(self) -> None:
        delta = self.subscription.take_delta()
        if delta is not None:
            self.deltas.append(delta)
            self.durable = set(self.acknowledged), dict(self.masks)

    def write_checkpoint(self) -> None:
        """The state as a checkpoint holds it, untaken acknowledgements included; the log before
        it is not needed any more."""
        self.deltas = [self.subscription.to_state().as_delta()]
        self.durable = set(self.acknowledged), dict(self.masks)

    def crash(self) -> None:
        """Everybody is gone; what the log and the checkpoint hold comes back, and nothing else."""
        self.subscription = self.new_subscription()
        for delta in self.deltas:
            self.subscription.apply_delta(delta)
        self.acknowledged, self.masks = set(self.durable[0]), dict(self.durable[1])
        held, self.held, self.permits = self.held, {}, {}
        for gone in held.values():
            self.left(gone)

    # --- what must hold ---------------------------------------------------------------------------

    def cost(self, ordinal: int) -> int:
        return (
            self.masks[ordinal].bit_count() if ordinal in self.masks else self.batch_sizes[ordinal]
        )

    def unacknowledged(self, handle: int) -> int:
        return sum(map(self.cost, self.held[handle]))

    def check_state(self) -> None:
        cursor = self.subscription.cursor
        gap = next(
            (ordinal for ordinal in range(self.ledgers.end) if ordinal not in self.acknowledged),
            self.ledgers.end,
        )
        assert cursor.mark_delete == gap, "mark-delete never passes an unacknowledged entry"
        assert cursor.backlog == self.ledgers.end - len(self.acknowledged)
        assert cursor.partial == self.masks
        assert set(self.subscription.consumers) == set(self.held)
        for handle in self.held:
            assert self.subscription.consumers[handle].permits == self.permits[handle]
            self.check_consumer(handle)

    def check_restart(self) -> None:
        """The log alone rebuilds the cursor."""
        self.write_log()
        restored = self.new_subscription()
        for delta in self.deltas:
            restored.apply_delta(delta)
        assert restored.to_state() == self.subscription.to_state()

    def check_everything_is_delivered(self) -> None:
        """When all obstacles go, acknowledging whatever comes empties the backlog: no entry is
        lost or stuck."""
        while not self.held:
            self.connect()
        self.advance()  # a change of the active consumer begins to count
        self.now_ms += 10_000
        self.advance()
        for handle in list(self.held):
            self.subscription.redeliver(handle, None)
            self.given_back(handle, None)
            self.subscription.flow(handle, 10_000)
            self.permits[handle] += 10_000
        idle = 0
        while (request := self.subscription.next_read(7, self.now_ms)) is not None:
            deliveries = self.dispatch(request)
            idle = 0 if deliveries else idle + 1
            assert idle < len(self.traits), (
                "a read that leads to nothing would be repeated permanently"
            )
            for delivery in deliveries:
                assert isinstance(delivery.consumer, int)
                for ordinal in delivery.ordinals:
                    self.acknowledge(delivery.consumer, ordinal, ordinal + 1)
        assert self.subscription.backlog == 0

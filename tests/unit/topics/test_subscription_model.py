"""Any course of events: every entry is delivered until it is acknowledged, to one consumer at a time, within permits.

Each test is a long random course from one seed: a subscription runs beside sets and dicts that say what it must do. Failures name the seed. A
subscription type plugs in as a subclass of `Course` that says what delivery owes its consumers (see `SharedCourse`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

import pytest

from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch import ChunkTrait, Delivery, DispatchLimits, EntryTraits, ReadRequest, SubscriptionType, TraitsWanted
from magnetar.topics.hash_ranges import slot_of
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
    """One random course of a type that delivers strictly in order to one consumer, and does not track what it delivered."""

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
        self.read = 0  # everything below has been delivered once, in this connection's or seek's time
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

    # --- what types differ in: delivery in order, a redelivery begins again at the mark-delete -----------------------------------

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

    def told(self, handle: int, active: bool) -> None:
        raise AssertionError(f"{self.kind} tells nobody that it is active: {handle}, {active}")

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
        due = next(ordinal for ordinal in range(self.read, self.ledgers.end) if ordinal not in self.acknowledged)
        assert delivery.first == due, "new entries go out in order, none left out"

    def check_consumer(self, handle: int) -> None:
        """Whether the subscription tracks what this consumer holds."""

    # --- chance ---------------------------------------------------------------------------------------------------------------

    def any_ordinal(self) -> int:
        """Mostly near where something is going on, sometimes out of bounds."""
        return self.random.randint(max(0, self.subscription.cursor.mark_delete - 5), self.ledgers.end + 2)

    def any_consumer(self) -> int:
        """Mostly a connected one."""
        return self.random.choice(sorted(self.held)) if self.held and self.random.random() < 0.9 else self.random.randint(0, 4)

    # --- events ---------------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        sizes = [self.random.choice((1, 1, 1, self.random.randint(2, BATCH_MAX))) for _ in range(self.random.randint(1, 12))]
        traits = [self.any_traits() for _ in sizes]
        if self.random.random() < 0.2:
            count = self.random.randint(2, 5)
            key_hash, uuid = self.random.randint(1, KEYS), f"message-{len(self.traits)}"
            chunks = [EntryTraits(key_hash, chunk=ChunkTrait(uuid, number, count)) for number in range(count)]
            for at, chunk in zip(sorted(self.random.choices(range(len(sizes) + 1), k=count)), chunks, strict=True):
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
        deliver_at = self.now_ms + self.random.randint(-100, 1500) if self.random.random() < 0.2 else 0
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
            self.told(handle, active)

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
        """One read and its dispatch; sometimes something else happens while the read is under way."""
        self.advance()
        limit = self.random.randint(1, 15)
        request = self.subscription.next_read(limit, self.now_ms)
        if request is None:
            return
        assert 1 <= request.entries <= limit
        assert self.ledgers.first <= request.first <= request.first + request.entries <= self.ledgers.end
        self.check_read(request)
        if self.random.random() < 0.2:
            self.random.choice([self.redeliver, self.acknowledge_anything, self.acknowledge_partly, self.disconnect, self.seek])()
            self.flow()
        self.dispatch(request)

    def dispatch(self, request: ReadRequest) -> list[Delivery]:
        span = slice(request.first, request.first + request.entries)
        traits: list[EntryTraits | None] | None = None
        if self.traits_wanted is TraitsWanted.ALL:
            traits = list(self.traits[span])
        elif self.traits_wanted is TraitsWanted.SPECIAL:
            traits = [found if found.deliver_at_ms or found.chunk else None for found in self.traits[span]]
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
        assert self.permits[handle] - sum(costs[:-1]) > 0, "only the last entry may overdraw the permits"
        for index, ordinal in enumerate(ordinals):
            assert ordinal not in self.acknowledged, "an acknowledged entry is never delivered"
            words = delivery.ack_sets[index] if delivery.ack_sets is not None else ()
            assert words == ((self.masks[ordinal],) if ordinal in self.masks else ())
        self.check_delivery(handle, delivery)
        self.permits[handle] -= delivery.messages
        self.delivered += delivery.entries

    def acknowledge_held(self) -> None:
        """What a well-behaved client does: acknowledge what it was given, often the oldest first."""
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
        ranges = None if self.random.random() < 0.4 else [(start, start + self.random.randint(1, 9))]
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
        """The state as a checkpoint holds it, untaken acknowledgements included; the log before it is not needed any more."""
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

    # --- what must hold -------------------------------------------------------------------------------------------------------

    def cost(self, ordinal: int) -> int:
        return self.masks[ordinal].bit_count() if ordinal in self.masks else self.batch_sizes[ordinal]

    def unacknowledged(self, handle: int) -> int:
        return sum(map(self.cost, self.held[handle]))

    def check_state(self) -> None:
        cursor = self.subscription.cursor
        gap = next((ordinal for ordinal in range(self.ledgers.end) if ordinal not in self.acknowledged), self.ledgers.end)
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
        """When all obstacles go, acknowledging whatever comes empties the backlog: no entry is lost or stuck."""
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
            assert idle < len(self.traits), "a read that leads to nothing would be repeated for ever"
            for delivery in deliveries:
                assert isinstance(delivery.consumer, int)
                for ordinal in delivery.ordinals:
                    self.acknowledge(delivery.consumer, ordinal, ordinal + 1)
        assert self.subscription.backlog == 0


class ExclusiveCourse(Course):
    """Exclusive: one consumer, order, nothing else."""

    kind = SubscriptionType.EXCLUSIVE


class FailoverCourse(Course):
    """Failover: order, to one of several consumers at a time, each of which begins at the mark-delete when its turn comes."""

    kind = SubscriptionType.FAILOVER
    consumers_max = 5

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.serving: int | None = None

    def active(self) -> int | None:
        """By Pulsar's rule for partitions."""
        best = min((self.priorities[handle] for handle in self.held), default=0)
        candidates = sorted(handle for handle in self.held if self.priorities[handle] == best)
        return candidates[PARTITION % len(candidates)] if candidates else None

    def told(self, handle: int, active: bool) -> None:
        assert active == (handle == self.active())
        if active:
            self.serving = handle
            self.joined()

    def left(self, held: set[int]) -> None:
        del held
        if self.serving not in self.held:
            self.serving = None

    def disconnect_for_seek(self) -> None:
        """Only the active one is sent away."""
        active = self.active()
        if active is not None:
            self.subscription.remove_consumer(active)
            del self.permits[active]
            self.left(self.held.pop(active))

    def given_back(self, handle: int, ranges: list[tuple[int, int]] | None) -> None:
        if handle in (self.active(), self.serving):
            super().given_back(handle, ranges)

    def check_delivery(self, handle: int, delivery: Delivery) -> None:
        assert handle == self.active() == self.serving, "only the active consumer is served, and only from the begin of its turn"
        super().check_delivery(handle, delivery)


class SharedCourse(Course):
    """Shared: turns, replays, counted redeliveries, limits, delays, and chunks that stay together."""

    kind = SubscriptionType.SHARED
    traits_wanted = TraitsWanted.SPECIAL
    consumers_max = 5
    cumulative = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.redeliveries: dict[int, int] = {}
        self.replays: set[int] = set()
        self.aside: set[int] = set()  # read once, and not delivered then: too early, or a chunk of a busy consumer
        self.fetched: set[int] = set()
        self.owners: dict[str, int] = {}  # message in chunks -> who must get the rest of it

    def joined(self) -> None:
        super().joined()
        self.forget_delivery()

    def sought(self, ordinal: int) -> None:
        super().sought(ordinal)
        self.forget_delivery()

    def forget_delivery(self) -> None:
        for known in (self.redeliveries, self.replays, self.aside, self.fetched, self.owners):
            known.clear()

    def left(self, held: set[int]) -> None:
        if not self.held:
            self.forget_delivery()
        self.replays |= held
        self.owners = {uuid: owner for uuid, owner in self.owners.items() if owner in self.held}

    def given_back(self, handle: int, ranges: list[tuple[int, int]] | None) -> None:
        held = self.held[handle]
        back = set(held) if ranges is None else held & set(range(*ranges[0]))
        held -= back
        self.replays |= back
        for ordinal in back:
            self.redeliveries[ordinal] = self.redeliveries.get(ordinal, 0) + 1

    def forgotten(self, ordinals: set[int]) -> None:
        self.replays -= ordinals
        self.aside -= ordinals
        for ordinal in ordinals:
            self.redeliveries.pop(ordinal, None)

    def check_read(self, request: ReadRequest) -> None:
        due = {ordinal for ordinal in self.replays if self.traits[ordinal].chunk is None}  # a chunk may wait for its consumer
        if due:
            assert request.first <= min(due), "replays go first, lowest first"
            assert request.first in self.replays | self.aside

    def check_next(self, delivery: Delivery) -> None:
        """What new reads passed over is put aside for a reason."""
        first = delivery.first
        if first < self.read:
            assert first in self.replays | self.aside, "what was read once comes again only if it was given back or had to wait"
            return
        passed = {ordinal for ordinal in range(self.read, first) if ordinal not in self.acknowledged}
        for ordinal in passed:
            special = self.traits[ordinal]
            assert special.deliver_at_ms > self.now_ms or special.chunk is not None, "new entries go out in order, none left out"
        self.aside |= passed
        for ordinal in set(range(first, first + delivery.entries)) - self.fetched:
            assert self.traits[ordinal].deliver_at_ms <= self.now_ms, "an entry is not early when it is read first"

    def dispatch(self, request: ReadRequest) -> list[Delivery]:
        deliveries = super().dispatch(request)
        self.fetched.update(range(request.first, request.first + request.entries))
        return deliveries

    def check_delivery(self, handle: int, delivery: Delivery) -> None:
        assert delivery.entries <= TURN_MAX
        before_last = delivery.messages - self.cost(delivery.first + delivery.entries - 1)
        assert self.unacknowledged(handle) + before_last < CONSUMER_MAX, "a consumer at its limit gets nothing"
        assert sum(map(self.unacknowledged, self.held)) < SUBSCRIPTION_MAX
        ordinals = range(delivery.first, delivery.first + delivery.entries)
        assert set[int]().union(*self.held.values()).isdisjoint(ordinals), "two consumers hold one entry"
        self.check_next(delivery)
        self.read = max(self.read, ordinals.stop)
        for index, ordinal in enumerate(ordinals):
            special = self.traits[ordinal]
            count = delivery.redelivery_counts[index] if delivery.redelivery_counts is not None else 0
            assert count == self.redeliveries.get(ordinal, 0)
            assert special.deliver_at_ms <= self.now_ms + TICK_MS, "more than a tick early"
            if special.chunk is not None:
                self.check_chunk(handle, ordinal, special.chunk)
        if self.traits[delivery.first].chunk is None:
            self.check_priority(handle)
        self.replays -= set(ordinals)
        self.aside -= set(ordinals)
        self.held[handle].update(ordinals)

    def check_priority(self, handle: int) -> None:
        for other in self.held:
            if self.priorities[other] < self.priorities[handle]:
                assert self.permits[other] <= 0 or self.unacknowledged(other) > CONSUMER_MAX // 2, "lower priority number first"

    def check_chunk(self, handle: int, ordinal: int, chunk: ChunkTrait) -> None:
        """The chunks of a message go to one consumer, each after those before it."""
        if chunk.id == 0:
            self.owners.pop(chunk.uuid, None)
        assert self.owners.get(chunk.uuid, handle) == handle, "a message's chunks went to two consumers"
        self.owners[chunk.uuid] = handle
        if chunk.id == chunk.count - 1:
            del self.owners[chunk.uuid]
        for earlier in range(max(0, ordinal - 100), ordinal):
            other = self.traits[earlier].chunk
            if other is not None and other.uuid == chunk.uuid and earlier not in self.acknowledged:
                assert earlier not in self.replays | self.aside, "a chunk overtook one before it"

    def check_consumer(self, handle: int) -> None:
        consumer = self.subscription.consumers[handle]
        assert {number for start, end in consumer.pending for number in range(start, end)} == self.held[handle]
        assert consumer.unacknowledged == self.unacknowledged(handle)

    def check_state(self) -> None:
        super().check_state()
        assert self.subscription.unacknowledged == sum(map(self.unacknowledged, self.held))


class KeySharedCourse(SharedCourse):
    """Key_Shared: as Shared, but each key in order at one consumer, while others flow past it."""

    kind = SubscriptionType.KEY_SHARED
    traits_wanted = TraitsWanted.ALL

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.begun: dict[str, int] = {}  # who was given chunks of a message last

    def check_read(self, request: ReadRequest) -> None:
        """Who has no permits keeps its replays back, and nobody else."""

    def check_delivery(self, handle: int, delivery: Delivery) -> None:
        assert self.unacknowledged(handle) < CONSUMER_MAX, "a consumer at its limit gets nothing"
        ordinals = delivery.ordinals
        assert set[int]().union(*self.held.values()).isdisjoint(ordinals), "two consumers hold one entry"
        for index, ordinal in enumerate(ordinals):
            deliver_at = self.traits[ordinal].deliver_at_ms
            assert deliver_at <= self.now_ms + (TICK_MS if ordinal in self.fetched else 0), "too early"
            count = delivery.redelivery_counts[index] if delivery.redelivery_counts is not None else 0
            assert count == self.redeliveries.get(ordinal, 0)
            self.check_key(handle, ordinal)
            self.held[handle].add(ordinal)
        assert sum(map(self.unacknowledged, self.held)) < SUBSCRIPTION_MAX + BATCH_MAX
        self.replays -= set(ordinals)

    def check_key(self, handle: int, ordinal: int) -> None:
        """Nothing before it of the same key is with somebody else, or not delivered yet.

        Delays are outside of that order, and a message in chunks has its place where it began: its consumer gets the rest of it.
        """
        slot, chunk = slot_of(self.traits[ordinal].key_hash), self.traits[ordinal].chunk
        if chunk is not None and self.has_begun(handle, chunk):
            return
        for earlier in range(self.subscription.cursor.mark_delete, ordinal):
            known = self.traits[earlier]
            if slot_of(known.key_hash) == slot and not known.deliver_at_ms and earlier not in self.acknowledged:
                assert earlier in self.held[handle], "the order of a key is broken"

    def has_begun(self, handle: int, chunk: ChunkTrait) -> bool:
        """Whether the consumer was given chunks of this message before this one."""
        begun = self.begun.pop(chunk.uuid, None) if chunk.id == 0 or chunk.id == chunk.count - 1 else self.begun.get(chunk.uuid)
        if chunk.id < chunk.count - 1:
            self.begun[chunk.uuid] = handle
        return chunk.id > 0 and begun == handle

    def check_consumer(self, handle: int) -> None:
        consumer = self.subscription.consumers[handle]
        assert set(consumer.held) == self.held[handle]
        assert consumer.unacknowledged == self.unacknowledged(handle)


@pytest.mark.parametrize(
    "course", [SharedCourse, ExclusiveCourse, FailoverCourse, KeySharedCourse], ids=lambda course: course.kind.name.lower()
)
@pytest.mark.parametrize(
    "seed", [*range(12), 3004, 3018, 3040]
)  # the last found chunks acknowledged one by one out of their key's order
def test_random_course(seed: int, course: type[Course]) -> None:
    """The subscription agrees with the model after every step, survives crashes, and delivers everything in the end."""
    running = course(seed)
    running.run()
    assert running.delivered > 50, "the course must really deliver, or it proves nothing"

"""Values and rules that all dispatchers use.

Owns: consumers, limits, the values that go in and out of dispatch, the arithmetic of permits, ack
sets and reads. Imports: cursor, delayed, intervals, acksets. Pure. Invariants: an entry is never
split between consumers; permits are messages and may go negative; an acknowledged entry costs
nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from magnetar.topics.acksets import words_of_mask
from magnetar.topics.cursor import ACKNOWLEDGED_RANGES_MAX
from magnetar.topics.dispatch.delayed import DELAY_TICK_MS, DELAYED_RUNS_MAX
from magnetar.topics.intervals import IntervalSet

# A read spans acknowledged entries or foreign ones between two runs if they are no more than this:
# one longer read beats two.
READ_GAP_ENTRIES_MAX = 16


class SubscriptionType(enum.IntEnum):
    """Numbers of the protocol (`CommandSubscribe.subType`)."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class TraitsWanted(enum.Enum):
    """Of which entries a dispatcher must know the traits."""

    NONE = 0
    SPECIAL = 1
    """Of delayed and chunked ones only."""
    ALL = 2


@dataclass(frozen=True, slots=True)
class ChunkTrait:
    """The entry is chunk `id` of the `count` chunks of message `uuid`."""

    uuid: str
    id: int
    count: int


class EntryTraits(NamedTuple):
    """What a client wrote about an entry that decides its consumer and its delivery time.

    `key_hash` is the Murmur3 of its key, 0..0x7fffffff (-1: not asked for); `deliver_at_ms` is
    wall-clock time, 0 = at once.
    """

    key_hash: int = -1
    deliver_at_ms: int = 0
    chunk: ChunkTrait | None = None


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Limits of one subscription; 0 switches an unacknowledged-messages limit off.

    `delayed_delivery` False delivers at once whatever its producer asked for. `delayed_runs_max`
    bounds the memory for what waits, and `chunked_messages_max` that for unfinished messages in
    chunks; `delayed` and `chunks` say what happens beyond.
    """

    unacknowledged_per_consumer_messages_max: int = 50_000
    unacknowledged_per_subscription_messages_max: int = 200_000
    turn_entries_max: int = 20
    acknowledged_ranges_max: int = ACKNOWLEDGED_RANGES_MAX
    failover_delay_ms: int = 1000
    delayed_delivery: bool = True
    delay_tick_ms: int = DELAY_TICK_MS
    delayed_runs_max: int = DELAYED_RUNS_MAX
    chunked_messages_max: int = 10_000
    key_shared_consistent_hashing: bool = True
    look_ahead_per_consumer_entries_max: int = 2_000
    look_ahead_per_subscription_entries_max: int = 20_000

    def look_ahead_max(self, consumers: int) -> int:
        """How many entries may wait for their Key_Shared consumers before nothing new is read."""
        return min(
            self.look_ahead_per_consumer_entries_max * consumers,
            self.look_ahead_per_subscription_entries_max,
        )

    def room_of(self, consumer: Consumer) -> int:
        """How many messages a consumer that is tracked may be given; the last entry may exceed
        it."""
        if not consumer.ready:
            return 0
        limit = self.unacknowledged_per_consumer_messages_max
        return (
            min(consumer.permits, limit - consumer.unacknowledged)
            if limit > 0
            else consumer.permits
        )


class KeySharedMode(enum.IntEnum):
    """Numbers of the protocol (`KeySharedMeta.keySharedMode`)."""

    AUTO_SPLIT = 0
    STICKY = 1


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """What a Key_Shared consumer asks for. `ranges` are its hashes where it names them:
    inclusive, within 0..65535."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    out_of_order: bool = False
    ranges: tuple[tuple[int, int], ...] = ()


class ReadRequest(NamedTuple):
    """Entries to fetch: ordinals first .. first+entries-1, all of which exist."""

    first: int
    entries: int


class Delivery(NamedTuple):
    """Entries first .. first+entries-1 for one consumer, to be sent as so many MESSAGE commands in
    order.

    Where they do not follow each other (Key_Shared), `scattered` has their ordinals, rising, and
    `first` is the first of them. `messages` is what they cost in permits. `redelivery_counts` has
    one number per entry, or is None when all are 0. `ack_sets` has one tuple of signed 64-bit words
    per entry (empty = nothing of it is acknowledged), or is None when all are empty. `epoch` is the
    consumer's.
    """

    consumer: Hashable
    first: int
    entries: int
    messages: int
    redelivery_counts: Sequence[int] | None
    ack_sets: Sequence[tuple[int, ...]] | None
    epoch: int
    scattered: Sequence[int] | None = None

    @property
    def ordinals(self) -> Sequence[int]:
        """Of each of its entries."""
        return (
            self.scattered
            if self.scattered is not None
            else range(self.first, self.first + self.entries)
        )


class Consumer:
    """One consumer of a subscription, as dispatch sees it.

    `unacknowledged` (messages) and `pending` (ordinals) are kept by Shared types only. `queued`
    belongs to `rotation`. `paused` means that its connection takes no more for now. `held`
    (messages by ordinal) and `waiting` (ordinals it is to get) are Key_Shared's.
    """

    __slots__ = (
        "blocked",
        "epoch",
        "handle",
        "held",
        "key_shared",
        "messages_out",
        "name",
        "paused",
        "pending",
        "permits",
        "priority",
        "queued",
        "unacknowledged",
        "waiting",
    )

    def __init__(
        self,
        handle: Hashable,
        name: str = "",
        priority: int = 0,
        epoch: int = 0,
        key_shared: KeySharedPolicy = KeySharedPolicy(),
    ) -> None:
        self.handle = handle
        self.name = name
        self.priority = priority
        self.epoch = epoch
        self.permits = 0
        self.unacknowledged = 0
        self.blocked = False
        self.paused = False
        self.queued = False
        self.pending = IntervalSet()
        self.key_shared = key_shared
        self.held: dict[int, int] = {}
        self.waiting = IntervalSet()
        self.messages_out = 0

    @property
    def ready(self) -> bool:
        """May be given entries."""
        return self.permits > 0 and not self.blocked and not self.paused


class Postponed(NamedTuple):
    """Entries that were read and are to be delivered later: `delayed` ones at their time,
    `replayed` ones again."""

    delayed: int = 0
    replayed: int = 0


class CursorView(Protocol):
    """A cursor as dispatchers see it: the cursor itself, or a view without what must not be
    delivered."""

    @property
    def mark_delete(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def acknowledged_end(self) -> int: ...
    @property
    def saturated(self) -> bool: ...
    @property
    def partial(self) -> Mapping[int, int]: ...
    def first_unacknowledged(self, ordinal: int) -> int: ...
    def unacknowledged(self, start: int, end: int) -> Iterator[tuple[int, int]]: ...


def entries_within(permits: int, costs: Sequence[int], low: int, high: int) -> tuple[int, int]:
    """How many of the entries costs[low:high] may go out while permits (> 0) last, and their
    cost together: at least one goes."""
    window = costs[low:high]
    total = sum(window)
    if total <= permits:
        return high - low, total
    used = 0
    for index, cost in enumerate(window):
        used += cost
        if used >= permits:
            return index + 1, used
    return high - low, used


def remaining_costs(cursor: CursorView, first: int, message_counts: Sequence[int]) -> Sequence[int]:
    """`message_counts` less the messages that are acknowledged already inside partly
    acknowledged entries."""
    touched = partly_acknowledged(cursor, first, len(message_counts))
    if not touched:
        return message_counts
    costs = list(message_counts)
    for ordinal in touched:
        count = costs[ordinal - first]
        costs[ordinal - first] = max(1, (cursor.partial[ordinal] & ((1 << count) - 1)).bit_count())
    return costs


def partly_acknowledged(cursor: CursorView, first: int, count: int) -> list[int]:
    """Those of the entries first .. first+count-1 that have an ack set."""
    partial = cursor.partial
    if not partial:
        return []
    if len(partial) < count:
        return [ordinal for ordinal in partial if first <= ordinal < first + count]
    return [ordinal for ordinal in range(first, first + count) if ordinal in partial]


def ack_sets_of(cursor: CursorView, first: int, count: int) -> list[tuple[int, ...]] | None:
    """Ack sets to send with the entries first .. first+count-1; None if there are none."""
    touched = partly_acknowledged(cursor, first, count)
    if not touched:
        return None
    sets: list[tuple[int, ...]] = [()] * count
    for ordinal in touched:
        sets[ordinal - first] = words_of_mask(cursor.partial[ordinal])
    return sets


def stretches(
    traits: Sequence[EntryTraits | None] | None, low: int, high: int
) -> Iterator[tuple[int, int, EntryTraits | None]]:
    """The indices [low, high) cut into runs of entries without anything special, and single
    special ones with their traits."""
    if traits is None:
        yield low, high, None
        return
    start = low
    for index in range(low, high):
        special = traits[index]
        if special is not None and (special.deliver_at_ms or special.chunk is not None):
            if start < index:
                yield start, index, None
            yield index, index + 1, special
            start = index + 1
    if start < high:
        yield start, high, None


def redelivery_counts(redeliveries: Mapping[int, int], ordinals: Iterable[int]) -> list[int] | None:
    """Redelivery counts of these entries; None if all are 0."""
    counts = [redeliveries.get(ordinal, 0) for ordinal in ordinals]
    return counts if any(counts) else None


def read_from(cursor: CursorView, read: int, limit_entries: int) -> ReadRequest | None:
    """One read of at most `limit_entries` from `read` on, which must be unacknowledged."""
    if read >= cursor.end or (cursor.saturated and read >= cursor.acknowledged_end):
        return None
    if read >= cursor.acknowledged_end:
        return ReadRequest(read, min(limit_entries, cursor.end - read))
    return read_span(
        cursor.unacknowledged(read, min(read + limit_entries, cursor.end)), limit_entries
    )


def read_span(runs: Iterable[tuple[int, int]], limit_entries: int) -> ReadRequest | None:
    """One read over the first of the ordered `runs`, and over those after it that are near, of
    at most `limit_entries`."""
    first = last = -1
    for start, end in runs:
        if first < 0:
            first = start
        elif start - last > READ_GAP_ENTRIES_MAX or start - first >= limit_entries:
            break
        last = end
        if last - first >= limit_entries:
            break
    return None if first < 0 else ReadRequest(first, min(last - first, limit_entries))

"""One topic (or one partition of one).

Owns: assignment of entry ids, the confirmed end, registries of producers and subscriptions,
recovery. Imports: ledgers, ledger_ids, cursor, subscription, producers, sent_chunks, state, errors,
names. Pure. Invariants: ids strictly increase and are never given twice; dispatch sees confirmed
(durable) entries only; a topic takes a ledger id in a term with its first entry there, and the
ledger appears with its first confirmed entry; replaying log records that a checkpoint covers
already changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict, Unpack

from magnetar.errors import (
    ConsumerBusy,
    CorruptData,
    InvalidSubscriptionName,
    NotAllowed,
    ServiceNotReady,
    SubscriptionNotFound,
)
from magnetar.names import RULES
from magnetar.topics.cursor import Cursor
from magnetar.topics.deduplication import Deduplication
from magnetar.topics.dispatch.base import DispatchLimits
from magnetar.topics.ledger_ids import LedgerIds, sidecar_ledger
from magnetar.topics.ledgers import (
    EARLIEST,
    TERMINATED,
    TRIMMED,
    LedgerTable,
    Position,
    position_of_text,
)
from magnetar.topics.producers import ProducerRegistry
from magnetar.topics.retention import Ages
from magnetar.topics.sent_chunks import SentChunk, SentChunks
from magnetar.topics.state import CursorDelta, TopicState
from magnetar.topics.subscription import Subscription, check_properties
from magnetar.topics.trimming import dropped

DEDUPLICATION = "deduplication"
"""Property of a topic while deduplication is on. Its place in the log says which entries were
tested."""
RESERVED_SUBSCRIPTION = "pulsar.dedup"
RESERVED_SUBSCRIPTION_PREFIX = "pulsar.repl"


def check_subscription_name(name: str) -> None:
    """Raises InvalidSubscriptionName for a name that no subscription may have."""
    if (
        not name.strip()
        or name == RESERVED_SUBSCRIPTION
        or name.startswith(RESERVED_SUBSCRIPTION_PREFIX)
    ):
        raise InvalidSubscriptionName(
            f"subscription name {name!r} is blank or reserved; choose another name"
        )
    if (violation := RULES["subscription"].violation(name)) is not None:
        raise InvalidSubscriptionName(violation)


@dataclass(slots=True)
class Counters:
    """Traffic since this broker opened the topic. The host adds to them, per batch."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


class SubscriptionOptions(TypedDict, total=False):
    """What a subscription may be made with. One that `reads_view` may begin before the first entry
    that exists, where a compacted view still has some."""

    durable: bool
    properties: Mapping[str, str] | None
    reads_view: bool


class Topic:
    """State of one topic in one term.

    Recovery makes it with `from_state` (or empty) and calls the `apply_` methods before it is
    served. `ledger` is its ledger id in this term, -1 before it has one.
    """

    def __init__(
        self,
        name: str,
        ledger_ids: LedgerIds,
        *,
        created_ms: int = 0,
        limits: DispatchLimits | None = None,
    ) -> None:
        """`ledger_ids` are those of its term."""
        self.name = name
        self.created_ms = created_ms
        self.properties: dict[str, str] = {}
        self.ledgers = LedgerTable()
        self.producers = ProducerRegistry(name)
        self.deduplication: Deduplication | None = None
        self.chunks = SentChunks()
        self.counters = Counters()
        self._limits = limits or DispatchLimits()
        self._subscriptions: dict[str, Subscription] = {}
        self._ledger_ids = ledger_ids
        self.ledger = -1
        self._next_entry = 0
        self._unconfirmed = 0
        self.ages = Ages()
        self._aged_bytes = 0
        self._messages = 0
        self._frozen = False

    # --- publishing -------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        return self._frozen

    def take_ledger(self) -> int:
        """Its ledger id in this term, taken now if it has none. Raises LedgerIdsExhausted."""
        if self.ledger < 0:
            self.ledger = self._ledger_ids.take()
        return self.ledger

    def take_sidecar_ledger(self) -> int:
        """The ledger id of its sidecar, as `take_ledger`."""
        return sidecar_ledger(self.take_ledger())

    @property
    def next_entry(self) -> int:
        """Entry id that the next entry gets."""
        return self._next_entry

    @property
    def unconfirmed(self) -> int:
        """Published entries that are not durable yet."""
        return self._unconfirmed

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry, or EARLIEST."""
        return self.ledgers.last_position

    @property
    def last_published(self) -> Position:
        """The last entry that has an id, durable or in flight; EARLIEST if there is none."""
        return (
            Position(self.ledger, self._next_entry - 1) if self._next_entry else self.last_confirmed
        )

    @property
    def terminated(self) -> Position | None:
        """The last entry there will ever be, once the topic is terminated."""
        text = self.properties.get(TERMINATED)
        return position_of_text(text) if text is not None else None

    def last_message_position(self) -> Position:
        """The last entry that can be delivered, for GET_LAST_MESSAGE_ID; EARLIEST if there is none."""
        return self.ledgers.last_position if self.ledgers.first < self.ledgers.end else EARLIEST

    def publish(self, count: int) -> Position:
        """Assign ids to `count` entries; returns the first. Raises ServiceNotReady while frozen
        (buffer until the transfer ends), LedgerIdsExhausted for the first entry of a term."""
        assert count > 0, count
        if self._frozen:
            raise ServiceNotReady(f"topic {self.name} is being unloaded; send again after a lookup")
        first = self._next_entry
        if not first:
            self.take_ledger()
        self._next_entry = first + count
        self._unconfirmed += count
        return Position(self.ledger, first)

    def confirm(self, first: tuple[int, int], count: int) -> int:
        """The entries from `first` on are durable; returns the ordinal of the first. Call it in
        the order of `publish`."""
        assert count <= self._unconfirmed, (first, count, self._unconfirmed)
        self._unconfirmed -= count
        return self.ledgers.append(first[0], first[1], count)

    def go_on_in(self, ledger_ids: LedgerIds) -> None:
        """Continue in a later term of the same owner, unfrozen; all entries are durable."""
        assert not self._unconfirmed, self._unconfirmed
        assert ledger_ids.floor > self.ledger, (ledger_ids.epoch, self.ledger)
        self._ledger_ids, self.ledger, self._next_entry = ledger_ids, -1, 0
        self._frozen = False

    def trim(self, ordinal: int, floor: int) -> None:
        """Drop the entries below `ordinal`; subscriptions that point there continue behind them,
        those that read the compacted view at `floor`. What was dropped before moves none of them: a
        cursor may have come to lie there since."""
        drops = ordinal > self.ledgers.first
        for found in self._subscriptions.values():
            found.trim(ordinal if drops and not found.reads_view else floor)
        self.ledgers.drop_before(ordinal, floor)
        self.ages.drop_before(self.ledgers.first)

    @property
    def has_grown(self) -> bool:
        """Whether there are entries that `age` has not seen, those before a recovery included."""
        return self.ledgers.end > max(self.ledgers.first, self.ages.end)

    def age(self, elapsed_ms: int) -> None:
        """Record the entries and bytes as of `elapsed_ms` (`clock.elapsed_ms`), for retention,
        time to live and quotas."""
        self._count_bytes()
        # A mark needs an entry, which a checkpoint names.
        if self.ledgers.end > self.ledgers.first:
            self.ages.observe(self.ledgers.end, elapsed_ms)

    @property
    def messages(self) -> int:
        """Messages of all durable entries ever, trimmed ones included."""
        return self._messages + self.counters.messages_in

    def apply_messages(self, messages: int) -> None:
        """Replay: entries with so many messages have become durable."""
        self._messages += messages

    def _count_bytes(self) -> None:
        self.ages.total += self.counters.bytes_in - self._aged_bytes
        self._aged_bytes = self.counters.bytes_in

    def freeze(self) -> None:
        """Refuse publishing: a planned transfer has begun."""
        self._frozen = True

    def thaw(self) -> None:
        """Publish again: the transfer was cancelled before RELEASE was written."""
        self._frozen = False

    # --- subscriptions ----------------------------------------------------------------------------

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """By name; read only."""
        return MappingProxyType(self._subscriptions)

    def subscription(self, name: str) -> Subscription:
        """Raises SubscriptionNotFound."""
        found = self._subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(
                f"subscription {name!r} does not exist on topic {self.name}; create it first"
            )
        return found

    def subscribe(
        self, name: str, start: tuple[int, int], **options: Unpack[SubscriptionOptions]
    ) -> Subscription:
        """The subscription `name`; a new one delivers from `start` (a Position, EARLIEST or LATEST).

        Raises InvalidSubscriptionName; NotAllowed for too large properties, or if the name has a
        subscription of the other durability.
        """
        durable, properties = options.get("durable", True), options.get("properties")
        found = self._subscriptions.get(name)
        if found is not None:
            if found.durable != durable:
                raise NotAllowed(
                    f"subscription {name!r} is {'' if found.durable else 'not '}durable; "
                    "a durable consumer and a reader cannot share it: choose another name"
                )
            if properties and not found.properties:
                found.replace_properties(properties)
            return found
        check_subscription_name(name)
        check_properties(name, properties or {})
        clamp = self.ledgers.clamp_known if options.get("reads_view") else self.ledgers.clamp
        found = self._create(name, clamp(start), durable, properties)
        found.reads_view = options.get("reads_view", False)
        return found

    def limit(self, limits: DispatchLimits) -> None:
        """Other limits for its subscriptions."""
        self._limits = limits
        for subscription in self._subscriptions.values():
            subscription.limit(limits)

    def remove_subscription(self, name: str) -> Subscription:
        """Unsubscribe. Raises SubscriptionNotFound, and ConsumerBusy while consumers are
        connected (disconnect them first)."""
        found = self.subscription(name)
        if found.connected:
            raise ConsumerBusy(
                f"subscription {name!r} has {len(found.consumers)} connected consumers; disconnect "
                "them first"
            )
        return self._subscriptions.pop(name)

    def _create(
        self, name: str, start: int, durable: bool, properties: Mapping[str, str] | None
    ) -> Subscription:
        cursor = Cursor(
            self.ledgers, start, acknowledged_ranges_max=self._limits.acknowledged_ranges_max
        )
        created = Subscription(
            name, durable, cursor, topic=self.name, limits=self._limits, properties=properties
        )
        self._subscriptions[name] = created
        return created

    # --- checkpoint and recovery ------------------------------------------------------------------

    def to_state(self) -> TopicState:
        """For a checkpoint: confirmed entries and durable cursors, untaken deltas included."""
        self._count_bytes()
        first, end = self.ledgers.first, self.ledgers.end
        return TopicState(
            created_ms=self.created_ms,
            ledgers=tuple(self.ledgers.ledgers()),
            cursors={
                name: found.to_state()
                for name, found in self._subscriptions.items()
                if found.durable
            },
            properties=dict(self.properties),
            sequences=self.deduplication.to_state() if self.deduplication is not None else (),
            sizes=(self.ages.bytes_before(first, end), self.ages.total, self.messages),
            marks=tuple(
                (*self.ledgers.position(mark.end - 1), mark.elapsed_ms, mark.total)
                for mark in self.ages.marks
            ),
            chunks=self.chunks.to_state(),
        )

    @staticmethod
    def from_state(
        name: str, ledger_ids: LedgerIds, state: TopicState, *, limits: DispatchLimits | None = None
    ) -> Topic:
        """The topic of a checkpoint, for the term of `ledger_ids`, before replay of the log since."""
        topic = Topic(name, ledger_ids, created_ms=state.created_ms, limits=limits)
        topic.properties = dict(state.properties)
        topic.deduplicate(DEDUPLICATION in state.properties)
        for producer, sequence in state.sequences:
            topic.apply_sequences(producer, (sequence,))
        for ledger, count in state.ledgers:
            topic.apply_entries(ledger, 0, count)
        topic._apply_trimmed()
        dropped, total, topic._messages = state.sizes
        marks = (
            (topic.ledgers.ordinal_after((ledger, entry)), ms, size)
            for ledger, entry, ms, size in state.marks
        )
        topic.ages = Ages((topic.ledgers.first, dropped), marks, total)
        for producer, sequence, number, checksum, ledger, entry in state.chunks:
            topic.chunks.apply(
                SentChunk(producer, sequence, number, checksum), Position(ledger, entry)
            )
        for subscription, cursor in state.cursors.items():
            topic.apply_cursor(subscription, cursor.as_delta())
        return topic

    def begin_term(self, ledger_ids: LedgerIds) -> None:
        """Serve in this term, which is above those of all entries and was unknown while reading
        ahead."""
        assert ledger_ids.floor >= self._ledger_ids.floor, (
            ledger_ids.epoch,
            self._ledger_ids.epoch,
        )
        assert self.ledger < 0, self.ledger
        self._ledger_ids = ledger_ids

    def apply_topic(self, created_ms: int, properties: Mapping[str, str]) -> None:
        """Replay the topic's creation."""
        self.created_ms = created_ms
        self.properties = dict(properties)
        self.deduplicate(DEDUPLICATION in properties)

    def _apply_trimmed(self) -> None:
        if (found := dropped(self)) is not None:
            self.trim(*found)

    def apply_update(self, changes: Mapping[str, str]) -> None:
        """Set these properties, and remove those whose value is empty: live once the record is
        durable, and in replay.

        A change of DEDUPLICATION forgets all sequence ids.
        """
        for name, value in changes.items():
            self.change_property(name, value)
        if DEDUPLICATION in changes:
            self.deduplicate(bool(changes[DEDUPLICATION]))
        if TRIMMED in changes:
            self._apply_trimmed()

    def change_property(self, name: str, value: str) -> None:
        """Set one property, or remove it if the value is empty, and nothing else."""
        if value:
            self.properties[name] = value
        else:
            self.properties.pop(name, None)

    def deduplicate(self, enabled: bool) -> None:
        """Begin deduplication with nothing known, or end it."""
        self.deduplication = Deduplication() if enabled else None

    def apply_sequences(self, producer: str, sequences: Iterable[int]) -> None:
        """Replay the sequence ids of a run of entries, if deduplication was on when they were
        written."""
        if self.deduplication is not None:
            self.deduplication.apply(producer, sequences)

    def apply_entries(self, ledger: int, first: int, count: int) -> int:
        """Replay a run of entries; returns how many were new. Raises CorruptData if records
        before it are missing."""
        if ledger >= self._ledger_ids.floor:
            raise CorruptData(
                f"topic {self.name}: the log holds ledger {ledger}, not older than this term, "
                f"{self._ledger_ids.epoch}"
            )
        return self.ledgers.extend(ledger, first, count)

    def apply_cursor(self, name: str, delta: CursorDelta) -> None:
        """Replay a cursor record. Of an unknown subscription, one that does not create it is
        ignored: the subscription was removed since."""
        found = self._subscriptions.get(name)
        if found is None:
            if not delta.reset:
                return
            found = self._create(name, self.ledgers.first, True, None)
        found.apply_delta(delta)

    def apply_subscription_removed(self, name: str) -> None:
        """Replay the removal of a subscription."""
        self._subscriptions.pop(name, None)

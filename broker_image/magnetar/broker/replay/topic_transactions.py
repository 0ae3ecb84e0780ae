"""Transactions of one topic.

Owns: `TopicTransactions`: the buffer, where its open entries lie, and pending acknowledgements by
subscription; how records of the log change them and the partition with them, live and in replay.
Imports: transactions, topics, storage formats, sidecar. Invariants: created when the topic is first
used with transactions; entries that a commit adds to the partition are found through the topic's
own index, which leads to their bytes in the sidecar; replaying what a checkpoint holds already
changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.broker.reading.entry_index import UNKNOWN, EntryIndex, Run
from magnetar.broker.replay.sidecar import SidecarRuns
from magnetar.hosting.settings import BrokerSettings
from magnetar.storage.log.format import EntriesRecord
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.transactions.topic_format import TransactionRecord
from magnetar.topics.ledgers import TRIMMED, position_of_text
from magnetar.topics.topic import Topic
from magnetar.transactions.participant_records import (
    Abort,
    Append,
    Commit,
    ParticipantState,
    PendingChange,
    Span,
    Unbegun,
)
from magnetar.transactions.topic.buffer import TransactionBuffer
from magnetar.transactions.topic.limits import BufferLimits
from magnetar.transactions.topic.pending_acks import PendingAcks, PendingLimits, held_max_of

MARKER_BYTES_PER_ENTRY = 32


class ParticipantLimits(NamedTuple):
    """What the settings allow of one topic, and of one subscription."""

    buffer: BufferLimits
    pending: PendingLimits


def limits_of(settings: BrokerSettings) -> ParticipantLimits:
    """The limits that the settings give. A marker may have to name every entry, in one record."""
    entries_max = min(
        settings.txn_entries_max, settings.block_bytes_max // MARKER_BYTES_PER_ENTRY - 1
    )
    held_max = min(settings.txn_held_acks_max, held_max_of(settings.block_bytes_max))
    inquire_ms = int(settings.txn_inquire_s * 1000)
    return ParticipantLimits(
        BufferLimits(
            open_transactions_max=settings.txn_open_per_topic_max,
            open_entries_max=settings.txn_open_entries_per_topic_max,
            entries_per_transaction_max=entries_max,
            transaction_bytes_max=settings.txn_bytes_max,
            inquire_ms=inquire_ms,
        ),
        PendingLimits(
            open_transactions_max=settings.txn_open_per_topic_max,
            held_max=held_max,
            inquire_ms=inquire_ms,
        ),
    )


class TopicTransactions:
    """Everything that a topic knows of transactions."""

    def __init__(self, core: Topic, *, state: ParticipantState | None = None) -> None:
        """As recovery finds it in a checkpoint (`state`), or new."""
        self._core = core
        name, take_ledger = core.name, core.take_sidecar_ledger
        if state is not None and state.buffer is not None:
            self.buffer = TransactionBuffer.from_state(name, take_ledger, state.buffer)
        else:
            self.buffer = TransactionBuffer(name, take_ledger)
        self.sidecar = SidecarRuns()
        self.wanted_below = 0
        """A compaction waits until what was committed with smaller ordinals is in segments."""
        self.pending: dict[str, PendingAcks] = {}
        for name, found in (state.pending if state is not None else {}).items():
            if name in core.subscriptions:
                self.pending[name] = PendingAcks.from_state(
                    core.subscriptions[name], core.ledgers, found
                )
        self._limits = ParticipantLimits(BufferLimits(), PendingLimits())
        self.trimmed()

    def limit(self, limits: ParticipantLimits) -> None:
        """Hold these limits from now on."""
        self._limits = limits
        self.buffer.limits = limits.buffer
        for found in self.pending.values():
            found.limits = limits.pending

    def to_state(self) -> ParticipantState:
        """For a checkpoint."""
        return ParticipantState(
            self.buffer.to_state(), {name: found.to_state() for name, found in self.pending.items()}
        )

    @property
    def has_open(self) -> bool:
        """Whether any transaction that has published or acknowledged here has not ended."""
        return self.buffer.has_open or any(
            found.open_transactions() for found in self.pending.values()
        )

    def begin_term(self) -> None:
        """Continue in the term that the topic has begun; nothing is under way."""
        self.buffer.begin_term()

    def trimmed(self) -> None:
        """The partition may begin later than before."""
        text = self._core.properties.get(TRIMMED)
        if text is not None:
            last = position_of_text(text)
            self.buffer.trim((last.ledger, last.entry + 1))

    def pending_of(self, subscription: str) -> PendingAcks:
        """The pending acknowledgements of a durable subscription that exists, made with the
        first of them."""
        found = self.pending.get(subscription)
        if found is None:
            core = self._core.subscription(subscription)
            found = self.pending[subscription] = PendingAcks(
                core, self._core.ledgers, limits=self._limits.pending
            )
        return found

    # --- the partition ----------------------------------------------------------------------------

    def link(
        self,
        index: EntryIndex,
        ordinal: int,
        spans: tuple[tuple[int, int, int], ...],
        messages: int,
    ) -> None:
        """The entries of a transaction that has committed are the partition's from `ordinal` on,
        behind `messages` (UNKNOWN) others."""
        for span in spans:
            for run in self.sidecar.take(span):
                run.first, run.messages_before = ordinal, messages
                index.add(run)
                ordinal = run.end
                counted = messages != UNKNOWN and run.append_ms != UNKNOWN
                messages = messages + sum(run.message_counts) if counted else UNKNOWN

    def forget(self, spans: tuple[Span, ...]) -> list[Run]:
        """Drop the entries of a transaction that was aborted, or had not begun; their runs, as far
        as they are known."""
        return [run for span in spans for run in self.sidecar.drop(span[:3])]

    # --- replay -----------------------------------------------------------------------------------

    def apply_entries(self, incarnation: str, place: RecordPlace, record: EntriesRecord) -> None:
        """A run of sidecar entries; the record behind it says whose."""
        offset = place.offset + record.entries_offset
        lengths, counts = record.lengths, record.message_counts
        run = Run(0, incarnation, place.file, offset, lengths, counts, record.append_ms)
        self.sidecar.add((record.ledger, record.first_entry), run)

    def apply(self, index: EntryIndex, record: TransactionRecord, elapsed_ms: int) -> None:
        """A change, which was written at this time. Raises CorruptData if records before it are
        missing."""
        change = record.change
        if isinstance(change, Append):
            self.buffer.apply(change)
        elif isinstance(change, Abort):
            spans = self.buffer.durable_spans(change.txn)
            self.buffer.apply(change)
            self.forget(spans)
        elif isinstance(change, Commit):
            self._apply_commit(index, change, elapsed_ms)
        elif isinstance(change, Unbegun):
            spans = self.buffer.durable_spans(change.txn)
            self.buffer.apply(change)
            # else they are of one that has begun since
            if not self.buffer.durable_spans(change.txn):
                self.forget(spans)
        else:
            self._apply_pending(record.subscription, change)

    def _apply_pending(self, subscription: str, change: PendingChange) -> None:
        # else it is older than the subscription's removal
        if subscription in self._core.subscriptions:
            self.pending_of(subscription).apply(change)

    def _apply_commit(self, index: EntryIndex, change: Commit, elapsed_ms: int) -> None:
        size, messages = self.buffer.durable_size(change.txn)
        self.buffer.apply(change)
        if not change.count:
            return
        core, before = self._core, UNKNOWN
        if core.apply_entries(*change.marker, change.count):
            before = core.messages
            core.apply_messages(messages)
            core.ages.total += size
            core.age(elapsed_ms)
        last = core.ledgers.find((change.marker[0], change.marker[1] + change.count - 1))
        if last is not None:  # else all of it has been dropped
            self.link(index, last + 1 - change.count, change.spans, before)
        else:
            for span in change.spans:
                self.sidecar.drop(span)

"""What sealed files say of a bundle's topics and their transactions.

Owns: `BundleStates`: which entries of each topic exist, what became of each entry of its
transaction sidecar, and which of that cannot be known yet. Imports: metadata records, storage
formats, topics.ledgers, transactions' buffer, planning, sealed_logs. Source of truth: the bundle's
checkpoint and the records behind it, as its next owner would replay them. Invariants: nothing is
inferred from what is absent in files that were not read; an entry whose transaction's end is not in
these records waits; so does one whose record of belonging may follow in a file that is not sealed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName, topic_of_sidecar
from magnetar.storage.checkpoint import TopicValues, read_checkpoint
from magnetar.storage.log.format import EntriesRecord, Record, TopicOperation, TopicRecord
from magnetar.storage.transactions.topic_format import TransactionRecord
from magnetar.storage.volumes.volume import Volume
from magnetar.topics.ledger_ids import epoch_of
from magnetar.topics.ledgers import TRIMMED, LedgerTable, position_of_text
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NOWHERE,
    Abort,
    Append,
    BufferChange,
    Commit,
    Place,
    Unbegun,
)
from magnetar.transactions.topic.buffer import TransactionBuffer
from magnetar_jobs.planning import unless_collected
from magnetar_jobs.sealed_logs import SealedChain


class Fate(enum.Enum):
    """What became of an entry of a sidecar."""

    COMMITTED = enum.auto()
    """It is an entry of the topic."""
    WAITS = enum.auto()
    """Its transaction has not ended, as far as sealed files say."""
    VOID = enum.auto()
    """It was aborted, belongs to no transaction, or was trimmed."""


class Found(NamedTuple):
    """The fate of a sidecar's entry; `target`, of a committed one, is its place in the topic."""

    fate: Fate
    target: Place = NOWHERE


class OldestOpen(NamedTuple):
    """The transaction that has been open on a topic for longest."""

    topic: str
    txn: TxnId


class TopicState:
    """One topic; `buffer` is None while it was never used with transactions, and `last` is the last
    entry of its sidecar that is known to be of one."""

    __slots__ = ("buffer", "last", "ledgers", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledgers = LedgerTable()
        self.buffer: TransactionBuffer | None = None
        self.last: Place = NOWHERE

    @staticmethod
    def of(name: str, values: TopicValues) -> TopicState:
        """As a checkpoint has it. Raises CorruptData."""
        state = TopicState(name)
        for ledger, count in values.ledgers:
            if count:
                state.ledgers.extend(ledger, 0, count)
        used = values.transactions
        if used is not None and used.buffer is not None:
            state.buffer = TransactionBuffer.from_state(name, _no_ledger, used.buffer)
            state.last = used.buffer.last
        state.update(values.properties)
        return state

    def update(self, properties: Mapping[str, str]) -> None:
        """Properties that the topic has from now on."""
        text = properties.get(TRIMMED)
        if text:
            last = position_of_text(text)
            self.ledgers.drop_before(self.ledgers.ordinal_after(last))
            if self.buffer is not None:
                self.buffer.trim((last.ledger, last.entry + 1))

    def change(self, change: BufferChange) -> None:
        """What a transaction did. Raises CorruptData if records before it are missing."""
        if self.buffer is None:
            self.buffer = TransactionBuffer(self.name, _no_ledger)
        self.buffer.apply(change)
        if isinstance(change, Append):
            ledger, first = change.first
            self.last = max(self.last, (ledger, first + change.count - 1))
        if isinstance(change, Commit) and change.count:
            self.ledgers.extend(*change.marker, change.count)


def _no_ledger() -> int:
    raise AssertionError("a job gives no ids")


@dataclass(slots=True)
class BundleStates:
    """The topics of a bundle at the end of the sealed part of its chain."""

    bundle: BundleName
    chain: SealedChain = field(default_factory=SealedChain)
    topics: dict[str, TopicState] = field(default_factory=dict)
    _belongs: dict[str, bool] = field(default_factory=dict)

    def contains(self, topic: str) -> bool:
        """Whether a topic, or the topic of a sidecar, falls into the bundle."""
        known = self._belongs.get(topic)
        if known is None:
            known = self._belongs[topic] = self.bundle.contains(TopicName.parse(topic))
        return known

    def load(self, name: str, values: TopicValues) -> None:
        """A topic of the checkpoint."""
        self.topics[name] = TopicState.of(name, values)

    def apply(self, record: Record) -> None:
        """A record of the log. Raises CorruptData if records before it are missing."""
        if isinstance(record, TopicRecord):
            if self.contains(record.topic):
                self._apply_topic(record)
        elif isinstance(record, EntriesRecord):
            if topic_of_sidecar(record.topic) is None and record.topic in self.topics:
                ledgers = self.topics[record.topic].ledgers
                ledgers.extend(record.ledger, record.first_entry, record.count)
        elif isinstance(record, TransactionRecord):
            state, change = self.topics.get(record.topic), record.change
            # else of a topic that has been deleted since, and not created again yet
            if state is not None and isinstance(change, Append | Commit | Abort | Unbegun):
                state.change(change)

    def _apply_topic(self, record: TopicRecord) -> None:
        if record.operation is TopicOperation.DELETE:
            self.topics.pop(record.topic, None)
            return
        if record.operation is not TopicOperation.UPDATE:
            self.topics.setdefault(record.topic, TopicState(record.topic))
        if (state := self.topics.get(record.topic)) is not None:
            state.update(record.properties)

    def fate(self, topic: str, position: Place) -> Found:
        """What became of the entry of the topic's sidecar at this position, which is in a file that
        the chain's sealed part holds."""
        state = self.topics.get(topic)
        if state is None:
            return Found(Fate.VOID)
        if (buffer := state.buffer) is not None:
            target = buffer.committed_to(position)
            if target is not None:
                return Found(Fate.COMMITTED, target)
            if buffer.waits(position):
                return Found(Fate.WAITS)
        # The record that says whose it is follows its bytes, perhaps in the next file.
        unsaid = position > state.last and epoch_of(position[0]) >= self.chain.rest
        return Found(Fate.WAITS if unsaid else Fate.VOID)

    def oldest_open(self) -> OldestOpen | None:
        """Of all topics, the transaction that began first among those that have not ended."""
        found: list[tuple[int, OldestOpen]] = []
        for name, state in self.topics.items():
            if state.buffer is not None:
                first = next(state.buffer.open_transactions(), None)
                if first is not None:
                    found.append((first.since_ms, OldestOpen(name, first.txn)))
        return min(found, default=(0, None))[1]


async def states_of(store: MetadataStore, volume: Volume, bundle: BundleName) -> BundleStates:
    """The topics of a bundle as sealed files have them. Raises StoreError, StorageError,
    CorruptData."""
    return await unless_collected(
        partial(_states_once, store, volume, bundle),
        f"is missing; bundle {bundle} needs it: restore it from a backup",
    )


async def _states_once(store: MetadataStore, volume: Volume, bundle: BundleName) -> BundleStates:
    states = BundleStates(bundle)
    item = await store.get(keys.bundle(bundle))
    if item is None:
        return states
    record = BundleRecord.decode(item.value)
    if record.checkpoint is not None:
        checkpoint = await read_checkpoint(volume, record.checkpoint.object)
        for name in checkpoint.topics:
            if states.contains(name):  # else of a sibling
                states.load(name, checkpoint.topics[name])
    states.chain = await SealedChain.of(volume, record)
    async for found in states.chain.records(volume, bundle):
        states.apply(found)
    return states

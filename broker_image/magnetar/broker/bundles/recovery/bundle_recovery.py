"""Rebuilding a bundle from storage.

Owns: what happens between our Assigning record and serving: fence the previous owner, load
checkpoint and manifest, replay the chain. Imports: storage, topics, metadata records. Invariants:
nothing is read from a log before it is sealed or released; only records of the bundle's own epochs
count, and none after that epoch's RELEASE in the same log; replaying what a checkpoint holds
already changes nothing; an entry's age is the time that its owners measured, by their records: time
between two owners does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from magnetar.broker.bundles.bundle import RecoveredBundle, RecoveredTopic
from magnetar.broker.bundles.recovery.log_scans import LogScans, Take
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.broker.reading.entry_index import UNKNOWN, EntryIndex, Run
from magnetar.broker.reading.log_keys import sealed_files
from magnetar.broker.replay.topic_transactions import TopicTransactions
from magnetar.broker.topics.traits import sent_chunk
from magnetar.clock import elapsed_ms
from magnetar.errors import CorruptData
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, CheckpointPointer, LogPosition, LogRange
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName, topic_of_sidecar
from magnetar.storage.checkpoint import TopicValues, read_checkpoint
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import SealedFile, log_end
from magnetar.storage.log.format import (
    CursorOperation,
    CursorRecord,
    EntriesRecord,
    HeartbeatRecord,
    ReleaseRecord,
    TermRecord,
    TopicOperation,
    TopicRecord,
)
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.recovery import ScannedRecord
from magnetar.storage.log.watermark_format import WatermarkRecord
from magnetar.storage.names import log_file
from magnetar.storage.transactions.topic_format import TransactionRecord
from magnetar.storage.turns import Turns
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.topics.ledgers import TRIMMED, Position
from magnetar.topics.sent_chunks import SentChunk
from magnetar.topics.state import CursorDelta, CursorState, TopicState
from magnetar.topics.topic import Topic
from magnetar.transactions.participant_records import Append
from magnetar.watermarks.replay import TopicWatermarks

log = structlog.get_logger(__name__)

TAKEN_PER_TURN_MAX = 200
"""Topics and subscriptions of a checkpoint per turn of the loop: about 5 ms."""


async def recover_bundle(
    context: BrokerContext,
    bundle: BundleName,
    record: BundleRecord,
    ledger_ids: LedgerIds,
    scans: LogScans,
    preloaded: Preloaded | None = None,
) -> RecoveredBundle:
    """The bundle's topics as of the end of its chain, for the term of `ledger_ids`. Raises
    StorageError; CorruptData says what is damaged or missing.

    Of a planned transfer only what `preloaded` has not seen is read. A file may also be missing
    because the record is old and others have continued since.
    """
    try:
        if preloaded is not None:
            return await _finish(context, record, ledger_ids, scans, preloaded)
        return await _recover(context, bundle, record, ledger_ids, scans)
    except FileNotFoundError as error:
        missing = str(error.filename or error)
        raise CorruptData(
            f"{missing} is missing; bundle {bundle} needs it: restore it from a backup",
            file=missing,
        ) from error


async def _recover(
    context: BrokerContext,
    bundle: BundleName,
    record: BundleRecord,
    ledger_ids: LedgerIds,
    scans: LogScans,
) -> RecoveredBundle:
    sealed_end: LogPosition | None = None
    chain = record.chain
    if chain and chain[-1].end is None:
        assert chain[-1].incarnation != context.incarnation, "we cannot take over from ourselves"
        sealed, noted = await scans.fence(chain[-1].incarnation)
        try:
            _check_whole(chain[-1], sealed, noted)
        except CorruptData:
            scans.look_again(chain[-1].incarnation)  # it may be restored
            raise
        # An owner that died before its first file was durable has written nothing of this term.
        sealed_end = log_end(sealed, chain[-1].start)
        chain = (*chain[:-1], replace(chain[-1], end=sealed_end))
    replay = BundleReplay(bundle, ledger_ids)
    await replay.load(context, record.checkpoint)
    for term, span in zip(record.epochs, chain, strict=True):
        await replay.replay(scans, term, span)
    replay.end(context)
    catalog = await BundleCatalog.open(context, bundle)
    return RecoveredBundle(
        replay.topics, catalog, sealed_end, fenced=sealed_end is not None, records=replay.records
    )


async def noted_lengths(
    store: MetadataStore, views: ClusterViews, incarnation: str
) -> dict[int, int]:
    """What files of an incarnation held durably, by number: sealed ones as the store has them,
    others where terms of bundles began.

    Raises StoreError.
    """
    files = await sealed_files(store, keys.logs_of(incarnation))
    known = {number: record.length for (_, number), record in files.items()}
    for viewed in views.bundles.items.values():
        for span in viewed.record.chain:
            if span.incarnation == incarnation:
                known[span.start.file] = max(span.start.offset, known.get(span.start.file, 0))
    return known


def _check_whole(span: LogRange, sealed: Sequence[SealedFile], noted: Mapping[int, int]) -> None:
    """A reader does not notice a missing end of a log: check that all that is known of it exists.
    Raises CorruptData.

    Known are files that were noted as sealed, one that its predecessor's seal announces, and what
    was durable when a term began. Where a loss was accepted the log ends. The garbage collector
    deletes none of them while a record's chain is open in this log.
    """
    cut = next(
        (file.number for file in sealed if file.accepted and file.number >= span.start.file), None
    )
    least = {
        number: length
        for number, length in noted.items()
        if number >= span.start.file and (cut is None or number < cut)
    }
    if span.start.offset > FILE_HEADER_BYTES and cut != span.start.file:
        least[span.start.file] = max(span.start.offset, least.get(span.start.file, 0))
    found = {file.number: file.length for file in sealed}
    for number, length in sorted(least.items()):
        if found.get(number, -1) < length:
            name = log_file(span.incarnation, number)
            what = f"has {found[number]} bytes of {length}" if number in found else "is missing"
            raise CorruptData(
                f"{name} {what}; the chain ends in it or behind it: restore it from a backup",
                file=name,
            )


@dataclass(frozen=True, slots=True)
class Preloaded:
    """What a destination has read while the source still served: everything of `record`'s chain
    before `reached` in its last range.

    `over`: its term's RELEASE was read as well.
    """

    record: BundleRecord
    replay: BundleReplay
    catalog: BundleCatalog
    reached: LogPosition
    over: bool

    def fits(self, assigned: BundleRecord) -> bool:
        """Whether the term that was read ahead is the one that a planned release has ended, and
        what is missing follows without a gap."""
        if (
            not assigned.chain
            or not self.record.chain
            or assigned.epochs[-1:] != self.record.epochs[-1:]
        ):
            return False
        ended, read = assigned.chain[-1], self.record.chain[-1]
        follows = self.reached >= ended.start
        return ended.end is not None and ended.incarnation == read.incarnation and follows


async def _finish(
    context: BrokerContext,
    record: BundleRecord,
    ledger_ids: LedgerIds,
    scans: LogScans,
    preloaded: Preloaded,
) -> RecoveredBundle:
    """Read what the source wrote after `preloaded`, up to its RELEASE."""
    replay, last = preloaded.replay, record.chain[-1]
    replay.begin(ledger_ids)
    if not preloaded.over:
        await replay.replay(scans, record.epochs[-1], replace(last, start=preloaded.reached))
    replay.end(context)
    return RecoveredBundle(
        replay.topics, preloaded.catalog, None, fenced=False, records=replay.records
    )


def _topic_state(values: TopicValues) -> TopicState:
    """A topic of a checkpoint in the terms of the topic cores."""
    cursors = {
        name: CursorState(cursor.mark_delete, cursor.ranges, cursor.partial, cursor.properties)
        for name, cursor in values.cursors.items()
    }
    return TopicState(
        values.created_ms,
        values.ledgers,
        cursors,
        values.properties,
        values.sequences,
        values.sizes,
        values.marks,
        values.chunks,
    )


class BundleReplay:
    """Applies the records of one bundle, term by term, to be served in the term of `ledger_ids`
    or a later one."""

    def __init__(self, bundle: BundleName, ledger_ids: LedgerIds) -> None:
        self._bundle, self._ledger_ids = bundle, ledger_ids
        self._belongs: dict[str, bool] = {}
        self._timekeeper, self._elapsed_ms = "", 0
        self._chunks_ahead: dict[str, tuple[SentChunk, Position]] = {}
        self.topics: dict[str, RecoveredTopic] = {}
        self.records = 0

    async def load(self, context: BrokerContext, pointer: CheckpointPointer | None) -> None:
        """Begin with a checkpoint. Raises CorruptData, StorageError, FileNotFoundError."""
        if pointer is None:
            return
        checkpoint = await read_checkpoint(context.volume, pointer.object)
        if checkpoint.epoch >= self._ledger_ids.epoch:
            raise CorruptData(
                f"checkpoint {pointer.object} is of epoch {checkpoint.epoch}, ours is "
                f"{self._ledger_ids.epoch}: raise the restore number"
            )
        turns = Turns(TAKEN_PER_TURN_MAX)  # this loop serves the other bundles' clients
        for name in checkpoint.topics:
            taken = 1
            # else of a sibling: it was written before the bundle was split off
            if self.contains(name):
                state = checkpoint.topics[name]
                core = Topic.from_state(name, self._ledger_ids, _topic_state(state))
                used = state.transactions
                transactions = TopicTransactions(core, state=used) if used is not None else None
                controls = state.watermarks
                marks = TopicWatermarks(controls) if controls is not None else None
                self.topics[name] = RecoveredTopic(core, EntryIndex(), transactions, marks)
                self._pass_time(
                    checkpoint.incarnation, core.ages.marks[-1].elapsed_ms if core.ages.marks else 0
                )
                taken += len(state.cursors)
            await turns.after(taken)

    def begin(self, ledger_ids: LedgerIds) -> None:
        """These topics are served in the term of `ledger_ids`."""
        self._ledger_ids = ledger_ids
        for found in self.topics.values():
            found.core.begin_term(ledger_ids)

    def end(self, context: BrokerContext) -> None:
        """All of the chain has been applied: from now on `context`'s process keeps the time."""
        self._pass_time(context.incarnation, elapsed_ms(context.clock))

    def _pass_time(self, incarnation: str, reached_ms: int) -> None:
        """Time has passed up to `reached_ms` of this incarnation's clock, to which all marks of
        age are moved if another one's was the last."""
        if incarnation == self._timekeeper:
            self._elapsed_ms = max(self._elapsed_ms, reached_ms)
            return
        if self._timekeeper:
            for found in self.topics.values():
                found.core.ages.shift(reached_ms - self._elapsed_ms)
        self._timekeeper, self._elapsed_ms = incarnation, reached_ms

    async def replay(self, scans: LogScans, term: int, span: LogRange) -> None:
        """Apply every valid record of epoch `term` in `span`."""
        assert span.end is not None
        if span.end > span.start:
            await scans.read(
                span.incarnation, span.start, span.end, term, self.applier(span.incarnation)
            )

    def applier(self, incarnation: str) -> Take:
        """Applies records of one term in one log; True after its RELEASE: later records of that
        term there are void."""
        belongs = self._belongs

        def take(scanned: ScannedRecord) -> bool:
            place, record, reached_ms = scanned
            self._pass_time(incarnation, reached_ms)
            if isinstance(record, TransactionRecord):
                if belongs.get(record.topic) or self.contains(record.topic):
                    self.records += 1
                    self._apply_transaction(record)
                return False
            if isinstance(record, TermRecord | HeartbeatRecord):
                return False
            if isinstance(record, ReleaseRecord):
                # ours, or of the bundle that we were split from then
                return BundleName.parse(record.bundle).includes(self._bundle)
            if belongs.get(record.topic) or self.contains(record.topic):
                self.records += 1
                self._apply(incarnation, place, record)
            return False

        return take

    def contains(self, topic: str) -> bool:
        """Whether a topic falls into this bundle."""
        known = self._belongs.get(topic)
        if known is None:
            known = self._belongs[topic] = self._bundle.contains(TopicName.parse(topic))
        return known

    def _apply_transaction(self, record: TransactionRecord) -> None:
        found = self.topics.get(record.topic)
        # else of a topic that has been deleted since, and not created again yet
        if found is not None:
            (found.transactions or found.used()).apply(found.index, record, self._elapsed_ms)
            chunk, place = self._chunks_ahead.pop(record.topic, (None, None))
            if (
                chunk is not None
                and place is not None
                and isinstance(record.change, Append)
                and record.change.first == place
            ):
                # without this record the entry would be of no transaction
                found.core.chunks.apply(chunk, place)

    def _apply(
        self,
        incarnation: str,
        place: RecordPlace,
        record: EntriesRecord | CursorRecord | TopicRecord | WatermarkRecord,
    ) -> None:
        if isinstance(record, TopicRecord):
            self._apply_topic(record)
            return
        if isinstance(record, WatermarkRecord):
            self._apply_watermark(record)
            return
        sidecar_of = topic_of_sidecar(record.topic)
        found = self.topics.get(sidecar_of or record.topic)
        if found is None:
            return  # a record of a topic that has been deleted since, and not created again yet
        if isinstance(record, CursorRecord):
            _apply_cursor(found, record)
            return
        if record.count == 1 and (chunk := sent_chunk(record.data, record.producer)):
            position = Position(record.ledger, record.first_entry)
            if sidecar_of is None:
                found.core.chunks.apply(chunk, position)
            else:
                self._chunks_ahead[sidecar_of] = chunk, position
        if sidecar_of is not None:
            found.used().apply_entries(incarnation, place, record)
        else:
            self._apply_entries(found, incarnation, place, record)

    def _apply_entries(
        self, found: RecoveredTopic, incarnation: str, place: RecordPlace, record: EntriesRecord
    ) -> None:
        core, counts = found.core, record.message_counts
        new, before = core.apply_entries(record.ledger, record.first_entry, record.count), UNKNOWN
        if new:
            before = core.messages - sum(counts[:-new])
            core.apply_messages(sum(counts[-new:]))
            core.ages.total += sum(record.lengths[-new:])
            core.age(self._elapsed_ms)
        core.apply_sequences(record.producer, record.sequences)
        last = core.ledgers.find((record.ledger, record.first_entry + record.count - 1))
        # else all of it has been dropped; a run of which only a part is left is kept whole
        if last is not None:
            first, offset = last + 1 - record.count, place.offset + record.entries_offset
            lengths, append_ms = record.lengths, record.append_ms
            found.index.add(
                Run(first, incarnation, place.file, offset, lengths, counts, append_ms, before)
            )

    def _apply_watermark(self, record: WatermarkRecord) -> None:
        found = self.topics.get(record.topic)
        # else of a topic that has been deleted since, and not created again yet
        if found is not None:
            if found.watermarks is None:
                found.watermarks = TopicWatermarks()
            found.watermarks.apply(record.control)

    def _apply_topic(self, record: TopicRecord) -> None:
        if record.operation is TopicOperation.DELETE:
            self.topics.pop(record.topic, None)
            return
        if record.operation is TopicOperation.UPDATE:
            updated = self.topics.get(record.topic)
            if updated is not None:  # else of a topic that has been deleted since
                updated.core.apply_update(record.properties)
                if updated.transactions is not None:
                    updated.transactions.trimmed()
                if updated.watermarks is not None and TRIMMED in record.properties:
                    ledgers = updated.core.ledgers
                    updated.watermarks.timeline.trim_to(ledgers.position_before(ledgers.first))
            return
        created_ms = int(record.properties.get("created_ms", "0"))
        found = self.topics.get(record.topic)
        if found is None:
            found = self.topics[record.topic] = RecoveredTopic(
                Topic(record.topic, self._ledger_ids), EntryIndex()
            )
        found.core.apply_topic(
            created_ms,
            {name: value for name, value in record.properties.items() if name != "created_ms"},
        )


def _apply_cursor(found: RecoveredTopic, record: CursorRecord) -> None:
    if record.operation is CursorOperation.DELETE:
        found.core.apply_subscription_removed(record.subscription)
        if found.transactions is not None:
            found.transactions.pending.pop(record.subscription, None)
        return
    delta = CursorDelta(
        Position(*record.mark_delete),
        tuple(record.ranges),
        tuple(record.partial),
        record.operation is not CursorOperation.ACKNOWLEDGE,
        record.properties,
    )
    found.core.apply_cursor(record.subscription, delta)

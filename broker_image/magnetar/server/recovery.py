"""Rebuilding a bundle from storage.

Owns: what happens between our Assigning record and serving: fence the previous owner, load checkpoint and manifest, replay the chain.
Imports: storage, topics, metadata records.
Source: DESIGN 5 (recovery chain, planned move). Invariants: nothing is read from a log before it is sealed or released; only records of the
bundle's own epochs count, and none after that epoch's RELEASE in the same log; replaying what a checkpoint holds already changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from magnetar.errors import CorruptData
from magnetar.metadata.records import BundleRecord, LogPosition, LogRange
from magnetar.names import BundleName, TopicName
from magnetar.server.bundle import RecoveredBundle, RecoveredTopic
from magnetar.server.catalog import BundleCatalog
from magnetar.server.context import BrokerContext
from magnetar.server.entry_index import EntryIndex, Run
from magnetar.storage.checkpoint import TopicValues, read_checkpoint
from magnetar.storage.fencing import fence
from magnetar.storage.log_format import CursorOperation, CursorRecord, EntriesRecord, ReleaseRecord, TopicOperation, TopicRecord
from magnetar.storage.places import RecordPlace
from magnetar.storage.recovery import scan
from magnetar.topics.ledgers import Position
from magnetar.topics.state import CursorDelta, CursorState, TopicState
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)


async def recover_bundle(context: BrokerContext, bundle: BundleName, record: BundleRecord, epoch: int) -> RecoveredBundle:
    """The bundle's topics as of the end of its chain. Raises StorageError; CorruptData names what is damaged or missing.

    Something may also be missing because the record is old, and others have gone on since: then its successor does not name it.
    """
    try:
        return await _recover(context, bundle, record, epoch)
    except FileNotFoundError as error:
        missing = str(error.filename or error)
        raise CorruptData(f"{missing} is missing; bundle {bundle} needs it: restore it from a backup", file=missing) from error


async def _recover(context: BrokerContext, bundle: BundleName, record: BundleRecord, epoch: int) -> RecoveredBundle:
    sealed_end: LogPosition | None = None
    chain = record.chain
    if chain and chain[-1].end is None:
        assert chain[-1].incarnation != context.incarnation, "we cannot take over from ourselves"
        sealed = await fence(context.volume, chain[-1].incarnation)
        # An owner that died before its first file was durable has written nothing of this term.
        sealed_end = LogPosition(sealed[-1].number, sealed[-1].length) if sealed else chain[-1].start
        chain = (*chain[:-1], replace(chain[-1], end=max(sealed_end, chain[-1].start, key=lambda p: (p.file, p.offset))))
    replay = _Replay(context, bundle, epoch)
    if record.checkpoint is not None:
        checkpoint = await read_checkpoint(context.volume, record.checkpoint.object)
        if checkpoint.epoch >= epoch:
            raise CorruptData(
                f"checkpoint {record.checkpoint.object} is of epoch {checkpoint.epoch}, ours is {epoch}: raise the restore number"
            )
        for name, state in checkpoint.topics.items():
            replay.topics[name] = RecoveredTopic(Topic.from_state(name, epoch, _topic_state(state)), EntryIndex())
    for term, span in zip(record.epochs, chain, strict=True):
        await replay.replay(term, span)
    catalog = await BundleCatalog.open(context, bundle)
    return RecoveredBundle(replay.topics, catalog, sealed_end, fenced=sealed_end is not None)


def _topic_state(values: TopicValues) -> TopicState:
    """A topic of a checkpoint in the terms of the topic cores."""
    cursors = {
        name: CursorState(cursor.mark_delete, cursor.ranges, cursor.partial, cursor.properties)
        for name, cursor in values.cursors.items()
    }
    return TopicState(values.created_ms, values.ledgers, cursors, values.properties, values.sequences, values.sizes, values.marks)


class _Replay:
    """Applies the records of one bundle, term by term."""

    def __init__(self, context: BrokerContext, bundle: BundleName, epoch: int) -> None:
        self._context, self._bundle, self._epoch = context, bundle, epoch
        self._belongs: dict[str, bool] = {}
        self.topics: dict[str, RecoveredTopic] = {}

    async def replay(self, term: int, span: LogRange) -> None:
        """Apply every valid record of epoch `term` in `span`."""
        assert span.end is not None
        if (span.end.file, span.end.offset) <= (span.start.file, span.start.offset):
            return
        async for scanned in scan(self._context.volume, span.incarnation, span.start, span.end):
            record = scanned.record
            if record.epoch != term:
                continue
            if isinstance(record, ReleaseRecord):
                if record.bundle == str(self._bundle):
                    return  # later records of this epoch in this log are void
            elif self._contains(record.topic):
                self._apply(span.incarnation, scanned.place, record)

    def _contains(self, topic: str) -> bool:
        known = self._belongs.get(topic)
        if known is None:
            known = self._belongs[topic] = self._bundle.contains(TopicName.parse(topic))
        return known

    def _apply(self, incarnation: str, place: RecordPlace, record: EntriesRecord | CursorRecord | TopicRecord) -> None:
        if isinstance(record, TopicRecord):
            self._apply_topic(record)
            return
        found = self.topics.get(record.topic)
        if found is None:
            return  # a record of a topic that has been deleted since, and not created again yet
        if isinstance(record, EntriesRecord):
            new = found.core.apply_entries(record.ledger, record.first_entry, record.count)
            if new:
                found.core.ages.total += sum(record.lengths[-new:])
                found.core.age(record.append_ms)
            found.core.apply_sequences(record.producer, record.sequences)
            last = found.core.ledgers.find((record.ledger, record.first_entry + record.count - 1))
            if last is not None:  # else all of it has been dropped; a run of which only a part is left is kept whole
                offset = place.offset + record.entries_offset
                found.index.add(
                    Run(last + 1 - record.count, incarnation, place.file, offset, record.lengths, record.message_counts)
                )
        elif record.operation is CursorOperation.DELETE:
            found.core.apply_subscription_removed(record.subscription)
        else:
            found.core.apply_cursor(
                record.subscription,
                CursorDelta(
                    Position(*record.mark_delete),
                    tuple(record.ranges),
                    tuple(record.partial),
                    record.operation is not CursorOperation.ACKNOWLEDGE,
                    record.properties,
                ),
            )

    def _apply_topic(self, record: TopicRecord) -> None:
        if record.operation is TopicOperation.DELETE:
            self.topics.pop(record.topic, None)
            return
        if record.operation is TopicOperation.UPDATE:
            updated = self.topics.get(record.topic)
            if updated is not None:  # else of a topic that has been deleted since
                updated.core.apply_update(record.properties)
            return
        created_ms = int(record.properties.get("created_ms", "0"))
        found = self.topics.get(record.topic)
        if found is None:
            found = self.topics[record.topic] = RecoveredTopic(Topic(record.topic, self._epoch), EntryIndex())
        found.core.apply_topic(created_ms, {name: value for name, value in record.properties.items() if name != "created_ms"})

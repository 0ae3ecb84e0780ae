"""What a compaction reads, found out by the driver.

Owns: `CompactionPlan` and the search for every file that holds entries of a topic. Imports: store,
storage formats, inputs. Sources of files: the bundle's manifest, and the chain in the bundle's
record (sealed files that no manifest lists yet). Invariants: the files found hold a prefix of the
topic's history, without a gap, up to the horizon; where they have entries of the topic's
transaction sidecar, of which only the broker knows what they have become, that is as far as the
manifest says that segments have everything; the horizon never goes back; a run's input is the
compacted view of the run before plus what came after its horizon, so that retention of the
originals takes nothing away.

Why there is no gap. A bundle's history is written term by term, and within a term file by file:
(epoch, file) is a place in it. Everything before the place `covered` is in what the manifest lists,
or was trimmed. From there on the record's chain names every term and its files; they are taken in
that order up to the first that is not sealed, and nothing behind that one counts, be it sealed and
published under `logs/`: a former owner's last file may be unsealed long after its successor has
sealed some. The record is read before the manifest: what leaves a chain has been covered before,
and terms that begin after that are left to the next run. A file that is taken must still be there,
and be read. A bundle that was split has neither manifest nor chain: its children have what it had.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from magnetar.compaction.commit import Basis
from magnetar.compaction.orders import ROWS_MAX
from magnetar.errors import CorruptData, ServiceNotReady
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, LogPosition, NamespaceRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName, bundles_of, sidecar_of
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.format import EntriesRecord
from magnetar.storage.log.index import IndexBuilder, LevelZeroIndex
from magnetar.storage.log.recovery import scan
from magnetar.storage.log.seals import read_seal
from magnetar.storage.manifest import Compacted, Manifest, SegmentReference, load_manifest
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.bounds import HIGHEST
from magnetar_jobs.inputs import (
    BEFORE_ALL,
    GROUP_BYTES_MAX,
    LOG,
    SEGMENT,
    UNBOUNDED,
    Group,
    Piece,
    Position,
    Span,
    pack,
    surviving_slices,
)

ATTEMPTS_MAX = 3
"""Splits that a manifest may refer back through."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """A sealed log file that may hold entries of the topic: the epochs that count, and where the
    last of these terms ends."""

    incarnation: str
    file: int
    epochs: tuple[int, ...]
    to_offset: int = HIGHEST


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan(Basis):
    """Everything a compaction of one topic needs to know, and everything its commit compares.

    `news` is False if the view is up to date. `complete` is the position behind which entries may
    have been left out, because transactions have published some that only the broker can find yet;
    None: nothing was.
    """

    groups: tuple[Group, ...]
    news: bool
    complete: Position | None = None

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)

    def reaches(self, position: Position) -> bool:
        """Whether nothing up to this position, which is in sealed files, was left out."""
        return self.complete is None or max(self.complete, self.horizon) >= position


@dataclass(slots=True)
class Holdings:
    """What the manifest of a bundle and its chain say of one topic. `unsealed` is the first file
    of the chain that is not sealed: it and those behind it are left out; "" if all are."""

    manifest: Manifest
    level1: tuple[SegmentReference, ...]
    compacted: Compacted | None
    trimmed: Position | None
    complete: Position | None = None
    unsealed: str = ""
    logs: dict[tuple[str, int], LogSource] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, topic: str) -> Holdings:
        """What the manifest says."""
        found = manifest.topic(topic)
        holdings = cls(manifest, found.level1, found.compacted, found.trimmed, found.complete)
        for entry in manifest.level0:
            holdings.add_log(LogSource(entry.incarnation, entry.file, entry.epochs))
        return holdings

    def add_log(self, source: LogSource) -> None:
        """A file known from several places counts with all epochs any of them knows, up to the
        last end any of them knows."""
        known = self.logs.get((source.incarnation, source.file), source)
        epochs = tuple(sorted({*known.epochs, *source.epochs}))
        end = max(known.to_offset, source.to_offset)
        self.logs[source.incarnation, source.file] = LogSource(
            source.incarnation, source.file, epochs, end
        )


async def plan_topic(
    store: MetadataStore,
    volume: Volume,
    bundle: BundleName,
    topic: TopicName,
    group_bytes_max: int = GROUP_BYTES_MAX,
) -> CompactionPlan:
    """Find the input of the next compaction of `topic`. Raises StoreError, StorageError,
    CorruptData, ServiceNotReady."""
    return await unless_collected(
        partial(_plan_once, store, volume, bundle, topic, group_bytes_max), listed_for(topic)
    )


T = TypeVar("T")


async def unless_collected(find: Callable[[], Awaitable[T]], missing: str) -> T:
    """What `find` finds, which looks again when a file that it reads is gone: a rewrite or a
    checkpoint came in between, and the store names others by now. Raises CorruptData, `missing`
    behind the file's name."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return await find()
        except FileNotFoundError as error:
            if attempt == ATTEMPTS_MAX:
                raise CorruptData(f"{error} {missing}") from error
    raise AssertionError("the loop returns or raises")


def listed_for(topic: TopicName) -> str:
    """What to say of a missing file of a topic."""
    return f"is listed for {topic}, or in its bundle's chain, and missing; restore it from a backup"


async def _plan_once(
    store: MetadataStore, volume: Volume, bundle: BundleName, topic: TopicName, group_bytes_max: int
) -> CompactionPlan:
    holdings = await holdings_of(store, volume, bundle, topic)
    own = holdings.manifest
    compacted = holdings.compacted
    previous = compacted.horizon if compacted is not None else BEFORE_ALL
    after = max(previous, holdings.trimmed or BEFORE_ALL)
    pieces = [
        piece
        for segment in (compacted.segments if compacted else ())
        for piece in segment_pieces(segment, BEFORE_ALL)
    ]
    logs = await indexes_of(volume, holdings)
    complete = complete_position(holdings, logs, str(topic))
    until, covered = complete or UNBOUNDED, spans_of(holdings.level1)
    tail = [
        piece
        for found in holdings.level1
        if after < found.last <= until
        for piece in segment_pieces(found, after)
    ]
    for source, index in logs:
        template = log_template(source, after, covered, until)
        tail += log_pieces(template, index, str(topic), group_bytes_max)
    horizon = max((piece.last for piece in tail), default=previous)
    inputs = {piece.object for piece in (*pieces, *tail)}
    listed = own.topic(str(topic))
    own_segments = [*listed.level1, *(listed.compacted.segments if listed.compacted else ())]
    return CompactionPlan(
        bundle=bundle,
        topic=topic,
        groups=pack([*pieces, *tail], group_bytes_max),
        horizon=horizon,
        news=bool(tail),
        generation=listed.compacted.generation if listed.compacted is not None else 0,
        previous_horizon=previous,
        trimmed=listed.trimmed,
        manifest_generation=own.generation,
        listed_logs=tuple(
            (entry.incarnation, entry.file)
            for entry in own.level0
            if names.log_file(entry.incarnation, entry.file) in inputs
        ),
        listed_segments=tuple(
            segment.object for segment in own_segments if segment.object in inputs
        ),
        complete=complete,
    )


async def holdings_of(
    store: MetadataStore, volume: Volume, bundle: BundleName, topic: TopicName
) -> Holdings:
    """Read the record and then the manifest, and look which files of the chain are sealed.
    Raises ServiceNotReady if the bundle was split or merged."""
    record = await _record(store, bundle)
    manifest, _, _ = await load_manifest(store, volume, bundle)
    if not manifest.generation:
        await _record(store, bundle)  # a split or merge takes the manifest away
    holdings = Holdings.of(manifest, str(topic))
    if record is None or not record.chain:
        return holdings
    begin = (record.epochs[0], record.chain[0].start.file)
    if record.checkpoint is not None and (manifest.covered is None or manifest.covered < begin):
        raise ServiceNotReady(
            f"the manifest of {bundle} has taken in files up to {manifest.covered}, and its chain "
            f"begins at {begin}: the record or the manifest "
            "was put back; compact again once its broker has rolled its log"
        )
    for term, source in _chain_files(record):
        # What the manifest has covered and does not list any more was rewritten, or trimmed: the
        # file only waits for its collector.
        if manifest.covered is not None and (term, source.file) < manifest.covered:
            continue
        length = await read_seal(volume, source.incarnation, source.file)
        if length is None:
            holdings.unsealed = names.log_file(source.incarnation, source.file)
            break
        if length > FILE_HEADER_BYTES:
            holdings.add_log(source)
    return holdings


async def _record(store: MetadataStore, bundle: BundleName) -> BundleRecord | None:
    """The bundle's record; None if it never had an owner, in this incarnation of its namespace.
    Raises ServiceNotReady if it was split or merged."""
    item = await store.get(keys.bundle(bundle))
    record = BundleRecord.decode(item.value) if item is not None else None
    if record is None or record.state is not BundleState.DELETED:
        return record
    # Read behind the record: the transaction of a split or merge has taken the bundle out of the boundaries.
    namespace = await store.get(keys.namespace(bundle.namespace))
    if namespace is not None and bundle in bundles_of(
        bundle.namespace, NamespaceRecord.decode(namespace.value).boundaries
    ):
        return None  # its namespace was deleted and made again, and it was not asked for since
    raise ServiceNotReady(f"bundle {bundle} was split or merged just now; look its topics up again")


def _chain_files(record: BundleRecord) -> Iterator[tuple[int, LogSource]]:
    """The log files of the bundle's recovery chain with their terms, in the order in which they
    were written; those of an owner without end."""
    for term, part in zip(record.epochs, record.chain, strict=True):
        # The chain begins at the checkpoint, which holds no entries: those before it in this file
        # count as well.
        start, end = part.start, part.end
        if end is None:
            for number in itertools.count(start.file):
                yield term, LogSource(part.incarnation, number, (term,))
        elif (end.file, end.offset) > (
            start.file,
            start.offset,
        ):  # else nothing was written: its files may be gone
            last = end.file if end.offset > FILE_HEADER_BYTES else end.file - 1
            for number in range(start.file, last + 1):
                yield (
                    term,
                    LogSource(
                        part.incarnation,
                        number,
                        (term,),
                        end.offset if number == end.file else HIGHEST,
                    ),
                )


# --- pieces ---------------------------------------------------------------------------------------


def spans_of(segments: Iterable[SegmentReference]) -> tuple[Span, ...]:
    """The stretches of a topic's history that segments hold: the same entries in log files do
    not count again."""
    return tuple(
        (segment.first, segment.last) for segment in sorted(segments, key=lambda found: found.first)
    )


def segment_pieces(
    segment: SegmentReference, after: Position, until: Position = UNBOUNDED
) -> list[Piece]:
    """What a segment holds of the positions after `after` up to `until`, as one piece: segments
    are written no larger than a group is read."""
    return [
        Piece(
            SEGMENT,
            segment.object,
            0,
            HIGHEST,
            max(segment.first, (after[0], after[1] + 1)) if after > BEFORE_ALL else segment.first,
            min(segment.last, until),
            segment.entries,
            segment.bytes,
            length=segment.length,
            base=segment.offset,
            after=after,
            until=until,
        )
    ]


async def indexes_of(
    volume: Volume, holdings: Holdings, known: dict[tuple[str, int], LevelZeroIndex] | None = None
) -> list[tuple[LogSource, LevelZeroIndex]]:
    """The log files with their indexes, those in `known` without another look. Raises
    FileNotFoundError if one of the others is gone: to pass it over would leave a gap."""
    indexes = known if known is not None else {}
    for place in sorted(holdings.logs):
        if place not in indexes:
            indexes[place] = await read_index(volume, *place)
    return [(source, indexes[place]) for place, source in sorted(holdings.logs.items())]


def complete_position(
    holdings: Holdings, logs: Iterable[tuple[LogSource, LevelZeroIndex]], topic: str
) -> Position | None:
    """The last position up to which a job finds every entry, if transactions may have published
    others; None if none may have.

    Raises ServiceNotReady while that is unknown.
    """
    pending = [
        source
        for source, index in logs
        if any(map(log_template(source).valid, index.runs(sidecar_of(topic))))
    ]
    if not pending:
        return None
    if holdings.complete is None:
        # Which of them have become entries of the topic, and where, only its broker knows.
        raise ServiceNotReady(
            f"{names.log_file(pending[0].incarnation, pending[0].file)} has messages that "
            f"transactions have sent to {topic}, and its "
            "broker has not said yet up to where it has rewritten them: it does within "
            "maintenance_s of being asked to roll its log; "
            "compact again then"
        )
    # A segment that begins before that position and ends behind it counts when the broker has said
    # more.
    crossing = [
        found.first for found in holdings.level1 if found.first <= holdings.complete < found.last
    ]
    return min((holdings.complete, *((ledger, entry - 1) for ledger, entry in crossing)))


def log_template(
    source: LogSource,
    after: Position = BEFORE_ALL,
    covered: tuple[Span, ...] = (),
    until: Position = UNBOUNDED,
) -> Piece:
    """A piece of a log file, but for what is in it."""
    return Piece(
        LOG,
        names.log_file(source.incarnation, source.file),
        0,
        0,
        BEFORE_ALL,
        BEFORE_ALL,
        0,
        0,
        after=after,
        covered=covered,
        epochs=source.epochs,
        to_offset=source.to_offset,
        until=until,
    )


def log_pieces(template: Piece, index: LevelZeroIndex, topic: str, bytes_max: int) -> list[Piece]:
    """Pieces of consecutive runs of up to `bytes_max` bytes and ROWS_MAX rows, each with what of
    it counts."""
    pieces: list[Piece] = []
    first: Position | None = None
    start = rows = size = 0
    last = BEFORE_ALL

    def end(stop: int) -> None:
        if first is not None:
            pieces.append(_part(template, start, stop, first, last, rows, size))

    for number, run in enumerate(index.runs(topic)):
        slices = (
            surviving_slices(run, template.after, template.excluded) if template.valid(run) else []
        )
        if not slices:
            continue
        count = sum(high - low for low, high in slices)
        length = sum(run.lengths)
        # else what lies between is elsewhere
        follows = (run.ledger, run.first_entry + slices[0][0]) == (last[0], last[1] + 1)
        if first is not None and (
            not follows or size + length > bytes_max or rows + count > ROWS_MAX
        ):
            end(number)
            first, start, rows, size = None, number, 0, 0
        if first is None:
            first = (run.ledger, run.first_entry + slices[0][0])
        last = (run.ledger, run.first_entry + slices[-1][1] - 1)
        rows, size = rows + count, size + length
    end(len(index.runs(topic)))
    return pieces


def _part(
    template: Piece, start: int, stop: int, first: Position, last: Position, rows: int, size: int
) -> Piece:
    return replace(template, start=start, stop=stop, first=first, last=last, rows=rows, bytes=size)


async def read_index(volume: Volume, incarnation: str, number: int) -> LevelZeroIndex:
    """The index of a sealed log file, built from the file if its writer died before it wrote
    one. Raises FileNotFoundError if the file is gone."""
    name, log_file = names.index(incarnation, number), names.log_file(incarnation, number)
    try:
        return LevelZeroIndex.decode(await volume.read(name), name)
    except FileNotFoundError:
        length = await read_seal(volume, incarnation, number)
        if length is None or not await volume.exists(log_file):
            raise FileNotFoundError(log_file) from None
    builder = IndexBuilder(incarnation, number)
    async for found in scan(
        volume, incarnation, LogPosition(number, 0), LogPosition(number, length)
    ):
        if isinstance(found.record, EntriesRecord):
            builder.add(found.record, found.place.offset)
    # Equal contents have equal bytes, so it does not matter who else builds it now.
    await volume.put_if_absent(name, builder.encode(length))
    return LevelZeroIndex.decode(await volume.read(name), name)

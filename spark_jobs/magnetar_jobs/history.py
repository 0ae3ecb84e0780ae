"""A stretch of one topic's history, as files hold it.

Owns: `History` and the search for its pieces: what readers of a topic read. Imports: store, storage formats, inputs, planning.
Invariants: as planning has them: the pieces hold every entry of the stretch once, up to `end`, and
transactions that committed in it; of a compacted view, those that compaction has kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.inputs import (
    BEFORE_ALL,
    GROUP_BYTES_MAX,
    UNBOUNDED,
    Group,
    Piece,
    Position,
    pack,
)
from magnetar_jobs.planning import (
    Holdings,
    LogSource,
    complete_position,
    holdings_of,
    indexes_of,
    listed_for,
    log_pieces,
    log_template,
    segment_pieces,
    spans_of,
    unless_collected,
)


@dataclass(frozen=True, slots=True)
class History:
    """`groups` hold what is behind `after` up to `end`, the last position found (`after` if there
    is none). `before` is the group that ends there, and `first` whether nothing is before that: a
    message in chunks may begin there. `trimmed`: what retention has dropped. `complete`: the position behind which
    transactions may have published what only the broker can find yet; None: there is none."""

    after: Position
    groups: tuple[Group, ...]
    end: Position
    trimmed: Position | None = None
    complete: Position | None = None
    before: Group | None = None
    first: bool = True

    @property
    def lost(self) -> bool:
        """Whether retention has dropped entries behind `after`."""
        return self.trimmed is not None and self.trimmed > self.after

    def reaches(self, position: Position) -> bool:
        """Whether nothing up to this position, which is in sealed files, was left out."""
        return self.complete is None or max(self.complete, self.end) >= position


async def history_of(
    store: MetadataStore,
    volume: Volume,
    bundle: BundleName,
    topic: TopicName,
    after: Position = BEFORE_ALL,
    until: Position = UNBOUNDED,
    group_bytes_max: int = GROUP_BYTES_MAX,
    *,
    compacted: bool = False,
    known: dict[tuple[str, int], LevelZeroIndex] | None = None,
) -> History:
    """What sealed files hold of `topic` behind `after` up to `until`; with `compacted` its compacted
    view, and what came behind that. `known` keeps indexes of log files, which other topics are in as
    well. Raises StoreError, StorageError, CorruptData,
    ServiceNotReady."""

    async def find() -> History:
        holdings = await holdings_of(store, volume, bundle, topic)
        if not compacted:
            holdings.compacted = None
        logs = await indexes_of(volume, holdings, known)
        return _history(holdings, logs, str(topic), after, until, group_bytes_max)

    return await unless_collected(find, listed_for(topic))


def _history(
    holdings: Holdings,
    logs: list[tuple[LogSource, LevelZeroIndex]],
    topic: str,
    after: Position,
    until: Position,
    group_bytes_max: int,
) -> History:
    complete = complete_position(holdings, logs, topic)
    view = holdings.compacted
    begin = holdings.trimmed or BEFORE_ALL
    if view is not None:
        begin = max(begin, view.horizon)
    high = until if complete is None else min(until, complete)
    covered = spans_of(holdings.level1)

    def groups_between(low: Position, high: Position) -> tuple[Group, ...]:
        tail = max(low, begin)
        pieces: list[Piece] = [
            piece
            for segments, start in ((view.segments if view else (), low), (holdings.level1, tail))
            for segment in segments
            if start < segment.last and segment.first <= high and start < high
            for piece in segment_pieces(segment, start, high)
        ]
        for source, index in logs if tail < high else ():
            template = log_template(source, tail, covered, high)
            pieces += log_pieces(template, index, topic, group_bytes_max)
        return pack(pieces, group_bytes_max)

    groups, before = groups_between(after, high), groups_between(BEFORE_ALL, min(after, high))
    end = groups[-1].pieces[-1].last if groups else after
    if view is not None and not groups:
        end = max(after, min(view.horizon, until))
    earlier = before[-1] if before else None
    return History(after, groups, end, holdings.trimmed, complete, earlier, len(before) <= 1)

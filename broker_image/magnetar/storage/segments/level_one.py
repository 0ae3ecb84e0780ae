"""Level-1 rewriting: what to rewrite, and how it becomes visible.

Owns: the choice of a round's inputs, and `LevelOneRewrite`, the change of a manifest that takes log
files and small segments off its lists and puts per-topic segments on them. Imports: manifest,
index. Pure. Invariants: a rewrite takes effect only while its inputs are still listed and the
compaction generation of each topic is what it started from; it never changes what a position means:
an entry is in one listed segment or, if in none, in one listed log file, unless it is trimmed;
segments of a topic do not overlap and span no hole that another file fills.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.storage.log.index import Run
from magnetar.storage.manifest import LevelZero, Manifest, SegmentReference, TopicSegments

ROUND_BYTES_MAX = 64 << 20
SHARED_TOPIC_BYTES_MAX = 8 << 20
SHARED_OBJECTS_MAX = 8


@dataclass(frozen=True, slots=True)
class FileState:
    """A listed log file as one bundle sees it: bytes of its entries, how many of them still exist,
    when the last one was appended.

    `pinned`: it has entries of transactions that cannot be rewritten yet: it stays listed for
    these. `loose_bytes` of such a file can be rewritten, and were not before. `wanted`: a
    compaction waits for what transactions have published in it.
    """

    file: LevelZero
    bytes: int
    live_bytes: int
    last_append_ms: int
    pinned: bool = False
    loose_bytes: int = 0
    wanted: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """Log files to remove from the list at once, those to rewrite first, and those that stay
    listed, of which only a part can be rewritten."""

    drop: tuple[LevelZero, ...]
    rewrite: tuple[LevelZero, ...]
    partly: tuple[LevelZero, ...] = ()


def choose(
    files: Sequence[FileState],
    now_ms: int,
    age_ms: int,
    garbage_share: float,
    *,
    bytes_max: int = ROUND_BYTES_MAX,
) -> Round:
    """The next round: whatever holds nothing alive goes; what is old, wanted or mostly garbage
    is rewritten, oldest first, up to `bytes_max`."""
    drop = tuple(found.file for found in files if not found.live_bytes and not found.pinned)
    rewrite: list[LevelZero] = []
    partly: list[LevelZero] = []
    size = 0
    for found in sorted(files, key=lambda state: state.last_append_ms):
        due = found.wanted or is_old(found.last_append_ms, now_ms, age_ms)
        if not found.pinned:
            due = due or found.bytes - found.live_bytes >= garbage_share * found.bytes
        left = found.loose_bytes if found.pinned else found.live_bytes
        if not left or not due:
            continue
        if size and size + left > bytes_max:
            break
        (partly if found.pinned else rewrite).append(found.file)
        size += left
    return Round(drop, tuple(rewrite), tuple(partly))


def is_old(append_ms: int, now_ms: int, age_ms: int) -> bool:
    """Whether what was appended then is to be rewritten, by wall clocks: also if one of them
    must have been wrong, which may not last for years."""
    return abs(now_ms - append_ms) >= age_ms


def while_space_is_short(chosen: Round, files: Sequence[FileState], bytes_max: int) -> Round:
    """Of a round what gives back more than it writes: files of which at most half is alive, and
    of these no more than `bytes_max`."""
    states = {found.file: found for found in files}
    rewrite: list[LevelZero] = []
    size = 0
    for file in chosen.rewrite:
        live = states[file].live_bytes
        if 2 * live <= states[file].bytes and size + live <= bytes_max:
            rewrite.append(file)
            size += live
    return Round(chosen.drop, tuple(rewrite))


def outside(run: Run, segments: Sequence[SegmentReference]) -> list[Run]:
    """The parts of a run that none of a topic's segments holds: of a file that was rewritten in
    part the rest counts."""
    parts: list[Run] = []
    entry, end = run.first_entry, run.last_entry + 1
    while entry < end:
        at = bisect_right(segments, (run.ledger, entry), key=lambda segment: segment.first) - 1
        last = segments[at].last if at >= 0 else (-1, -1)
        if last >= (run.ledger, entry):
            entry = last[1] + 1 if last[0] == run.ledger else end
            continue
        following = segments[at + 1].first if at + 1 < len(segments) else (-1, -1)
        stop = min(end, following[1]) if following[0] == run.ledger else end
        low, high = entry - run.first_entry, stop - run.first_entry
        lengths, counts = run.lengths[low:high], run.message_counts[low:high]
        parts.append(
            run._replace(
                first_entry=entry,
                offset=run.offset + sum(run.lengths[:low]),
                lengths=lengths,
                message_counts=counts,
            )
        )
        entry = stop
    return parts


def shared_objects(manifest: Manifest) -> dict[str, int]:
    """Objects that hold segments of several topics (or could, being small), with the bytes that
    are listed of each."""
    sizes: dict[str, int] = {}
    for segments in manifest.topics.values():
        for segment in segments.level1:
            sizes[segment.object] = sizes.get(segment.object, 0) + segment.length
    return {name: size for name, size in sizes.items() if size < SHARED_TOPIC_BYTES_MAX}


def choose_merge(
    manifest: Manifest, damaged: Collection[str] = frozenset(), *, bytes_max: int = ROUND_BYTES_MAX
) -> frozenset[str]:
    """Small objects to be merged into larger ones: the smallest, once there are SHARED_OBJECTS_MAX
    of them; else none.

    Those that are `damaged` stay as they are, and keep no others from being merged.
    """
    sizes = {name: size for name, size in shared_objects(manifest).items() if name not in damaged}
    if len(sizes) < SHARED_OBJECTS_MAX:
        return frozenset()
    chosen: list[str] = []
    total = 0
    for name in sorted(sizes, key=lambda found: (sizes[found], found)):
        if total + sizes[name] > bytes_max:
            break
        chosen.append(name)
        total += sizes[name]
    return frozenset(chosen)


Place = tuple[str, int]
"""A segment: object and offset in it."""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What a rewrite does to one topic: `removed` segments make room for `added` ones; entries up
    to `trimmed` do not exist any more.

    Up to `complete` nothing that transactions have published is missing in segments then.
    `generation` is that of the compacted view when the rewrite began (0: none). `gone`: the topic
    was deleted; its view goes too, and once no listed file holds anything of it (`forgotten`)
    nothing need be remembered.
    """

    generation: int
    removed: frozenset[Place] = frozenset()
    added: tuple[SegmentReference, ...] = ()
    trimmed: tuple[int, int] | None = None
    gone: bool = False
    forgotten: bool = False
    complete: tuple[int, int] | None = None


NO_LATER_TERM = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LevelOneRewrite:
    """One round of one bundle: `files` leave the list with the epochs they were listed with,
    `topics` change. `intent` "" wrote nothing.

    Of the files in `partly` only a part was rewritten: they stay, and must still be listed. `epoch`
    is the term that judged what is alive: it does not know what later terms wrote: that would look
    trimmed.
    """

    intent: str
    files: tuple[LevelZero, ...]
    topics: Mapping[str, TopicChange] = field(default_factory=dict)
    epoch: int = NO_LATER_TERM
    partly: tuple[LevelZero, ...] = ()

    def apply(self, manifest: Manifest) -> Manifest | None:
        """The manifest with this rewrite in it, or None if its inputs are gone, a compaction
        came first, or a later term was taken in."""
        if manifest.newest_term > self.epoch:
            return None
        level0 = self._left(manifest.level0)
        if level0 is None:
            return None
        topics = dict(manifest.topics)
        for name, change in self.topics.items():
            changed = _changed(manifest.topic(name), change)
            if changed is None:
                return None
            if changed == TopicSegments(trimmed=changed.trimmed) and (
                changed.trimmed is None or change.forgotten
            ):
                topics.pop(name, None)
            else:
                topics[name] = changed
        return dataclasses.replace(manifest, level0=level0, topics=topics)

    def _left(self, listed: Sequence[LevelZero]) -> tuple[LevelZero, ...] | None:
        inputs = {(file.incarnation, file.file): file for file in self.files}
        known = {(entry.incarnation, entry.file): set(entry.epochs) for entry in listed}
        if not all(
            set(file.epochs) <= known.get((file.incarnation, file.file), set())
            for file in self.partly
        ):
            return None
        left = []
        for entry in listed:
            taken = inputs.pop((entry.incarnation, entry.file), None)
            if taken is None:
                left.append(entry)
                continue
            if not set(taken.epochs) <= set(entry.epochs):
                return None
            # A later term may have been listed with the same file since: of that we have rewritten
            # nothing.
            epochs = tuple(epoch for epoch in entry.epochs if epoch not in taken.epochs)
            if epochs:
                left.append(dataclasses.replace(entry, epochs=epochs))
        return None if inputs else tuple(left)


def _changed(found: TopicSegments, change: TopicChange) -> TopicSegments | None:
    generation = found.compacted.generation if found.compacted is not None else 0
    listed = {(segment.object, segment.offset) for segment in found.level1}
    if generation != change.generation or not change.removed <= listed:
        return None
    kept = [
        segment
        for segment in found.level1
        if (segment.object, segment.offset) not in change.removed
    ]
    level1 = tuple(sorted([*kept, *change.added], key=lambda segment: segment.first))
    if any(before.last >= after.first for before, after in itertools.pairwise(level1)):
        return None  # another broker has rewritten the same part of a file that stays listed
    trimmed = _later(found.trimmed, change.trimmed)
    if change.gone:
        return TopicSegments(level1, trimmed=trimmed)
    return TopicSegments(level1, found.compacted, trimmed, _later(found.complete, change.complete))


def _later(*positions: tuple[int, int] | None) -> tuple[int, int] | None:
    return max((position for position in positions if position is not None), default=None)

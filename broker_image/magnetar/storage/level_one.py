"""Level-1 rewriting: what to rewrite, and how it becomes visible.

Owns: the choice of a round's inputs, and `LevelOneRewrite`, the change of a manifest that takes log files and small segments off its lists and
puts per-topic segments on them. Imports: manifest. Pure.
Source: DESIGN 6 (segments; rewriting).
Invariants: a rewrite takes effect only while its inputs are still listed and the compaction generation of each topic is what it started from;
it never changes what a position means: an entry is in exactly one listed place before and after, unless it is trimmed; segments of a topic
do not overlap and span no hole that another file fills.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.storage.manifest import LevelZero, Manifest, SegmentReference, TopicSegments

ROUND_BYTES_MAX = 64 << 20
SHARED_TOPIC_BYTES_MAX = 8 << 20
SHARED_OBJECTS_MAX = 8


@dataclass(frozen=True, slots=True)
class FileState:
    """A listed log file as one bundle sees it: bytes of its entries, how many of them still exist, when the last one was appended.

    `pinned`: it has entries of open transactions, of which nobody knows yet what they become: it stays until they have ended.
    """

    file: LevelZero
    bytes: int
    live_bytes: int
    last_append_ms: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """Log files to take off the list without more ado, and those to rewrite first."""

    drop: tuple[LevelZero, ...]
    rewrite: tuple[LevelZero, ...]


def choose(
    files: Sequence[FileState], now_ms: int, age_ms: int, garbage_share: float, *, bytes_max: int = ROUND_BYTES_MAX
) -> Round:
    """The next round: whatever holds nothing alive goes; what is old, or mostly garbage, is rewritten, oldest first, up to `bytes_max`."""
    drop = tuple(found.file for found in files if not found.live_bytes)
    rewrite: list[LevelZero] = []
    size = 0
    for found in sorted(files, key=lambda state: state.last_append_ms):
        due = now_ms - found.last_append_ms >= age_ms or found.bytes - found.live_bytes >= garbage_share * found.bytes
        if not found.live_bytes or not due or found.pinned:
            continue
        if rewrite and size + found.live_bytes > bytes_max:
            break
        rewrite.append(found.file)
        size += found.live_bytes
    return Round(drop, tuple(rewrite))


def shared_objects(manifest: Manifest) -> dict[str, int]:
    """Objects that hold segments of several topics (or could, being small), with the bytes that are listed of each."""
    sizes: dict[str, int] = {}
    for segments in manifest.topics.values():
        for segment in segments.level1:
            sizes[segment.object] = sizes.get(segment.object, 0) + segment.length
    return {name: size for name, size in sizes.items() if size < SHARED_TOPIC_BYTES_MAX}


def choose_merge(manifest: Manifest, *, bytes_max: int = ROUND_BYTES_MAX) -> frozenset[str]:
    """Small objects to be merged into larger ones: the smallest, once there are SHARED_OBJECTS_MAX of them; else none."""
    sizes = shared_objects(manifest)
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
    """What a rewrite does to one topic: `removed` segments make room for `added` ones; entries up to `trimmed` do not exist any more.

    `generation` is that of the compacted view when the rewrite began (0: none). `gone`: the topic was deleted; its view goes too, and once no
    listed file holds anything of it (`forgotten`) nothing need be remembered.
    """

    generation: int
    removed: frozenset[Place] = frozenset()
    added: tuple[SegmentReference, ...] = ()
    trimmed: tuple[int, int] | None = None
    gone: bool = False
    forgotten: bool = False


NO_LATER_TERM = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LevelOneRewrite:
    """One round of one bundle: `files` leave the list with the epochs they were listed with, `topics` change. `intent` "" wrote nothing.

    `epoch` is the term of whoever judged what is alive: it knows nothing of what later terms wrote, and to it that looks like trimmed.
    """

    intent: str
    files: tuple[LevelZero, ...]
    topics: Mapping[str, TopicChange] = field(default_factory=dict)
    epoch: int = NO_LATER_TERM

    def apply(self, manifest: Manifest) -> Manifest | None:
        """The manifest with this rewrite in it, or None if its inputs are gone, a compaction came first, or a later term was taken in."""
        if manifest.covered is not None and manifest.covered[0] > self.epoch:
            return None
        level0 = self._left(manifest.level0)
        if level0 is None:
            return None
        topics = dict(manifest.topics)
        for name, change in self.topics.items():
            changed = _changed(manifest.topic(name), change)
            if changed is None:
                return None
            if not changed.level1 and changed.compacted is None and (changed.trimmed is None or change.forgotten):
                topics.pop(name, None)
            else:
                topics[name] = changed
        return dataclasses.replace(manifest, level0=level0, topics=topics)

    def _left(self, listed: Iterable[LevelZero]) -> tuple[LevelZero, ...] | None:
        inputs = {(file.incarnation, file.file): file for file in self.files}
        left = []
        for entry in listed:
            taken = inputs.pop((entry.incarnation, entry.file), None)
            if taken is None:
                left.append(entry)
                continue
            if not set(taken.epochs) <= set(entry.epochs):
                return None
            # A later term may have been listed with the same file meanwhile: of that we have rewritten nothing.
            epochs = tuple(epoch for epoch in entry.epochs if epoch not in taken.epochs)
            if epochs:
                left.append(dataclasses.replace(entry, epochs=epochs))
        return None if inputs else tuple(left)


def _changed(found: TopicSegments, change: TopicChange) -> TopicSegments | None:
    generation = found.compacted.generation if found.compacted is not None else 0
    listed = {(segment.object, segment.offset) for segment in found.level1}
    if generation != change.generation or not change.removed <= listed:
        return None
    kept = [segment for segment in found.level1 if (segment.object, segment.offset) not in change.removed]
    level1 = tuple(sorted([*kept, *change.added], key=lambda segment: segment.first))
    assert all(a.last < b.first for a, b in itertools.pairwise(level1)), level1
    trimmed = max((position for position in (found.trimmed, change.trimmed) if position is not None), default=None)
    return TopicSegments(level1, None if change.gone else found.compacted, trimmed)

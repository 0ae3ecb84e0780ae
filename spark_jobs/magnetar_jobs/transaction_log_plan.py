"""What a compaction of transaction logs moves, and which files it takes off the list.

Owns: `LogPlan` and `plan_bundle`. Imports: store, storage formats, topic_states, planning. Pure
once the files are read. Invariants: an entry keeps its bytes, its position and its append time;
entries are in the order of the topic, which is the order of commits; a file leaves the list only if
nothing in it waits for the end of a transaction, and all in it that exists is in segments then; an
entry that a transaction published moves only once everything that was published before its commit is
in files that the manifest lists; segments span no entry that is elsewhere; what is not in sealed
files decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, sidecar_of, topic_of_sidecar
from magnetar.storage.log.index import LevelZeroIndex, Run
from magnetar.storage.manifest import LevelZero, Manifest, SegmentReference, load_manifest
from magnetar.storage.segments.level_one import LevelOneRewrite, TopicChange, outside
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.inputs import BEFORE_ALL, Position
from magnetar_jobs.planning import read_index, unless_collected
from magnetar_jobs.topic_states import BundleStates, Fate, OldestOpen, TopicState, states_of

TASK_BYTES_MAX = 32 << 20
TASK_BYTES_MIN = 4 << 20
"""Less is not worth a task, nor an object, of its own."""
TASKS_PER_SLOT = 2


class Part(NamedTuple):
    """Entries [low, high) of a run of a log file's index under `name`, and the entry of `topic` that
    the first of them is."""

    topic: str
    incarnation: str
    file: int
    name: str
    run: int
    low: int
    high: int
    ledger: int
    entry: int
    append_ms: int
    bytes: int

    @property
    def first(self) -> Position:
        return self.ledger, self.entry


@dataclass(slots=True)
class FileShare:
    """What a bundle has in a file: the parts that can move, bytes that are not needed any more, and
    whether anything waits."""

    file: LevelZero
    parts: list[Part] = field(default_factory=list)
    bytes: int = 0
    void_bytes: int = 0
    waits: bool = False


class Ordered(NamedTuple):
    """A part as it is written: by which task, and in which of the segments it begins."""

    task: int
    segment: int
    part: Part


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Everything that one bundle's compaction needs to know, and everything its commit compares.

    `files` leave the list, of those in `partly` what can move does. `complete` is, by topic, up to
    where nothing that transactions have published will be missing in segments, were `added` listed.
    """

    manifest: Manifest
    files: tuple[LevelZero, ...]
    partly: tuple[LevelZero, ...]
    parts: tuple[Part, ...]
    touched: frozenset[str]
    states: BundleStates
    ends: Mapping[str, int]
    bytes: int
    void_bytes: int
    waiting: int
    oldest: OldestOpen | None

    @property
    def bundle(self) -> BundleName:
        return self.states.bundle

    @property
    def news(self) -> bool:
        """Whether anything moves or leaves the list, or more can be said of what segments have."""
        return bool(self.files or self.parts) or any(map(self._has_more_to_say, self.touched))

    def _has_more_to_say(self, name: str) -> bool:
        listed = self.manifest.topic(name)
        found = self._complete(name, listed.level1)
        return found is not None and found > (listed.complete or BEFORE_ALL)

    def ordered(self, parallelism: int) -> Iterator[Ordered]:
        """The parts, dealt to tasks: each topic's in its order, as much for each as fills it."""
        total = sum(part.bytes for part in self.parts)
        share = max(TASK_BYTES_MIN, min(TASK_BYTES_MAX, total // (TASKS_PER_SLOT * parallelism)))
        task = segment = filled = 0
        topic, expected, append_ms = "", -1, 0
        for part in sorted(self.parts, key=lambda found: (found.topic, found.first)):
            ordinal = self.states.topics[part.topic].ledgers.find(part.first)
            assert ordinal is not None, "what moves exists"
            if part.topic != topic:
                append_ms = 0
            if filled and filled + part.bytes > share:
                task, segment, filled = task + 1, segment + 1, 0
            elif (part.topic, ordinal) != (topic, expected):
                segment += 1
            # A transaction's entries may have been sent before earlier ones of the partition.
            append_ms = max(append_ms, part.append_ms)
            yield Ordered(task, segment, part._replace(append_ms=append_ms))
            filled += part.bytes
            topic, expected = part.topic, ordinal + part.high - part.low

    def edit(
        self, intent: str, added: Mapping[str, Sequence[SegmentReference]]
    ) -> Callable[[Manifest], Manifest | None]:
        """The manifest with these segments, or None if what the plan was made from has changed.

        New files and segments at the tail are no change. A trim of a topic is, a split or a merge of
        the bundle, and whatever `LevelOneRewrite` compares.
        """
        known = self.manifest
        topics = {name: self._change(name, added.get(name, ())) for name in self.touched}
        rewrite = LevelOneRewrite(intent, self.files, topics, partly=self.partly)

        def edit(manifest: Manifest) -> Manifest | None:
            # A bundle that was split has no manifest any more, and generations only grow.
            if manifest.generation < known.generation or any(
                manifest.topic(name).trimmed != known.topic(name).trimmed for name in topics
            ):
                return None
            return rewrite.apply(manifest)

        return edit

    def _change(self, name: str, added: Sequence[SegmentReference]) -> TopicChange:
        found = self.manifest.topic(name)
        return TopicChange(
            generation=found.compacted.generation if found.compacted is not None else 0,
            added=tuple(added),
            complete=self._complete(name, [*found.level1, *added]),
        )

    def _complete(self, name: str, segments: Sequence[SegmentReference]) -> Position | None:
        """As the manifest's `complete`, with these segments."""
        state, end = self.states.topics.get(name), self.ends.get(name)
        if state is None or state.buffer is None or end is None:
            return self.manifest.topic(name).complete
        ledgers = state.ledgers
        before = ledgers.position_before(ledgers.first)
        reached = ledgers.position_before(end) if end > ledgers.first else before
        spans = sorted((segment.first, segment.last) for segment in segments)
        known = max(self.manifest.topic(name).complete or before, before)
        missing = state.buffer.links.first_outside(spans, known)
        if missing is not None and (missing[0], missing[1] - 1) < reached:
            return missing[0], missing[1] - 1
        return reached.ledger, reached.entry


async def plan_bundle(
    store: MetadataStore, volume: Volume, bundle: BundleName, topics: Collection[str]
) -> LogPlan:
    """What to do about the sealed log files that hold entries of the sidecars of `topics`: such a
    file is compacted with all that the bundle has in it. Raises StoreError, StorageError,
    CorruptData."""
    return await unless_collected(
        partial(_plan_once, store, volume, bundle, frozenset(topics)),
        f"is listed for bundle {bundle}, and missing; restore it from a backup",
    )


async def _plan_once(
    store: MetadataStore, volume: Volume, bundle: BundleName, topics: frozenset[str]
) -> LogPlan:
    # The chain before the manifest: what is listed since is left to the next run.
    states = await states_of(store, volume, bundle)
    manifest, _, _ = await load_manifest(store, volume, bundle)
    files = {
        file: await read_index(volume, file.incarnation, file.file)
        for file in manifest.level0
        if states.chain.holds(file)
    }
    return choose(manifest, states, files, topics)


def choose(
    manifest: Manifest,
    states: BundleStates,
    files: Mapping[LevelZero, LevelZeroIndex],
    topics: Collection[str],
) -> LogPlan:
    """The plan for `files`, those of the manifest that the chain's sealed part holds."""
    wanted = [sidecar_of(topic) for topic in topics]
    chosen = {
        file: index for file, index in files.items() if not set(wanted).isdisjoint(index.topics())
    }
    touched = {
        topic_of_sidecar(name) or name
        for index in chosen.values()
        for name in filter(states.contains, index.topics())
    }
    ends = {
        topic: published_end(states.topics[topic], files, manifest.topic(topic).level1)
        for topic in touched & states.topics.keys()
    }
    shares = [_share(file, index, manifest, states, ends) for file, index in chosen.items()]
    moved = [share for share in shares if share.parts or not share.waits]
    return LogPlan(
        manifest=manifest,
        files=tuple(share.file for share in moved if not share.waits),
        partly=tuple(share.file for share in moved if share.waits),
        parts=tuple(part for share in moved for part in share.parts),
        touched=frozenset(touched),
        states=states,
        ends=ends,
        bytes=sum(share.bytes for share in moved),
        void_bytes=sum(share.void_bytes for share in moved if not share.waits),
        waiting=sum(share.waits for share in shares),
        oldest=states.oldest_open(),
    )


def published_end(
    state: TopicState,
    files: Mapping[LevelZero, LevelZeroIndex],
    segments: Sequence[SegmentReference],
) -> int:
    """The ordinal below which everything that was published without a transaction is in these
    files or segments."""
    ledgers = state.ledgers
    ends = [ledgers.ordinal_after(segment.last) for segment in segments[-1:]]
    for file, index in files.items():
        runs = [run for run in index.runs(state.name) if run.epoch in file.epochs]
        if runs:
            ends.append(ledgers.ordinal_after((runs[-1].ledger, runs[-1].last_entry)))
    end = max(ends, default=ledgers.first)
    # Behind the last of them there may be commits: nothing but these is known to be missing there.
    while state.buffer is not None and end < ledgers.end:
        linked = state.buffer.links.unbroken(ledgers.position(end), ledgers.end - end)
        if not linked:
            break
        end += linked
    return end


def _share(
    file: LevelZero,
    index: LevelZeroIndex,
    manifest: Manifest,
    states: BundleStates,
    ends: Mapping[str, int],
) -> FileShare:
    share = FileShare(file)
    for name in filter(states.contains, index.topics()):
        topic = topic_of_sidecar(name) or name
        state, segments = states.topics.get(topic), manifest.topic(topic).level1
        for number, run in enumerate(index.runs(name)):
            if run.epoch not in file.epochs:
                continue
            size = sum(run.lengths)
            share.bytes += size
            place = run
            if topic != name:
                found = states.fate(topic, (run.ledger, run.first_entry))
                if found.fate is Fate.COMMITTED:
                    place = run._replace(ledger=found.target[0], first_entry=found.target[1])
                    assert state is not None
                    ordinal = state.ledgers.find(found.target)
                    if ordinal is not None and ordinal >= ends[topic]:
                        share.waits = True
                        continue
                else:
                    share.waits = share.waits or found.fate is Fate.WAITS
                    share.void_bytes += size if found.fate is Fate.VOID else 0
                    continue
            alive = _existing(place, state)
            if alive is None:
                share.void_bytes += size
                continue
            share.void_bytes += size - sum(alive.lengths)
            share.parts += [
                _part(topic, file, name, number, place, part) for part in outside(alive, segments)
            ]
    return share


def _existing(run: Run, state: TopicState | None) -> Run | None:
    """The part of a run that was not trimmed."""
    if state is None:
        return None
    ledgers = state.ledgers
    start, end = ledgers.span(run.ledger, run.first_entry, run.last_entry)
    if start >= end:
        return None
    low = ledgers.position(start).entry - run.first_entry
    high = low + end - start
    if (low, high) == (0, len(run.lengths)):
        return run
    return run._replace(
        first_entry=run.first_entry + low,
        offset=run.offset + sum(run.lengths[:low]),
        lengths=run.lengths[low:high],
        message_counts=run.message_counts[low:high],
    )


def _part(topic: str, file: LevelZero, name: str, number: int, run: Run, part: Run) -> Part:
    low = part.first_entry - run.first_entry
    return Part(
        topic=topic,
        incarnation=file.incarnation,
        file=file.file,
        name=name,
        run=number,
        low=low,
        high=low + len(part.lengths),
        ledger=part.ledger,
        entry=part.first_entry,
        append_ms=part.append_ms,
        bytes=sum(part.lengths),
    )

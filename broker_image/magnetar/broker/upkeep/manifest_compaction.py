"""Keeping a bundle's manifest short.

Owns: one round over a bundle served here: files in which nothing is alive leave the manifest, old
or mostly dead ones are rewritten into level-1 segments, small segments are merged; and the commit
of it. Imports: storage, siblings. Invariants: what is alive is what the bundle's topics say, who
forget an entry only after that is durable; a round commits by comparing its inputs or leaves
nothing behind but its intent, which goes before its files; while a job works under an intent on
this bundle the lists stay as they are; a transaction that stays open keeps its own entries in their
log file, and nothing else; each round says of every topic that it changes up to where segments have
what transactions have published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import structlog

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.entry_index import EntryIndex
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.transactions.linked import (
    committed_runs,
    complete_to,
    existing_bytes,
    is_wanted,
    listed_end,
    sidecar_share,
)
from magnetar.broker.upkeep.garbage_collection import REWRITE
from magnetar.broker.upkeep.segment_compaction import (
    DamagedInput,
    LogPart,
    Part,
    RoundWriter,
    SegmentPart,
    Written,
)
from magnetar.errors import CorruptData, MagnetarError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import IntentRecord
from magnetar.metadata.store import Compare, Put
from magnetar.names import topic_of_sidecar
from magnetar.storage import names
from magnetar.storage.log.index import LevelZeroIndex, Run
from magnetar.storage.manifest import (
    CommitResult,
    LevelZero,
    Manifest,
    Outcome,
    SegmentReference,
    TopicSegments,
    commit_manifest,
    commit_rewrite,
)
from magnetar.storage.segments.level_one import (
    FileState,
    LevelOneRewrite,
    Round,
    TopicChange,
    choose,
    choose_merge,
    is_old,
    outside,
    while_space_is_short,
)
from magnetar.topics.ledgers import EARLIEST

log = structlog.get_logger(__name__)

DAMAGED_RETRY_S = 600.0
WHAT = "rewriting"
RESERVE_FRACTION = 4
"""So large a part of the reserve is what a bundle's round may write while space is short."""


@dataclass(frozen=True, slots=True)
class _Share:
    """What one listed file has of one topic, as of a state of that topic and the epochs it is
    listed with (`key`)."""

    key: tuple[int, int, tuple[int, ...]]
    bytes: int
    live_bytes: int
    last_append_ms: int
    pinned: bool = False


class ManifestCompactor:
    """Tidies bundles one after the other; remembers what it has found out about files, which
    never change."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._shares: dict[str, dict[str, dict[str, _Share]]] = {}
        """By bundle served here, listed log file and topic."""
        self._damaged: dict[tuple[str, str], float] = {}
        """By bundle and log file or segment object: what one bundle has in a file may be whole
        where another's is not."""
        self._unresolved: list[str] = []

    async def tidy(self, bundle: OwnedBundle) -> CommitResult | None:
        """One round; None if there was nothing to do. Raises StoreError, StorageError."""
        await self._resolve()
        forget_runs(bundle)
        manifest = bundle.catalog.manifest
        if manifest.covered is not None and manifest.covered[0] > bundle.epoch:
            return None  # our term is over, and we have not learned of it yet
        settings, now_ms = self._context.settings, self._context.clock.wall_ms()
        age_ms = int(settings.rewrite_age_s * 1000)
        self._forget_unlisted(str(bundle.name), manifest)
        view = _View(bundle, manifest, now_ms, age_ms)
        states = [
            state
            for file in manifest.level0
            if (state := await self._state_if_sound(view, file)) is not None
        ]
        chosen = choose(states, now_ms, age_ms, settings.rewrite_garbage_share)
        merge = choose_merge(manifest, self._damaged_of(str(bundle.name)))
        if self._context.log.space.short is not None:
            # What is written now may come out of the reserve.
            chosen, merge = (
                while_space_is_short(chosen, states, settings.reserve_bytes // RESERVE_FRACTION),
                frozenset(),
            )
        dead = _dead_segments(bundle, manifest)
        if not (chosen.drop or chosen.rewrite or chosen.partly or merge or dead or view.asked()):
            return None
        if await self._a_job_works_on(bundle):
            return None
        if chosen.rewrite or chosen.partly or merge:
            result = await self._rewrite(view, chosen, merge, dead)
        else:
            result = await self._commit(
                bundle, await self._change(view, chosen, dead, Written(), "")
            )
        view.answer(bundle.catalog.manifest)
        return result

    # --- what is alive ----------------------------------------------------------------------------

    def _is_damaged(self, bundle: OwnedBundle, file: LevelZero) -> bool:
        """Whether what the bundle has in the file was found to be damaged lately: it is left
        alone for a while."""
        return _name_of(file) in self._damaged_of(str(bundle.name))

    def _damaged_of(self, bundle: str) -> set[str]:
        """What was found to be damaged of a bundle lately."""
        now = self._context.clock.monotonic()
        return {
            place[1] for place, until in self._damaged.items() if place[0] == bundle and until > now
        }

    async def _note_damage(self, bundle: OwnedBundle, name: str, error: CorruptData) -> None:
        """Unless the file is gone because a commit of ours that we have not learned of has
        replaced it. Raises StoreError, StorageError."""
        await bundle.catalog.refresh()
        if name not in _listed(bundle.catalog.manifest):
            return
        place = str(bundle.name), name
        self._damaged[place] = self._context.clock.monotonic() + DAMAGED_RETRY_S
        self._context.damage.note(WHAT, _about(*place), error, bundle=str(bundle.name))

    def forget_others(self, served: Collection[str]) -> None:
        """Bundles that are not served here any more: what is damaged of them is for whoever has
        them to name."""
        self._shares = {bundle: files for bundle, files in self._shares.items() if bundle in served}
        self._forget_damage([place for place in self._damaged if place[0] not in served])

    def _forget_unlisted(self, bundle: str, manifest: Manifest) -> None:
        """Nobody needs a file any more that a bundle has no longer listed."""
        shares = self._shares.get(bundle, {})
        for name in shares.keys() - set(map(_name_of, manifest.level0)):
            del shares[name]
        places = [place for place in self._damaged if place[0] == bundle]
        if places:
            listed = _listed(manifest)
            self._forget_damage([place for place in places if place[1] not in listed])

    def _forget_damage(self, places: Iterable[tuple[str, str]]) -> None:
        for place in places:
            if self._damaged.pop(place, None) is not None:
                self._context.damage.clear(WHAT, _about(*place))

    async def _state_if_sound(self, view: _View, file: LevelZero) -> FileState | None:
        """As `_state`; None for a file that is damaged."""
        bundle = view.bundle
        if self._is_damaged(bundle, file):
            return None
        try:
            state = await self._state(view, file)
        except CorruptData as error:
            await self._note_damage(bundle, _name_of(file), error)
            return None
        self._forget_damage([(str(bundle.name), _name_of(file))])
        return state

    async def _state(self, view: _View, file: LevelZero) -> FileState:
        bundle, size, live, last_ms = view.bundle, 0, 0, 0
        pinned = wanted = False
        index = await bundle.catalog.index(file)
        known = self._shares.setdefault(str(bundle.name), {}).setdefault(_name_of(file), {})
        for topic in filter(bundle.catalog.holds, index.topics()):
            share = known[topic] = _share(view, file, index, topic, known.get(topic))
            size += share.bytes
            live += share.live_bytes
            last_ms = max(last_ms, share.last_append_ms)
            pinned = pinned or share.pinned
            wanted = wanted or view.wants(file, index, topic)
        loose = (
            view.loose_bytes(file, index)
            if pinned and (wanted or is_old(last_ms, view.now_ms, view.age_ms))
            else 0
        )
        return FileState(file, size, live, last_ms, pinned, loose, wanted)

    async def _a_job_works_on(self, bundle: OwnedBundle) -> bool:
        """Whether a job has registered an intent for this bundle: it compares its inputs when it
        commits, and would have worked in vain."""
        items = (await self._context.store.range(keys.INTENTS)).items
        intents = [IntentRecord.decode(item.value) for item in items]
        return any(
            intent.bundle == str(bundle.name) and intent.kind != REWRITE for intent in intents
        )

    # --- rewriting --------------------------------------------------------------------------------

    async def _rewrite(
        self,
        view: _View,
        chosen: Round,
        merge: frozenset[str],
        dead: dict[str, list[SegmentReference]],
    ) -> CommitResult | None:
        bundle = view.bundle
        intent = f"{REWRITE}-{self._context.clock.random_bits(64):016x}"
        record = IntentRecord(
            REWRITE,
            str(bundle.name),
            "",
            "",
            self._context.incarnation,
            self._context.clock.wall_ms(),
        )
        key = keys.intent(intent)
        self._unresolved.append(intent)  # until we know that it is gone
        await self._context.store.transact(
            [Compare(key, "create", "=", 0)], [Put(key, record.encode())]
        )
        writer = RoundWriter(bundle, intent)
        try:
            for topic, parts in sorted((await self._parts(view, chosen, merge, dead)).items()):
                await writer.write_topic(topic, parts)
            written = await writer.finish()
            result = await self._commit(
                bundle, await self._change(view, chosen, dead, written, intent)
            )
        except StoreUnavailable:
            raise  # it may have been committed: the next round finds out
        except (MagnetarError, FileNotFoundError) as error:
            await self._abandon(intent, writer.written)
            if not isinstance(error, DamagedInput):
                raise
            await self._note_damage(bundle, error.file, error.error)
            return None
        if result.outcome is not Outcome.COMMITTED:
            await self._abandon(intent, writer.written)
            return result
        self._unresolved.remove(intent)
        log.info(
            "bundle.segments_compacted",
            bundle=str(bundle.name),
            files=len(chosen.rewrite),
            partly=len(chosen.partly),
            dropped=len(chosen.drop),
            merged=len(merge),
            objects=len(written.objects),
        )
        return result

    async def _parts(
        self,
        view: _View,
        chosen: Round,
        merge: frozenset[str],
        dead: dict[str, list[SegmentReference]],
    ) -> dict[str, list[Part]]:
        """The inputs by topic."""
        parts: dict[str, list[Part]] = {}
        for file in (*chosen.rewrite, *chosen.partly):
            for name, runs in view.loose_runs(file, await view.bundle.catalog.index(file)):
                parts.setdefault(name, []).extend(LogPart(file, run) for run in runs)
        for topic, segments in view.manifest.topics.items():
            gone = dead.get(topic, [])
            small = [
                SegmentPart(found)
                for found in segments.level1
                if found.object in merge and found not in gone
            ]
            if small:
                parts.setdefault(topic, []).extend(small)
        return parts

    async def _change(
        self,
        view: _View,
        chosen: Round,
        dead: dict[str, list[SegmentReference]],
        written: Written,
        intent: str,
    ) -> LevelOneRewrite:
        """The change of the manifest that makes this round visible."""
        bundle, manifest = view.bundle, view.manifest
        files = (*chosen.drop, *chosen.rewrite)
        left = [file for file in manifest.level0 if file not in files]
        damaged = [file for file in left if self._is_damaged(bundle, file)]
        held: set[str] = set()
        for file in (found for found in left if found not in damaged):
            held.update((await bundle.catalog.index(file)).topics())
        touched = {*dead, *written.added, *written.merged, *view.asked()}
        for file in files:
            names_held = filter(bundle.catalog.holds, (await bundle.catalog.index(file)).topics())
            touched.update(topic_of_sidecar(topic) or topic for topic in names_held)
        topics = {}
        for topic in touched:
            found, host = manifest.topic(topic), bundle.topics.get(topic)
            removed = {
                (segment.object, segment.offset) for segment in dead.get(topic, [])
            } | written.merged.get(topic, set())
            added = tuple(written.added.get(topic, ()))
            trimmed: tuple[int, int] | None = None
            if (
                host is None or host.core.ledgers.last_ledger < 0
            ):  # what files have of a topic without entries is of an earlier one of its name
                trimmed = (
                    await self._last_position(bundle, manifest, topic) if topic in held else None
                )
            elif (
                start := host.core.ledgers.position_before(host.core.ledgers.first)
            ) > EARLIEST and start.ledger > 0:
                trimmed = (start.ledger, start.entry)
            topics[topic] = TopicChange(
                generation=found.compacted.generation if found.compacted is not None else 0,
                removed=frozenset(removed),
                added=added,
                trimmed=trimmed,
                gone=host is None,
                forgotten=topic not in held and not damaged,  # who knows what these hold
                complete=complete_to(host, _after(found.level1, removed, added), found.complete)
                if host is not None
                else None,
            )
        return LevelOneRewrite(intent, files, topics, bundle.epoch, chosen.partly)

    async def _last_position(
        self, bundle: OwnedBundle, manifest: Manifest, topic: str
    ) -> tuple[int, int] | None:
        """The last position that listed files have of a topic that does not exist any more."""
        ends = []
        for file in (found for found in manifest.level0 if not self._is_damaged(bundle, found)):
            runs = valid_runs(file, await bundle.catalog.index(file), topic)
            ends += [(run.ledger, run.last_entry) for run in runs]
        return max(ends, default=None)

    # --- committing -------------------------------------------------------------------------------

    async def _commit(self, bundle: OwnedBundle, change: LevelOneRewrite) -> CommitResult:
        context = self._context
        if change.intent:
            result = await commit_rewrite(
                context.store, context.volume, context.clock, bundle.name, change
            )
        else:

            def edit(manifest: Manifest) -> Manifest | None:
                # Where there is none (any more) nothing can change: its bundle may be over
                # (`collection.manifests_of_the_dead`).
                return change.apply(manifest) if manifest.generation else None

            result = await commit_manifest(
                context.store, context.volume, context.clock, bundle.name, edit
            )
        bundle.catalog.take(result.manifest)
        return result

    async def _abandon(self, intent: str, written: Written) -> None:
        """The intent first: from then on nobody can commit these files, and only then may they go.

        If it is not there a commit of ours may have removed it: the files are what readers have
        now, or the collector's.
        """
        removed = await self._context.store.delete(keys.intent(intent))
        self._unresolved.remove(intent)
        for name in written.objects if removed else ():
            await self._context.volume.remove(name)

    async def _resolve(self) -> None:
        """End intents of rounds whose outcome we did not hear: a commit has removed its own; the
        others' files are the collector's."""
        for intent in list(self._unresolved):
            await self._context.store.delete(keys.intent(intent))
            self._unresolved.remove(intent)


def _about(bundle: str, name: str) -> str:
    """How the table of damage names what a bundle has in a file."""
    return f"{bundle} {name}"


def _name_of(file: LevelZero) -> str:
    return names.log_file(file.incarnation, file.file)


def _listed(manifest: Manifest) -> set[str]:
    """Everything that a round may read: log files, and objects of segments."""
    objects = {segment.object for topic in manifest.topics.values() for segment in topic.level1}
    return objects.union(map(_name_of, manifest.level0))


def valid_runs(file: LevelZero, index: LevelZeroIndex, topic: str) -> list[Run]:
    """Runs of the terms that count."""
    return [run for run in index.runs(topic) if run.epoch in file.epochs]


def _after(
    listed: tuple[SegmentReference, ...],
    removed: set[tuple[str, int]],
    added: tuple[SegmentReference, ...],
) -> list[SegmentReference]:
    """A topic's segments once this round is committed, in order."""
    kept = [segment for segment in listed if (segment.object, segment.offset) not in removed]
    return sorted([*kept, *added], key=lambda segment: segment.first)


class _View:
    """What one round knows of its bundle: the manifest, and which entries log files have that
    segments may take."""

    def __init__(self, bundle: OwnedBundle, manifest: Manifest, now_ms: int, age_ms: int) -> None:
        """What was appended `age_ms` before `now_ms` is to be rewritten."""
        self.bundle, self.manifest, self.now_ms, self.age_ms = bundle, manifest, now_ms, age_ms
        self._ends: dict[str, int] = {}

    def segments(self, topic: str) -> tuple[SegmentReference, ...]:
        """A topic's level-1 segments, in order."""
        return self.manifest.topic(topic).level1

    def end_of(self, host: TopicHost) -> int:
        """The ordinal from which on nothing of a topic goes into segments yet."""
        name = str(host.name)
        if name not in self._ends:
            self._ends[name] = listed_end(host, self.manifest.covered)
        return self._ends[name]

    def loose_runs(self, file: LevelZero, index: LevelZeroIndex) -> Iterator[tuple[str, list[Run]]]:
        """What can be rewritten of a file and is in no segment, by topic; entries of sidecars as
        those of their topics."""
        for name in filter(self.bundle.catalog.holds, index.topics()):
            topic = topic_of_sidecar(name) or name
            host, runs = self.bundle.topics.get(topic), valid_runs(file, index, name)
            if topic != name:
                runs = committed_runs(host, runs, self.end_of(host)) if host is not None else []
            yield topic, [part for run in runs for part in outside(run, self.segments(topic))]

    def loose_bytes(self, file: LevelZero, index: LevelZeroIndex) -> int:
        """How much of it still exists."""
        hosts = self.bundle.topics
        return sum(
            existing_bytes(hosts[name], run)
            for name, runs in self.loose_runs(file, index)
            if name in hosts
            for run in runs
        )

    def wants(self, file: LevelZero, index: LevelZeroIndex, name: str) -> bool:
        """Whether a compaction waits for anything of this sidecar in a file."""
        topic = topic_of_sidecar(name)
        host = self.bundle.topics.get(topic) if topic is not None else None
        if (
            topic is None
            or host is None
            or host.transactions is None
            or not host.transactions.wanted_below
        ):
            return False
        return is_wanted(host, valid_runs(file, index, name), self.segments(topic))

    def asked(self) -> list[str]:
        """Topics for which a compaction waits, and of which there is more to say than the
        manifest does."""
        found = []
        for name, host in self.bundle.topics.items():
            if host.transactions is not None and host.transactions.wanted_below:
                known = self.manifest.topic(name).complete
                if complete_to(host, self.segments(name), known) != known:
                    found.append(name)
        return found

    def answer(self, manifest: Manifest) -> None:
        """Nobody waits any more for what this manifest says."""
        for name, host in self.bundle.topics.items():
            used, complete = host.transactions, manifest.topic(name).complete
            if (
                used is not None
                and complete is not None
                and host.core.ledgers.ordinal_after(complete) >= used.wanted_below
            ):
                used.wanted_below = 0


def _share(
    view: _View, file: LevelZero, index: LevelZeroIndex, topic: str, known: _Share | None
) -> _Share:
    """What a file has of a topic; `known` if that is as it was."""
    sidecar_of = topic_of_sidecar(topic)
    host = view.bundle.topics.get(sidecar_of or topic)
    state = (host.core.created_ms, host.core.ledgers.first) if host is not None else (-1, -1)
    key = (*state, file.epochs)  # a file may be listed again with a later term of ours in it
    if known is not None and known.key == key and not known.pinned:
        return known
    runs = valid_runs(file, index, topic)
    size = sum(sum(run.lengths) for run in runs)
    last_ms = max((run.append_ms for run in runs), default=0)
    if sidecar_of is not None and host is not None:
        live, pinned = sidecar_share(host, runs, view.end_of(host), view.segments(sidecar_of))
        return _Share(key, size, live, last_ms, pinned)
    live = sum(existing_bytes(host, run) for run in runs) if host is not None else 0
    return _Share(key, size, live, last_ms)


def _dead_segments(bundle: OwnedBundle, manifest: Manifest) -> dict[str, list[SegmentReference]]:
    """Level-1 segments in which nothing exists any more, and everything of topics that were
    deleted; by topic."""
    found: dict[str, list[SegmentReference]] = {}
    for topic, segments in manifest.topics.items():
        host = bundle.topics.get(topic)
        if host is None:
            if segments != TopicSegments(trimmed=segments.trimmed):
                found[topic] = list(segments.level1)
            continue
        ledgers = host.core.ledgers
        gone = [
            segment
            for segment in segments.level1
            if ledgers.ordinal_after(segment.last) <= ledgers.first
        ]
        if gone:
            found[topic] = gone
    return found


def forget_runs(bundle: OwnedBundle) -> None:
    """Drop from memory where entries lie that the manifest knows as well, and those that do not
    exist any more."""
    covered = bundle.catalog.manifest.covered
    for host in bundle.topics.values():
        host.index.drop_before(_known_below(bundle, host.index, covered, host.core.ledgers.first))


def _known_below(
    bundle: OwnedBundle, index: EntryIndex, covered: tuple[int, int] | None, first: int
) -> int:
    incarnation, below = bundle.context.incarnation, first
    if covered is not None and covered[0] == bundle.epoch:
        # All terms before ours are covered, and of ours the files before this one.
        for run in index.runs:
            if (
                run.incarnation == incarnation and run.file >= covered[1]
            ) or run.payload is not None:
                break
            below = max(below, run.end)
    return below

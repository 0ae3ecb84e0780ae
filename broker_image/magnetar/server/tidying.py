"""Keeping a bundle's manifest short.

Owns: one round over a bundle served here: files in which nothing is alive leave the manifest, old or mostly dead ones are rewritten into level-1
segments, small segments are merged; and the commit of it. Imports: storage, siblings.
Source: DESIGN 6 (segments; rewriting).
Invariants: what is alive is what the bundle's topics say, who forget an entry only after that is durable; a round commits by comparing its inputs
or leaves nothing behind but its intent, which goes before its files; while a job works under an intent on this bundle the lists stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from magnetar.errors import CorruptData, MagnetarError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import IntentRecord
from magnetar.metadata.store import Compare, Put
from magnetar.names import topic_of_sidecar
from magnetar.server.bundle import OwnedBundle
from magnetar.server.collecting import REWRITE
from magnetar.server.context import BrokerContext
from magnetar.server.entry_index import EntryIndex
from magnetar.server.participant.linked import committed_runs, sidecar_state
from magnetar.server.rewriting import DamagedInput, LogPart, Part, RoundWriter, SegmentPart, Written
from magnetar.server.topic_host import TopicHost
from magnetar.storage import names
from magnetar.storage.index import LevelZeroIndex, Run
from magnetar.storage.level_one import FileState, LevelOneRewrite, Round, TopicChange, choose, choose_merge
from magnetar.storage.manifest import CommitResult, LevelZero, Manifest, Outcome, SegmentReference, commit_manifest, commit_rewrite
from magnetar.topics.ledgers import EARLIEST

log = structlog.get_logger(__name__)

DAMAGED_RETRY_S = 600.0


@dataclass(frozen=True, slots=True)
class _Share:
    """What one listed file has of one topic, as of a state of that topic and the epochs it is listed with (`key`)."""

    key: tuple[int, int, tuple[int, ...]]
    bytes: int
    live_bytes: int
    last_append_ms: int
    pinned: bool = False


class Tidier:
    """Tidies bundles one after the other; remembers what it has found out about files, which never change."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._shares: dict[tuple[str, int, str], _Share] = {}
        self._damaged: dict[tuple[str, int], float] = {}
        self._unresolved: list[str] = []

    async def tidy(self, bundle: OwnedBundle) -> CommitResult | None:
        """One round; None if there was nothing to do. Raises StoreError, StorageError."""
        await self._resolve()
        forget_runs(bundle)
        manifest = bundle.catalog.manifest
        if manifest.covered is not None and manifest.covered[0] > bundle.epoch:
            return None  # our term is over, and we have not heard of it yet
        settings, now_ms = self._context.settings, self._context.clock.wall_ms()
        states = [state for file in manifest.level0 if (state := await self._state_if_sound(bundle, file)) is not None]
        chosen = choose(states, now_ms, int(settings.rewrite_age_s * 1000), settings.rewrite_garbage_share)
        merge = choose_merge(manifest)
        dead = _dead_segments(bundle, manifest)
        if not (chosen.drop or chosen.rewrite or merge or dead) or await self._a_job_works_on(bundle):
            return None
        if not (chosen.rewrite or merge):
            return await self._commit(bundle, await self._change(bundle, manifest, chosen, dead, Written(), ""))
        return await self._rewrite(bundle, manifest, chosen, merge, dead)

    # --- what is alive ---------------------------------------------------------------------------------------------------------

    def _is_damaged(self, file: LevelZero) -> bool:
        """Whether the file was found to be damaged lately: it is left alone for a while."""
        return self._damaged.get((file.incarnation, file.file), 0.0) > self._context.clock.monotonic()

    def _note_damage(self, bundle: OwnedBundle, file: LevelZero, error: CorruptData) -> None:
        self._damaged[file.incarnation, file.file] = self._context.clock.monotonic() + DAMAGED_RETRY_S
        about = f"{bundle.name} {names.log_file(file.incarnation, file.file)}"
        self._context.damage.note("rewriting", about, error, bundle=str(bundle.name))

    async def _state_if_sound(self, bundle: OwnedBundle, file: LevelZero) -> FileState | None:
        """As `_state`; None for a file that is damaged."""
        if self._is_damaged(file):
            return None
        try:
            state = await self._state(bundle, file)
        except CorruptData as error:
            self._note_damage(bundle, file, error)
            return None
        if self._damaged.pop((file.incarnation, file.file), None) is not None:
            self._context.damage.clear("rewriting", f"{bundle.name} {names.log_file(file.incarnation, file.file)}")
        return state

    async def _state(self, bundle: OwnedBundle, file: LevelZero) -> FileState:
        size = live = last_ms = 0
        pinned = False
        index = await bundle.catalog.index(file)
        for topic in index.topics():
            if not bundle.catalog.holds(topic):
                continue
            share = self._share(bundle, file, index, topic)
            size += share.bytes
            live += share.live_bytes
            last_ms = max(last_ms, share.last_append_ms)
            pinned = pinned or share.pinned
        return FileState(file, size, live, last_ms, pinned)

    def _share(self, bundle: OwnedBundle, file: LevelZero, index: LevelZeroIndex, topic: str) -> _Share:
        sidecar_of = topic_of_sidecar(topic)
        host = bundle.topics.get(sidecar_of or topic)
        state = (host.core.created_ms, host.core.ledgers.first) if host is not None else (-1, -1)
        key = (*state, file.epochs)  # a file may be listed again with a later term of ours in it
        place = (file.incarnation, file.file, topic)
        known = self._shares.get(place)
        if known is None or known.key != key:
            runs = valid_runs(file, index, topic)
            size = sum(sum(run.lengths) for run in runs)
            last_ms = max((run.append_ms for run in runs), default=0)
            if sidecar_of is not None and host is not None:
                live, pinned = sidecar_state(host, runs)
                known = _Share(key, size, live, last_ms, pinned)
            else:
                live = sum(_live_bytes(host, run) for run in runs) if host is not None else 0
                known = _Share(key, size, live, last_ms)
            if not known.pinned:
                self._shares[place] = known
        return known

    async def _a_job_works_on(self, bundle: OwnedBundle) -> bool:
        """Whether a job has registered an intent for this bundle: it compares its inputs when it commits, and would have worked in vain."""
        items = (await self._context.store.range(keys.INTENTS)).items
        intents = [IntentRecord.decode(item.value) for item in items]
        return any(intent.bundle == str(bundle.name) and intent.kind != REWRITE for intent in intents)

    # --- rewriting -------------------------------------------------------------------------------------------------------------

    async def _rewrite(
        self, bundle: OwnedBundle, manifest: Manifest, chosen: Round, merge: frozenset[str], dead: dict[str, list[SegmentReference]]
    ) -> CommitResult | None:
        intent = f"{REWRITE}-{self._context.clock.random_bits(64):016x}"
        record = IntentRecord(REWRITE, str(bundle.name), "", "", self._context.incarnation, self._context.clock.wall_ms())
        key = keys.intent(intent)
        self._unresolved.append(intent)  # until we know that it is gone
        await self._context.store.transact([Compare(key, "create", "=", 0)], [Put(key, record.encode())])
        writer = RoundWriter(bundle, intent)
        try:
            for topic, parts in sorted((await self._parts(bundle, manifest, chosen, merge, dead)).items()):
                await writer.write_topic(topic, parts)
            written = await writer.finish()
            result = await self._commit(bundle, await self._change(bundle, manifest, chosen, dead, written, intent))
        except StoreUnavailable:
            raise  # it may have been committed: the next round finds out
        except (MagnetarError, FileNotFoundError) as error:
            await self._abandon(intent, writer.written)
            if not isinstance(error, DamagedInput):
                raise
            self._note_damage(bundle, error.file, error.error)
            return None
        if result.outcome is not Outcome.COMMITTED:
            await self._abandon(intent, writer.written)
            return result
        self._unresolved.remove(intent)
        log.info(
            "bundle.rewritten",
            bundle=str(bundle.name),
            files=len(chosen.rewrite),
            dropped=len(chosen.drop),
            merged=len(merge),
            objects=len(written.objects),
        )
        return result

    async def _parts(
        self, bundle: OwnedBundle, manifest: Manifest, chosen: Round, merge: frozenset[str], dead: dict[str, list[SegmentReference]]
    ) -> dict[str, list[Part]]:
        """The inputs by topic."""
        parts: dict[str, list[Part]] = {}
        for file in chosen.rewrite:
            index = await bundle.catalog.index(file)
            for topic in filter(bundle.catalog.holds, index.topics()):
                name, runs = _as_entries_of_topic(bundle, topic, valid_runs(file, index, topic))
                parts.setdefault(name, []).extend(LogPart(file, run) for run in runs)
        for topic, segments in manifest.topics.items():
            gone = dead.get(topic, [])
            small = [SegmentPart(found) for found in segments.level1 if found.object in merge and found not in gone]
            if small:
                parts.setdefault(topic, []).extend(small)
        return parts

    async def _change(
        self,
        bundle: OwnedBundle,
        manifest: Manifest,
        chosen: Round,
        dead: dict[str, list[SegmentReference]],
        written: Written,
        intent: str,
    ) -> LevelOneRewrite:
        """The change of the manifest that makes this round visible."""
        files = (*chosen.drop, *chosen.rewrite)
        left = [file for file in manifest.level0 if file not in files and not self._is_damaged(file)]
        held: set[str] = set()
        for file in left:
            held.update((await bundle.catalog.index(file)).topics())
        touched = {*dead, *written.added, *written.merged}
        for file in files:
            names_held = filter(bundle.catalog.holds, (await bundle.catalog.index(file)).topics())
            touched.update(topic_of_sidecar(topic) or topic for topic in names_held)
        topics = {}
        for topic in touched:
            found, host = manifest.topic(topic), bundle.topics.get(topic)
            removed = {(segment.object, segment.offset) for segment in dead.get(topic, [])} | written.merged.get(topic, set())
            trimmed: tuple[int, int] | None = None
            if host is None:
                trimmed = await self._last_position(bundle, manifest, topic) if topic in held else None
            elif (start := host.core.ledgers.position_before(host.core.ledgers.first)) > EARLIEST and start.ledger > 0:
                trimmed = (start.ledger, start.entry)
            topics[topic] = TopicChange(
                generation=found.compacted.generation if found.compacted is not None else 0,
                removed=frozenset(removed),
                added=tuple(written.added.get(topic, ())),
                trimmed=trimmed,
                gone=host is None,
                forgotten=topic not in held,
            )
        return LevelOneRewrite(intent, files, topics, bundle.epoch)

    async def _last_position(self, bundle: OwnedBundle, manifest: Manifest, topic: str) -> tuple[int, int] | None:
        """The last position that listed files have of a topic that does not exist any more."""
        ends = []
        for file in (found for found in manifest.level0 if not self._is_damaged(found)):
            runs = valid_runs(file, await bundle.catalog.index(file), topic)
            ends += [(run.ledger, run.last_entry) for run in runs]
        return max(ends, default=None)

    # --- committing ------------------------------------------------------------------------------------------------------------

    async def _commit(self, bundle: OwnedBundle, change: LevelOneRewrite) -> CommitResult:
        context = self._context
        if change.intent:
            result = await commit_rewrite(context.store, context.volume, context.clock, bundle.name, change)
        else:
            result = await commit_manifest(context.store, context.volume, context.clock, bundle.name, change.apply)
        bundle.catalog.take(result.manifest)
        if result.outcome is Outcome.COMMITTED:
            for file in change.files:
                for place in [known for known in self._shares if known[:2] == (file.incarnation, file.file)]:
                    del self._shares[place]
        return result

    async def _abandon(self, intent: str, written: Written) -> None:
        """The intent first: from then on nobody can commit these files, and only then may they go."""
        await self._context.store.delete(keys.intent(intent))
        self._unresolved.remove(intent)
        for name in written.objects:
            await self._context.volume.remove(name)

    async def _resolve(self) -> None:
        """End intents of rounds whose outcome we did not hear: a commit has removed its own; the others' files are the collector's."""
        for intent in list(self._unresolved):
            await self._context.store.delete(keys.intent(intent))
            self._unresolved.remove(intent)


def valid_runs(file: LevelZero, index: LevelZeroIndex, topic: str) -> list[Run]:
    """Runs of the terms that count."""
    return [run for run in index.runs(topic) if run.epoch in file.epochs]


def _as_entries_of_topic(bundle: OwnedBundle, name: str, runs: list[Run]) -> tuple[str, list[Run]]:
    """The topic whose entries these are, and under which ids: those of a sidecar as far as they were committed."""
    topic = topic_of_sidecar(name)
    if topic is None:
        return name, runs
    host = bundle.topics.get(topic)
    return topic, committed_runs(host, runs) if host is not None else []


def _live_bytes(host: TopicHost, run: Run) -> int:
    ledgers = host.core.ledgers
    start, end = ledgers.span(run.ledger, run.first_entry, run.last_entry)
    if start >= end:
        return 0
    low = ledgers.position(start).entry - run.first_entry
    return sum(run.lengths[low : low + end - start])


def _dead_segments(bundle: OwnedBundle, manifest: Manifest) -> dict[str, list[SegmentReference]]:
    """Level-1 segments in which nothing exists any more, and everything of topics that were deleted; by topic."""
    found: dict[str, list[SegmentReference]] = {}
    for topic, segments in manifest.topics.items():
        host = bundle.topics.get(topic)
        if host is None:
            if segments.level1 or segments.compacted is not None:
                found[topic] = list(segments.level1)
            continue
        ledgers = host.core.ledgers
        gone = [segment for segment in segments.level1 if ledgers.ordinal_after(segment.last) <= ledgers.first]
        if gone:
            found[topic] = gone
    return found


def forget_runs(bundle: OwnedBundle) -> None:
    """Drop from memory where entries lie that the manifest knows as well, and those that do not exist any more."""
    covered = bundle.catalog.manifest.covered
    for host in bundle.topics.values():
        host.index.drop_before(_known_below(bundle, host.index, covered, host.core.ledgers.first))


def _known_below(bundle: OwnedBundle, index: EntryIndex, covered: tuple[int, int] | None, first: int) -> int:
    incarnation, below = bundle.context.incarnation, first
    if covered is not None and covered[0] == bundle.epoch:
        # All terms before ours are covered, and of ours the files before this one.
        for run in index.runs:
            if (run.incarnation == incarnation and run.file >= covered[1]) or run.payload is not None:
                break
            below = max(below, run.end)
    return below

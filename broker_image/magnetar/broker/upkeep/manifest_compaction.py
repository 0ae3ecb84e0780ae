"""Keeping a bundle's manifest short.

Owns: one round over a bundle served here: files in which nothing is alive leave the manifest, old
or mostly dead ones are rewritten into level-1 segments, small segments are merged; and its commit.
Imports: storage, siblings. Invariants: a topic forgets an entry only after that is durable; a round
commits by comparing its inputs or leaves nothing behind but its intent, which is deleted before its
files; while a job works under an intent on this bundle the lists stay as they are; each round
records, for every topic that it changes, up to where segments have what transactions have
published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.context import BrokerContext
from magnetar.broker.transactions.linked import (
    complete_to,
)
from magnetar.broker.upkeep.collection_facts import REWRITE
from magnetar.broker.upkeep.compaction_view import (
    FileShare,
    RoundView,
    forget_runs,
    is_of_later_term,
    listed_names,
    name_of,
    valid_runs,
)
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
from magnetar.storage.manifest import (
    CommitResult,
    LevelZero,
    Manifest,
    Outcome,
    SegmentReference,
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
    while_space_is_short,
)
from magnetar.topics.ledgers import EARLIEST

log = structlog.get_logger(__name__)

DAMAGED_RETRY_S = 600.0
WHAT = "rewriting"
RESERVE_FRACTION = 4
"""While space is short a bundle's round may write the reserve divided by this."""


class ManifestCompactor:
    """Compacts one bundle at a time; remembers what it found in files, which never change."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._shares: dict[str, dict[str, dict[str, FileShare]]] = {}
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
        if is_of_later_term(manifest, bundle.epoch):
            return None  # our term is over, and we have not learned of it yet
        settings, now_ms = self._context.settings, self._context.clock.wall_ms()
        age_ms = int(settings.rewrite_age_s * 1000)
        self._forget_unlisted(str(bundle.name), manifest)
        view = RoundView(bundle, manifest, now_ms, age_ms)
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
        dead = view.dead_segments()
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
        return name_of(file) in self._damaged_of(str(bundle.name))

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
        if name not in listed_names(bundle.catalog.manifest):
            return
        place = str(bundle.name), name
        self._damaged[place] = self._context.clock.monotonic() + DAMAGED_RETRY_S
        self._context.damage.note(WHAT, _about(*place), error, bundle=str(bundle.name))

    def forget_others(self, served: Collection[str]) -> None:
        """Forget bundles that are not served here any more: their new owners report damage."""
        self._shares = {bundle: files for bundle, files in self._shares.items() if bundle in served}
        self._forget_damage([place for place in self._damaged if place[0] not in served])

    def _forget_unlisted(self, bundle: str, manifest: Manifest) -> None:
        """Forget files that the bundle does not list any more."""
        shares = self._shares.get(bundle, {})
        for name in shares.keys() - set(map(name_of, manifest.level0)):
            del shares[name]
        places = [place for place in self._damaged if place[0] == bundle]
        if places:
            listed = listed_names(manifest)
            self._forget_damage([place for place in places if place[1] not in listed])

    def _forget_damage(self, places: Iterable[tuple[str, str]]) -> None:
        for place in places:
            if self._damaged.pop(place, None) is not None:
                self._context.damage.clear(WHAT, _about(*place))

    async def _state_if_sound(self, view: RoundView, file: LevelZero) -> FileState | None:
        """As `_state`; None for a file that is damaged."""
        bundle = view.bundle
        if self._is_damaged(bundle, file):
            return None
        try:
            state = await self._state(view, file)
        except CorruptData as error:
            await self._note_damage(bundle, name_of(file), error)
            return None
        self._forget_damage([(str(bundle.name), name_of(file))])
        return state

    async def _state(self, view: RoundView, file: LevelZero) -> FileState:
        bundle, size, live, last_ms = view.bundle, 0, 0, 0
        pinned = wanted = False
        index = await bundle.catalog.index(file)
        known = self._shares.setdefault(str(bundle.name), {}).setdefault(name_of(file), {})
        for topic in filter(bundle.catalog.holds, index.topics()):
            share = known[topic] = view.share(file, index, topic, known.get(topic))
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
        """Whether a job has registered an intent for this bundle: its commit would fail if the
        lists changed. That of a broker's own compaction would not."""
        items = (await self._context.store.range(keys.INTENTS)).items
        intents = [IntentRecord.decode(item.value) for item in items]
        return any(intent.bundle == str(bundle.name) and intent.job for intent in intents)

    # --- rewriting --------------------------------------------------------------------------------

    async def _rewrite(
        self,
        view: RoundView,
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
        view: RoundView,
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
        view: RoundView,
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
                forgotten=topic not in held and not damaged,
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
                # (`storage.gc.manifests_of_the_dead`).
                return change.apply(manifest) if manifest.generation else None

            result = await commit_manifest(
                context.store, context.volume, context.clock, bundle.name, edit
            )
        bundle.catalog.take(result.manifest)
        return result

    async def _abandon(self, intent: str, written: Written) -> None:
        """The intent first: without it these files cannot be committed, and may be deleted.

        If it is gone already a commit of ours may have removed it: the files are listed now, or
        left to the garbage collector.
        """
        removed = await self._context.store.delete(keys.intent(intent))
        self._unresolved.remove(intent)
        for name in written.objects if removed else ():
            await self._context.volume.remove(name)

    async def _resolve(self) -> None:
        """Delete intents of rounds whose outcome is unknown: a commit has removed its own; the
        files of the others are left to the garbage collector."""
        for intent in list(self._unresolved):
            await self._context.store.delete(keys.intent(intent))
            self._unresolved.remove(intent)


def _about(bundle: str, name: str) -> str:
    """How the table of damage names what a bundle has in a file."""
    return f"{bundle} {name}"


def _after(
    listed: tuple[SegmentReference, ...],
    removed: set[tuple[str, int]],
    added: tuple[SegmentReference, ...],
) -> list[SegmentReference]:
    """A topic's segments once this round is committed, in order."""
    kept = [segment for segment in listed if (segment.object, segment.offset) not in removed]
    return sorted([*kept, *added], key=lambda segment: segment.first)

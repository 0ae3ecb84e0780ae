"""Deleting what nobody needs any more.

Owns: the collector: a broker gives up files of its own log; the leader those of dead incarnations,
and objects that were superseded or never committed. Imports: metadata, storage (the decisions are
`storage.collection`), siblings. Invariants: a log file of a living incarnation is deleted by that
incarnation alone; what is listed is listed before the facts are read that decide about it; an
intent goes before the files it stands for; whatever was replaced stays for `replaced_kept_s`. A
restored store needs none of it: its records come from the logs' own copies, which are durable
before anything is let go of. It may go back to a superseded manifest that it finds after it has
fenced everybody: what one lists is deleted only after it is gone, and by an incarnation that has
seen its own claim after that.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.log_keys import LogKeys, sealed_files
from magnetar.clock import elapsed_ms
from magnetar.errors import CorruptData, StorageError, StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CoordinatorClaimRecord,
    CoordinatorRecord,
    IntentRecord,
    JobRunRecord,
    LogFileRecord,
    ManifestPointer,
    NamespaceRecord,
)
from magnetar.metadata.store import Compare, Delete
from magnetar.names import BundleName, bundles_of
from magnetar.storage import gc as collection
from magnetar.storage import names
from magnetar.storage.gc import BundleFacts, LogFile, listed_in
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.format import FILE_HEADER_BYTES
from magnetar.storage.log.index import IndexBuilder
from magnetar.storage.log.recovery import build_index
from magnetar.storage.manifest import Manifest, read_manifest

log = structlog.get_logger(__name__)

FINISHED_RUNS = ("succeeded", "failed")
UNUSED_CLAIM_MS = 600_000
"""A claim without registration and without bundles belongs to a broker that starts, or, seen for
so long, to one that died before it had any."""


class GarbageCollector:
    """Deletes files of one broker's log and, while it leads, of the dead."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership, self._clock = context, ownership, context.clock
        self._keys = LogKeys(context, ownership.bundle_of)
        kept_ms = int(context.settings.replaced_kept_s * 1000)
        self._own = collection.Grace(kept_ms)
        self._dead = collection.Grace(kept_ms)
        self._objects = collection.Grace(kept_ms)
        self._over = collection.Grace(kept_ms)
        self._unused_claims = collection.Grace(UNUSED_CLAIM_MS)
        self._unheard = collection.Grace(int(context.settings.intent_age_max_s * 1000))
        self._manifests: dict[str, tuple[str, Manifest]] = {}
        self._superseded: dict[str, frozenset[str]] = {}
        self._complete: set[str] = set()
        self._damaged: set[tuple[str, str]] = set()
        self._met: set[tuple[str, str]] = set()

    def forget_unmet(self) -> None:
        """After a round: damage that was not met in it is over, or for somebody else to name."""
        for what, about in self._damaged - self._met:
            self._context.damage.clear(what, about)
        self._damaged, self._met = self._met, set()

    def _note(self, what: str, about: str, error: Exception, bundle: str = "") -> None:
        """What cannot be read keeps its own files; everything else is collected all the same. It
        is damage unless it may pass by itself."""
        if isinstance(error, CorruptData):
            self._met.add((what, about))
            self._context.damage.note(what, about, error, bundle=bundle)
        else:
            log.warning("gc.unread", what=what, about=about, error=str(error))

    # --- our own log ------------------------------------------------------------------------------

    async def collect_own(self) -> None:
        """Give up files of our own log that every bundle has passed. Raises StoreError,
        StorageError."""
        # Before the facts: a term that is about to begin has its start in one of the files from
        # here on.
        pinned_from = self._ownership.first_file_needed
        incarnation = self._context.incarnation
        files = await sealed_files(self._context.store, keys.logs_of(incarnation))
        candidates = {file: record for file, record in files.items() if file[1] < pinned_from}
        for incarnation, number in await self._given_up(candidates, self._own):
            await self._context.log.set_aside(number, files[incarnation, number].length)
            await self._delete(incarnation, number)

    # --- the dead ---------------------------------------------------------------------------------

    async def collect_dead(self) -> None:
        """Give up files of incarnations that are over; for the leader. Raises StoreError,
        StorageError."""
        listed = await self._context.volume.list(names.LOGS)
        incarnations = {name.split("/")[1] for name in listed}
        claimed = {
            name.rpartition("/")[2] for name in await self._context.volume.list(names.CLAIMS)
        }
        registered = await self._registered()
        dead = incarnations - claimed - registered - {self._context.incarnation}
        for incarnation in sorted(dead - self._complete):
            try:
                await self._complete_keys(incarnation)
            except (StorageError, FileNotFoundError) as error:
                self._note(LOG_OF_THE_DEAD, incarnation, error)
            except StoreError:
                raise
            except Exception as error:
                self._context.metrics.surprises.note("collector", error, incarnation=incarnation)
        for name in listed:
            if name.endswith(names.SPARE_SUFFIX) and name.split("/")[1] in dead:
                await self._context.volume.remove(name)
        files = {
            file: record
            for file, record in (await sealed_files(self._context.store)).items()
            if file[0] not in claimed | registered
        }
        for incarnation, number in await self._given_up(files, self._dead):
            await self._delete(incarnation, number)
        await self._end_unused(claimed - registered)

    async def _complete_keys(self, incarnation: str) -> None:
        """Seal and note the files of a dead incarnation whose owner did not come to it: without
        a key none of them could ever go."""
        volume, store = self._context.volume, self._context.store
        noted = set(await sealed_files(self._context.store, keys.logs_of(incarnation)))
        for sealed in await fence(volume, incarnation):
            if (incarnation, sealed.number) in noted:
                continue
            builder = IndexBuilder(incarnation, sealed.number)
            if sealed.length > FILE_HEADER_BYTES:
                builder = await build_index(volume, incarnation, sealed.number, sealed.length)
            if await store.get(keys.log_file(incarnation, sealed.number)) is None:
                await self._keys.write(incarnation, sealed.number, sealed.length, builder.epochs())
        self._complete.add(incarnation)

    async def _end_unused(self, claims: Iterable[str]) -> None:
        """Fence incarnations that are not registered, own nothing and have had their claim for
        long: nobody else ever will."""
        records = await self._records()
        holders: list[BundleRecord | CoordinatorRecord] = [
            *records.values(),
            *await self._coordinators(),
        ]
        needed = {
            name
            for record in holders
            for name in (record.incarnation, *(span.incarnation for span in record.chain))
        }
        for incarnation in self._unused_claims.over(set(claims) - needed, elapsed_ms(self._clock)):
            try:
                log.info("gc.fences", incarnation=incarnation)
                await fence(self._context.volume, incarnation)
            except StorageError as error:
                self._note(LOG_OF_THE_DEAD, incarnation, error)
            except Exception as error:
                self._context.metrics.surprises.note("collector", error, incarnation=incarnation)

    async def _registered(self) -> set[str]:
        """Incarnations that live, as far as the store knows: of brokers, and of transaction
        coordinators."""
        store = self._context.store
        brokers = {
            item.key.removeprefix(keys.INCARNATIONS)
            for item in (await store.range(keys.INCARNATIONS)).items
        }
        claims = (await store.range(keys.COORDINATOR_CLAIMS)).items
        return brokers | {CoordinatorClaimRecord.decode(item.value).incarnation for item in claims}

    # --- facts ------------------------------------------------------------------------------------

    async def _given_up(
        self, files: dict[LogFile, LogFileRecord], grace: collection.Grace
    ) -> list[LogFile]:
        """Of `files` those that may be deleted now."""
        if not files:
            return []
        # The pins first: a job reads its plan's files under an intent that it registers before the
        # first of them could go.
        pinned = {intent.bundle for _, intent, _ in await self._intents() if intent.kind != REWRITE}
        facts = await self._facts(pinned.union(*(record.bundles for record in files.values())))
        # split under the job, which still reads
        pinned |= {child for name in pinned for child in facts[name].children}
        # Our own terms that are about to begin have pinned their files.
        beginning = collection.destinations(facts.values()) - {self._context.incarnation}
        coordinators = await self._coordinators()
        dead = collection.dead_log_files(
            files, facts, pinned_bundles=pinned, beginning=beginning, coordinators=coordinators
        )
        by_name = {names.log_file(*file): file for file in dead}
        due = grace.over(by_name, elapsed_ms(self._clock))
        if not due:
            return []
        listing = {name for found in due for name in files[by_name[found]].bundles}
        listing.update(child for name in tuple(listing) for child in facts[name].children)
        objects = [
            name
            for bundle in sorted(listing)
            for name in await self._context.volume.list(
                names.manifests_of(BundleName.parse(bundle))
            )
        ]
        held = await self._listed_by_superseded(objects)
        return (
            [by_name[name] for name in due if name not in held] if await self._is_claimed() else []
        )

    async def _listed_by_superseded(self, objects: Iterable[str]) -> set[str]:
        """What those of the manifest `objects` list that no bundle's pointer names, as names of
        log files and segments. Raises StorageError."""
        current = {name for name, _ in self._manifests.values()}
        listed: dict[str, frozenset[str]] = {}
        for name in objects:
            if name in current:
                continue
            if name not in self._superseded:
                try:
                    self._superseded[name] = listed_in(
                        await read_manifest(self._context.volume, name)
                    )
                except (FileNotFoundError, CorruptData):
                    continue  # a restore passes it over, too
            listed[name] = self._superseded[name]
        self._superseded = listed
        return {name for found in listed.values() for name in found}

    async def _is_claimed(self) -> bool:
        """Whether nobody has fenced us yet; asked after what decides was read. Raises
        StorageError."""
        return await self._context.volume.exists(names.claim(self._context.incarnation))

    async def _facts(self, listed: set[str]) -> dict[str, BundleFacts]:
        """Of every bundle that has a record, and of the `listed` ones."""
        records = await self._records()
        namespaces = {
            item.key.removeprefix(keys.NAMESPACES): NamespaceRecord.decode(item.value).boundaries
            for item in (await self._context.store.range(keys.NAMESPACES)).items
        }
        facts: dict[str, BundleFacts] = {}
        children: tuple[str, ...]
        for name in {*records, *listed}:
            bundle, record = BundleName.parse(name), records.get(name)
            if name not in listed:
                facts[name] = BundleFacts(record, Manifest(name, 0))  # only its chain counts
                continue
            manifest = await self._manifest_of(bundle)
            deleted, children = False, ()
            if record is None or record.state is BundleState.DELETED:
                boundaries = namespaces.get(str(bundle.namespace))
                current = (
                    bundles_of(bundle.namespace, boundaries) if boundaries is not None else None
                )
                deleted = collection.is_over(bundle, record, current, records)
                children = collection.children_of(bundle, current or ())
            facts[name] = BundleFacts(record, manifest, deleted, children)
        for name in {child for found in facts.values() for child in found.children} - listed:
            facts[name] = BundleFacts(
                records.get(name), await self._manifest_of(BundleName.parse(name))
            )
        self._manifests = {name: held for name, held in self._manifests.items() if name in facts}
        return facts

    async def _records(self, revisions: dict[str, int] | None = None) -> dict[str, BundleRecord]:
        """All bundle records by name; their revisions into `revisions`."""
        items = (await self._context.store.range(keys.BUNDLES)).items
        if revisions is not None:
            revisions.update(
                {item.key.removeprefix(keys.BUNDLES): item.mod_revision for item in items}
            )
        return {
            item.key.removeprefix(keys.BUNDLES): BundleRecord.decode(item.value) for item in items
        }

    async def _coordinators(self) -> list[CoordinatorRecord]:
        """What is known of every transaction coordinator's number."""
        return [
            CoordinatorRecord.decode(item.value)
            for item in (await self._context.store.range(keys.COORDINATORS)).items
        ]

    async def _manifest_of(self, bundle: BundleName) -> Manifest | None:
        """The bundle's manifest, an empty one if it has none; None if it cannot be read. Raises
        StoreError."""
        item = await self._context.store.get(keys.manifest(bundle))
        if item is None:
            return Manifest(str(bundle), 0)
        return await self._read(str(bundle), ManifestPointer.decode(item.value).object)

    async def _read(self, bundle: str, name: str) -> Manifest | None:
        """The manifest object `name`, to which the bundle's pointer points; the last one of each
        bundle is remembered, since none changes.

        None if it cannot be read. Raises StoreError.
        """
        held = self._manifests.get(bundle)
        if held is not None and held[0] == name:
            return held[1]
        try:
            found = await read_manifest(self._context.volume, name)
        except FileNotFoundError:
            item = await self._context.store.get(keys.manifest(BundleName.parse(bundle)))
            if item is not None and ManifestPointer.decode(item.value).object == name:
                self._note(
                    MANIFEST,
                    bundle,
                    CorruptData(f"{name} is missing; restore it from a backup", file=name),
                    bundle,
                )
            return None  # or superseded concurrently: the next round sees the one after it
        except StorageError as error:
            self._note(MANIFEST, bundle, error, bundle)
            return None
        self._manifests[bundle] = name, found
        return found

    async def _intents(self) -> list[tuple[str, IntentRecord, int]]:
        """Ids, records and revisions of all intents."""
        items = (await self._context.store.range(keys.INTENTS)).items
        return [
            (
                item.key.removeprefix(keys.INTENTS),
                IntentRecord.decode(item.value),
                item.mod_revision,
            )
            for item in items
        ]

    # --- objects ----------------------------------------------------------------------------------

    async def collect_objects(self) -> None:
        """Give up intents of dead writers, superseded checkpoints and manifests, orphaned
        segments; for the leader."""
        await self._end_intents()
        volume = self._context.volume
        checkpoints = await volume.list(names.CHECKPOINTS)
        manifests = await volume.list(names.MANIFESTS)
        segments = await volume.list(names.SEGMENTS)
        intents = {identifier: intent for identifier, intent, _ in await self._intents()}
        revisions: dict[str, int] = {}
        records = await self._records(revisions)
        pointed_to = {
            record.checkpoint.object for record in records.values() if record.checkpoint is not None
        }
        over = {name for name, record in records.items() if record.state is BundleState.DELETED}
        given_up: list[str] = []
        for bundle, found in _by_bundle(checkpoints).items():
            given_up += collection.superseded_checkpoints(found, records.get(bundle), pointed_to)
        items = {
            item.key.removeprefix(keys.MANIFESTS): item
            for item in (await self._context.store.range(keys.MANIFESTS)).items
        }
        pointers = {bundle: ManifestPointer.decode(item.value) for bundle, item in items.items()}
        # As of one revision: a split moves segments from one bundle's manifest to those of others.
        referring = {
            bundle: await self._read(bundle, pointer.object) for bundle, pointer in pointers.items()
        }
        # What a manifest that cannot be read lists is of its namespace, and its predecessors are
        # what there is to go back to.
        unread = {bundle for bundle, manifest in referring.items() if manifest is None}
        readable = [manifest for manifest in referring.values() if manifest is not None]
        kept = {BundleName.parse(bundle).namespace for bundle in unread}
        given_up += collection.manifests_of_the_dead(
            _by_bundle(manifests), intents.values(), records, pointers.keys()
        )
        for bundle, found in _by_bundle(manifests).items():
            if bundle in pointers and bundle not in unread:
                pointer = pointers[bundle]
                given_up += collection.superseded_manifests(
                    found, pointer.object, pointer.generation
                )
        for bundle, found in _by_bundle(segments).items():
            if (bundle in pointers or bundle in over) and BundleName.parse(
                bundle
            ).namespace not in kept:
                given_up += collection.orphaned_segments(found, intents.keys(), readable)
        due = self._objects.over(given_up, elapsed_ms(self._clock))
        if any(name.startswith(names.SEGMENTS) for name in due):
            held = await self._listed_by_superseded(manifests)
            due = [name for name in due if name not in held]
        if not await self._is_claimed():
            return
        # Newest first: a manifest that lost its compare-and-swap does not outlive the one before
        # it, which shows that it may have.
        for name in reversed(due):
            log.info("gc.removed", object=name)
            await volume.remove(name)
        self._manifests = {
            bundle: held for bundle, held in self._manifests.items() if bundle in pointers
        }
        await self._forget_pointers(
            {name: (revisions[name], items[name].mod_revision) for name in over & items.keys()}
        )
        left = {
            bundle for listed in (checkpoints, manifests, segments) for bundle in _by_bundle(listed)
        }
        await self._forget_over({name: revisions[name] for name in over - left - items.keys()})

    async def _forget_pointers(self, revisions: dict[str, tuple[int, int]]) -> None:
        """Delete pointers to manifests of Deleted bundles, both of these revisions: a late
        commit has made them, and nobody reads by them."""
        for name, (record, pointer) in sorted(revisions.items()):
            bundle = BundleName.parse(name)
            compares = [
                Compare(keys.bundle(bundle), "mod", "=", record),
                Compare(keys.manifest(bundle), "mod", "=", pointer),
            ]
            await self._context.store.transact(compares, [Delete(keys.manifest(bundle))])

    async def _forget_over(self, revisions: dict[str, int]) -> None:
        """Delete records (of these revisions) of bundles that are Deleted and have left no
        objects, once no log file names them."""
        named = {
            bundle
            for record in (await sealed_files(self._context.store)).values()
            for bundle in record.bundles
        }
        for name in self._over.over(revisions.keys() - named, elapsed_ms(self._clock)):
            bundle = BundleName.parse(name)
            compare = Compare(keys.bundle(bundle), "mod", "=", revisions[name])
            # A pointer is one of a late commit.
            await self._context.store.transact(
                [compare], [Delete(keys.bundle(bundle)), Delete(keys.manifest(bundle))]
            )
            log.info("gc.forgot_bundle", bundle=name)

    async def _end_intents(self) -> None:
        """Delete intents whose writer is dead: from then on nobody can commit their files."""
        intents = await self._intents()
        # By the time that we saw them stand: the clocks of their writers are other machines'.
        unheard = set(
            self._unheard.over(
                [identifier for identifier, _, _ in intents], elapsed_ms(self._clock)
            )
        )
        for identifier, intent, revision in intents:
            if await self._is_dead(intent) or (intent.kind != REWRITE and identifier in unheard):
                key = keys.intent(identifier)
                log.info(
                    "gc.ended_intent",
                    intent=identifier,
                    kind=intent.kind,
                    bundle=intent.bundle,
                )
                await self._context.store.transact(
                    [Compare(key, "mod", "=", revision)], [Delete(key)]
                )

    async def _is_dead(self, intent: IntentRecord) -> bool:
        """Whether the writer is known to be over: its broker has lost its claim, or its job's
        run has ended."""
        if intent.kind == REWRITE:
            return not await self._context.volume.exists(names.claim(intent.run))
        item = await self._context.store.get(keys.job_run(intent.job, intent.run))
        return item is not None and JobRunRecord.decode(item.value).state in FINISHED_RUNS

    # --- deleting ---------------------------------------------------------------------------------

    async def _delete(self, incarnation: str, number: int) -> None:
        """The log first (unless it was set aside), its key last: what is left of it after a
        crash is found again by the key."""
        volume = self._context.volume
        log.info("gc.log_file", incarnation=incarnation, file=number)
        for name in (
            names.log_file(incarnation, number),
            names.index(incarnation, number),
            names.sealed(incarnation, number),
        ):
            await volume.remove(name)
        await self._context.store.delete(keys.log_file(incarnation, number))
        self._context.metrics.files_collected.inc()


LOG_OF_THE_DEAD, MANIFEST = "log of a dead broker", "manifest"
"""What may be damaged, as the table of damage names it: by incarnation, and by bundle."""
REWRITE = "rewrite"
"""Kind of the intents of level-1 rewriting, whose `run` is the incarnation that writes."""


def _by_bundle(listed: Iterable[str]) -> dict[str, list[str]]:
    """Object names by the bundle in them: <kind>/<bundle>/<object>."""
    found: dict[str, list[str]] = {}
    for name in listed:
        found.setdefault(name.partition("/")[2].rpartition("/")[0], []).append(name)
    return found

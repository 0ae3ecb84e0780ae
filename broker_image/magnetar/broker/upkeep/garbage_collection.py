"""Deleting log files that no bundle needs.

Owns: the garbage collector: a broker deletes files of its own log, the leader those of dead
incarnations. Imports: metadata, storage (the judgement is `storage.gc`), siblings. Invariants: a
log file of a living incarnation is deleted by that incarnation alone; files are listed before the
facts that decide about them are read; what was replaced stays for `replaced_kept_s`.

A restored store needs no deleted file: its records come from the logs' own copies, which are
durable before a file is given up. A restore may return to a superseded manifest that it finds after
it has fenced every incarnation: the files that it lists are deleted only after that manifest, and
by an incarnation that has seen its own claim after that.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.log_keys import LogKeys, sealed_files
from magnetar.broker.upkeep.collection_facts import LOG_OF_THE_DEAD, CollectionFacts
from magnetar.broker.upkeep.object_collection import ObjectCollector
from magnetar.clock import elapsed_ms
from magnetar.errors import StorageError, StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    CoordinatorRecord,
    LogFileRecord,
)
from magnetar.names import BundleName
from magnetar.storage import gc as collection
from magnetar.storage import names
from magnetar.storage.gc import LogFile
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.index import IndexBuilder
from magnetar.storage.log.recovery import build_index

log = structlog.get_logger(__name__)

FINISHED_RUNS = ("succeeded", "failed")
UNUSED_CLAIM_MS = 600_000
"""A claim without registration and bundles belongs to a broker that starts; seen for longer than
this, to one that died before it had any."""


class GarbageCollector:
    """Deletes files of one broker's log and, while it leads, of the dead."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership, self._clock = context, ownership, context.clock
        self._keys = LogKeys(context, ownership.bundle_of)
        kept_ms = int(context.settings.replaced_kept_s * 1000)
        self._own = collection.Grace(kept_ms)
        self._dead = collection.Grace(kept_ms)
        self._unused_claims = collection.Grace(UNUSED_CLAIM_MS)
        self._complete: set[str] = set()
        self._facts = CollectionFacts(context)
        self.forget_unmet = self._facts.forget_unmet
        self.collect_objects = ObjectCollector(context, self._facts).collect

    # --- our own log ------------------------------------------------------------------------------

    async def collect_own(self) -> None:
        """Delete files of our own log that every bundle has passed. Raises StoreError,
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
        """Delete files of incarnations that are over; for the leader. Raises StoreError,
        StorageError."""
        listed = await self._context.volume.list(names.LOGS)
        incarnations = {name.split("/")[1] for name in listed}
        claimed = {
            name.rpartition("/")[2] for name in await self._context.volume.list(names.CLAIMS)
        }
        registered = await self._facts.registered()
        dead = incarnations - claimed - registered - {self._context.incarnation}
        for incarnation in sorted(dead - self._complete):
            try:
                await self._complete_keys(incarnation)
            except (StorageError, FileNotFoundError) as error:
                self._facts.note(LOG_OF_THE_DEAD, incarnation, error)
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
        """Seal the files of a dead incarnation and write their keys: without a key none could ever
        be deleted."""
        volume, store = self._context.volume, self._context.store
        noted = set(await sealed_files(store, keys.logs_of(incarnation)))
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
        long: no new owner ever will."""
        holders: list[BundleRecord | CoordinatorRecord] = [
            *(await self._facts.records()).values(),
            *await self._facts.coordinators(),
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
                self._facts.note(LOG_OF_THE_DEAD, incarnation, error)
            except Exception as error:
                self._context.metrics.surprises.note("collector", error, incarnation=incarnation)

    async def _given_up(
        self, files: dict[LogFile, LogFileRecord], grace: collection.Grace
    ) -> list[LogFile]:
        """Of `files` those that may be deleted now."""
        if not files:
            return []
        # The pins first: a job reads its plan's files under an intent that it registers before the
        # first of them could go.
        pinned = {intent.bundle for _, intent, _ in await self._facts.intents() if intent.job}
        facts = await self._facts.bundles(
            pinned.union(*(record.bundles for record in files.values()))
        )
        # split or merged under the job, which still reads
        pinned |= {heir for name in pinned for heir in facts[name].heirs}
        # Our own terms that are about to begin have pinned their files.
        beginning = collection.destinations(facts.values()) - {self._context.incarnation}
        coordinators = await self._facts.coordinators()
        dead = collection.dead_log_files(
            files, facts, pinned_bundles=pinned, beginning=beginning, coordinators=coordinators
        )
        by_name = {names.log_file(*file): file for file in dead}
        due = grace.over(by_name, elapsed_ms(self._clock))
        if not due:
            return []
        listing = {name for found in due for name in files[by_name[found]].bundles}
        listing.update(heir for name in tuple(listing) for heir in facts[name].heirs)
        objects = [
            name
            for bundle in sorted(listing)
            for name in await self._context.volume.list(
                names.manifests_of(BundleName.parse(bundle))
            )
        ]
        held = await self._facts.listed_by_superseded(objects)
        return (
            [by_name[name] for name in due if name not in held]
            if await self._facts.is_claimed()
            else []
        )

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

"""Deleting objects that no bundle needs: checkpoints, manifests, segments; and their records.

Owns: `ObjectCollector`, the leader's round over objects, intents and records of bundles that are
over. Imports: metadata, storage (the judgement is `storage.gc`), siblings. Invariants: objects are
listed before the facts that decide about them are read; an intent is deleted before its files; the
files that a superseded manifest lists are deleted only after that manifest, and by an incarnation
that has seen its own claim after that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.log_keys import sealed_files
from magnetar.broker.upkeep.collection_facts import REWRITE, CollectionFacts
from magnetar.clock import elapsed_ms
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    IntentRecord,
    JobRunRecord,
    ManifestPointer,
)
from magnetar.metadata.store import Compare, Delete
from magnetar.names import BundleName
from magnetar.storage import gc as collection
from magnetar.storage import names
from magnetar.storage.manifest import Manifest

log = structlog.get_logger(__name__)

FINISHED_RUNS = ("succeeded", "failed")


class _Listing(NamedTuple):
    """Object names on the volume, by kind and bundle."""

    checkpoints: dict[str, list[str]]
    manifests: dict[str, list[str]]
    segments: dict[str, list[str]]

    def given_up(
        self,
        intents: Mapping[str, IntentRecord],
        records: Mapping[str, BundleRecord],
        pointers: Mapping[str, ManifestPointer],
        referring: Mapping[str, Manifest | None],
    ) -> list[str]:
        """Objects that no record, pointer or manifest needs. `referring` has the manifests that
        the pointers name, None where one cannot be read."""
        pointed_to = {
            record.checkpoint.object for record in records.values() if record.checkpoint is not None
        }
        given_up: list[str] = []
        for bundle, found in self.checkpoints.items():
            given_up += collection.superseded_checkpoints(found, records.get(bundle), pointed_to)
        # What a manifest that cannot be read lists is of its namespace, and its predecessors are
        # what there is to go back to.
        unread = {bundle for bundle, manifest in referring.items() if manifest is None}
        readable = [manifest for manifest in referring.values() if manifest is not None]
        kept = {BundleName.parse(bundle).namespace for bundle in unread}
        given_up += collection.manifests_of_the_dead(
            self.manifests, intents.values(), records, pointers.keys()
        )
        for bundle, found in self.manifests.items():
            if bundle in pointers and bundle not in unread:
                pointer = pointers[bundle]
                given_up += collection.superseded_manifests(
                    found, pointer.object, pointer.generation
                )
        over = _over(records)
        for bundle, found in self.segments.items():
            known = bundle in pointers or bundle in over
            if known and BundleName.parse(bundle).namespace not in kept:
                given_up += collection.orphaned_segments(found, intents.keys(), readable)
        return given_up


class ObjectCollector:
    """Deletes objects, while this broker leads."""

    def __init__(self, context: BrokerContext, facts: CollectionFacts) -> None:
        self._context, self._facts, self._clock = context, facts, context.clock
        kept_ms = int(context.settings.replaced_kept_s * 1000)
        self._objects = collection.Grace(kept_ms)
        self._over = collection.Grace(kept_ms)
        self._unheard = collection.Grace(int(context.settings.intent_age_max_s * 1000))

    async def collect(self) -> None:
        """Delete intents of dead writers, superseded checkpoints and manifests, orphaned segments,
        and records of bundles that are over. Raises StoreError, StorageError."""
        await self._end_intents()
        volume, facts = self._context.volume, self._facts
        checkpoints = await volume.list(names.CHECKPOINTS)
        manifests = await volume.list(names.MANIFESTS)
        segments = await volume.list(names.SEGMENTS)
        listing = _Listing(_by_bundle(checkpoints), _by_bundle(manifests), _by_bundle(segments))
        intents = {identifier: intent for identifier, intent, _ in await facts.intents()}
        items = await facts.items(keys.BUNDLES)
        records = {name: BundleRecord.decode(item.value) for name, item in items.items()}
        # As of one revision: a split moves segments from one bundle's manifest to those of others.
        pointing = await facts.items(keys.MANIFESTS)
        pointers = {name: ManifestPointer.decode(item.value) for name, item in pointing.items()}
        referring = {
            name: await facts.read(name, pointer.object) for name, pointer in pointers.items()
        }
        given_up = listing.given_up(intents, records, pointers, referring)
        due = self._objects.over(given_up, elapsed_ms(self._clock))
        if any(name.startswith(names.SEGMENTS) for name in due):
            held = await facts.listed_by_superseded(manifests)
            due = [name for name in due if name not in held]
        if not await facts.is_claimed():
            return
        # Newest first: a manifest that lost its compare-and-swap does not outlive the one before
        # it, which shows that it may have.
        for name in reversed(due):
            log.info("gc.removed", object=name)
            await volume.remove(name)
        facts.keep_manifests(pointers)
        revisions = {name: items[name].mod_revision for name in _over(records)}
        await self._forget_pointers(
            {
                name: (revisions[name], pointing[name].mod_revision)
                for name in revisions.keys() & pointing.keys()
            }
        )
        left = {bundle for found in listing for bundle in found} | pointing.keys()
        await self._forget_over({name: revisions[name] for name in revisions.keys() - left})

    async def _forget_pointers(self, revisions: dict[str, tuple[int, int]]) -> None:
        """Delete pointers to manifests of Deleted bundles, both of these revisions: a late commit
        has made them, and no broker reads by them."""
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
        """Delete intents whose writer is dead: from then on no writer can commit their files."""
        intents = await self._facts.intents()
        # By how long we have seen them: the clocks of their writers are other machines'.
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
        if not intent.job:
            return not await self._context.volume.exists(names.claim(intent.run))
        item = await self._context.store.get(keys.job_run(intent.job, intent.run))
        return item is not None and JobRunRecord.decode(item.value).state in FINISHED_RUNS


def _over(records: Mapping[str, BundleRecord]) -> Collection[str]:
    """Bundles that are Deleted."""
    return {name for name, record in records.items() if record.state is BundleState.DELETED}


def _by_bundle(listed: Iterable[str]) -> dict[str, list[str]]:
    """Object names by the bundle in them: <kind>/<bundle>/<object>."""
    found: dict[str, list[str]] = {}
    for name in listed:
        found.setdefault(name.partition("/")[2].rpartition("/")[0], []).append(name)
    return found

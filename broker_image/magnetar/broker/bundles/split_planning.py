"""What the transaction of a split compares and writes.

Owns: `SplitPlanner`, which reads the store, writes the children's manifests and checks that the
namespace allows the split; `SplitPlan`, its outcome. Imports: metadata, storage (manifests),
reading. Invariants: a plan is committed only if nothing it read has changed; a child lists each of
its parent's files that has entries of the child, and no other file that could be examined: the
garbage collector keeps a file only for the bundles with entries in it; generations of the manifests
of a range grow, also across splits and merges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from magnetar.broker.bundles.boundaries import BoundariesRefused, namespace_of, revisions_of
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.errors import CorruptData
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, ManifestPointer, NamespaceRecord
from magnetar.metadata.store import Compare, Delete, Operation, Put
from magnetar.names import BundleName, TopicName
from magnetar.ownership.splits import children_of_split, with_boundaries
from magnetar.storage import names
from magnetar.storage.manifest import LevelZero, Manifest, load_manifest, write_manifest

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedChild:
    """A future child. Its manifest is written, and becomes current by the transaction (`object` "":
    the parent has none)."""

    name: BundleName
    manifest: Manifest
    object: str
    record_revision: int
    pointer_revision: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The namespace with the new boundaries, and the revisions that the transaction compares."""

    namespace: NamespaceRecord
    namespace_revision: int
    manifest_revision: int
    children: tuple[PlannedChild, ...]

    def transaction(
        self,
        bundle: BundleName,
        revision: int,
        deleted: BundleRecord,
        records: Mapping[BundleName, BundleRecord],
    ) -> tuple[list[Compare], list[Operation]]:
        """The parent, of this revision, becomes `deleted`, its children get their records."""
        namespace = keys.namespace(bundle.namespace)
        compares = [
            Compare(keys.bundle(bundle), "mod", "=", revision),
            Compare(namespace, "mod", "=", self.namespace_revision),
            Compare(keys.manifest(bundle), "mod", "=", self.manifest_revision),
        ]
        operations: list[Operation] = [
            Put(keys.bundle(bundle), deleted.encode()),
            Put(namespace, self.namespace.encode()),
        ]
        if self.manifest_revision:
            operations.append(Delete(keys.manifest(bundle)))
        for child in self.children:
            compares.append(Compare(keys.bundle(child.name), "mod", "=", child.record_revision))
            compares.append(Compare(keys.manifest(child.name), "mod", "=", child.pointer_revision))
            operations.append(Put(keys.bundle(child.name), records[child.name].encode()))
            if child.object:
                pointer = ManifestPointer(child.manifest.generation, child.object)
                operations.append(Put(keys.manifest(child.name), pointer.encode()))
        return compares, operations


class FileShares:
    """Which children have entries in which files of their parent, as the files' indexes say;
    remembered, since files do not change."""

    def __init__(self, catalog: BundleCatalog, children: Sequence[BundleName]) -> None:
        self._catalog, self._children = catalog, children
        self._holders: dict[tuple[str, int], frozenset[BundleName]] = {}

    async def find(self, files: Sequence[LevelZero]) -> None:
        """Look into the files that were not looked into yet. Raises StorageError."""
        for file in files:
            place = file.incarnation, file.file
            if place not in self._holders:
                try:
                    self._holders[place] = await self._holders_of(file)
                except (CorruptData, FileNotFoundError) as error:
                    # It may have entries of each: all of them report the damage until the file is
                    # restored.
                    log.warning(
                        "bundle.split_unread", file=names.log_file(*place), error=str(error)
                    )

    async def _holders_of(self, file: LevelZero) -> frozenset[BundleName]:
        found: set[BundleName] = set()
        for topic in filter(self._catalog.holds, (await self._catalog.index(file)).topics()):
            name = TopicName.parse(topic)
            found.update(child for child in self._children if child.contains(name))
            if len(found) == len(self._children):
                break
        return frozenset(found)

    def without(self, files: Sequence[LevelZero], child: BundleName) -> list[LevelZero]:
        """Those of the files that are known to have no entries of a child."""
        return [
            file
            for file in files
            if child not in self._holders.get((file.incarnation, file.file), (child,))
        ]


class SplitPlanner:
    """Plans splits from the store's own state."""

    def __init__(self, context: BrokerContext) -> None:
        self._context, self._store, self._volume = context, context.store, context.volume

    async def check(self, bundle: BundleName, boundaries: tuple[int, ...]) -> None:
        """Refuse before anything is written what the transaction would refuse. Raises
        BoundariesRefused, StoreError."""
        namespace, _ = await namespace_of(self._store, bundle)
        after = with_boundaries(namespace.boundaries, bundle, boundaries)
        if after is None:
            raise BoundariesRefused(
                f"{bundle.range} is not a bundle of namespace {bundle.namespace}; GET .../bundles "
                "lists them"
            )
        limit = self._context.settings.bundles_per_namespace_max
        if len(after) - 1 > limit:
            raise BoundariesRefused(
                f"namespace {bundle.namespace} would have {len(after) - 1} bundles, more than "
                f"bundles_per_namespace_max {limit}"
            )
        wanted = children_of_split(bundle, boundaries)
        await revisions_of(self._store, bundle.namespace, wanted)
        # a damaged one must be known now, not halfway
        await load_manifest(self._store, self._volume, bundle)

    async def plan(
        self, bundle: BundleName, boundaries: tuple[int, ...], shares: FileShares
    ) -> SplitPlan:
        """Read what the transaction compares, and write the children's manifests. Raises
        BoundariesRefused, StoreError, StorageError."""
        namespace, item = await namespace_of(self._store, bundle)
        after = with_boundaries(namespace.boundaries, bundle, boundaries)
        if after is None:
            raise BoundariesRefused(
                f"{bundle.range} is not a bundle of namespace {bundle.namespace} any more"
            )
        wanted = children_of_split(bundle, boundaries)
        revisions = await revisions_of(self._store, bundle.namespace, wanted)
        manifest, _, manifest_revision = await load_manifest(self._store, self._volume, bundle)
        await shares.find(manifest.level0)
        children = []
        for name in wanted:
            # of an earlier incarnation of the namespace
            left = await self._store.get(keys.manifest(name))
            written, own, pointer_revision = "", Manifest(str(name), 0), 0
            if manifest_revision or left is not None:
                generation = manifest.generation + 1
                if left is not None:
                    before = ManifestPointer.decode(left.value).generation
                    generation = max(generation, before + 1)
                    pointer_revision = left.mod_revision
                foreign = shares.without(manifest.level0, name)
                own = manifest.for_child(name, generation, foreign)
                written = await write_manifest(self._volume, self._context.clock, own)
            children.append(PlannedChild(name, own, written, revisions[name], pointer_revision))
        namespace = replace(namespace, boundaries=after)
        return SplitPlan(namespace, item.mod_revision, manifest_revision, tuple(children))

    async def as_committed(self, plan: SplitPlan) -> SplitPlan:
        """The plan with the manifests that the store names: all attempts make the same
        children."""
        children = []
        for child in plan.children:
            manifest, name, _ = await load_manifest(self._store, self._volume, child.name)
            children.append(replace(child, manifest=manifest, object=name))
        return replace(plan, children=tuple(children))

"""What the transaction of a merge compares and writes.

Owns: `MergePlanner`, which reads the store, writes the manifest of the bundle to come and checks
that the namespace allows the merge; `MergePlan`, its outcome. Imports: metadata, storage
(manifests), siblings. Invariants: a plan is committed only if nothing it read has changed; the
merged manifest lists each file of both parents, and has taken in of both what lies before the
checkpoint that the bundle begins with, and nothing behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from magnetar.broker.bundles.boundaries import BoundariesRefused, namespace_of, revisions_of
from magnetar.broker.context import BrokerContext
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, ManifestPointer, NamespaceRecord
from magnetar.metadata.store import Compare, Delete, Operation, Put
from magnetar.ownership.merges import Neighbours, without_edge
from magnetar.storage.manifest import Manifest, load_manifest, write_manifest

Covered = tuple[int, int]
"""(epoch, file number), as `Manifest.covered`."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The namespace with one boundary less, the manifest of the merged bundle (written, and current
    by the transaction), and the revisions that the transaction compares."""

    namespace: NamespaceRecord
    namespace_revision: int
    manifest_revisions: tuple[int, int]
    manifest: Manifest
    object: str
    record_revision: int
    pointer_revision: int

    def transaction(
        self,
        pair: Neighbours,
        revision: int,
        deleted: tuple[BundleRecord, BundleRecord],
        merged: BundleRecord,
    ) -> tuple[list[Compare], list[Operation]]:
        """The parents, both of this revision, become `deleted`, and the bundle of both gets its
        record."""
        namespace, name = keys.namespace(pair.merged.namespace), pair.merged
        pointer = ManifestPointer(self.manifest.generation, self.object)
        compares = [
            Compare(namespace, "mod", "=", self.namespace_revision),
            Compare(keys.bundle(name), "mod", "=", self.record_revision),
            Compare(keys.manifest(name), "mod", "=", self.pointer_revision),
        ]
        operations: list[Operation] = [
            Put(namespace, self.namespace.encode()),
            Put(keys.bundle(name), merged.encode()),
            Put(keys.manifest(name), pointer.encode()),
        ]
        for parent, record, listed in zip(
            (pair.left, pair.right), deleted, self.manifest_revisions, strict=True
        ):
            compares.append(Compare(keys.bundle(parent), "mod", "=", revision))
            compares.append(Compare(keys.manifest(parent), "mod", "=", listed))
            operations.append(Put(keys.bundle(parent), record.encode()))
            operations.append(Delete(keys.manifest(parent)))
        return compares, operations


class MergePlanner:
    """Plans merges from the store's own state."""

    def __init__(self, context: BrokerContext) -> None:
        self._context, self._store, self._volume = context, context.store, context.volume

    async def check(self, pair: Neighbours) -> None:
        """Refuse before anything is written what the transaction would refuse. Raises
        BoundariesRefused, StoreError, StorageError."""
        namespace, _ = await namespace_of(self._store, pair.merged)
        self._without_edge(namespace, pair)
        await revisions_of(self._store, pair.merged.namespace, [pair.merged])
        for parent in (pair.left, pair.right):  # a damaged one must be known now, not halfway
            await load_manifest(self._store, self._volume, parent)

    async def plan(self, pair: Neighbours, covered: tuple[Covered, Covered]) -> MergePlan:
        """Read what the transaction compares, and write the merged manifest; `covered` is what the
        parents' manifests have taken in. Raises BoundariesRefused, StoreError, StorageError."""
        namespace, item = await namespace_of(self._store, pair.merged)
        after = self._without_edge(namespace, pair)
        revisions = await revisions_of(self._store, pair.merged.namespace, [pair.merged])
        # of an earlier incarnation of the namespace
        left_over = await self._store.get(keys.manifest(pair.merged))
        parents = [
            await load_manifest(self._store, self._volume, parent)
            for parent in (pair.left, pair.right)
        ]
        (left, _, left_revision), (right, _, right_revision) = parents
        if (left.covered, right.covered) != covered:
            # Behind the checkpoint, what is covered would be left out of the next coverage.
            raise BoundariesRefused(
                f"manifests of {pair.left} and {pair.right} cover {left.covered} and "
                f"{right.covered}, and the merge was prepared for {covered}; merge them again"
            )
        before = [left.generation, right.generation]
        if left_over is not None:
            before.append(ManifestPointer.decode(left_over.value).generation)
        manifest = left.merged_with(right, pair.merged, max(before) + 1)
        written = await write_manifest(self._volume, self._context.clock, manifest)
        return MergePlan(
            replace(namespace, boundaries=after),
            item.mod_revision,
            (left_revision, right_revision),
            manifest,
            written,
            revisions[pair.merged],
            left_over.mod_revision if left_over is not None else 0,
        )

    async def as_committed(self, plan: MergePlan, pair: Neighbours) -> MergePlan:
        """The plan with the manifest that the store names: all attempts make the same bundle."""
        manifest, name, _ = await load_manifest(self._store, self._volume, pair.merged)
        return replace(plan, manifest=manifest, object=name)

    def _without_edge(self, namespace: NamespaceRecord, pair: Neighbours) -> tuple[int, ...]:
        after = without_edge(namespace.boundaries, pair)
        if after is None:
            raise BoundariesRefused(
                f"{pair.left.range} and {pair.right.range} are not both bundles of namespace "
                f"{pair.merged.namespace} (any more); GET .../bundles lists them"
            )
        return after

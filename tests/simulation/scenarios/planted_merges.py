"""Brokers that break one promise of a merge.

Owns: one small patch per promise, and `run(bug, seed)`, the tracer on brokers patched so that split
and merge their bundles all the time (`none`: unpatched, the control). Imports: the tracer, the
patched parts of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.bundles.merging import Merge, Merger
from magnetar.metadata.records import BundleRecord, CheckpointPointer, LogPosition
from magnetar.names import BundleName
from magnetar.ownership import rules as rules
from magnetar.storage import gc as collection
from magnetar.storage.manifest import Manifest
from tests.simulation.scenarios import tracer
from tests.simulation.scenarios.planted import planting
from tests.simulation.scenarios.planted_splits import FAULTS

Patch = pytest.MonkeyPatch
Merged = tuple[tuple[BundleRecord, BundleRecord], BundleRecord]


def merged_bundle_begins_in_the_term_of_one_parent(patch: Patch) -> None:
    """Its epoch is that of the younger parent, whose ledger ids it gives again."""
    begun = Merger.begun

    def old(merger: Merger, name: str) -> Merge | None:
        merge = begun(merger, name)
        return merge and replace(merge, epoch=max(merge.left.epoch, merge.right.epoch))

    patch.setattr(Merger, "begun", old)
    patch.setattr(rules, "_require_newer", lambda _record, _epoch: None)


def merged_bundle_begins_behind_concurrent_writes(patch: Patch) -> None:
    """Its chain begins with its own term: what the parents wrote behind the checkpoint is lost."""
    merged = rules.merged

    def late(*how: Any, **where: Any) -> Merged:
        deleted, record = merged(*how, **where)
        return deleted, replace(record, chain=record.chain[-1:], epochs=record.epochs[-1:])

    patch.setattr(rules, "merged", late)


def checkpoint_of_one_parent(patch: Patch) -> None:
    """The checkpoint that the merged bundle begins with holds the topics of one parent only."""
    write = OwnedBundle.write_checkpoint

    async def alone(
        bundle: OwnedBundle, position: LogPosition, _neighbour: OwnedBundle | None = None
    ) -> tuple[CheckpointPointer, int]:
        return await write(bundle, position)

    patch.setattr(OwnedBundle, "write_checkpoint", alone)


def files_of_one_parent_are_not_listed(patch: Patch) -> None:
    """The merged manifest lists the files and segments of the left parent only."""
    merged_with = Manifest.merged_with

    def half(manifest: Manifest, other: Manifest, bundle: BundleName, generation: int) -> Manifest:
        bare = replace(other, level0=(), topics={})
        return merged_with(manifest, bare, bundle, generation)

    patch.setattr(Manifest, "merged_with", half)


def merged_manifest_covers_what_one_parent_has_not(patch: Patch) -> None:
    """It says that files were taken in as far as the younger parent's term reaches: what the other
    has written since its checkpoint is never listed."""
    merged_with = Manifest.merged_with

    def beyond(
        manifest: Manifest, other: Manifest, bundle: BundleName, generation: int
    ) -> Manifest:
        assert manifest.covered is not None
        assert other.covered is not None
        made = merged_with(manifest, other, bundle, generation)
        return replace(made, covered=max(manifest.covered, other.covered))

    patch.setattr(Manifest, "merged_with", beyond)


def files_of_the_parents_go_with_them(patch: Patch) -> None:
    """A log file that lists a bundle goes when that was merged, whatever its heir still lists."""
    heirs_of = collection.heirs_of

    def within(bundle: BundleName, records: Any) -> tuple[str, ...]:
        found = heirs_of(bundle, records)
        return tuple(name for name in found if bundle.includes(BundleName.parse(name)))

    patch.setattr(collection, "heirs_of", within)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        merged_bundle_begins_in_the_term_of_one_parent,
        merged_bundle_begins_behind_concurrent_writes,
        checkpoint_of_one_parent,
        files_of_one_parent_are_not_listed,
        merged_manifest_covers_what_one_parent_has_not,
        files_of_the_parents_go_with_them,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """The tracer on brokers with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return dict(tracer.run_counted(seed, FAULTS)[1].counts)

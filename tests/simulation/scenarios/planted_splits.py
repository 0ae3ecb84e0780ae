"""Brokers that break one promise of a split.

Owns: one small patch per promise, and `run(bug, seed)`, the tracer on brokers patched so that split
their bundles all the time (`none`: unpatched, the control). Imports: the tracer, the patched parts
of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.bundles.bundle import OwnedBundle, RecoveredBundle
from magnetar.broker.bundles.ownership import Ownership
from magnetar.metadata.records import BundleRecord, LogPosition
from magnetar.names import BundleName
from magnetar.ownership import rules as rules
from magnetar.storage import gc as collection
from magnetar.storage.manifest import LevelZero, Manifest
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.topics.topic import Topic
from tests.simulation.scenarios import tracer
from tests.simulation.scenarios.planted import FAULTS as PLANTED_FAULTS
from tests.simulation.scenarios.planted import planting

FAULTS = PLANTED_FAULTS.but(crash_every_s=6.0, pause_every_s=8.0, store_partition_every_s=8.0)
"""Rarer than elsewhere: a broker must live for a while to split anything."""

Patch = pytest.MonkeyPatch


def ids_begin_again_in_the_ledger_of_the_parent(patch: Patch) -> None:
    """Children give the ids that their parent has given in its term."""

    def repeat(topic: Topic, _ledger_ids: LedgerIds) -> None:
        topic._next_entry, topic._frozen = 0, False

    patch.setattr(Topic, "go_on_in", repeat)


def children_do_not_share_their_ledger_ids(patch: Patch) -> None:
    """Each child of a split gives those of their epoch from the first on."""
    make: Callable[..., OwnedBundle] = vars(Ownership)["_make"]

    def apart(
        ownership: Ownership, name: BundleName, ledger_ids: LedgerIds, recovered: RecoveredBundle
    ) -> OwnedBundle:
        # What was recovered, as children are not, has its ledger ids already.
        return make(
            ownership,
            name,
            ledger_ids if recovered.topics else LedgerIds(ledger_ids.epoch),
            recovered,
        )

    patch.setattr(Ownership, "_make", apart)


def children_forget_the_chain(patch: Patch) -> None:
    """A child's chain begins with its own term."""
    divided = rules.divided

    def forgetful(
        record: BundleRecord, name: BundleName, **place: Any
    ) -> tuple[BundleRecord, dict[BundleName, BundleRecord]]:
        deleted, children = divided(record, name, **place)
        return deleted, {
            child: replace(owned, chain=owned.chain[-1:], epochs=owned.epochs[-1:])
            for child, owned in children.items()
        }

    patch.setattr(rules, "divided", forgetful)


def chain_is_closed_before_the_flush(patch: Patch) -> None:
    """What was on its way when the bundle was frozen lies behind the end of the parent's range."""
    append = OwnedBundle.append_release

    async def early(bundle: OwnedBundle) -> LogPosition:
        position = bundle.context.log.position
        end = await append(bundle)
        return position if bundle.buffered is not None else end

    patch.setattr(OwnedBundle, "append_release", early)


def children_begin_without_files(patch: Patch) -> None:
    """The manifest of a child says how far everything was taken in, and lists nothing of it."""
    for_child = Manifest.for_child

    def bare(
        manifest: Manifest, child: BundleName, generation: int, without: Collection[LevelZero]
    ) -> Manifest:
        return replace(for_child(manifest, child, generation, without), level0=(), topics={})

    patch.setattr(Manifest, "for_child", bare)


def files_of_the_parent_go_with_it(patch: Patch) -> None:
    """A log file that lists a bundle goes when that was split, whatever the children still list."""
    patch.setattr(collection, "_heir_has_passed", lambda *_facts: True)


def checkpoints_of_the_parent_go_with_it(patch: Patch) -> None:
    """They are given up though children begin with them."""
    superseded = collection.superseded_checkpoints

    def careless(listed: Any, record: BundleRecord | None, _pointed_to: Any = ()) -> list[str]:
        return superseded(listed, record)

    patch.setattr(collection, "superseded_checkpoints", careless)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        ids_begin_again_in_the_ledger_of_the_parent,
        children_do_not_share_their_ledger_ids,
        children_forget_the_chain,
        chain_is_closed_before_the_flush,
        children_begin_without_files,
        files_of_the_parent_go_with_it,
        checkpoints_of_the_parent_go_with_it,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """The tracer on brokers with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return dict(tracer.run_counted(seed, FAULTS)[1].counts)

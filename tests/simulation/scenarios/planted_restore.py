"""Restores with a planted bug.

Owns: one small patch per rule that a restore rests on, and `run(bug, seed)`, the restore scenario
patched so (`none`: unpatched, the control). Imports: the restore scenario, the patched parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.clock import Clock
from magnetar.metadata.guarded import GuardedStore
from magnetar.metadata.records import BundleRecord
from magnetar.metadata.store import Compare, KeyValue, Operation, TxnResult
from magnetar.names import BundleName
from magnetar.storage.log.fencing import SealedFile
from magnetar.storage.restore import rebuilding, restoring
from magnetar.storage.restore.log_copies import Files, LogFacts, read_logs
from magnetar.storage.restore.rebuilding import ManifestFact
from magnetar.storage.restore.restore_number import read_restore_number
from magnetar.storage.volumes.volume import Volume
from tests.simulation.scenarios import restore
from tests.simulation.scenarios.planted import planting

Patch = pytest.MonkeyPatch


def number_is_not_raised(patch: Patch) -> None:
    """The restored store begins again with the revisions, and so the epochs, of the one that was
    lost."""

    async def read(volume: Volume, _clock: Clock, _least: int, _reason: str) -> int:
        return await read_restore_number(volume)

    patch.setattr(restoring, "raise_restore_number", read)


def logs_are_not_asked(patch: Patch) -> None:
    """Bundles are what the copy of the store says, or nothing."""

    async def blind(
        volume: Volume, sealed: Mapping[str, Sequence[SealedFile]], files: Files
    ) -> LogFacts:
        return replace(await read_logs(volume, sealed, files), terms=[])

    patch.setattr(restoring, "read_logs", blind)


def oldest_copy_is_taken(patch: Patch) -> None:
    """Of the copies in the logs the first one counts."""
    choose = rebuilding._choose

    def first(name: str, copies: Sequence[Any], *further: Any) -> Any:
        return choose(name, copies[:1], *further)

    patch.setattr(rebuilding, "_choose", first)


def terms_begin_without_a_copy(patch: Patch) -> None:
    """Owners write nothing about their records into the log."""

    def append(_owned: OwnedBundle, _record: BundleRecord) -> None:
        return

    patch.setattr(OwnedBundle, "append_term", append)


def manifests_are_forgotten(patch: Patch) -> None:
    """The first manifest that storage still has is pointed to, whatever it covers."""

    def first(usable: Sequence[ManifestFact]) -> ManifestFact:
        return min(usable, key=lambda fact: fact.generation)

    def all_usable(_record: BundleRecord) -> None:
        return None

    patch.setattr(rebuilding, "choose_manifest", first)
    patch.setattr(rebuilding, "_needed", all_usable)


def an_empty_store_is_believed(patch: Patch) -> None:
    """Incarnations from before the loss write into the empty store, and take it at its word."""

    async def transact(
        self: GuardedStore, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        return await self._store.transact(compares, operations)

    async def check(_self: GuardedStore, _guarded: KeyValue | None) -> None:
        return

    patch.setattr(GuardedStore, "transact", transact)
    patch.setattr(GuardedStore, "_check", check)


def what_was_merged_comes_back(patch: Patch) -> None:
    """Only parts of a bundle replace it, as if none had ever been merged."""
    is_covered = rebuilding.is_covered

    def by_parts(bundle: BundleName, others: Iterable[BundleName]) -> bool:
        return is_covered(bundle, filter(bundle.includes, others))

    patch.setattr(rebuilding, "is_covered", by_parts)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        number_is_not_raised,
        logs_are_not_asked,
        oldest_copy_is_taken,
        terms_begin_without_a_copy,
        manifests_are_forgotten,
        an_empty_store_is_believed,
        what_was_merged_comes_back,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """The restore scenario with `bug` planted, under one seed; raises what it notices."""
    with planting(BUGS, bug):
        return restore.counted(seed)

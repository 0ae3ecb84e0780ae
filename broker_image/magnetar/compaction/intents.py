"""Writing files under an intent, and making them visible, for brokers and Spark jobs.

Owns: the intent before writing, the one transaction that commits, and what a writer that did not
commit cleans up. Imports: metadata, storage. Invariants: the manifest changes in one
compare-and-swap or not at all; before it no reader can see an output, after it every output is
durable; a run that gives up removes the intent first, and the outputs only if it was there, so that
no file is deleted that could still be committed or has been; a crash leaves an intent and files
whose names carry it, for the collector.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from magnetar.clock import Clock
from magnetar.errors import MagnetarError, StorageError, StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import IntentRecord
from magnetar.metadata.store import Compare, Delete, MetadataStore, Put
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.manifest import Manifest, Outcome, commit_manifest, load_manifest
from magnetar.storage.volumes.volume import Volume

log = structlog.get_logger(__name__)

INTENT_RUN_LENGTH_MAX = 40
Edit = Callable[[Manifest], Manifest | None]


class Conflict(MagnetarError):
    """Another rewrite, or a deletion, came first; the old state stands: plan again."""


class Outputs(Protocol):
    """What was written under an intent."""

    @property
    def objects(self) -> set[str]: ...


W = TypeVar("W", bound=Outputs)


def name_part(run: str) -> str:
    """A run id as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]", "-", run)[:INTENT_RUN_LENGTH_MAX]


@dataclass(frozen=True, slots=True)
class IntentWriter:
    """Writes and commits for one run of a job; of a broker, without `job`, for the incarnation
    `run`. `kind` is that of its intents, whose ids begin with it."""

    store: MetadataStore
    volume: Volume
    clock: Clock
    kind: str
    job: str
    run: str

    async def commit(
        self,
        bundle: BundleName,
        topic: str,
        write: Callable[[str], Awaitable[W]],
        edit: Callable[[str, W | None], Edit],
    ) -> tuple[W, Manifest]:
        """Register an intent, have `write(intent)` write files, commit `edit(intent, written)` of
        the bundle's manifest; what was written, and the manifest. Raises Conflict, and whatever
        `write` raises.

        `edit` of None (nothing was written) must decline what the plan was not made from: where
        `write` fails and a concurrent change came first, that is a Conflict as well. If the outcome
        stays unknown (StoreUnavailable) nothing is deleted: intent and files are the collector's.
        """
        about = topic or str(bundle)
        intent = f"{self.kind}-{name_part(self.run)}-{self.clock.random_bits(64):016x}"
        key = keys.intent(intent)
        record = IntentRecord(
            self.kind, str(bundle), topic, self.job, self.run, self.clock.wall_ms()
        )
        await self.store.transact([Compare(key, "create", "=", 0)], [Put(key, record.encode())])
        written: W | None = None
        try:
            written = await write(intent)
            result = await commit_manifest(
                self.store,
                self.volume,
                self.clock,
                bundle,
                edit(intent, written),
                [Compare(key, "create", "!=", 0)],
                [Delete(key)],
            )
        except StoreUnavailable:
            raise
        except Exception as error:
            await self._abandon(bundle, intent)
            newer = await self._newer(bundle, edit(intent, None)) if written is None else None
            if newer is not None:
                raise Conflict(
                    f"{about}: generation {newer.generation} of its bundle's manifest came first, "
                    f"and reading failed ({type(error).__name__})"
                ) from error
            raise
        if result.outcome is not Outcome.COMMITTED:
            await self._abandon(bundle, intent)
            raise Conflict(
                f"{about}: {result.outcome}: generation {result.manifest.generation} of its "
                "bundle's manifest came first"
            )
        await self._remove_losers(bundle, intent, written.objects)
        return written, result.manifest

    async def _newer(self, bundle: BundleName, edit: Edit) -> Manifest | None:
        """The manifest, if what the plan was made from has changed in it; None also if that
        is unknown now."""
        try:
            manifest, _, _ = await load_manifest(self.store, self.volume, bundle)
        except (StoreError, StorageError) as error:
            log.warning("intent.manifest_unread", bundle=str(bundle), error=str(error))
            return None
        return manifest if edit(manifest) is None else None

    async def _abandon(self, bundle: BundleName, intent: str) -> None:
        """The intent first: from then on no job can commit these files, and only then may they go.

        If it is not there a commit of ours may have removed it: the files are listed, or the
        collector's.
        """
        if await self.store.delete(keys.intent(intent)):
            await self._remove_losers(bundle, intent, set())

    async def _remove_losers(self, bundle: BundleName, intent: str, kept: set[str]) -> None:
        """Remove outputs of this intent that are not listed: those of repeated task attempts."""
        prefix = names.segment(bundle, intent).removesuffix(".seg")
        for name in await self.volume.list(names.segments_of(bundle)):
            if name.startswith(prefix) and name not in kept:
                await self.volume.remove(name)
                log.info("intent.output_removed", object=name)

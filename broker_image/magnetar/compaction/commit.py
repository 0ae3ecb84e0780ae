"""Making a new compacted view visible, that of a broker or of a Spark job.

Owns: the basis that a commit compares, the intent before writing, the one transaction that commits,
and what a writer that did not commit cleans up. Imports: metadata, storage. Invariants: the view changes in one compare-and-swap
or not at all; before it no reader can see an output, after it every output is durable; the horizon
never goes back; a run that gives up removes the intent first, and the outputs only if it was there, so
that no file is deleted that could still be committed or has been; a crash leaves an intent and
files whose names carry it, for the collector.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from magnetar.clock import Clock
from magnetar.errors import MagnetarError, StorageError, StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import IntentRecord
from magnetar.metadata.store import Compare, Delete, MetadataStore, Put
from magnetar.names import BundleName, TopicName
from magnetar.storage import names
from magnetar.storage.manifest import (
    CommitResult,
    Compacted,
    Manifest,
    Outcome,
    Rewrite,
    SegmentReference,
    commit_manifest,
    load_manifest,
)
from magnetar.storage.volumes.volume import Volume

log = structlog.get_logger(__name__)

KIND = "compaction"
"""Kind of the intents of compactions of topics."""
INTENT_PREFIX = "compact-"
INTENT_RUN_LENGTH_MAX = 40

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Basis:
    """What a compaction of one topic was made from: everything that its commit compares.

    `horizon` is the last position of the input. `listed_logs` and `listed_segments` are those
    inputs that the bundle's own manifest lists: they must still be listed at the commit.
    `generation` and `previous_horizon` are those of the view before: 0 and (-1, -1) without one.
    """

    bundle: BundleName
    topic: TopicName
    horizon: Position
    generation: int
    previous_horizon: Position
    trimmed: Position | None
    manifest_generation: int
    listed_logs: tuple[tuple[str, int], ...] = ()
    listed_segments: tuple[str, ...] = ()


class WrittenView(Protocol):
    """A new view as it lies in the volume, not committed yet."""

    @property
    def segments(self) -> tuple[SegmentReference, ...]: ...


W = TypeVar("W", bound=WrittenView)


class Conflict(MagnetarError):
    """Another rewrite or a deletion came first; the old view stands: plan again."""


@dataclass(frozen=True, slots=True)
class Committed(Generic[W]):
    """A compaction that readers see now."""

    generation: int
    written: W
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits the compactions of one run of a job; of a broker, without `job`, of the incarnation
    `run`."""

    store: MetadataStore
    volume: Volume
    clock: Clock
    job: str
    run: str

    async def commit(self, plan: Basis, write: Callable[[str], Awaitable[W]]) -> Committed[W]:
        """Register an intent, have `write(intent)` write the new view, commit it. Raises Conflict,
        and whatever `write` raises.

        Where `write` fails and a concurrent change came first that is a Conflict as well: what
        it was reading may have been given up since. If the outcome stays unknown (StoreUnavailable)
        nothing is deleted: intent and files are the collector's.
        """
        intent = f"{INTENT_PREFIX}{name_part(self.run)}-{self.clock.random_bits(64):016x}"
        record = IntentRecord(
            KIND,
            str(plan.bundle),
            str(plan.topic),
            self.job,
            self.run,
            self.clock.wall_ms(),
        )
        await self.store.transact(
            [Compare(keys.intent(intent), "create", "=", 0)],
            [Put(keys.intent(intent), record.encode())],
        )
        written: W | None = None
        try:
            written = await write(intent)
            result = await self._commit(plan, written, intent)
        except StoreUnavailable:
            raise
        except Exception as error:
            await self._abandon(plan, intent)
            newer = await self._newer(plan, intent) if written is None else None
            if newer is not None:
                came_first = f"generation {newer.generation} of its bundle's manifest came first"
                raise Conflict(
                    f"{plan.topic}: {came_first}, and reading failed ({type(error).__name__})"
                ) from error
            raise
        if result.outcome is not Outcome.COMMITTED:
            await self._abandon(plan, intent)
            raise Conflict(
                f"{plan.topic}: {result.outcome}: generation {result.manifest.generation} of its "
                "bundle's manifest came first"
            )
        await self._remove_losers(plan, intent, {segment.object for segment in written.segments})
        return Committed(plan.generation + 1, written, result.manifest)

    async def _commit(self, plan: Basis, written: WrittenView, intent: str) -> CommitResult:
        key = keys.intent(intent)
        compacted = Compacted(plan.generation + 1, plan.horizon, written.segments)
        edit = edit_of(plan, compacted, intent)
        return await commit_manifest(
            self.store,
            self.volume,
            self.clock,
            plan.bundle,
            edit,
            [Compare(key, "create", "!=", 0)],
            [Delete(key)],
        )

    async def _newer(self, plan: Basis, intent: str) -> Manifest | None:
        """The manifest, if what the plan was made from has changed in it; None also if nobody
        can tell now."""
        try:
            manifest, _, _ = await load_manifest(self.store, self.volume, plan.bundle)
        except (StoreError, StorageError) as error:
            log.warning("compaction.manifest_unread", topic=str(plan.topic), error=str(error))
            return None
        unchanged = edit_of(plan, Compacted(plan.generation + 1, plan.horizon, ()), intent)(
            manifest
        )
        return manifest if unchanged is None else None

    async def _abandon(self, plan: Basis, intent: str) -> None:
        """The intent first: from then on nobody can commit these files, and only then may they go.

        If it is not there a commit of ours may have removed it: the files are the new view, or the
        collector's.
        """
        if await self.store.delete(keys.intent(intent)):
            await self._remove_losers(plan, intent, set())

    async def _remove_losers(self, plan: Basis, intent: str, kept: set[str]) -> None:
        """Remove outputs of this intent that are not in the view: those of repeated task
        attempts."""
        prefix = names.segment(plan.bundle, intent).removesuffix(".seg")
        for name in await self.volume.list(names.segments_of(plan.bundle)):
            if name.startswith(prefix) and name not in kept:
                await self.volume.remove(name)
                log.info("compaction.removed", object=name)


def name_part(run: str) -> str:
    """A run id as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]", "-", run)[:INTENT_RUN_LENGTH_MAX]


def edit_of(
    plan: Basis, compacted: Compacted, intent: str
) -> Callable[[Manifest], Manifest | None]:
    """The manifest with the new view, or None if what the plan was made from has changed.

    New log files and level-1 segments at the tail are no change, nor is trimming of what the view
    before stands for. Beyond what every rewrite compares (inputs listed, generation), a compaction
    declines when its topic lost more than that or was deleted, or its bundle split, since the plan
    was made.
    """
    assert compacted.horizon >= plan.previous_horizon, (compacted.horizon, plan.previous_horizon)
    rewrite = Rewrite(
        topic=str(plan.topic),
        intent=intent,
        compaction_generation=plan.generation,
        level0=plan.listed_logs,
        segments=plan.listed_segments,
        compacted=compacted,
    )

    def edit(manifest: Manifest) -> Manifest | None:
        # A bundle that was split has no manifest any more, and generations only grow.
        if manifest.generation < plan.manifest_generation:
            return None
        trimmed = manifest.topic(str(plan.topic)).trimmed
        if trimmed != plan.trimmed and (trimmed is None or trimmed > plan.previous_horizon):
            return None
        return rewrite.apply(manifest)

    return edit

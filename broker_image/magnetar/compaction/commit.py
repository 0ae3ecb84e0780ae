"""Making a new compacted view visible, that of a broker or of a Spark job.

Owns: the basis that a commit compares, and the edit of the manifest. Imports: intents, metadata,
storage. Invariants: those of `intents`; the horizon never goes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from magnetar.clock import Clock
from magnetar.compaction.intents import Edit, IntentWriter
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName
from magnetar.storage.manifest import Compacted, Manifest, Rewrite, SegmentReference
from magnetar.storage.volumes.volume import Volume

KIND = "compaction"
"""Kind of the intents of compactions of topics."""

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
        """As `IntentWriter.commit`: have `write(intent)` write the new view, and commit it."""

        def edit(intent: str, written: _Outputs[W] | None) -> Edit:
            segments = written.view.segments if written is not None else ()
            compacted = Compacted(plan.generation + 1, plan.horizon, segments)
            return edit_of(plan, compacted, intent)

        async def outputs(intent: str) -> _Outputs[W]:
            return _Outputs(await write(intent))

        writer = IntentWriter(self.store, self.volume, self.clock, KIND, self.job, self.run)
        written, manifest = await writer.commit(plan.bundle, str(plan.topic), outputs, edit)
        return Committed(plan.generation + 1, written.view, manifest)


@dataclass(frozen=True, slots=True)
class _Outputs(Generic[W]):
    """The files of a view."""

    view: W

    @property
    def objects(self) -> set[str]:
        return {segment.object for segment in self.view.segments}


def edit_of(plan: Basis, compacted: Compacted, intent: str) -> Edit:
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

"""What a compaction's commit compares, and what is left of one that failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from magnetar.compaction import intents
from magnetar.compaction.commit import Basis, Committer, edit_of
from magnetar.compaction.intents import Conflict
from magnetar.errors import StorageError
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import ManifestPointer
from magnetar.names import BundleName, TopicName
from magnetar.storage import names
from magnetar.storage.manifest import (
    CommitResult,
    Compacted,
    LevelZero,
    Manifest,
    SegmentReference,
    TopicSegments,
    commit_manifest,
    load_manifest,
)
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.logs import CLOCK, run_on_volume

BUNDLE = BundleName.parse("a/b/0x00000000_0x40000000")
TOPIC = TopicName.parse("persistent://a/b/c")
COMPACTED = Compacted(1, (3, 9), ())
BEFORE_ALL = (-1, -1)


@dataclass(frozen=True)
class Segments:
    """What a writer returns."""

    segments: tuple[SegmentReference, ...]


def test_a_bundle_that_was_split_under_the_job_is_planned_again() -> None:
    """Its manifest is gone and would begin again, though nothing that the plan reads was listed
    in it; a later one of the same bundle will do."""
    plan = Basis(BUNDLE, TOPIC, COMPACTED.horizon, 0, BEFORE_ALL, None, manifest_generation=4)
    edit = edit_of(plan, COMPACTED, "compact-1")
    assert edit(Manifest(str(BUNDLE), 0)) is None
    for generation in (4, 5):
        edited = edit(Manifest(str(BUNDLE), generation))
        assert edited is not None
        assert edited.topic(str(TOPIC)) == TopicSegments(compacted=COMPACTED)


@pytest.mark.parametrize("committed", [True, False])
def test_what_was_committed_is_kept_whatever_fails_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """An error on the way back does not say that nothing was committed: outputs go only with an
    intent that is still there."""
    plan = Basis(BUNDLE, TOPIC, COMPACTED.horizon, 0, BEFORE_ALL, None, manifest_generation=0)

    async def fails(*arguments: Any) -> CommitResult:
        if committed:
            await commit_manifest(*arguments)
        raise StorageError("the network is unavailable")

    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)
        outputs: list[str] = []

        async def write(intent: str) -> Segments:
            outputs.append(names.segment(BUNDLE, f"{intent}-0"))
            await volume.put_if_absent(outputs[0], b"the new view")
            return Segments((SegmentReference(outputs[0], 12, 1, 12, (3, 9), (3, 9), 0),))

        monkeypatch.setattr(intents, "commit_manifest", fails)
        with pytest.raises(StorageError, match="the network is unavailable"):
            await Committer(store, volume, CLOCK, "job", "run").commit(plan, write)
        compacted = (await load_manifest(store, volume, BUNDLE))[0].topic(str(TOPIC)).compacted
        listed = [segment.object for segment in compacted.segments] if compacted is not None else []
        assert (
            await volume.list(names.segments_of(BUNDLE)) == listed == (outputs if committed else [])
        )
        assert (await store.range(keys.INTENTS)).items == ()

    run_on_volume(tmp_path, script)


def replaced(manifest: Manifest) -> Manifest:
    """Another run has compacted the topic: what the view before consisted of is given up."""
    return manifest.with_topic(str(TOPIC), TopicSegments(compacted=COMPACTED))


def grown(manifest: Manifest) -> Manifest:
    """A log file was taken in, which takes nothing away from anybody."""
    return manifest.with_files([LevelZero("broker-0", 0, 5000, (1,))], (1, 1))


def damaged(_: Manifest) -> None:
    """Nothing was committed, and the manifest cannot be read."""


@pytest.mark.parametrize(
    ("change", "expected"),
    [(replaced, Conflict), (grown, FileNotFoundError), (damaged, FileNotFoundError)],
)
def test_a_job_whose_inputs_were_replaced_while_it_read_them_is_planned_again(
    tmp_path: Path, change: Callable[[Manifest], Manifest | None], expected: type[Exception]
) -> None:
    """Naive: the file that is missing fails the whole run. If nobody has changed anything, or
    nobody can tell, it is what went wrong."""
    plan = Basis(BUNDLE, TOPIC, COMPACTED.horizon, 0, BEFORE_ALL, None, manifest_generation=0)

    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)

        async def write(intent: str) -> Segments:
            assert await volume.put_if_absent(
                names.segment(BUNDLE, f"{intent}-0"), b"half of the new view"
            )
            if change is damaged:
                await store.put(
                    keys.manifest(BUNDLE), ManifestPointer(1, names.manifest(BUNDLE, 1, 0)).encode()
                )
            else:
                await commit_manifest(store, volume, CLOCK, BUNDLE, change)
            raise FileNotFoundError("an input segment")

        with pytest.raises(expected) as raised:
            await Committer(store, volume, CLOCK, "job", "run").commit(plan, write)
        assert isinstance(raised.value, FileNotFoundError) or isinstance(
            raised.value.__cause__, FileNotFoundError
        )
        assert await volume.list(names.segments_of(BUNDLE)) == []
        assert (await store.range(keys.INTENTS)).items == ()

    run_on_volume(tmp_path, script)


@pytest.mark.parametrize(
    ("trimmed", "commits"), [(None, True), ((3, 5), True), ((3, 9), True), ((4, 0), False)]
)
def test_retention_behind_the_view_is_no_conflict_and_a_truncation_is(
    trimmed: tuple[int, int] | None, commits: bool
) -> None:
    """Retention drops what the view before stands for at any time; what lies behind its horizon
    only goes with a truncation or a deletion."""
    view = Compacted(2, (3, 9), ())
    basis = Basis(BUNDLE, TOPIC, (5, 0), 2, view.horizon, None, manifest_generation=1)
    manifest = Manifest(str(BUNDLE), 1).with_topic(
        str(TOPIC), TopicSegments(compacted=view, trimmed=trimmed)
    )
    edited = edit_of(basis, Compacted(3, (5, 0), ()), "compact-1")(manifest)
    assert (edited is not None) == commits


def test_a_first_view_is_planned_again_if_anything_was_trimmed() -> None:
    """Without a view before there is nothing that stands for it."""
    basis = Basis(BUNDLE, TOPIC, (5, 0), 0, BEFORE_ALL, None, manifest_generation=1)
    manifest = Manifest(str(BUNDLE), 1).with_topic(str(TOPIC), TopicSegments(trimmed=(3, 0)))
    assert edit_of(basis, Compacted(1, (5, 0), ()), "compact-1")(manifest) is None

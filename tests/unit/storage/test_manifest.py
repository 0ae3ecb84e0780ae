"""Manifests: golden bytes; commits under contention, lost answers and vanished intents."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from magnetar.errors import CorruptData, StorageError, StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import ManifestPointer
from magnetar.metadata.store import Compare, MetadataStore, Operation, TxnResult
from magnetar.names import BundleName
from magnetar.storage import document, turns
from magnetar.storage import manifest as manifest_module
from magnetar.storage.document import decode_document, encode_document
from magnetar.storage.manifest import (
    KIND,
    VERSION,
    CommitResult,
    Compacted,
    LevelZero,
    Manifest,
    Outcome,
    Rewrite,
    SegmentReference,
    TopicSegments,
    commit_manifest,
    commit_rewrite,
    decode_manifest,
    encode_manifest,
    load_manifest,
)
from magnetar.storage.segments.level_one import LevelOneRewrite
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.logs import CLOCK, run_on_volume

BUNDLE = BundleName.parse("a/b/0x00000000_0x40000000")
TOPIC = "persistent://a/b/c"
SEGMENT = SegmentReference(
    "segments/a/b/0x00000000_0x40000000/1.seg", 1000, 10, 900, (3, 0), (3, 9), 64
)
NEWER = dataclasses.replace(
    SEGMENT, object="segments/a/b/0x00000000_0x40000000/2.seg", first=(3, 10), last=(5, 1)
)
GOLDEN = (
    b'{"bundle":"a/b/0x00000000_0x40000000","covered":[7,3],"generation":4,"kind":"manifest","level0":[{"epochs":[7],"file":2,"incarnation":"broker-0.5f",'
    b'"length":4096}],"topics":{"persistent://a/b/c":{"compacted":{"generation":1,"horizon":[3,9],"segments":[]},"complete":null,"level1":'
    b'[{"bytes":900,"entries":10,"first":[3,0],"last":[3,9],"length":1000,"object":"segments/a/b/0x00000000_0x40000000/1.seg","offset":64}],'
    b'"trimmed":[1,5]}},"version":2}\ncrc32c=ad3e7150\n'
)


async def encoded(manifest: Manifest) -> bytes:
    return await encode_manifest(manifest)


async def decoded(data: bytes) -> Manifest:
    return await decode_manifest(data, "m")


def golden_manifest() -> Manifest:
    topic = TopicSegments((SEGMENT,), Compacted(1, (3, 9), ()), (1, 5))
    return Manifest(
        str(BUNDLE), 4, (LevelZero("broker-0.5f", 2, 4096, (7,)),), {TOPIC: topic}, (7, 3)
    )


async def test_golden_manifest() -> None:
    """Version 2 never changes."""
    assert await encoded(golden_manifest()) == GOLDEN
    assert await decoded(GOLDEN) == golden_manifest()


async def test_how_far_a_topic_is_complete_is_kept() -> None:
    manifest = Manifest(
        str(BUNDLE), 4, topics={TOPIC: TopicSegments(complete=(15, 8))}, covered=(7, 3)
    )
    assert await decoded(await encoded(manifest)) == manifest


@pytest.mark.parametrize(
    "data", [b"", GOLDEN[:-1], GOLDEN.replace(b"900", b"901"), GOLDEN[:-9] + b"00000000\n"]
)
async def test_damage_is_found(data: bytes) -> None:
    with pytest.raises(CorruptData, match="m: "):
        await decoded(data)


@pytest.mark.parametrize(
    "change",
    [
        {"topics": []},
        {"generation": "4"},
        {"level0": [{"file": 2}]},
        {"new": 1},
        {"topics": {TOPIC: {"level1": None}}},
        {"topics": {TOPIC: {"level1": [{"object": 1}]}}},
        {"topics": {TOPIC: {"compacted": {"generation": 1, "horizon": [3, 9]}}}},
        {"topics": {TOPIC: {"compacted": {"generation": 1, "horizon": [3], "segments": []}}}},
        {"topics": {TOPIC: {"later": 1}}},
        {"topics": {TOPIC: 5}},
    ],
)
async def test_whole_bytes_that_hold_no_manifest_are_named_as_such(change: dict[str, Any]) -> None:
    body = {**decode_document(KIND, VERSION, GOLDEN, "m"), **change}
    with pytest.raises(CorruptData, match="m: does not hold a manifest"):
        await decoded(encode_document(KIND, VERSION, body))


def many_topics(topics: int, segments: int) -> Manifest:
    """Each with as many segments, listed and of a compacted view; some have been used with
    transactions, of some nothing is left."""
    found = {}
    for number in range(topics):
        listed = tuple(
            dataclasses.replace(SEGMENT, first=(3, 10 * at), last=(3, 10 * at + 9))
            for at in range(segments)
        )
        view = Compacted(number + 1, (3, 9), listed) if number % 3 else None
        found[f"{TOPIC}-{topics - number}"] = TopicSegments(
            listed, view, (1, 5), (2, 4) if number % 4 == 0 else None
        )
    return dataclasses.replace(golden_manifest(), topics=found)


def in_one_go(manifest: Manifest) -> bytes:
    """What the bytes are, without turns."""
    return encode_document(KIND, VERSION, dataclasses.asdict(manifest))


@pytest.mark.parametrize(("topics", "segments"), [(0, 0), (1, 0), (30, 3), (2, 1200)])
async def test_others_have_turns_while_a_manifest_is_written_and_parsed(
    topics: int, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many topics, or many segments of one: the bytes and the lists are those of one go, and
    there is a pause for each part of them."""
    pauses = 0

    class Paused:
        @staticmethod
        async def sleep(_delay: float) -> None:
            nonlocal pauses
            pauses += 1

    for module in (manifest_module, turns):
        monkeypatch.setattr(module, "asyncio", Paused)
    monkeypatch.setattr(manifest_module, "TURN_BYTES", 1000)
    monkeypatch.setattr(manifest_module, "TURN_PARSED", 10)
    monkeypatch.setattr(document, "PIECE_ITEMS", 10)
    manifest = many_topics(topics, segments)
    data = await encoded(manifest)
    assert data == in_one_go(manifest)
    assert pauses >= len(data) // 3000
    assert (pauses > 0) == (topics * segments > 0)
    pauses = 0
    assert await decoded(data) == manifest
    assert pauses >= data.count(b'"level1"') // 20 + data.count(b'"object"') // 20
    assert (pauses > 0) == (topics * segments > 0)


def with_segment(segment: SegmentReference) -> Rewrite:
    return Rewrite(TOPIC, "job-1", 0, level1=(segment,))


def test_concurrent_commits_all_take_effect(tmp_path: Path) -> None:
    """Ten writers, one pointer: every edit is in the last manifest, generations have no gap,
    superseded objects stay readable."""

    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)

        async def add(number: int) -> CommitResult:
            entry = LevelZero("broker-0.5f", number, 4096, (1,))
            return await commit_manifest(
                store,
                volume,
                CLOCK,
                BUNDLE,
                lambda found: dataclasses.replace(found, level0=(*found.level0, entry)),
            )

        results = await asyncio.gather(*(add(number) for number in range(10)))
        manifest, name, _ = await load_manifest(store, volume, BUNDLE)
        assert {entry.file for entry in manifest.level0} == set(range(10))
        assert sorted(result.manifest.generation for result in results) == list(range(1, 11))
        item = await store.get(keys.manifest(BUNDLE))
        assert item is not None
        assert ManifestPointer.decode(item.value) == ManifestPointer(10, name)

    run_on_volume(tmp_path, script)


def test_an_edit_may_decline(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)
        result = await commit_manifest(store, volume, CLOCK, BUNDLE, lambda _: None)
        assert result == CommitResult(Outcome.DECLINED, Manifest(str(BUNDLE), 0), "")
        assert await volume.list("manifests") == []

    run_on_volume(tmp_path, script)


class LostAnswers:
    """A store whose transactions are applied, but whose answer to them is lost."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.get = inner.get

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        await self._inner.transact(compares, operations)
        raise StoreUnavailable("the answer was lost")


def test_a_commit_whose_answer_was_lost_is_recognised(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)
        await store.put(keys.intent("job-1"), b"")
        result = await commit_rewrite(
            LostAnswers(store), volume, CLOCK, BUNDLE, with_segment(SEGMENT)
        )  # type: ignore[arg-type]
        assert result.outcome == Outcome.COMMITTED
        assert (await load_manifest(store, volume, BUNDLE))[0].topic(TOPIC).level1 == (SEGMENT,)

    run_on_volume(tmp_path, script)


def test_a_commit_whose_answer_was_lost_is_recognised_by_its_pointer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails the store's answer may fail a read of the volume as well; and if the store says
    nothing at all, the outcome is unknown."""

    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)
        await store.put(keys.intent("job-1"), b"")
        lost = LostAnswers(store)

        async def unreadable(name: str, *_: int) -> bytes:
            raise StorageError(f"{name}: the network is unavailable")

        assert await store.get(keys.manifest(BUNDLE)) is None, "so that nothing is read before"
        with monkeypatch.context() as patch:
            patch.setattr(volume, "read", unreadable)
            assert (
                await commit_rewrite(lost, volume, CLOCK, BUNDLE, with_segment(SEGMENT))
            ).outcome == Outcome.COMMITTED  # type: ignore[arg-type]

        async def refuses(key: str) -> None:
            raise StoreError(f"{key}: not now")

        await store.put(keys.intent("job-1"), b"")
        loaded = iter([store.get, refuses])
        patched = LostAnswers(store)
        patched.get = lambda key: next(loaded)(key)
        with pytest.raises(StoreUnavailable, match="the answer was lost"):
            await commit_rewrite(patched, volume, CLOCK, BUNDLE, with_segment(NEWER))  # type: ignore[arg-type]

    run_on_volume(tmp_path, script)


def test_no_intent_no_commit(tmp_path: Path) -> None:
    """The intent is compared and removed by the commit itself: a collected intent refuses, and a
    second commit finds none."""

    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)
        refused = await commit_rewrite(store, volume, CLOCK, BUNDLE, with_segment(SEGMENT))
        assert refused.outcome == Outcome.REFUSED
        await store.put(keys.intent("job-1"), b"")
        assert (
            await commit_rewrite(store, volume, CLOCK, BUNDLE, with_segment(SEGMENT))
        ).outcome == Outcome.COMMITTED
        assert await store.get(keys.intent("job-1")) is None
        assert (
            await commit_rewrite(store, volume, CLOCK, BUNDLE, with_segment(NEWER))
        ).outcome == Outcome.REFUSED

    run_on_volume(tmp_path, script)


def test_a_rewrite_replaces_only_what_is_still_there() -> None:
    """Inputs that are gone, or another compaction in between, decline; everything else of the
    manifest stays."""
    base = golden_manifest()
    compaction = Rewrite(
        TOPIC,
        "i",
        1,
        level0=(("broker-0.5f", 2),),
        segments=(SEGMENT.object,),
        compacted=Compacted(2, (5, 1), (NEWER,)),
    )
    complete = base.with_topic(TOPIC, dataclasses.replace(base.topic(TOPIC), complete=(5, 1)))
    assert (kept := compaction.apply(complete)) is not None
    assert kept.topic(TOPIC).complete == (5, 1)
    compacted = compaction.apply(base)
    assert compacted is not None
    assert compacted.topic(TOPIC) == TopicSegments(
        (SEGMENT,), Compacted(2, (5, 1), (NEWER,)), (1, 5)
    )
    assert compacted.level0 == base.level0
    assert compaction.apply(compacted) is None, "the generation has moved on"
    assert dataclasses.replace(compaction, segments=("gone",)).apply(base) is None
    assert dataclasses.replace(compaction, level0=(("broker-0.5f", 3),)).apply(base) is None
    merged = Rewrite(TOPIC, "i", 1, replaced=(SEGMENT.object,), level1=(NEWER,)).apply(base)
    assert merged is not None
    assert merged.topic(TOPIC).level1 == (NEWER,)


def test_a_missing_object_is_reported_with_the_remedy(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        store = MemoryStore(CLOCK)
        await store.put(keys.manifest(BUNDLE), ManifestPointer(1, "manifests/gone").encode())
        with pytest.raises(CorruptData, match="restore it"):
            await load_manifest(store, volume, BUNDLE)

    run_on_volume(tmp_path, script)


def test_a_merged_manifest_lists_all_that_its_parents_did_and_covers_what_both_cover() -> None:
    """A file that both list counts with the terms of both; what only one has covered is taken in
    again, and nothing of it twice."""
    other = "persistent://a/b/d"
    shared, left_only, right_only = (LevelZero("b.1", number, 4096, (7,)) for number in range(3))
    left = Manifest(
        "a/b/0x00000000_0x40000000",
        4,
        (shared, left_only),
        {TOPIC: TopicSegments((SEGMENT,))},
        (7, 5),
    )
    theirs = dataclasses.replace(shared, epochs=(9,))
    right = Manifest(
        "a/b/0x40000000_0x80000000", 2, (theirs, right_only), {other: TopicSegments()}, (9, 5)
    )
    whole = BundleName.parse("a/b/0x00000000_0x80000000")
    merged = left.merged_with(right, whole, 6)
    assert (merged.bundle, merged.generation, merged.covered) == (str(whole), 6, (7, 5))
    assert set(merged.topics) == {TOPIC, other}
    assert {(file.file, file.epochs) for file in merged.level0} == {
        (0, (7, 9)),
        (1, (7,)),
        (2, (7,)),
    }
    again = right.merged_with(left, whole, 6)
    assert (set(again.level0), again.covered) == (set(merged.level0), merged.covered)
    late = LevelZero("b.1", 5, 4096, (7, 9))
    assert merged.with_files([late], (11, 6)).level0[-1] == late, "both terms of it are new"
    assert right.merged_with(dataclasses.replace(left, covered=None), whole, 6).covered is None


def test_a_merged_manifest_knows_of_its_newer_term() -> None:
    """An owner of a former term leaves it alone, though it covers no more than the older one."""
    older = Manifest("a/b/0x00000000_0x40000000", 4, covered=(7, 5))
    newer = Manifest("a/b/0x40000000_0x80000000", 2, (LevelZero("b.1", 0, 9, (9,)),), {}, (9, 5))
    merged = older.merged_with(newer, BundleName.parse("a/b/0x00000000_0x80000000"), 6)
    assert (older.newest_term, newer.newest_term, merged.newest_term) == (7, 9, 9)
    assert Manifest("a/b/0x00000000_0x40000000", 0).newest_term == -1
    rewrite = LevelOneRewrite("intent", (), epoch=8)
    assert rewrite.apply(merged) is None
    assert dataclasses.replace(rewrite, epoch=9).apply(merged) is not None

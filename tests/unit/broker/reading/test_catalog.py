"""Sealed data of a bundle as consumers get it: level-0 files, and compacted views written by
transfer what a real broker published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.errors import CorruptData, StoreError
from magnetar.metadata import keys
from magnetar.storage import names
from magnetar.storage.manifest import (
    Compacted,
    SegmentReference,
    commit_manifest,
    load_manifest,
)
from magnetar.storage.segments.format import BLOCK_ROWS_MAX, Row
from magnetar.storage.segments.segment import SegmentWriter
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.topics.ledgers import LedgerTable
from magnetar.wire import requests
from tests.support.brokers import CLOCK, TOPIC, open_peer
from tests.support.sealed_topics import NAME, number_of, payload, world


async def test_entries_are_read_back_from_sealed_files_alone(tmp_path: Path) -> None:
    """Through the manifest and the level-0 index, without the topic's own index: any start,
    bounded by entries and by bytes."""

    async with world(tmp_path, 30) as found:
        ledgers, catalog = found.host.core.ledgers, found.host.bundle.catalog
        got: list[bytes] = []
        while len(got) < 30:
            entries, counts = await catalog.read(NAME, ledgers, ReadRequest(len(got), 7), 1 << 20)
            assert 1 <= len(entries) <= 7
            assert counts == [1] * len(entries)
            got += map(bytes, entries)
        assert got == [payload(number) for number in range(30)]
        single, _ = await catalog.read(NAME, ledgers, ReadRequest(5, 7), 1)
        assert [bytes(data) for data in single] == [payload(5)], (
            "at least one entry, however small the budget"
        )


async def test_an_entry_that_no_file_holds_is_an_error_and_never_a_gap(tmp_path: Path) -> None:
    async with world(tmp_path, 3) as found:
        last = await found.peer.send(b"not covered", 3)
        assert last[1] == 3
        with pytest.raises(CorruptData, match="is in no file"):
            await found.host.bundle.catalog.read(
                NAME, found.host.core.ledgers, ReadRequest(3, 1), 1 << 20
            )


async def test_nothing_is_written_over_a_store_that_has_forgotten_the_manifest(
    tmp_path: Path,
) -> None:
    """A lost store that begins again: a manifest made of what it says would look like the newest
    one to a restore, and lack older files."""

    async with world(tmp_path, 3) as found:
        context = found.broker.context
        before = await context.volume.list(names.MANIFESTS)
        await context.store.delete(keys.manifest(found.bundle))
        await found.peer.send(b"more", 3)
        with pytest.raises(StoreError, match="has forgotten generation 1"):
            await found.broker.service.roll(NAME)
        assert await context.volume.list(names.MANIFESTS) == before


async def test_covering_lists_every_file_once_and_says_nothing_new_twice(tmp_path: Path) -> None:
    """A second roll with nothing between commits no manifest."""

    async with world(tmp_path, 3) as found:
        context = found.broker.context
        first, _, _ = await load_manifest(context.store, context.volume, found.bundle)
        assert [(file.incarnation, file.file, file.epochs) for file in first.level0] == [
            (found.broker.incarnation, 0, (found.host.bundle.epoch,))
        ]
        await found.broker.service.roll(NAME)
        again, _, _ = await load_manifest(context.store, context.volume, found.bundle)
        assert again == first


async def test_indexes_in_memory_are_bounded_in_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of single messages has very many: what was not asked for lately goes, and so does
    what the manifest lists no more."""
    monkeypatch.setattr("magnetar.broker.reading.indexes.INDEXED_RUNS_HELD_MAX", 10)

    async with world(tmp_path, 1) as found:
        for turn in range(4):
            for number in range(4):  # each awaited, and so a run
                await found.peer.send(b"message", 1 + 4 * turn + number)
            await found.broker.service.roll(NAME)
        context = found.broker.context
        # one of our own, which no maintenance uses
        catalog = await BundleCatalog.open(context, found.bundle)
        old, *files = catalog.manifest.level0
        assert len(files) == 4
        held = [await catalog.index(file) for file in files]
        for number, file in enumerate(files):
            assert await catalog.index(file) is held[number]
            assert len(held[number].runs(TOPIC)) == held[number].runs_held == 4
        assert [await catalog.index(file) for file in files[2:]] == held[2:], "the newest are there"
        kept, again = await catalog.index(files[3]), await catalog.index(files[0])
        assert again is not held[0], "others had taken its room"
        assert len(again.runs(TOPIC)) == 4
        assert await catalog.index(files[3]) is kept
        await commit_manifest(
            context.store,
            context.volume,
            CLOCK,
            found.bundle,
            lambda manifest: replace(manifest, level0=(old, *files[1:])),
        )
        await catalog.refresh()
        assert await catalog.index(files[3]) is kept
        assert await catalog.index(files[0]) is not again, "nobody needs it any more"
        for ordinal in range(5, 17):
            entries, _ = await catalog.read(
                NAME, found.host.core.ledgers, ReadRequest(ordinal, 1), 1 << 20
            )
            assert len(entries) == 1, "and all of it is read as before"


@pytest.mark.parametrize(
    ("segments", "horizon"),
    [
        ([[3, 4, 9, 17]], 19),
        ([[0]], 19),
        ([[19]], 19),
        ([[0, 1, 2], [7], [8, 15]], 15),
        ([list(range(20))], 19),
        ([[2, 5]], 9),
    ],
)
async def test_a_compacted_reader_gets_survivors_and_then_the_log(
    tmp_path: Path, segments: list[list[int]], horizon: int
) -> None:
    """Holes are passed over, also across segments; behind the horizon every entry comes; other
    readers see everything."""

    async with world(tmp_path, 20) as found:
        await found.compact(*segments, horizon=horizon)
        for number in (20, 21):
            await found.peer.send(str(number).encode(), number)
        expected = [number for survivors in segments for number in survivors] + list(
            range(horizon + 1, 22)
        )
        assert await found.read_compacted(len(expected)) == expected
        assert await found.last_entry(read_compacted=True) == 21


async def test_entries_of_a_view_that_the_topic_has_lost_are_passed_over(tmp_path: Path) -> None:
    """A log file was lost, and its loss accepted: the view still has what it held, and no reader
    stops there."""
    async with world(tmp_path, 1) as found:
        lost = found.ledger + 2
        ledgers = LedgerTable([(found.ledger, 5), (found.ledger + 4, 5)])
        rows = [(found.ledger, 1), (lost, 0), (lost, 7), (found.ledger + 4, 2)]
        writer = SegmentWriter({"topic": str(NAME)})
        for ledger, number in rows:
            writer.add(Row(ledger, number, -1, 1, 1, 1, 0, None, payload(number)))
        data = b"".join(writer.finish()[0])
        name = names.segment(found.bundle, "view")
        assert await found.broker.context.volume.put_if_absent(name, data)
        reference = SegmentReference(name, len(data), 4, len(data), rows[0], rows[-1])
        await found.commit(Compacted(1, (found.ledger + 4, 3), (reference,)))
        catalog = await BundleCatalog.open(found.broker.context, found.bundle)
        got = []
        for first in (0, 2, 8):
            read = await catalog.read_compacted(str(NAME), ledgers, ReadRequest(first, 10))
            got.append((read.first, list(map(bytes, read.entries))))
        assert got == [(1, [payload(1)]), (7, [payload(2)]), (9, [])]


@pytest.mark.slow
async def test_a_view_of_several_blocks_is_read_through(tmp_path: Path) -> None:
    """More rows than a block holds, every second one gone."""
    count = 2 * BLOCK_ROWS_MAX + 10

    async with world(tmp_path, count) as found:
        survivors = list(range(0, count, 2))
        await found.compact(survivors, horizon=count - 1)
        assert len(survivors) > BLOCK_ROWS_MAX
        async with open_peer(found.broker) as reader:
            await reader.subscribe(subscription="compacted", durable=False, read_compacted=True)
            reader.write(requests.flow(1, count))
            assert [number_of(*(await reader.message())) for _ in survivors] == survivors


@pytest.mark.slow
async def test_the_last_id_when_everything_up_to_the_end_is_compacted(tmp_path: Path) -> None:
    """The last survivor for a compacted reader, the last entry for others; nothing left: none,
    and nothing is delivered."""

    async with world(tmp_path, 20) as found:
        await found.compact([3, 4], horizon=19)
        assert await found.last_entry(read_compacted=True) == 4
        assert await found.last_entry(read_compacted=False) == 19
        assert await found.read_compacted(2) == [3, 4]
        await found.compact(horizon=19, generation=2)
        assert await found.last_entry(read_compacted=True) == (1 << 64) - 1
        assert await found.read_compacted(0) == []


@pytest.mark.slow
async def test_what_was_truncated_is_not_the_last_message_of_a_later_view(tmp_path: Path) -> None:
    """A view is made of the one before, so it keeps what its topic has dropped since. A reader
    does not wait for that.

    Made again behind a tombstone, it has nothing but that; of what was published after the
    truncation it has the last again.
    """

    async with world(tmp_path, 20) as found:
        await found.compact([3, 4], horizon=19)
        await found.host.truncate()
        for number in (20, 21):
            await found.peer.send(str(number).encode(), number)
        await found.compact([3, 4], horizon=21, generation=2)
        assert await found.last_entry(read_compacted=True) == (1 << 64) - 1
        assert await found.last_entry(read_compacted=False) == 21
        assert await found.read_compacted(0) == []
        await found.compact([3, 4], [20], horizon=21, generation=3)
        assert await found.last_entry(read_compacted=True) == 20
        assert await found.read_compacted(1) == [20]


async def test_a_committed_compaction_is_seen_without_being_asked_for(tmp_path: Path) -> None:
    """A job commits beside the broker: who subscribes then gets the compacted view."""

    async with world(tmp_path, 20) as found:
        reference = await found.segment("job", [7])
        await found.commit(Compacted(1, (found.ledger, 19), (reference,)))
        assert await found.read_compacted(1) == [7]


async def test_a_manifest_that_is_known_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reader that attaches, and each check of retention, asks whether a job has committed:
    while none has, the store's answer is enough."""

    async with world(tmp_path, 20) as found:
        context, catalog = found.broker.context, found.host.bundle.catalog
        read: list[str] = []
        reads = context.volume.read

        async def noted(name: str, *place: int) -> bytes:
            read.append(name)
            return await reads(name, *place)

        await catalog.refresh()
        known = catalog.manifest
        monkeypatch.setattr(context.volume, "read", noted)
        await catalog.refresh()
        assert (read, catalog.manifest) == ([], known)
        await found.commit(Compacted(1, (found.ledger, 19), ()))
        read.clear()
        await catalog.refresh()
        assert [name.startswith("manifests/") for name in read] == [True]
        assert catalog.manifest.generation == known.generation + 1
        assert (await BundleCatalog.open(context, found.bundle)).manifest == catalog.manifest

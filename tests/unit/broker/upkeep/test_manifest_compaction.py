"""Storage that does not only grow, on a real broker: files are rewritten and given up, and every
entry stays where its id says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.upkeep import manifest_compaction as tidying
from magnetar.broker.upkeep.segment_compaction import RoundWriter, Written
from magnetar.errors import CorruptData, StorageError
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import IntentRecord, JobRunRecord
from magnetar.names import TopicName
from magnetar.storage import names
from magnetar.storage.manifest import (
    CommitResult,
    Compacted,
    Manifest,
    TopicSegments,
    commit_manifest,
    commit_rewrite,
)
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.transactions.ids import TxnId
from tests.support.brokers import (
    CLOCK,
    TOPIC,
    Node,
    open_peer,
    volume_in,
)
from tests.support.brokers import SETTINGS as BASE
from tests.support.published_topics import OTHER, flip, world
from tests.support.transacting import ended, send_in


@pytest.mark.slow
async def test_files_are_rewritten_and_go_and_every_entry_is_still_there(tmp_path: Path) -> None:
    """Log files that are old go into segments; only the current file remains; reads find the
    same bytes under the same ids."""

    async with world(tmp_path) as found:
        for _ in range(3):
            await found.publish(TOPIC, 20)
            await found.publish(OTHER, 5)
            await found.roll()
        await found.round()
        assert len(await found.files()) <= 2  # the current one and a spare
        for topic in (TOPIC, OTHER):
            manifest = await found.manifest(topic)
            assert manifest.level0 == ()
            assert [segment.entries for segment in manifest.topic(topic).level1] == [
                len(found.sent[topic])
            ]
            assert await found.read_all(topic) == found.sent[topic]
        keyed = (await found.broker.context.store.range(keys.LOGS)).items
        assert keyed == ()
        assert (await found.broker.context.store.range(keys.INTENTS)).items == ()


@pytest.mark.slow
async def test_entries_in_segments_survive_a_restart(tmp_path: Path) -> None:
    """Recovery needs neither the files nor anything in memory."""

    store = MemoryStore(CLOCK)
    async with world(tmp_path, store) as found:
        await found.publish(TOPIC, 30)
        await found.roll()
        await found.round()
        await found.publish(TOPIC, 4)
        sent = found.sent
    async with world(tmp_path, store) as again:
        again.sent = sent
        assert await again.read_all(TOPIC) == sent[TOPIC]
        await again.publish(TOPIC, 3)
        await again.round()
        await again.round()
        assert await again.read_all(TOPIC) == sent[TOPIC]
        dead = [name for name in await again.files() if again.broker.incarnation not in name]
        assert dead == [], "the former incarnation's files are passed as well"
    await store.close()


@pytest.mark.slow
async def test_a_file_stays_while_recovery_needs_it_and_goes_with_the_checkpoint(
    tmp_path: Path,
) -> None:
    """Rewritten, but before the checkpoint: the chain still begins in it."""

    async with world(tmp_path, checkpoint_age_s=3600.0) as found:
        await found.publish(TOPIC, 10)
        await found.roll()
        await found.broker.maintenance.round()
        assert (await found.manifest(TOPIC)).level0 == ()
        assert names.log_file(found.broker.incarnation, 0) in await found.files()
        for name in list(found.broker.ownership.owned):
            await found.broker.ownership.checkpointer.checkpoint(name)
        await found.broker.maintenance.round()
        assert names.log_file(found.broker.incarnation, 0) not in await found.files()
        assert await found.read_all(TOPIC) == found.sent[TOPIC]


@pytest.mark.slow
async def test_one_unread_topic_pins_nothing_and_young_files_are_left_alone(tmp_path: Path) -> None:
    """Most of the file is dead: what lives is rewritten though the file is young; a file that is
    mostly alive is not touched."""

    async with world(tmp_path, rewrite_age_s=3600.0) as found:
        await found.publish(TOPIC, 3)
        await found.roll()
        await found.round()
        bundle = (await found.host(TOPIC)).bundle
        assert len((await found.manifest(TOPIC)).level0) == 1
        other = await found.publish_in(bundle, 60)
        await found.publish(TOPIC, 1)
        await found.roll()
        del bundle.topics[other]  # as a deletion leaves it, once that is durable
        await found.round()
        manifest = await found.manifest(TOPIC)
        assert len(manifest.level0) == 1, "the young file that is all alive"
        assert [segment.entries for segment in manifest.topic(TOPIC).level1] == [1]
        assert await found.read_all(TOPIC) == found.sent[TOPIC]


@pytest.mark.slow
async def test_a_file_in_which_nothing_lives_goes_without_being_read(tmp_path: Path) -> None:
    async with world(tmp_path, rewrite_age_s=3600.0) as found:
        host = await found.host(TOPIC)
        await found.publish(TOPIC, 10)
        await found.roll()
        del host.bundle.topics[TOPIC]
        await found.round()
        manifest = await found.manifest(TOPIC)
        assert (manifest.level0, manifest.topics) == ((), {})
        assert await found.broker.context.volume.list("segments") == []


@pytest.mark.slow
async def test_nothing_is_said_of_a_topic_that_was_trimmed_away_and_then_deleted(
    tmp_path: Path,
) -> None:
    """No file has anything of it any more that would bring it up: up to where it was complete
    goes with it all the same."""

    async with world(tmp_path) as found:
        host = await found.host(TOPIC)
        await send_in(found.peer, TxnId(0, 0), b"x", 0)
        await ended(found.peer, TxnId(0, 0), commit=True)
        await found.roll()
        await found.round()
        await host.trim(host.core.ledgers.end)
        await found.roll()
        await found.round()
        left = (await found.manifest(TOPIC)).topic(TOPIC)
        assert not left.level1
        assert left.complete is not None
        await host.bundle.delete_topic(TopicName.parse(TOPIC))
        await found.round()
        assert (await found.manifest(TOPIC)).topics == {}


@pytest.mark.slow
async def test_segments_of_small_topics_share_objects_and_are_merged(tmp_path: Path) -> None:
    """Round after round adds an object; they do not pile up, and what was merged is deleted."""

    async with world(tmp_path) as found:
        bundle = (await found.host(TOPIC)).bundle
        sent = []
        for number in range(12):
            await found.publish(TOPIC, 2)
            sent.append(await found.publish_in(bundle, 3, f"small-{number % 3}"))
            await found.roll()
            await found.round()
        await found.round()
        manifest = await found.manifest(TOPIC)
        objects = {segment.object for topic in manifest.topics.values() for segment in topic.level1}
        assert len(objects) < 8
        assert any(segment.offset for topic in manifest.topics.values() for segment in topic.level1)
        segments = [
            name
            for name in await found.broker.context.volume.list("segments")
            if str(bundle.name) in name
        ]
        assert set(segments) == objects
        assert await found.read_all(TOPIC) == found.sent[TOPIC]
        for topic in set(sent):
            assert len(await found.read_all(topic)) == 3 * sent.count(topic)


@pytest.mark.slow
async def test_a_compaction_that_commits_first_makes_the_round_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round declines, removes its intent and its outputs, and succeeds in the next round."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 10)
        await found.roll()
        context, bundle = found.broker.context, (await found.host(TOPIC)).bundle
        finish = RoundWriter.finish

        async def compacted_first(writer: RoundWriter) -> Written:
            written = await finish(writer)

            def edit(manifest: Manifest) -> Manifest:
                view = Compacted(1, (bundle.topics[TOPIC].core.ledger, 4), ())
                return manifest.with_topic(TOPIC, TopicSegments(compacted=view))

            await commit_manifest(context.store, context.volume, CLOCK, bundle.name, edit)
            return written

        with monkeypatch.context() as patch:
            patch.setattr(RoundWriter, "finish", compacted_first)
            await found.broker.maintenance.manifest_compactor.tidy(bundle)
        manifest = await found.manifest(TOPIC)
        assert (len(manifest.level0), manifest.topic(TOPIC).level1) == (1, ())
        assert await context.volume.list("segments") == []
        assert (await context.store.range(keys.INTENTS)).items == ()
        await found.broker.maintenance.manifest_compactor.tidy(bundle)
        manifest = await found.manifest(TOPIC)
        assert (manifest.level0, len(manifest.topic(TOPIC).level1)) == ((), 1)
        assert manifest.topic(TOPIC).compacted is not None


async def test_a_round_that_was_committed_is_kept_whatever_fails_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error on the way back does not say that nothing was committed: every entry is where the
    manifest says."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 10)
        await found.roll()
        bundle = (await found.host(TOPIC)).bundle

        async def fails(*arguments: Any) -> CommitResult:
            await commit_rewrite(*arguments)
            raise StorageError("the network is down")

        with monkeypatch.context() as patch:
            patch.setattr(tidying, "commit_rewrite", fails)
            with pytest.raises(StorageError, match="the network is down"):
                await found.broker.maintenance.manifest_compactor.tidy(bundle)
        await found.round()
        manifest = await found.manifest(TOPIC)
        assert manifest.level0 == ()
        listed = [segment.object for segment in manifest.topic(TOPIC).level1]
        assert await found.broker.context.volume.list("segments") == listed != []
        assert await found.read_all(TOPIC) == found.sent[TOPIC]


@pytest.mark.slow
async def test_a_job_at_work_keeps_lists_and_files_as_they_are(tmp_path: Path) -> None:
    """Its inputs must be listed when it commits, and be there while it reads; an intent whose
    job is over pins nothing."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 10)
        await found.roll()
        context, bundle = found.broker.context, (await found.host(TOPIC)).bundle
        before = await found.manifest(TOPIC)
        intent = IntentRecord("compaction", str(bundle.name), TOPIC, "job", "1", CLOCK.wall_ms())
        await context.store.put(keys.intent("compact-1-x"), intent.encode())
        await found.round()
        assert (await found.manifest(TOPIC)).level0 == before.level0
        assert names.log_file(found.broker.incarnation, 0) in await found.files()
        await context.store.put(
            keys.job_run("job", "1"), JobRunRecord("compaction", "failed", 0, 0, {}).encode()
        )
        await found.broker.maintenance.garbage_collector.collect_objects()
        await found.round()
        assert (await found.manifest(TOPIC)).level0 == ()


@pytest.mark.slow
async def test_damage_is_not_carried_over_and_keeps_only_its_own_file(tmp_path: Path) -> None:
    """An entry that fails its client's checksum: the file stays listed and readable but for that
    entry; other files go on."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 10)
        await found.roll()
        host = await found.host(TOPIC)
        damaged = names.log_file(found.broker.incarnation, host.index.runs[0].file)
        offset = host.index.runs[4].offset + host.index.runs[4].bytes - 1
        await found.publish(TOPIC, 10)
        await found.roll()
        flip(tmp_path / damaged, offset)
        await found.round()
        await found.round()
        manifest = await found.manifest(TOPIC)
        assert [names.log_file(file.incarnation, file.file) for file in manifest.level0] == [
            damaged
        ]
        assert damaged in await found.files()
        host.index.drop_before(host.core.ledgers.end)  # what is still in memory hides nothing
        with pytest.raises(CorruptData, match="damaged"):
            await found.read_all(TOPIC)
        entries, _ = await host.reader.read(ReadRequest(10, 1))
        assert bytes(entries[0]) == found.sent[TOPIC][10]


@pytest.mark.slow
@pytest.mark.parametrize(("hurt", "whole"), [(TOPIC, OTHER), (OTHER, TOPIC)])
async def test_a_bundle_does_not_wait_for_the_damage_of_another_in_the_same_file(
    tmp_path: Path, hurt: str, whole: str
) -> None:
    """Both have entries in one log file: the one whose entries are whole rewrites them and
    leaves the file, in whichever order they come."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 10)
        await found.publish(OTHER, 10)
        host, other = await found.host(hurt), await found.host(whole)
        assert host.bundle is not other.bundle
        run = host.index.runs[4]
        assert run.file == other.index.runs[0].file
        await found.roll()
        flip(
            tmp_path / names.log_file(found.broker.incarnation, run.file),
            run.offset + run.bytes - 1,
        )
        await found.round()
        await found.round()
        assert [file.file for file in (await found.manifest(hurt)).level0] == [run.file]
        assert (await found.manifest(whole)).level0 == ()
        other.index.drop_before(other.core.ledgers.end)
        assert await found.read_all(whole) == found.sent[whole]


@pytest.mark.slow
async def test_a_file_that_is_listed_no_more_is_not_taken_for_missing(tmp_path: Path) -> None:
    """A broker that has not learned of its own commit goes on with the manifest before it, whose
    files are gone: it looks for a newer one."""

    async with world(tmp_path) as found:
        await found.publish(TOPIC, 10)
        await found.roll()
        before = await found.manifest(TOPIC)
        await found.round()
        await found.round()
        after = await found.manifest(TOPIC)
        gone = {names.log_file(file.incarnation, file.file) for file in before.level0}
        assert gone
        assert not gone & {*await found.files()}
        context, bundle = found.broker.context, (await found.host(TOPIC)).bundle
        bundle.catalog._manifest = before
        (await found.host(TOPIC)).index.drop_before(1 << 60)  # what is in memory hides nothing
        assert await found.read_all(TOPIC) == found.sent[TOPIC]
        bundle.catalog._manifest = before
        await found.broker.maintenance.manifest_compactor.tidy(bundle)
        assert context.damage.listed() == []
        assert context.damage.met == 0
        assert bundle.catalog.manifest == after
        assert await found.read_all(TOPIC) == found.sent[TOPIC]


@pytest.mark.slow
async def test_files_of_an_incarnation_that_died_before_it_noted_them_go_too(
    tmp_path: Path,
) -> None:
    """No seal, no index, no key: the collector of the leader completes what the dead owner did
    not come to."""

    store = MemoryStore(CLOCK)
    async with volume_in(tmp_path) as volume:
        node = Node(store, volume, "broker-0", BASE)
        dead = await node.start()
        async with open_peer(dead) as peer:
            await peer.lookup()
            await peer.produce()
            await peer.send(b"last words")
        dead.fail("killed")
        await dead.leader.stop()
        await store.delete(keys.incarnation(dead.incarnation))
        async with world(tmp_path, store) as found:
            host = await found.host(TOPIC)
            assert host.core.ledgers.end == 1
            for _ in range(3):
                await found.round()
            assert not [name for name in await volume.list("logs") if dead.incarnation in name]
            entries, _ = await host.reader.read(ReadRequest(0, 1))
            assert b"last words" in bytes(entries[0])
        await dead.close()
    await store.close()


@pytest.mark.slow
async def test_superseded_objects_go(tmp_path: Path) -> None:
    """One manifest and one checkpoint remain per bundle."""

    async with world(tmp_path) as found:
        for _ in range(4):
            await found.publish(TOPIC, 2)
            await found.roll()
            await found.round()
        await found.round()
        volume = found.broker.context.volume
        bundle = str(await found.broker.ownership.bundle_of(TopicName.parse(TOPIC)))
        for kind in ("manifests", "checkpoints"):
            assert len([name for name in await volume.list(kind) if bundle in name]) == 1, kind

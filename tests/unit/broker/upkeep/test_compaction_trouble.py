"""What comes between a broker and the view that it writes: jobs, deletions, lost files, late
messages. The acceptance list of bugs that Pulsar had."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.broker.topics.compaction_state import CompactionStatus
from magnetar.broker.upkeep import topic_compaction
from magnetar.broker.upkeep.view_writing import ViewWriter, WrittenView
from magnetar.compaction.commit import KIND
from magnetar.compaction.intents import Conflict
from magnetar.errors import CorruptData, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import IntentRecord
from magnetar.metadata.store import MetadataStore
from magnetar.storage.manifest import TopicSegments, commit_manifest
from tests.support.brokers import Type, open_peer
from tests.support.compacted_topics import Keyed, keyed_topic

Write = Callable[[ViewWriter], Awaitable[WrittenView]]


def between(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]], times: int = 1
) -> None:
    """After each of the next views is written, and before its commit, `act` happens. What `act`
    itself has written is not interrupted."""
    write, left, acting = ViewWriter.write, times, False

    async def interrupted(writer: ViewWriter) -> WrittenView:
        nonlocal left, acting
        written = await write(writer)
        if left and not acting:
            left, acting = left - 1, True
            await act()
            acting = False
        return written

    monkeypatch.setattr(ViewWriter, "write", interrupted)


async def nothing_is_left(topic: Keyed) -> None:
    """No intent, and no segment but those of the view."""
    context = topic.broker.context
    assert (await context.store.range(keys.INTENTS)).items == ()
    host = await topic.host()
    view = host.bundle.known_view(host)
    listed = [found.object for found in view.segments] if view is not None else []
    assert await context.volume.list("segments") == sorted(listed)


async def test_a_job_that_commits_first_wins_and_the_broker_plans_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """#25118, #25119: a late commit cannot take the horizon back."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")

        async def job() -> None:
            await topic.single("a", b"2")
            await topic.compact()

        between(monkeypatch, job)
        await topic.compact()
        assert (await topic.view()).generation == 1
        assert await topic.read() == [("a", b"2")]
        await nothing_is_left(topic)


async def test_a_broker_that_never_comes_first_gives_up_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_compaction, "AGAIN_S", 0.0)
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        host, compactor = await topic.host(), topic.broker.maintenance.topic_compactor

        async def job() -> None:
            await topic.single("a", b"2")
            await compactor._attempt(host)
            await topic.single("a", b"3")

        between(monkeypatch, job, times=topic_compaction.ATTEMPTS_MAX)
        with pytest.raises(Conflict, match="came first"):
            await compactor.compact(host)
        for _ in range(2):
            await topic.round()  # views that were replaced
        await nothing_is_left(topic)


async def test_what_is_published_while_the_view_is_written_lies_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """#20988: the end is fixed before the first phase; neither a deletion nor a value is lost."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        last = await topic.single("b", b"1")

        async def late() -> None:
            await topic.single("b", b"2")
            await topic.single("a", b"")

        between(monkeypatch, late)
        await topic.compact()
        assert (await topic.view()).horizon == last
        assert await topic.read() == [("a", b"1"), ("b", b"1"), ("b", b"2"), ("a", b"")]
        await topic.compact()
        assert await topic.read() == [("b", b"2")]


async def test_a_marker_at_the_end_neither_blocks_nor_shortens_the_horizon(tmp_path: Path) -> None:
    """#21718: the end is a position, not a message that is delivered."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        (marker,) = await topic.publish(topic.history.marker(10, key="a"))
        await topic.compact()
        assert (await topic.view()).horizon == marker
        assert await topic.read() == [("a", b"1")]


async def test_a_lost_segment_of_the_view_fails_loudly(tmp_path: Path) -> None:
    """#26631, #26512: neither a reader nor the next run falls back to the originals, which lack
    the keys that only the view has."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        await topic.compact()
        await topic.trim()
        before = await topic.view()
        await topic.broker.context.volume.remove(before.segments[0].object)
        await topic.single("b", b"2")
        with pytest.raises(CorruptData, match="is missing; restore it"):
            await topic.compact()
        assert await topic.view() == before
        async with open_peer(topic.broker) as reader:
            await reader.subscribe(subscription="r", durable=False, read_compacted=True)
            answer = await reader.ask("get_last_message_id", consumer_id=1)
            assert answer.type == Type.GET_LAST_MESSAGE_ID_RESPONSE


@pytest.mark.parametrize("older", [True, False])
async def test_a_view_that_a_restore_has_lost_is_an_error_until_the_topic_is_truncated(
    tmp_path: Path, older: bool
) -> None:
    """#26631: the manifest that came back has no view, or one from before the originals went.
    Naive: readers get what is left, and the next run makes that the view."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        await topic.compact()
        before = await topic.view()
        await topic.single("b", b"1")
        await topic.compact()
        await topic.trim()
        host, context = await topic.host(), topic.broker.context
        lost = TopicSegments(compacted=before if older else None)
        await commit_manifest(
            context.store,
            context.volume,
            context.clock,
            host.bundle.name,
            lambda manifest: manifest.with_topic(str(host.name), lost),
        )
        await topic.single("c", b"1")
        await host.bundle.catalog.refresh()
        with pytest.raises(CorruptData, match="no view up to there; restore that manifest"):
            await topic.compact()
        with pytest.raises(CorruptData, match="no view up to there"):
            await topic.trim()
        async with open_peer(topic.broker) as reader:
            answer = await reader.subscribe(subscription="r", durable=False, read_compacted=True)
            assert "no view up to there" in answer.error.message
        assert await topic.read(read_compacted=False) == [("c", b"1")]
        await host.truncate()
        await topic.single("d", b"1")
        await topic.compact()
        assert await topic.read() == [("d", b"1")]


async def test_a_topic_that_is_deleted_while_it_is_compacted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """#21745: a view of a topic that is gone goes with the next round."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        host = await topic.host()
        between(monkeypatch, lambda: host.bundle.delete_topic(host.name))
        await topic.compact()
        for _ in range(3):
            await topic.broker.service.roll(host.name) if str(
                host.name
            ) in host.bundle.topics else None
            await topic.round()
            await asyncio.sleep(0.06)
        assert host.bundle.catalog.compacted(str(host.name)) is None
        assert await topic.broker.context.volume.list("segments") == []


async def test_an_intent_of_a_dead_broker_is_ended_and_its_files_go(tmp_path: Path) -> None:
    """A crash leaves an intent and files; the leader's collector ends both, for a claim that is
    gone never comes back."""
    async with keyed_topic(tmp_path) as topic:
        context, host = topic.broker.context, await topic.host()
        await topic.single("a", b"1")
        await topic.compact()
        name = "compact-broker-9-dead"
        record = IntentRecord(KIND, str(host.bundle.name), str(host.name), "", "broker-9.0", 1)
        await context.store.put(keys.intent(name), record.encode())
        orphan = f"segments/{host.bundle.name}/{name}-00000.seg"
        assert await context.volume.put_if_absent(orphan, b"half a view")
        for _ in range(2):
            await topic.round()
        assert (await context.store.range(keys.INTENTS)).items == ()
        assert orphan not in await context.volume.list("segments")
        assert await topic.read() == [("a", b"1")]


async def test_an_unknown_outcome_is_resolved_before_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naive: the intent stays for a day, and keeps the bundle's files as they are."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        host, compactor = await topic.host(), topic.broker.maintenance.topic_compactor

        async def unavailable() -> None:
            raise StoreUnavailable("no answer")

        between(monkeypatch, unavailable)
        compactor.request(host)
        while compactor.status(host).status is CompactionStatus.RUNNING:
            await asyncio.sleep(0.01)
        assert compactor.status(host).last_error == "no answer"
        store: MetadataStore = topic.broker.context.store
        assert len((await store.range(keys.INTENTS)).items) == 1
        await topic.round()
        assert (await store.range(keys.INTENTS)).items == ()
        await topic.compact()
        assert await topic.read() == [("a", b"1")]

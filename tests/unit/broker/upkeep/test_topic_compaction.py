"""Compaction of a topic by its owner, on a real broker, as clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.topics.compaction_state import CompactionState, CompactionStatus
from magnetar.broker.upkeep import view_writing
from magnetar.broker.upkeep.compaction_input import CompactionInput, CompactionPlan
from magnetar.broker.upkeep.view_writing import ViewWriter
from magnetar.compaction.newest import Newest
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.storage.segments.format import Row
from magnetar.transactions.ids import TxnId
from tests.spark.histories import Sent, reference
from tests.support.brokers import CLOCK
from tests.support.compacted_topics import NAME, Keyed, keyed_topic
from tests.support.transacting import ended as ended_in


async def test_a_reader_of_the_view_gets_the_latest_of_each_key_and_the_tail(
    tmp_path: Path,
) -> None:
    async with keyed_topic(tmp_path) as topic:
        for number in range(6):
            await topic.single(f"k{number % 3}", b"%d" % number)
        await topic.single("k1", b"")
        await topic.compact()
        assert await topic.read() == [("k0", b"3"), ("k2", b"5")]
        await topic.single("k1", b"again")
        assert await topic.read() == [("k0", b"3"), ("k2", b"5"), ("k1", b"again")]
        host = await topic.host()
        assert (await host.bundle.catalog._context.store.range(keys.INTENTS)).items == ()


@pytest.mark.slow
async def test_rounds_of_random_histories_equal_the_reference(tmp_path: Path) -> None:
    """#12429, #12522: round n+1 is made of round n and what came since."""
    async with keyed_topic(tmp_path) as topic:
        published = topic.history.entries
        sent = 0
        for generation in (1, 2, 3):
            topic.history.grow(60, keys=25)
            places = await topic.publish(*published[sent:])
            sent = len(published)
            del places
            await topic.compact()
            view = await topic.view()
            assert view.generation == generation
            found = await topic.read_rows()
            expected = reference(published)
            assert [item[1:] for item in found] == [item[1:] for item in expected]


async def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    async with keyed_topic(tmp_path) as topic:
        await topic.single("k", b"1")
        await topic.compact()
        before = await topic.view()
        await topic.compact()
        assert await topic.view() == before
        await topic.single("k", b"2")
        await topic.compact()
        assert (await topic.view()).generation == 2


async def test_batches_lose_single_messages(tmp_path: Path) -> None:
    """#20980: each message of a batch is decided on its own."""
    async with keyed_topic(tmp_path) as topic:
        batch = topic.history.batch([Sent("a", b"1"), Sent("b", b"2"), Sent("c", b"")], 2)
        await topic.publish(batch)
        await topic.single("a", b"3")
        await topic.compact()
        assert await topic.read() == [("b", b"2"), ("a", b"3")]


async def test_messages_of_transactions_count_from_their_commit_on(tmp_path: Path) -> None:
    """An open transaction holds nothing, an aborted one is never seen, and the order is that of
    commits: redpanda #16295, and what was sent first wins if it is committed last."""
    async with keyed_topic(tmp_path) as topic:
        history, peer = topic.history, topic.peer
        await topic.single("a", b"1")
        for number, (key, value) in enumerate((("b", b"1"), ("a", b"lost"), ("a", b"2")), 1):
            await topic.publish(history.single(key, value), txn=TxnId(0, number))
        await topic.compact()
        assert await topic.read() == [("a", b"1")]
        await topic.single("b", b"0")
        await ended_in(peer, TxnId(0, 1), commit=True)
        await ended_in(peer, TxnId(0, 2), commit=False)
        await topic.compact()
        assert await topic.read() == [("a", b"1"), ("b", b"1")]
        await topic.trim()
        await ended_in(peer, TxnId(0, 3), commit=True)
        assert await topic.read() == [("a", b"1"), ("b", b"1"), ("a", b"2")]
        await topic.compact()
        await topic.trim()
        await topic.broker.service.roll(NAME)
        await topic.round()
        assert await topic.read() == [("b", b"1"), ("a", b"2")]


async def test_the_last_id_is_that_of_the_last_survivor(tmp_path: Path) -> None:
    """#18833, #17040: a reader must not wait for what compaction has removed."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        await topic.single("b", b"2")
        await topic.single("b", b"")
        await topic.compact()
        assert await topic.read() == [("a", b"1")]
        await topic.single("a", b"")
        await topic.compact()
        assert (await topic.view()).segments == ()
        assert await topic.read() == []


async def test_more_keys_than_memory_allows_are_refused_with_the_remedy(tmp_path: Path) -> None:
    """#7223: the process keeps its memory, the topic its view."""
    async with keyed_topic(tmp_path, compaction_keys_bytes_max=2048) as topic:
        for number in range(20):
            await topic.single(f"key-{number}", b"v")
        state = await ended(topic)
        assert state.status is CompactionStatus.ERROR
        assert "compaction_keys_bytes_max=2048" in state.last_error
        assert "DataJob" in state.last_error
        host = await topic.host()
        assert host.bundle.known_view(host) is None
        assert await host.context.volume.list("segments") == []
        assert (await host.context.store.range(keys.INTENTS)).items == ()


async def ended(topic: Keyed) -> CompactionState:
    """Request a compaction and wait for its end."""
    host, compactor = await topic.host(), topic.broker.maintenance.topic_compactor
    compactor.request(host)
    while compactor.status(host).status is CompactionStatus.RUNNING:
        await asyncio.sleep(0.01)
    return compactor.status(host)


async def test_the_event_loop_serves_others_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two turns of the loop some hundred messages are looked at; a large batch is opened
    outside of it."""
    turns, outside = [0], 0
    for owner, name in ((Newest, "add"), (view_writing, "view_row")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), turns))

    async def tick() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    async def compute(work: Callable[[], Any]) -> Any:
        nonlocal outside
        outside += 1
        return work()

    async with keyed_topic(tmp_path) as topic:
        for number in range(30):
            messages = [Sent(f"k{number}-{index}", b"v") for index in range(40)]
            await topic.publish(topic.history.batch(messages))
        await topic.publish(topic.history.batch([Sent(f"l{n}", b"v") for n in range(150)]))
        host = await topic.host()
        plan = await CompactionPlan.of(host)
        assert plan is not None
        context, source = replace(host.context, compute=compute), CompactionInput(host, plan)
        ticking = asyncio.create_task(tick())
        written = await ViewWriter(context, plan, source, "compact-test").write()
        ticking.cancel()
        assert written.messages_in == written.messages_out == 30 * 40 + 150
        assert 0 < max(turns) <= view_writing.MESSAGES_PER_TURN + 40
        assert outside == 3, "both phases of the large batch, and the choice"


def counted(work: Callable[..., Any], turns: list[int]) -> Callable[..., Any]:
    """`work` on a row of few messages adds them to the turn."""

    def count(*arguments: Any) -> Any:
        row = next(found for found in arguments if isinstance(found, Row))
        if row.message_count <= view_writing.LARGE_MESSAGES:
            turns[-1] += row.message_count
        return work(*arguments)

    return count


async def test_a_view_survives_a_restart(tmp_path: Path) -> None:
    store = MemoryStore(CLOCK)
    async with keyed_topic(tmp_path, store) as topic:
        for number in range(4):
            await topic.single(f"k{number % 2}", b"%d" % number)
        assert (await ended(topic)).status is CompactionStatus.SUCCESS
    async with keyed_topic(tmp_path, store) as topic:
        assert await topic.read() == [("k0", b"2"), ("k1", b"3")]
        host, compactor = await topic.host(), topic.broker.maintenance.topic_compactor
        assert compactor.status(host).status is CompactionStatus.SUCCESS
    await store.close()

"""Deduplication, encryption, size and termination, seen by a producer: what is stored, what is
answered, and what a new owner remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.errors import WireCode
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import BundleName, TopicName
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.sent_entries import BATCHED_MESSAGE_BYTES_MIN
from tests.support.brokers import (
    CLOCK,
    TOPIC,
    Peer,
    Type,
    entry,
    open_peer,
    running_broker,
)
from tests.support.namespace_policies import DEDUPLICATED, play, set_policies

SMALL_FILES: dict[str, Any] = {
    "max_message_bytes": 256 << 10,
    "log_file_bytes": 1 << 20,
    "checkpoint_files_max": 1,
}
NO_POSITION = (1 << 64) - 1
STORED, DUPLICATE, UNKNOWN = "stored", "duplicate", "unknown"


async def host_of(broker: Broker) -> TopicHost:
    return await broker.service.open_topic(TopicName.parse(TOPIC), create=True)


def send(sequence: int, body: bytes | None = None, *, highest: int | None = None) -> bytes:
    if highest is None:
        return requests.send(1, sequence, entry(b"x", sequence) if body is None else body)
    count = 1 + highest - sequence
    batch = entry(bytes(BATCHED_MESSAGE_BYTES_MIN * count), sequence, num_messages_in_batch=count)
    return requests.send(1, sequence, batch, messages=count, highest_sequence_id=highest)


async def answers(peer: Peer, count: int) -> list[tuple[int, str]]:
    """(sequence id, what became of it) of the next answers."""
    found = []
    for _ in range(count):
        answer = await peer.answer()
        if answer.type == Type.SEND_RECEIPT:
            receipt = answer.send_receipt
            duplicate = receipt.message_id.entryId == NO_POSITION
            assert duplicate == (receipt.message_id.ledgerId == NO_POSITION)
            found.append((receipt.sequence_id, DUPLICATE if duplicate else STORED))
        else:
            assert answer.type == Type.SEND_ERROR, answer
            found.append(
                (answer.send_error.sequence_id, WireCode(answer.send_error.error).name.lower())
            )
    return found


async def count(broker: Broker) -> int:
    """Entries of the topic."""
    ledgers = (await host_of(broker)).core.ledgers
    return ledgers.end - ledgers.first


@asynccontextmanager
async def incarnation(directory: Path, store: MemoryStore) -> AsyncIterator[tuple[Broker, Peer]]:
    """The next incarnation of a broker with small log files, and a peer that has looked the
    topic up."""
    async with (
        running_broker(directory, store=store, **SMALL_FILES) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        yield broker, peer


async def fill_until_checkpoint(broker: Broker, peer: Peer) -> None:
    """Publish to another topic of the bundle until the bundle's chain is worth a checkpoint."""
    bundle = str((await host_of(broker)).bundle.name)
    names = [f"persistent://public/default/other-{number}" for number in range(100)]
    neighbour = next(
        name for name in names if BundleName.parse(bundle).contains(TopicName.parse(name))
    )
    await peer.produce(7, neighbour)
    sequence = 0
    while (viewed := broker.views.bundles.get(bundle)) is None or viewed.record.checkpoint is None:
        await peer.send(bytes(200 << 10), sequence, 7)
        sequence += 1


# --- verdicts -------------------------------------------------------------------------------------


def test_without_the_policy_nothing_is_tested_or_remembered(tmp_path: Path) -> None:
    """The same sequence id twice is stored twice; the last sequence id is -1."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        peer.write(send(5) + send(5))
        assert await answers(peer, 2) == [(5, STORED), (5, STORED)]
        topic = await host_of(broker)
        assert (topic.core.deduplication, topic.admission.guarded, await count(broker)) == (
            None,
            False,
            2,
        )
        peer.write(requests.close_producer(1, 9))
        await peer.answer(Type.SUCCESS)
        assert (await peer.produce(producer_name="p")).last_sequence_id == -1

    play(tmp_path, script)


def test_a_repetition_is_a_success_with_no_position(tmp_path: Path) -> None:
    """Above the highest durable id: stored. Up to it: a receipt with (-1, -1), in order
    among the others."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        peer.write(send(3) + send(4))
        assert await answers(peer, 2) == [(3, STORED), (4, STORED)]
        peer.write(send(5) + send(4) + send(6) + send(0) + send(7))
        assert await answers(peer, 5) == [
            (5, STORED),
            (4, DUPLICATE),
            (6, STORED),
            (0, DUPLICATE),
            (7, STORED),
        ]
        assert await count(broker) == 5

    play(tmp_path, script, DEDUPLICATED)


def test_a_repetition_of_what_is_on_its_way_is_an_error_to_try_again(tmp_path: Path) -> None:
    """PersistenceError behind the receipt of the first: no receipt may say that it is
    stored before it is."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        peer.write(send(3) + send(3) + send(4))
        assert await answers(peer, 3) == [(3, STORED), (3, "persistence"), (4, STORED)]
        assert await count(broker) == 2

    play(tmp_path, script, DEDUPLICATED)


def test_a_batch_is_judged_by_its_lowest_id_and_remembered_by_its_highest(tmp_path: Path) -> None:
    """And a lone message behind it by its own."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        peer.write(send(0, highest=9) + send(10))
        assert await answers(peer, 2) == [(0, STORED), (10, STORED)]
        peer.write(send(9, highest=12) + send(10) + send(11, highest=14))
        assert await answers(peer, 3) == [(9, DUPLICATE), (10, DUPLICATE), (11, STORED)]
        peer.write(requests.close_producer(1, 9))
        await peer.answer(Type.SUCCESS)
        assert (await peer.produce(producer_name="p")).last_sequence_id == 14

    play(tmp_path, script, DEDUPLICATED)


def test_of_a_chunked_message_each_chunk_counts_once(tmp_path: Path) -> None:
    """Chunks share a sequence id; each that is sent again is answered with its place, and stored
    once."""

    def chunk(number: int) -> bytes:
        body = entry(
            b"x", 4, uuid="u", chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3
        )
        return send(4, body)

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        peer.write(chunk(0) + chunk(1))
        assert await answers(peer, 2) == [(4, STORED)] * 2
        peer.write(requests.close_producer(1, 9))
        await peer.answer(Type.SUCCESS)
        assert (await peer.produce(producer_name="p")).last_sequence_id == -1, (
            "the message is not there yet"
        )
        peer.write(chunk(0) + chunk(1) + chunk(2))
        assert await answers(peer, 3) == [(4, STORED)] * 3
        peer.write(chunk(0) + chunk(1) + chunk(2) + send(5))
        assert await answers(peer, 4) == [(4, STORED), (4, STORED), (4, STORED), (5, STORED)]
        assert await count(broker) == 4

    play(tmp_path, script, DEDUPLICATED)


def test_the_policy_acts_at_once_on_topics_that_are_open(tmp_path: Path) -> None:
    """Switched on it begins with nothing known, switched off it forgets; what was sent in
    between does not count afterwards."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        peer.write(send(7))
        assert await answers(peer, 1) == [(7, STORED)]
        await set_policies(broker, DEDUPLICATED)
        peer.write(send(3))
        assert await answers(peer, 1) == [(3, STORED)]
        peer.write(send(3) + send(4))
        assert await answers(peer, 2) == [(3, DUPLICATE), (4, STORED)]
        await set_policies(broker, {})
        peer.write(send(4))
        assert await answers(peer, 1) == [(4, STORED)]
        assert (await host_of(broker)).core.deduplication is None
        await set_policies(broker, DEDUPLICATED)
        peer.write(send(2))
        assert await answers(peer, 1) == [(2, STORED)]

    play(tmp_path, script)


def test_a_producer_that_stayed_away_for_too_long_begins_again(tmp_path: Path) -> None:
    """Inactivity ends the memory; being connected keeps it."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        peer.write(send(7))
        await answers(peer, 1)
        known = (await host_of(broker)).core.deduplication
        assert known is not None
        await asyncio.sleep(1.1)
        peer.write(send(7) + requests.close_producer(1, 9))
        assert await answers(peer, 1) == [(7, DUPLICATE)]
        await peer.answer(Type.SUCCESS)
        assert known.last_sequence("p") == 7
        await asyncio.sleep(1.1)
        assert (await peer.produce(producer_name="p")).last_sequence_id == -1

    play(tmp_path, script, DEDUPLICATED, deduplication_inactive_s=1)


# --- new owners -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "checkpoint", [False, True], ids=["from the log", "from a checkpoint and the log"]
)
async def test_what_was_stored_is_known_to_the_next_incarnation(
    tmp_path: Path, checkpoint: bool
) -> None:
    """Batches, a switch of the policy, a lone message in a run of batches: the next owner's last
    sequence ids are the same."""

    store = MemoryStore(CLOCK)
    async with incarnation(tmp_path, store) as (broker, peer):
        await peer.produce(producer_name="p")
        peer.write(send(99))
        await answers(peer, 1)
        await set_policies(broker, DEDUPLICATED)
        peer.write(send(0, highest=4) + send(5) + send(6, highest=8) + send(9))
        assert await answers(peer, 4) == [(0, STORED), (5, STORED), (6, STORED), (9, STORED)]
        if checkpoint:
            await fill_until_checkpoint(broker, peer)
        peer.write(send(10))
        assert await answers(peer, 1) == [(10, STORED)]
    async with incarnation(tmp_path, store) as (broker, peer):
        assert (await peer.produce(producer_name="p")).last_sequence_id == 10
        peer.write(send(10) + send(9) + send(11))
        assert await answers(peer, 3) == [(10, DUPLICATE), (9, DUPLICATE), (11, STORED)]
        assert (await peer.produce(2, producer_name="q")).last_sequence_id == -1
    await store.close()


async def test_half_a_chunked_message_is_not_known_to_the_next_incarnation(tmp_path: Path) -> None:
    """Its client sends all of it again, and no answer may say that it is there."""

    store = MemoryStore(CLOCK)
    body = entry(b"x", 4, uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=2)
    async with incarnation(tmp_path, store) as (broker, peer):
        await set_policies(broker, DEDUPLICATED)
        await peer.produce(producer_name="p")
        peer.write(send(3) + send(4, body))
        assert await answers(peer, 2) == [(3, STORED), (4, STORED)]
    async with incarnation(tmp_path, store) as (_broker, peer):
        assert (await peer.produce(producer_name="p")).last_sequence_id == 3
    await store.close()


async def test_what_was_forgotten_on_purpose_stays_forgotten(tmp_path: Path) -> None:
    """Sequence ids from before the policy was switched off and on again must not make a
    duplicate of what is new."""

    store = MemoryStore(CLOCK)
    async with incarnation(tmp_path, store) as (broker, peer):
        await set_policies(broker, DEDUPLICATED)
        await peer.produce(producer_name="p")
        peer.write(send(99))
        await answers(peer, 1)
        for policies in ({}, DEDUPLICATED):
            await set_policies(broker, policies)
            assert (await peer.produce(2)).last_sequence_id == -1
            peer.write(requests.close_producer(2, 9))
            await peer.answer(Type.SUCCESS)
    async with incarnation(tmp_path, store) as (_broker, peer):
        assert (await peer.produce(producer_name="p")).last_sequence_id == -1
        peer.write(send(0))
        assert await answers(peer, 1) == [(0, STORED)]
    await store.close()


# --- other tests of a SEND ------------------------------------------------------------------------


def test_where_encryption_is_required_plain_messages_are_refused(tmp_path: Path) -> None:
    """MetadataError for the producer that says so, and for the message of one that lied;
    encrypted ones pass unread."""

    async def script(broker: Broker, peer: Peer) -> None:
        refused = await peer.ask("producer", topic=TOPIC, producer_id=1)
        assert (refused.type, refused.error.error) == (Type.ERROR, int(WireCode.METADATA))
        await peer.produce(encrypted=True)
        secret = entry(
            b"\x00 not for us", 1, encryption_keys=[api.EncryptionKeys(key="k", value=b"v")]
        )
        peer.write(send(0) + send(1, secret) + send(2, entry(b"lies", 2)))
        assert await answers(peer, 3) == [(0, "metadata"), (1, STORED), (2, "metadata")]
        await peer.subscribe()
        peer.write(requests.flow(1, 1))
        assert (await peer.message())[1] == secret
        assert await count(broker) == 1

    play(tmp_path, script, {"encryption_required": True})


def test_a_topic_may_have_a_limit_of_its_own_on_messages(tmp_path: Path) -> None:
    """NotAllowed beyond it; chunks may be as large as the broker allows."""

    async def script(broker: Broker, peer: Peer) -> None:
        await (await host_of(broker)).update_properties({"policies": '{"max_message_size": 100}'})
        await peer.produce()
        room = 100 - len(entry(b"", 0))
        chunk = entry(
            bytes(200), 2, uuid="u", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=300
        )
        peer.write(send(0, entry(bytes(room))) + send(1, entry(bytes(room + 1))) + send(2, chunk))
        assert await answers(peer, 3) == [(0, STORED), (1, "not_allowed"), (2, STORED)]

    play(tmp_path, script)


@pytest.mark.parametrize("policies", [{}, DEDUPLICATED], ids=["plain", "deduplicated"])
def test_nothing_is_stored_in_a_terminated_topic(tmp_path: Path, policies: dict[str, Any]) -> None:
    """TopicTerminated behind the receipts of what came before; a repetition of that is still a
    success."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        peer.write(send(0))
        assert await answers(peer, 1) == [(0, STORED)]
        await (await host_of(broker)).update_properties({"terminated": "1:0"})
        peer.write(send(1) + send(0) + send(1))
        terminated = [
            (1, "topic_terminated"),
            (0, DUPLICATE if policies else "topic_terminated"),
            (1, "topic_terminated"),
        ]
        assert await answers(peer, 3) == terminated
        assert await count(broker) == 1

    play(tmp_path, script, policies)


def test_producers_beyond_the_policys_number_are_busy(tmp_path: Path) -> None:
    """ProducerBusy for one more; the next self of one that is in does not count twice."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce(1, producer_name="a")
        await peer.produce(2, producer_name="b")
        await peer.produce(1, producer_name="a", epoch=1)
        refused = await peer.ask("producer", topic=TOPIC, producer_id=3)
        assert (refused.type, refused.error.error) == (Type.ERROR, int(WireCode.PRODUCER_BUSY))
        assert "reached max producers limit" in refused.error.message

    play(tmp_path, script, {"max_producers_per_topic": 2})


def test_an_initial_subscription_needs_leave_to_be_created(tmp_path: Path) -> None:
    """NotAllowed where clients may not create subscriptions, unless it is there."""

    async def script(broker: Broker, peer: Peer) -> None:
        refused = await peer.ask(
            "producer", topic=TOPIC, producer_id=1, initial_subscription_name="s"
        )
        assert (refused.type, refused.error.error) == (Type.ERROR, int(WireCode.NOT_ALLOWED))
        await set_policies(broker, {})
        await peer.produce(1, initial_subscription_name="s")
        await set_policies(
            broker, {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}}
        )
        await peer.produce(2, initial_subscription_name="s")

    play(
        tmp_path,
        script,
        {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}},
    )

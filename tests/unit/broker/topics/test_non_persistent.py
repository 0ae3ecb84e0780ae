"""Non-persistent topics, frame by frame: who gets what, what is dropped, and that nothing of it
is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import WireCode
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import NamespaceName, TopicName
from magnetar.topics.dispatch.base import SubscriptionType
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import (
    STILL,
    Peer,
    Type,
    connected_peer,
    entry,
    open_peer,
    running_broker,
)
from tests.support.rest import rest_over

TOPIC = "non-persistent://public/default/n"
NAMESPACE = NamespaceName("public", "default")
DROPPED = (1 << 64) - 1
Mode = api.CommandGetTopicsOfNamespace.Mode


async def publish(peer: Peer, first: int, count: int, **metadata: object) -> list[tuple[int, int]]:
    """Send messages in one write; the ids of their receipts."""
    peer.write(
        b"".join(
            requests.send(1, number, entry(b"%d" % number, number, **metadata))
            for number in range(first, first + count)
        )
    )
    ids = []
    for number in range(first, first + count):
        receipt = (await peer.answer(Type.SEND_RECEIPT)).send_receipt
        assert receipt.sequence_id == number
        ids.append((receipt.message_id.ledgerId, receipt.message_id.entryId))
    return ids


async def subscribe(
    peer: Peer, consumer_id: int, kind: SubscriptionType, permits: int, name: str = "s"
) -> None:
    answer = await peer.subscribe(consumer_id, TOPIC, subType=int(kind), subscription=name)
    assert answer.type == Type.SUCCESS, answer
    peer.write(requests.flow(consumer_id, permits))
    stats = (await peer.ask("consumer_stats", consumer_id=consumer_id)).consumer_stats_response
    assert stats.availablePermits == permits, "handled before anybody publishes"


async def test_messages_go_to_consumers_with_permits_and_are_gone(tmp_path: Path) -> None:
    """Without a consumer, without permits, and beyond them messages are lost silently;
    receipts say 0:0 all the same."""

    async with connected_peer(tmp_path) as (broker, producer), open_peer(broker) as consumer:
        await producer.lookup(TOPIC)
        await producer.produce(1, TOPIC)
        assert await publish(producer, 0, 3) == [(0, 0)] * 3
        await subscribe(consumer, 1, SubscriptionType.EXCLUSIVE, 2)
        assert await consumer.is_quiet(), "what was published before is gone"
        assert await publish(producer, 3, 4) == [(0, 0)] * 4
        for number in (3, 4):
            message, body = await consumer.message()
            assert (message.message_id.ledgerId, message.message_id.entryId) == (0, 0)
            assert body.endswith(b"%d" % number)
        assert await consumer.is_quiet(), "no permits, no message"
        consumer.write(requests.flow(1, 10))
        assert await consumer.is_quiet(), "nor afterwards"
        await publish(producer, 7, 1)
        _message, body = await consumer.message()
        assert body.endswith(b"7")


async def test_types_share_as_their_names_say(tmp_path: Path) -> None:
    """Shared: each message to one of two, and another type is refused."""

    async with (
        connected_peer(tmp_path) as (broker, producer),
        open_peer(broker) as one,
        open_peer(broker) as two,
    ):
        await producer.lookup(TOPIC)
        await producer.produce(1, TOPIC)
        for peer in (one, two):
            await subscribe(peer, 1, SubscriptionType.SHARED, 1000, "shared")
        got = [0, 0]
        enough = asyncio.Event()

        async def count(index: int, peer: Peer) -> None:
            while True:
                await peer.message()
                got[index] += 1
                if sum(got) == 50:
                    enough.set()

        readers = [asyncio.create_task(count(index, peer)) for index, peer in enumerate((one, two))]
        await publish(producer, 0, 50)
        async with asyncio.timeout(120):
            await enough.wait()
        assert min(got) > 0
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        refused = await two.subscribe(2, TOPIC, subscription="shared", subType=0)
        assert (refused.type, refused.error.error) == (Type.ERROR, 5)


async def test_what_policies_forbid_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    """Of one write: entries without keys where encryption is required, and larger ones than the
    policy allows, are answered in their places."""

    async with (
        connected_peer(tmp_path) as (broker, peer),
        rest_over(tmp_path, broker) as rest,
        open_peer(broker) as consumer,
    ):
        await peer.lookup(TOPIC)
        await peer.produce(1, TOPIC, encrypted=True)
        await subscribe(consumer, 1, SubscriptionType.EXCLUSIVE, 100)
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        await rest("POST", "/admin/v2/namespaces/public/default/encryptionRequired", True)
        async with asyncio.timeout(120):
            while not topic.policies.encryption_required:
                await asyncio.sleep(0.005)
        topic.policies = replace(topic.policies, max_message_bytes=200)
        keys_of = {"encryption_keys": [api.EncryptionKeys(key="k", value=b"v")]}
        sent = [
            entry(b"0", 0, **keys_of),
            entry(b"1", 1),
            entry(b"2", 2, **keys_of),
            entry(bytes(300), 3, **keys_of),
            entry(b"4", 4, **keys_of),
            entry(b"5", 5),
        ]
        peer.write(b"".join(requests.send(1, number, data) for number, data in enumerate(sent)))
        answers = [await peer.answer() for _ in sent]
        refused = {
            found.send_error.sequence_id: found.send_error.error
            for found in answers
            if found.type == Type.SEND_ERROR
        }
        assert refused == {1: WireCode.METADATA, 3: WireCode.NOT_ALLOWED, 5: WireCode.METADATA}
        taken = [
            found.send_receipt.sequence_id for found in answers if found.type == Type.SEND_RECEIPT
        ]
        assert taken == [0, 2, 4]
        assert [(await consumer.message())[1][-1:] for _ in taken] == [b"0", b"2", b"4"]
        assert await consumer.is_quiet()


async def test_too_many_at_once_are_dropped_with_a_receipt_that_says_so(tmp_path: Path) -> None:
    async with connected_peer(tmp_path, non_persistent_in_flight_max=10) as (_broker, producer):
        await producer.lookup(TOPIC)
        await producer.produce(1, TOPIC)
        ids = await publish(producer, 0, 50)
        assert set(ids) == {(0, 0), (DROPPED, DROPPED)}
        assert ids[:10] == [(0, 0)] * 10
        assert await publish(producer, 50, 1) == [(0, 0)], "the next turn takes messages again"


async def test_statistics_say_who_dropped_how_much(tmp_path: Path) -> None:
    """Of producers what their connection had too much on its way, of subscriptions the messages,
    not the batches, for which nobody had permits; the topic has the sum."""

    async with (
        running_broker(tmp_path, non_persistent_in_flight_max=10) as broker,
        rest_over(tmp_path, broker) as rest,
        open_peer(broker) as peer,
        open_peer(broker) as consumer,
    ):
        await peer.lookup(TOPIC)
        await peer.produce(1, TOPIC)
        await subscribe(consumer, 1, SubscriptionType.EXCLUSIVE, 2, "all taken")
        stats = await rest.get("/admin/v2/non-persistent/public/default/n/stats")
        assert stats["msgDropRate"] == stats["publishers"][0]["msgDropRate"] == 0
        await publish(peer, 0, 50)
        peer.write(requests.send(1, 50, entry(bytes(64), 50, num_messages_in_batch=3), messages=3))
        await peer.answer(Type.SEND_RECEIPT)
        stats = await rest.get("/admin/v2/non-persistent/public/default/n/stats")
        [publisher], subscription = stats["publishers"], stats["subscriptions"]["all taken"]
        taken = stats["msgInCounter"]
        assert 2 < taken < 53
        assert publisher["msgDropRate"] / publisher["msgRateIn"] == pytest.approx(
            (53 - taken) / taken
        )
        assert subscription["msgOutCounter"] == 2
        assert subscription["msgDropRate"] > 0
        assert stats["msgDropRate"] == pytest.approx(
            publisher["msgDropRate"] + subscription["msgDropRate"]
        )
        [topic] = (
            found
            for bundle in broker.ownership.owned.values()
            for found in bundle.non_persistent.by_name.values()
        )
        assert topic.subscriptions["all taken"].traffic.messages_dropped == taken - 2


async def test_nothing_of_it_is_in_the_log_and_the_subscription_goes_with_its_consumer(
    tmp_path: Path,
) -> None:
    """No record is appended for topic, messages or cursors, nor for deduplication; lists show it
    by mode, until nobody has used it for a while."""

    async with (
        connected_peer(tmp_path, inactive_topic_s=2) as (broker, producer),
        open_peer(broker) as consumer,
    ):
        await producer.lookup(TOPIC)
        async with rest_over(tmp_path, broker) as rest:
            await rest("POST", f"/admin/v2/namespaces/{NAMESPACE}/deduplication", True)
        async with asyncio.timeout(120):
            while not broker.service.namespace_policies(NAMESPACE).deduplication_enabled:
                await asyncio.sleep(0.005)
        await broker.context.log.barrier()
        before = broker.context.log.position
        await producer.produce(1, TOPIC)
        await subscribe(consumer, 1, SubscriptionType.SHARED, 10)
        await publish(producer, 0, 5)
        received = [(await consumer.message())[0] for _ in range(5)]
        for message in received:
            consumer.write(requests.ack(1, [message.message_id], cumulative=False, request_id=5))
            assert (await consumer.answer()).type == Type.ACK_RESPONSE
        await broker.context.log.barrier()
        assert broker.context.log.position == before
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        assert list(topic.subscriptions) == ["s"]
        assert topic.subscriptions["s"].core.unacknowledged == 0
        assert await broker.service.topics_in(NAMESPACE, Mode.NON_PERSISTENT) == [TOPIC]
        assert await broker.service.topics_in(NAMESPACE, Mode.PERSISTENT) == []
        assert await broker.service.topics_in(NAMESPACE, Mode.ALL) == [TOPIC]
        assert (await consumer.ask("close_consumer", consumer_id=1)).type == Type.SUCCESS
        assert not topic.subscriptions
        assert (await producer.ask("close_producer", producer_id=1)).type == Type.SUCCESS
        async with asyncio.timeout(120):
            while (
                await broker.context.store.get(keys.partitioned_topic(TopicName.parse(TOPIC)))
                is not None
            ):
                await asyncio.sleep(0.05)
        assert await broker.service.topics_in(NAMESPACE, Mode.ALL) == []


async def test_what_cannot_be_asked_of_it_is_answered(tmp_path: Path) -> None:
    """SEEK is a success that does nothing, the last message id is not allowed, unsubscribing
    works."""

    async with connected_peer(tmp_path) as (_broker, peer):
        await peer.lookup(TOPIC)
        await subscribe(peer, 1, SubscriptionType.EXCLUSIVE, 1)
        peer.write(
            requests.seek(
                1, peer.next_request(), message_id=api.MessageIdData(ledgerId=0, entryId=0)
            )
        )
        assert (await peer.answer()).type == Type.SUCCESS
        last = await peer.ask("get_last_message_id", consumer_id=1)
        assert (last.type, last.error.error) == (Type.ERROR, 22)
        assert (await peer.ask("unsubscribe", consumer_id=1)).type == Type.SUCCESS


async def test_a_move_sends_clients_to_the_new_owner_and_its_list_shows_the_topic_again(
    tmp_path: Path,
) -> None:
    """The old owner closes producers and consumers, which come back. Its entry goes, that of the
    new one comes with them."""

    store = MemoryStore(SystemClock())
    async with (
        running_broker(tmp_path, store=store, name="a", balance=STILL) as one,
        running_broker(tmp_path, store=store, name="b", balance=STILL) as two,
    ):
        async with open_peer(one) as first:
            url = await first.lookup(TOPIC)
        owner, other = (one, two) if url == one.service_url else (two, one)
        name = TopicName.parse(TOPIC)
        bundle = str(await owner.ownership.bundle_of(name))
        async with open_peer(owner) as peer:
            await peer.produce(1, TOPIC)
            await subscribe(peer, 1, SubscriptionType.SHARED, 10)
            await owner.ownership.move(bundle, other.incarnation, "test")
            closed = {(await peer.answer()).type for _ in range(2)}
            assert closed == {Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER}
        async with open_peer(other) as peer:
            await peer.lookup(TOPIC)
            await peer.produce(1, TOPIC)
            assert await publish(peer, 0, 1) == [(0, 0)]
            assert await one.service.topics_in(NAMESPACE, Mode.ALL) == [TOPIC]
            assert await two.service.topics_in(NAMESPACE, Mode.ALL) == [TOPIC]
    await store.close()


async def test_it_is_created_listed_counted_and_deleted_over_rest(tmp_path: Path) -> None:
    """As any topic: 409 for a second creation, 412 while it is in use, and by force it is
    gone and its clients are closed."""

    path = "/admin/v2/non-persistent/public/default"
    async with (
        running_broker(tmp_path) as broker,
        rest_over(tmp_path, broker) as rest,
        open_peer(broker) as peer,
    ):
        await rest("PUT", f"{path}/n")
        await rest("PUT", f"{path}/n", status=409)
        assert await rest.get(path) == [TOPIC]
        assert await rest.get("/admin/v2/persistent/public/default") == []
        await peer.produce(1, TOPIC)
        await subscribe(peer, 1, SubscriptionType.SHARED, 10)
        await publish(peer, 0, 1)
        await peer.message()
        stats = await rest.get(f"{path}/n/stats")
        assert (
            stats["msgInCounter"],
            stats["msgOutCounter"],
            list(stats["subscriptions"]),
        ) == (1, 1, ["s"])
        await rest("DELETE", f"{path}/n", status=412)
        await rest("DELETE", f"{path}/n?force=true")
        assert {(await peer.answer()).type for _ in range(2)} == {
            Type.CLOSE_PRODUCER,
            Type.CLOSE_CONSUMER,
        }
        assert await rest.get(path) == []
        await rest("PUT", f"{path}/many/partitions", 2)
        assert await rest.get(path) == [
            f"non-persistent://public/default/many-partition-{index}" for index in range(2)
        ]
        assert await rest.get(f"{path}/partitioned") == ["non-persistent://public/default/many"]
        assert await rest.get("/admin/v2/persistent/public/default/partitioned") == []

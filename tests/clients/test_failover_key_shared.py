"""Failover and Key_Shared with the official Python client against a standalone server, with
restarts in between."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Sequence
from datetime import timedelta

import pulsar
import pytest

from dev.server_process import ServerProcess
from magnetar.hashes import murmur3
from tests.clients.restarts import await_receivers, before_and_after, restart

pytestmark = pytest.mark.slow
RECEIVE_MS = 120_000
SHORT_MS = 300
FAILOVER, KEY_SHARED = pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared


def receive_any(
    consumers: Sequence[pulsar.Consumer], deadline_ms: int = RECEIVE_MS
) -> tuple[int, pulsar.Message]:
    """The next message of any of the consumers, with the index of the one that got it."""
    for _ in range(max(1, deadline_ms // 10 // len(consumers))):
        for index, consumer in enumerate(consumers):
            try:
                return index, consumer.receive(10)
            except pulsar.Timeout:
                continue
    raise AssertionError(f"no message within {deadline_ms} ms")


def nothing_comes(consumers: Sequence[pulsar.Consumer]) -> bool:
    """Whether none of the consumers gets anything for a moment."""
    try:
        receive_any(consumers, SHORT_MS)
    except AssertionError:
        return True
    return False


def test_failover_goes_to_one_and_then_to_the_next(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """One of three gets everything in order; when it leaves another begins at what was not
    acknowledged; a restart changes nothing."""
    topic = "failover"
    names = ("a", "b", "c")
    consumers = {
        name: client.subscribe(topic, "s", consumer_type=FAILOVER, consumer_name=name)
        for name in names
    }
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(str(number).encode())
    order = list(consumers)
    first, message = receive_any([consumers[name] for name in order])
    served = consumers.pop(order[first])
    received = [message, *(served.receive(RECEIVE_MS) for _ in range(19))]
    assert [message.data() for message in received] == [
        str(number).encode() for number in range(20)
    ]
    assert nothing_comes(list(consumers.values()))
    served.acknowledge_cumulative(received[9])
    served.close()
    order = list(consumers)
    second, message = receive_any([consumers[name] for name in order])
    served = consumers.pop(order[second])
    received = [message, *(served.receive(RECEIVE_MS) for _ in range(9))]
    assert [message.data() for message in received] == [
        str(number).encode() for number in range(10, 20)
    ]
    served.acknowledge_cumulative(received[4])
    served.close()
    server.stop()
    server.start()
    await_receivers(server, topic, "s", 1)  # else it shows first what it fetched before the stop
    (last,) = consumers.values()
    assert [last.receive(RECEIVE_MS).data() for _ in range(5)] == [
        str(number).encode() for number in range(15, 20)
    ]


def test_failover_spreads_partitions_over_consumers(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Each of two consumers is active for two of four partitions; every message arrives once."""
    url = f"{server.http_url}/admin/v2/persistent/public/default/spread/partitions"
    request = urllib.request.Request(
        url, data=b"4", method="PUT", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 204
    consumers = [
        client.subscribe(
            "spread", "s", consumer_type=FAILOVER, consumer_name=name, receiver_queue_size=1000
        )
        for name in ("a", "b")
    ]
    # Only now are both there: an earlier start would move partitions from one to the other, with
    # repetitions.
    producer = client.create_producer(
        "spread", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    partitions: dict[int, set[int]] = {0: set(), 1: set()}
    numbers: set[bytes] = set()
    for number in range(40):
        producer.send(str(number).encode(), partition_key=str(number))
    while len(numbers) < 40:
        index, message = receive_any(consumers)
        consumers[index].acknowledge(message)
        partitions[index].add(message.message_id().partition())
        numbers.add(message.data())
    assert partitions == {0: {0, 2}, 1: {1, 3}}


def receive_all(
    consumers: Sequence[pulsar.Consumer], count: int
) -> list[tuple[int, pulsar.Message]]:
    """`count` messages of any of the consumers, not acknowledged."""
    return [receive_any(consumers) for _ in range(count)]


def by_key(received: Sequence[tuple[int, pulsar.Message]]) -> dict[str, tuple[set[int], list[int]]]:
    """Per key: which consumers got it, and the numbers in order of arrival."""
    found: dict[str, tuple[set[int], list[int]]] = {}
    for index, message in received:
        consumers, numbers = found.setdefault(message.partition_key(), (set(), []))
        consumers.add(index)
        numbers.append(int(message.data()))
    return found


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batches"])
def test_key_shared_keeps_every_key_in_order_at_one_consumer(
    server: ServerProcess, client: pulsar.Client, batched: bool
) -> None:
    """Also with batches by key; what was not acknowledged comes back after a restart, in order
    again."""
    topic = "keys"
    options = {"consumer_type": KEY_SHARED, "batch_index_ack_enabled": True}
    consumers = [
        client.subscribe(topic, "s", consumer_name=name, **options) for name in ("a", "b", "c")
    ]
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=20,
    )
    keys = [f"key-{number % 30}" for number in range(150)]
    for number, key in enumerate(keys):
        producer.send_async(str(number).encode(), None, partition_key=key)
    producer.flush()
    received = receive_all(consumers, 150)
    found = by_key(received)
    assert all(len(owners) == 1 for owners, _ in found.values())
    assert {key: numbers for key, (_, numbers) in found.items()} == {
        key: [number for number in range(150) if keys[number] == key] for key in set(keys)
    }
    assert {index for owners, _ in found.values() for index in owners} == {0, 1, 2}, (
        "every consumer has its share"
    )
    for index, message in received:
        if int(message.data()) < 60:
            consumers[index].acknowledge(message)
    for consumer in consumers:
        consumer.close()
    server.stop()
    server.start()
    consumers = [client.subscribe(topic, "s", consumer_name=name, **options) for name in ("x", "y")]
    again = by_key(receive_all(consumers, 90))
    assert {key: numbers for key, (_, numbers) in again.items()} == {
        key: [number for number in range(60, 150) if keys[number] == key] for key in set(keys)
    }
    assert nothing_comes(consumers)


def test_key_shared_ordering_key_goes_before_partition_key(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Messages with one ordering key stay together whatever their partition keys are, before and
    after a restart."""
    topic = "ordering"
    producer = client.create_producer(topic)
    for life, _ in enumerate(before_and_after(server)):
        # A subscription for each incarnation: what was not acknowledged durably would come to
        # the first consumer that is back.
        consumers = [
            client.subscribe(topic, f"s-{life}", consumer_type=KEY_SHARED, consumer_name=name)
            for name in ("a", "b", "c", "d")
        ]
        for number in range(60):
            producer.send(
                str(number).encode(),
                partition_key=f"key-{number}",
                ordering_key=f"order-{number % 3}",
            )
        received = receive_all(consumers, 60)
        for order in range(3):
            mine = [
                (index, int(message.data()))
                for index, message in received
                if int(message.data()) % 3 == order
            ]
            assert len({index for index, _ in mine}) == 1
            assert [number for _, number in mine] == list(range(order, 60, 3))
        for consumer in consumers:
            consumer.close()


def test_a_key_shared_consumer_that_leaves_hands_its_keys_over(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """What it held comes first, in order, at the next owner, also over a restart; nothing is
    lost or doubled among what was acknowledged."""
    topic = "handed-over"
    consumers = [
        client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name=name)
        for name in ("a", "b")
    ]
    producer = client.create_producer(topic)
    keys = [f"key-{number % 10}" for number in range(100)]
    for number, key in enumerate(keys):
        producer.send(str(number).encode(), partition_key=key)
    received = receive_all(consumers, 100)
    done = [
        (index, message) for index, message in received if index == 1 or int(message.data()) < 50
    ]
    for index, message in done:
        consumers[index].acknowledge(message)
    consumers[0].close()
    rest = [message for _, message in receive_all(consumers[1:], 100 - len(done))]
    numbers = sorted(
        [int(message.data()) for _, message in done] + [int(message.data()) for message in rest]
    )
    assert numbers == list(range(100))
    for message in rest[: len(rest) // 2]:
        consumers[1].acknowledge(message)
    consumers[1].close()
    server.stop()
    server.start()
    last = client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name="c")
    again = [message for _, message in receive_all([last], len(rest) - len(rest) // 2)]
    assert sorted(int(message.data()) for message in again) == sorted(
        int(message.data()) for message in rest[len(rest) // 2 :]
    )
    assert nothing_comes([last])
    for found in (rest, again):
        for key in set(keys):
            own = [int(message.data()) for message in found if message.partition_key() == key]
            assert own == sorted(own)


def test_sticky_ranges(server: ServerProcess, client: pulsar.Client) -> None:
    """Each consumer gets the hashes it named; a taken range is refused; keys that nobody serves
    wait, over a restart too."""
    topic = "sticky"

    def sticky(name: str, *ranges: tuple[int, int]) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(
            pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
        )
        return client.subscribe(
            topic,
            "s",
            consumer_type=KEY_SHARED,
            consumer_name=name,
            key_shared_policy=policy,
            initial_position=pulsar.InitialPosition.Earliest,
        )

    first = sticky("a", (0, 19_999), (40_000, 49_999))
    with pytest.raises(pulsar.PulsarException):
        sticky("b", (19_999, 30_000))
    producer = client.create_producer(topic)
    slots = {}
    for number in range(60):
        key = f"key-{number}"
        slots[key] = murmur3(key.encode()) % 65536
        producer.send(key.encode(), partition_key=key)
    mine = [key for key, slot in slots.items() if slot <= 19_999 or 40_000 <= slot <= 49_999]
    for key in mine:
        message = first.receive(RECEIVE_MS)
        assert message.partition_key() == key
        first.acknowledge(message)
    assert nothing_comes([first])
    first.close()
    server.stop()
    server.start()
    second = sticky("b", (20_000, 39_999), (50_000, 65_535))
    assert [second.receive(RECEIVE_MS).partition_key() for _ in range(60 - len(mine))] == [
        key for key in slots if key not in mine
    ]


def test_key_shared_redelivers_and_delays(server: ServerProcess, client: pulsar.Client) -> None:
    """A nacked message comes back to the owner of its key, counted; delayed ones hold nobody up,
    and come when they are due; what is due later waits over a restart, too."""
    topic = "mixed"
    consumers = [
        client.subscribe(
            topic,
            "s",
            consumer_type=KEY_SHARED,
            consumer_name=name,
            negative_ack_redelivery_delay_ms=100,
        )
        for name in ("a", "b", "c")
    ]
    producer = client.create_producer(topic)
    producer.send(b"much later", partition_key="delayed", deliver_after=timedelta(hours=1))
    producer.send(b"nacked", partition_key="nacked")
    for number in range(6):
        producer.send(b"small", partition_key=f"key-{number}")
    received = receive_all(consumers, 7)
    assert {message.partition_key() for _, message in received} == {
        "nacked",
        *(f"key-{number}" for number in range(6)),
    }
    ((index, nacked),) = [found for found in received if found[1].data() == b"nacked"]
    assert nacked.redelivery_count() == 0
    consumers[index].negative_acknowledge(nacked)
    for who, message in received:
        if message is not nacked:
            consumers[who].acknowledge(message)
    due = time.time() + 2
    producer.send(b"late", partition_key="delayed", deliver_at=int(due * 1000))
    rest = {
        message.data(): (who, message.redelivery_count())
        for who, message in receive_all(consumers, 2)
    }
    assert time.time() >= due - 1, "at most one tick early"
    assert rest[b"nacked"] == (index, 1)
    assert rest.keys() == {b"nacked", b"late"}
    assert nothing_comes(consumers)
    for consumer in consumers:
        consumer.close()
    due = time.time() + 4
    producer.send(b"over the restart", partition_key="delayed", deliver_at=int(due * 1000))
    restart(server)
    fresh = client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name="d")
    seen = {fresh.receive(RECEIVE_MS).data() for _ in range(3)}
    assert seen == {b"nacked", b"late", b"over the restart"}
    assert time.time() >= due - 1, "at most one tick early"
    assert nothing_comes([fresh])

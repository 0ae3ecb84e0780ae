"""The official Python client against a standalone server, each feature with a restart of the
server in between."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from pathlib import Path

import pulsar
import pytest

from dev import demo
from dev.server_process import ServerProcess
from tests.clients.restarts import await_consumers, before_and_after

pytestmark = pytest.mark.slow
RECEIVE_MS = 120_000
SHORT_MS = 500


@pytest.fixture
def server(plain_server: ServerProcess) -> ServerProcess:
    """One for all tests here: each has topics of its own, and restarts it as it likes."""
    return plain_server


def _receive_all(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    messages = [consumer.receive(RECEIVE_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return [message.data() for message in messages]


def _put(url: str, body: bytes) -> int:
    request = urllib.request.Request(
        url, data=body, method="PUT", headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_server_that_is_ready_says_so(server: ServerProcess) -> None:
    """Health, metrics and OpenAPI answer; the port is announced."""
    for path in ("/ready", "/live", "/metrics", "/openapi.json", "/admin/v2/brokers/health"):
        with urllib.request.urlopen(server.http_url + path, timeout=60) as response:
            assert response.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(
            server.http_url + "/admin/v2/persistent/no/such/topic/stats", timeout=60
        )
    with refused.value as answer:
        assert answer.code == 404
        assert b"reason" in answer.read()


def test_messages_survive_a_restart(server: ServerProcess, client: pulsar.Client) -> None:
    """What was acknowledged to the producer before SIGKILL is delivered after it, in order and
    with properties and key."""
    producer = client.create_producer("survivors")
    for number in range(20):
        producer.send(
            str(number).encode(), properties={"number": str(number)}, partition_key=f"key-{number}"
        )
    server.kill()
    server.start()
    consumer = client.subscribe("survivors", "s", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(20):
        message = consumer.receive(RECEIVE_MS)
        assert (message.data(), message.properties(), message.partition_key()) == (
            str(number).encode(),
            {"number": str(number)},
            f"key-{number}",
        )


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_acknowledgements_survive_a_restart(
    server: ServerProcess, client: pulsar.Client, kind: pulsar.ConsumerType
) -> None:
    """A subscription goes on where it was: acknowledged messages stay away, others come back."""
    topic = f"cursor-{kind.name}"
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(str(number).encode())
    messages = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    for message in messages[:7]:
        consumer.acknowledge(message)
    consumer.close()
    server.stop()
    server.start()
    again = client.subscribe(topic, "s", consumer_type=kind)
    assert sorted(_receive_all(again, 3)) == [b"7", b"8", b"9"]
    with pytest.raises(pulsar.Timeout):
        again.receive(SHORT_MS)


@pytest.mark.parametrize(
    "compression",
    [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD],
)
def test_batches_and_compression_pass_through(
    server: ServerProcess, client: pulsar.Client, compression: pulsar.CompressionType
) -> None:
    """Batches of a real client come back message by message, before and after a restart."""
    topic = f"batches-{compression.name}"
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=50,
        batching_max_publish_delay_ms=50,
        compression_type=compression,
    )
    for number in range(200):
        producer.send_async(f"{number}".encode() * 10, None)
    producer.flush()
    expected = [f"{number}".encode() * 10 for number in range(200)]
    first = client.subscribe(topic, "first", initial_position=pulsar.InitialPosition.Earliest)
    assert _receive_all(first, 200) == expected
    server.kill()
    server.start()
    second = client.subscribe(topic, "second", initial_position=pulsar.InitialPosition.Earliest)
    assert _receive_all(second, 200) == expected


def test_shared_subscription_divides_messages(server: ServerProcess, client: pulsar.Client) -> None:
    """Two Shared consumers get every message once between them; what one does not acknowledge
    goes to the other when it leaves, and both have their share of what comes after a restart."""
    topic = "shared"
    first = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10
    )
    second = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10
    )
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(str(number).encode())
    got: dict[bytes, int] = {}
    held = 0
    for consumer, acknowledges in ((first, False), (second, True)):
        wait_ms = RECEIVE_MS
        while True:
            try:
                message = consumer.receive(wait_ms)
            except pulsar.Timeout:
                break
            wait_ms = SHORT_MS
            if acknowledges:
                consumer.acknowledge(message)
                got[message.data()] = got.get(message.data(), 0) + 1
            else:
                held += 1
    assert held > 0
    first.close()
    while len(got) < 40:
        message = second.receive(RECEIVE_MS)
        second.acknowledge(message)
        got[message.data()] = got.get(message.data(), 0) + 1
    assert set(got.values()) == {1}
    server.stop()
    server.start()
    third = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10
    )
    await_consumers(server, topic, "s", 2)
    later = {str(number).encode() for number in range(40, 60)}
    for value in sorted(later):
        producer.send(value)
    shares: list[set[bytes]] = [set(), set()]
    # what was acknowledged just before the stop may come again
    while not later <= shares[0] | shares[1]:
        for consumer, share in zip((second, third), shares, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(SHORT_MS)
                consumer.acknowledge(message)
                share.add(message.data())
    assert all(share & later for share in shares)


def test_exclusive_refuses_a_second_consumer(server: ServerProcess, client: pulsar.Client) -> None:
    """The second Exclusive consumer learns that the subscription is taken, also once the first
    has come back after a restart."""
    consumer = client.subscribe("exclusive", "s")
    for _ in before_and_after(server):
        await_consumers(server, "exclusive", "s", 1)
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe("exclusive", "s")
    consumer.close()
    client.subscribe("exclusive", "s").close()


def test_negative_acknowledgement_redelivers(server: ServerProcess, client: pulsar.Client) -> None:
    """A nacked message of a Shared subscription comes back with its count, which begins again
    with the server; acknowledged, it stays away."""
    consumer = client.subscribe(
        "nack", "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    client.create_producer("nack").send(b"again")
    for _ in before_and_after(server):
        first = consumer.receive(RECEIVE_MS)
        consumer.negative_acknowledge(first)
        second = consumer.receive(RECEIVE_MS)
        assert (second.data(), second.redelivery_count()) == (
            b"again",
            first.redelivery_count() + 1,
        )
    consumer.acknowledge(second)
    consumer.close()
    server.stop()
    server.start()
    with pytest.raises(pulsar.Timeout):
        client.subscribe("nack", "s", consumer_type=pulsar.ConsumerType.Shared).receive(SHORT_MS)


def test_reader_and_last_message_id(server: ServerProcess, client: pulsar.Client) -> None:
    """`has_message_available` is right on an empty topic, at the end, and after a restart; a
    reader starts where it is placed."""
    reader = client.create_reader("read", pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    producer = client.create_producer("read")
    identifiers = [producer.send(str(number).encode()) for number in range(5)]
    assert [reader.read_next(RECEIVE_MS).data() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert not reader.has_message_available()
    server.stop()
    server.start()
    late = client.create_reader("read", identifiers[2])
    assert late.has_message_available()
    assert late.read_next(RECEIVE_MS).data() == b"3"


def test_partitioned_topic(server: ServerProcess, client: pulsar.Client) -> None:
    """Partitions made over REST are used by producer and consumer, keys stay together, a restart
    changes nothing."""
    url = f"{server.http_url}/admin/v2/persistent/public/default/many/partitions"
    assert _put(url, b"3") == 204
    producer = client.create_producer("many")
    for number in range(30):
        producer.send(str(number).encode(), partition_key=f"key-{number % 5}")
    server.kill()
    server.start()
    consumer = client.subscribe("many", "s", initial_position=pulsar.InitialPosition.Earliest)
    partitions: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for _ in range(30):
        message = consumer.receive(RECEIVE_MS)
        partitions.setdefault(message.partition_key(), set()).add(message.message_id().partition())
        order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert {len(found) for found in partitions.values()} == {1}
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert _put(url, b"3") == 409


def test_cumulative_acknowledgement_and_seek(server: ServerProcess, client: pulsar.Client) -> None:
    """Seek moves a durable cursor back over what was acknowledged; both are there after a
    restart."""
    consumer = client.subscribe("seek", "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer("seek")
    identifiers = [producer.send(str(number).encode()) for number in range(10)]
    received = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(received[7])
    consumer.close()
    server.stop()
    server.start()
    consumer = client.subscribe("seek", "s")
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(2)] == [b"8", b"9"]
    consumer.seek(identifiers[4])
    # this client leaves out the message it seeks to, unless configured otherwise
    assert consumer.receive(RECEIVE_MS).data() == b"5"
    consumer.close()
    server.kill()
    server.start()
    # a new consumer of it leaves out nothing
    assert client.subscribe("seek", "s").receive(RECEIVE_MS).data() == b"4"


def test_unsubscribe_forgets(server: ServerProcess, client: pulsar.Client) -> None:
    """After unsubscribe the name starts again, and stays gone over a restart."""
    consumer = client.subscribe("gone", "s")
    client.create_producer("gone").send(b"1")
    consumer.unsubscribe()
    server.kill()
    server.start()
    fresh = client.subscribe("gone", "s")
    with pytest.raises(pulsar.Timeout):
        fresh.receive(SHORT_MS)


def test_unknown_namespace_is_refused_with_a_reason(client: pulsar.Client) -> None:
    """A topic in a namespace that does not exist is refused at once, not after a timeout."""
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://nobody/nowhere/topic")


def test_demo(tmp_path: Path) -> None:
    """`make demo`: SIGKILL in the middle of publishing loses nothing that was acknowledged."""
    assert demo.run(tmp_path) == 0

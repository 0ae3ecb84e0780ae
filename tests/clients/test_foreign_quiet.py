"""The official Java and Go clients have nothing to complain of: a tour of all features, after
which their logs hold no warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.server_process import ServerProcess
from dev.testbed.foreign import Client, Driver
from dev.testbed.rest import Admin

pytestmark = [pytest.mark.slow, pytest.mark.java]
NUMBERS = [str(number).encode() for number in range(20)]
TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")


@pytest.fixture(params=["java", "go"])
def fresh_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    """A program of its own, whose log begins with this test."""
    program = Driver(request.param, tmp_path)
    yield program
    program.close()


def _publish_and_consume(client: Client, topic: str) -> None:
    consumers = [client.consumer(topic, kind, type=kind) for kind in TYPES]
    client.producer(
        topic, batching=True, batching_delay_ms=50, compression="LZ4", name="named"
    ).send_all(NUMBERS, key="k")
    exclusive = client.producer(topic + "-exclusive", access_mode="Exclusive")
    sent = exclusive.send(b"x" * 100_000)
    for consumer in consumers:
        assert consumer.values(20) == NUMBERS
        consumer.last_ids()
    consumers[0].seek("earliest")
    assert consumers[0].values(20) == NUMBERS
    consumers[0].unsubscribe()
    for consumer in consumers[1:]:
        consumer.close()
    reader = client.reader(topic + "-exclusive", sent, start_inclusive=True)
    assert reader.has_next()
    reader.read(1)
    assert not reader.has_next()
    reader.close()
    exclusive.close()


def _wait_and_repeat(client: Client, topic: str) -> None:
    consumer = client.consumer(topic, "s", type="Shared", nack_delay_ms=100, batch_index_ack=True)
    producer = client.producer(topic, chunking=True, chunk_max_size=1000)
    producer.send_all([b"c" * 5000, b"later"], deliver_after_ms=1200)
    first, second = consumer.receive(2)
    consumer.nack(first)
    consumer.ack(second, *consumer.receive(1))
    table = client.table(f"persistent://public/default/{topic}-table")
    client.producer(topic + "-table").send(b"value", key="key")
    table.await_entry("key", b"value")
    table.close()


def _follow_lists(client: Client, admin: Admin, topic: str) -> None:
    namespace = admin.create_namespace(topic)
    admin.topic("PUT", f"persistent://{namespace}/many", "partitions", 3)
    consumer = client.consumer(
        None, "s", pattern=f"persistent://{namespace}/.*", pattern_poll_s=1, position="Earliest"
    )
    client.producer(f"persistent://{namespace}/many").send_all(NUMBERS)
    client.producer(f"persistent://{namespace}/other").send(b"20")
    assert {int(value) for value in consumer.values(21)} == set(range(21))
    consumer.close()


def _transact(client: Client, topic: str) -> None:
    consumer, producer = client.consumer(topic, "s", type="Shared"), client.producer(topic + "-out")
    client.producer(topic).send_all(NUMBERS[:2])
    watching = client.consumer(topic + "-out", "s")
    committed, aborted = client.transaction(), client.transaction()
    for message, txn in zip(consumer.receive(2), (committed, aborted), strict=True):
        producer.send(message.value, txn)
        consumer.ack(message, txn=txn)
    committed.commit()
    aborted.abort()
    assert watching.values(1) == NUMBERS[:1]
    assert consumer.values(1) == NUMBERS[1:2]


def test_clients_complain_of_nothing(server: ServerProcess, fresh_driver: Driver) -> None:
    """Without failures and refusals neither client logs a warning or an error."""
    topic = f"quiet-{fresh_driver.language}"
    client = fresh_driver.client(server.service_url, transactions=True)
    _publish_and_consume(client, topic)
    _wait_and_repeat(client, f"{topic}-2")
    _follow_lists(client, Admin(server), f"{topic}-3")
    _transact(client, f"{topic}-4")
    client.close()
    text = fresh_driver.log_path.read_text()
    assert [
        line
        for line in text.splitlines()
        if " WARN " in line or " ERROR " in line or "level=WARN" in line or "level=ERROR" in line
    ] == []

"""The official Java and Go clients: what producers can ask for, each with a restart of the
server in between."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from dev.testbed.foreign import Client, Driver, ForeignError, ids
from dev.testbed.rest import Admin
from tests.clients.restarts import before_and_after, restart

pytestmark = [pytest.mark.slow, pytest.mark.java]
NUMBERS = [str(number).encode() for number in range(20)]


def test_exclusive_producer_keeps_others_out(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """An exclusive producer fences further ones, also after a restart that it survived; when it
    has gone, another may come."""
    first = foreign.producer(topic, access_mode="Exclusive")
    for _ in before_and_after(shared_server):
        first.send(b"mine")
        with pytest.raises(ForeignError, match="ProducerFenced"):
            foreign.producer(topic, access_mode="Exclusive")
        with pytest.raises(ForeignError, match="ProducerBusy"):
            foreign.producer(topic)
    first.close()
    foreign.producer(topic, access_mode="Exclusive").close()
    assert foreign.consumer(topic, "s", position="Earliest").values(2) == [b"mine"] * 2


def test_a_waiting_producer_is_next(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """A producer that waits for exclusive access gets it when the holder leaves, and keeps it
    over a restart."""
    holder = foreign.producer(topic, access_mode="Exclusive")
    waiting = foreign.begin_producer(topic, access_mode="WaitForExclusive")
    holder.send(b"first")
    assert not waiting.done()
    holder.close()
    second = foreign.producer_of(waiting)
    second.send(b"second")
    restart(shared_server)
    second.send(b"third")
    with pytest.raises(ForeignError, match="ProducerFenced"):
        foreign.producer(topic, access_mode="Exclusive")
    assert foreign.consumer(topic, "s", position="Earliest").values(3) == [
        b"first",
        b"second",
        b"third",
    ]


@pytest.mark.parametrize("driver", ["java"], indirect=True)  # the Go client has no such mode
def test_fencing_takes_over(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A producer with fencing throws out the one before it for good: not even a restart lets
    that one back in."""
    old = foreign.producer(topic, access_mode="Exclusive")
    old.send(b"old")
    new = foreign.producer(topic, access_mode="ExclusiveWithFencing")
    with pytest.raises(ForeignError, match=r"ProducerFenced|AlreadyClosed"):
        old.send(b"lost")
    restart(shared_server)
    new.send(b"new")
    with pytest.raises(ForeignError, match=r"ProducerFenced|AlreadyClosed"):
        old.send(b"lost")
    assert foreign.consumer(topic, "s", position="Earliest").values(2) == [b"old", b"new"]


def test_deduplication_remembers_over_a_restart(
    shared_server: ServerProcess, driver: Driver, foreign: Client, admin: Admin, topic: str
) -> None:
    """A name's last sequence id is reported to its next producer; what was sent before is received
    once; so for batches."""
    namespace = admin.create_namespace(topic, deduplicationEnabled=True)
    name = f"persistent://{namespace}/once"
    producer = foreign.producer(name, name="counted")
    assert producer.last_sequence_id == -1
    for number in range(10):
        producer.send(str(number).encode(), sequence_id=number)
    producer.close()
    restart(shared_server)
    again = foreign.producer(name, name="counted")
    if driver.language == "java":  # the other one knows it, but does not tell
        assert again.last_sequence_id == 9
    receipts = [again.send(str(number).encode(), sequence_id=number) for number in range(5, 15)]
    assert [receipt.ledger == -1 for receipt in receipts] == [True] * 5 + [False] * 5
    reader = foreign.reader(name)
    assert reader.values(15) == NUMBERS[:15]
    assert not reader.has_next()


def test_deduplication_of_sends_in_flight(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Sends that a SIGKILL catches are repeated by the client and yet are in the topic once, in
    order."""
    namespace = admin.create_namespace(topic, deduplicationEnabled=True)
    name = f"persistent://{namespace}/once"
    consumer = foreign.consumer(name, "s", position="Earliest")
    producer = foreign.producer(
        name, name="counted", batching=True, batching_max_messages=7, send_timeout_ms=120_000
    )
    values = [str(number).encode() for number in range(700)]
    answer = producer.begin_send({"value": value} for value in values)
    consumer.receive(1)
    restart(shared_server)
    ids(answer)
    reader = foreign.reader(name)
    assert reader.values(700) == values
    assert not reader.has_next()


def test_a_message_in_chunks(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A message larger than a frame comes back whole, from Exclusive and Shared subscriptions
    and readers, before and after a restart."""
    for kind in ("Exclusive", "Shared"):
        foreign.consumer(topic, kind, type=kind).close()
    producer = foreign.producer(topic, chunking=True, chunk_max_size=100_000)
    large = bytes(range(256)) * 4000
    sent = producer.send_all([b"before", large, b"after"])
    exclusive = foreign.consumer(topic, "Exclusive")
    assert exclusive.values(3) == [b"before", large, b"after"]
    restart(shared_server)
    exclusive.seek(sent[0])
    assert exclusive.values(2) == [large, b"after"]
    assert sorted(foreign.consumer(topic, "Shared", type="Shared").values(3), key=len) == [
        b"after",
        b"before",
        large,
    ]
    assert foreign.reader(topic, sent[0]).values(2) == [large, b"after"]


def test_encrypted_messages_stay_opaque(
    shared_server: ServerProcess, foreign: Client, topic: str, tmp_path: Path
) -> None:
    """What one client encrypts comes back after a restart to a consumer with the key, in batches
    too."""
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(
        ["openssl", "genrsa", "-traditional", "-out", private, "2048"],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["openssl", "rsa", "-in", private, "-pubout", "-out", public],
        check=True,
        capture_output=True,
    )
    keys = {"name": "one", "public": public.read_text(), "private": private.read_text()}
    plain = foreign.consumer(topic, "without-key", position="Earliest")
    foreign.producer(topic, keys=keys, batching=True, batching_delay_ms=100).send_all(
        NUMBERS, properties={"seen": "yes"}
    )
    restart(shared_server)
    reader = foreign.reader(topic, keys=keys)
    got = reader.read(20)
    assert [message.value for message in got] == NUMBERS
    assert got[0].properties == {"seen": "yes"}
    plain.expect_nothing()


def refusal(client: Client, topic: str) -> str:
    """What a producer gets that must be refused: the reason, or that the answer did not come in
    time."""
    with pytest.raises(ForeignError) as refused:
        client.producer(topic)
    return str(refused.value).lower()


def test_encryption_may_be_required(
    shared_server: ServerProcess, driver: Driver, admin: Admin, topic: str
) -> None:
    """A namespace that requires encryption refuses producers without it, before and after a
    restart."""
    namespace = admin.create_namespace(topic, encryption_required=True)
    # the Java client tries again and again
    impatient = driver.client(shared_server.service_url, operation_timeout_ms=1000)
    for _ in before_and_after(shared_server):
        wait_for(
            "the reason is reported",
            lambda: "encrypt" in refusal(impatient, f"persistent://{namespace}/secret"),
        )
    impatient.close()


def test_oversized_message_is_refused(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """A message beyond the announced size is refused, and the producer goes on."""
    producer = foreign.producer(topic)
    with pytest.raises(ForeignError, match=r"(?i)size|large|big"):
        producer.send(b"x" * (5 * 1024 * 1024 + 1))
    restart(shared_server)
    producer.send(b"small")
    assert foreign.consumer(topic, "s", position="Earliest").values(1) == [b"small"]


def test_clients_understand_each_other(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """What this client writes in compressed batches the official Python client reads after a
    restart, and the other way round."""
    python = pulsar.Client(
        shared_server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    foreign.producer(topic, batching=True, batching_delay_ms=100, compression="ZSTD").send_all(
        NUMBERS, key="k", properties={"a": "b"}
    )
    writer = python.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=100,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for value in NUMBERS:
        writer.send_async(value, None, partition_key="k", properties={"a": "b"})
    writer.flush()
    restart(shared_server)
    reader = python.create_reader(topic, pulsar.MessageId.earliest)
    theirs = [reader.read_next(120_000) for _ in range(40)]
    assert [(one.data(), one.partition_key(), one.properties()) for one in theirs] == [
        (value, "k", {"a": "b"}) for value in NUMBERS * 2
    ]
    ours = foreign.reader(topic).read(40)
    assert [(one.value, one.key, one.properties) for one in ours] == [
        (value, "k", {"a": "b"}) for value in NUMBERS * 2
    ]
    python.close()

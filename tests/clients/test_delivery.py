"""Delivery with the official Python client: delays, nacks, seeks, batches, chunks, readers, dead
letters, each over a restart of the server."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.request
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess

pytestmark = pytest.mark.slow
RECEIVE_MS = 120_000
SHORT_MS = 500
SHARED, EARLIEST = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest


@pytest.fixture
def server(plain_server: ServerProcess) -> ServerProcess:
    """One for all tests here: each has topics of its own, and restarts it as it likes."""
    return plain_server


def restart(server: ServerProcess) -> None:
    """SIGKILL and start again: whatever was confirmed to a client must be there."""
    server.kill()
    server.start()


def restart_gently(server: ServerProcess) -> None:
    """SIGTERM and start again: also acknowledgements that nobody asked to have confirmed are
    there."""
    server.stop()
    server.start()


def ask(server: ServerProcess, method: str, path: str, body: bytes | None = None) -> int:
    """An admin request; its status."""
    request = urllib.request.Request(
        server.http_url + path,
        data=body,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return int(response.status)


def statistics(server: ServerProcess, topic: str) -> dict[str, Any]:
    """What REST shows about subscription "s"."""
    with urllib.request.urlopen(
        f"{server.http_url}/admin/v2/persistent/public/default/{topic}/stats", timeout=60
    ) as response:
        found: dict[str, Any] = json.load(response)["subscriptions"]["s"]
    return found


def take(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Exactly so many messages, acknowledged: nothing more comes."""
    messages = [consumer.receive(RECEIVE_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(SHORT_MS)
    return [message.data() for message in messages]


def test_delayed_messages_wait_over_a_restart(server: ServerProcess, client: pulsar.Client) -> None:
    """What was sent later and is not delayed does not wait; the delayed one comes at its time
    although its broker died concurrently."""
    consumer = client.subscribe("delayed", "s", consumer_type=SHARED)
    producer = client.create_producer("delayed")
    producer.send(b"in an hour", deliver_at=int(time.time() * 1000) + 3_600_000)
    producer.send(b"now")
    first = consumer.receive(RECEIVE_MS)
    assert first.data() == b"now"
    consumer.acknowledge(first)
    assert statistics(server, "delayed")["msgDelayed"] == 1
    consumer.close()
    due_ms = int(time.time() * 1000) + 6000
    producer.send(b"later", deliver_at=due_ms)
    restart_gently(server)
    again = client.subscribe("delayed", "s", consumer_type=SHARED)
    assert again.receive(RECEIVE_MS).data() == b"later"
    assert time.time() * 1000 >= due_ms - 1000, "at most one tick early"


def test_a_delay_means_nothing_to_an_exclusive_consumer(
    server: ServerProcess, client: pulsar.Client
) -> None:
    producer = client.create_producer("not-delayed")
    producer.send(b"later", deliver_at=int(time.time() * 1000) + 3_600_000)
    restart(server)
    assert (
        client.subscribe("not-delayed", "s", initial_position=EARLIEST).receive(RECEIVE_MS).data()
        == b"later"
    )


def test_redeliveries_are_counted_while_a_consumer_is_connected(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Negative acknowledgements count up; a restart forgets the count, never the message."""
    consumer = client.subscribe(
        "nacks", "s", consumer_type=SHARED, negative_ack_redelivery_delay_ms=100
    )
    client.create_producer("nacks").send(b"again")
    for count in range(3):
        message = consumer.receive(RECEIVE_MS)
        assert (message.data(), message.redelivery_count()) == (b"again", count)
        consumer.negative_acknowledge(message)
    consumer.close()
    restart(server)
    again = client.subscribe("nacks", "s", consumer_type=SHARED)
    message = again.receive(RECEIVE_MS)
    assert (message.data(), message.redelivery_count()) == (b"again", 0)
    again.redeliver_unacknowledged_messages()
    assert again.receive(RECEIVE_MS).redelivery_count() == 1


@pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Exclusive, SHARED], ids=["exclusive", "shared"]
)
@pytest.mark.parametrize("by", ["id", "time", "earliest"])
def test_a_seek_survives_a_restart(
    server: ServerProcess, client: pulsar.Client, kind: pulsar.ConsumerType, by: str
) -> None:
    """The answer to a seek means that the cursor is there, over whatever was acknowledged
    before."""
    topic = f"seek-{kind.name}-{by}"
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    messages = []
    for number in range(10):
        producer.send(str(number).encode())
        messages.append(consumer.receive(RECEIVE_MS))
        consumer.acknowledge(messages[-1])
    target = messages[4].publish_timestamp()
    first = {
        "id": 4,
        "time": next(
            number
            for number, message in enumerate(messages)
            if message.publish_timestamp() >= target
        ),
        "earliest": 0,
    }[by]
    consumer.seek(
        {"id": messages[4].message_id(), "time": target, "earliest": pulsar.MessageId.earliest}[by]
    )
    consumer.close()
    restart(server)
    again = client.subscribe(topic, "s", consumer_type=kind)
    assert take(again, 10 - first) == [str(number).encode() for number in range(first, 10)]


def test_acknowledged_messages_of_a_batch_stay_away(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Batch index acknowledgements: after a restart only the others of the batch come back."""
    producer = client.create_producer(
        "batch-index",
        batching_enabled=True,
        batching_max_messages=6,
        batching_max_publish_delay_ms=60_000,
    )
    consumer = client.subscribe(
        "batch-index", "s", consumer_type=SHARED, batch_index_ack_enabled=True
    )
    for number in range(6):
        producer.send_async(str(number).encode(), None)
    producer.flush()
    messages = [consumer.receive(RECEIVE_MS) for _ in range(6)]
    assert len({(m.message_id().ledger_id(), m.message_id().entry_id()) for m in messages}) == 1, (
        "one batch"
    )
    for index in (0, 2, 5):
        consumer.acknowledge(messages[index])
    consumer.close()
    restart_gently(server)
    again = client.subscribe("batch-index", "s", consumer_type=SHARED, batch_index_ack_enabled=True)
    assert take(again, 3) == [b"1", b"3", b"4"]
    again.close()
    restart_gently(server)
    assert take(client.subscribe("batch-index", "s", consumer_type=SHARED), 0) == []


def test_chunked_messages_reach_one_of_several_consumers_whole(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Messages larger than the limit, among small ones, divided between two Shared consumers;
    every one comes whole, once."""
    client.subscribe("chunks", "s", consumer_type=SHARED).close()
    producer = client.create_producer("chunks", chunking_enabled=True)
    large = [bytes([number]) * (11 << 20) for number in range(3)]
    for number, payload in enumerate(large):
        producer.send(payload)
        producer.send(b"small-%d" % number)
    producer.close()
    restart(server)
    consumers = [
        client.subscribe("chunks", "s", consumer_type=SHARED, receiver_queue_size=4)
        for _ in range(2)
    ]
    found: list[str] = []
    deadline = time.monotonic() + 120
    while len(found) < 6 and time.monotonic() < deadline:
        for consumer in consumers:
            try:
                message = consumer.receive(SHORT_MS)
            except pulsar.Timeout:
                continue
            found.append(hashlib.sha256(message.data()).hexdigest())
            consumer.acknowledge(message)
    expected = [
        hashlib.sha256(payload).hexdigest()
        for payload in [*large, b"small-0", b"small-1", b"small-2"]
    ]
    assert sorted(found) == sorted(expected)


def test_a_reader_starts_at_a_chunked_message(server: ServerProcess, client: pulsar.Client) -> None:
    """Its id stands for all of its chunks."""
    producer = client.create_producer("chunk-reader", chunking_enabled=True)
    producer.send(b"before")
    identifier = producer.send(b"c" * (6 << 20))
    producer.send(b"behind")
    restart(server)
    reader = client.create_reader("chunk-reader", identifier, start_message_id_inclusive=True)
    assert [len(reader.read_next(RECEIVE_MS).data()) for _ in range(2)] == [6 << 20, 6]


def test_a_reader_goes_on_where_it_was(server: ServerProcess, client: pulsar.Client) -> None:
    """It reconnects to a broker that knows nothing of it, and misses and repeats nothing; then
    it seeks, by id and by time."""
    producer = client.create_producer("reader")
    for number in range(10):
        producer.send(str(number).encode())
    reader = client.create_reader("reader", pulsar.MessageId.earliest)
    read = [reader.read_next(RECEIVE_MS) for _ in range(4)]
    restart(server)
    producer.send(b"10")
    read += [reader.read_next(RECEIVE_MS) for _ in range(7)]
    assert [message.data() for message in read] == [str(number).encode() for number in range(11)]
    assert not reader.has_message_available()
    reader.seek(read[7].message_id())
    assert reader.has_message_available()
    # this client leaves out the message it seeks to
    assert reader.read_next(RECEIVE_MS).data() == b"8"
    target = read[2].publish_timestamp()
    first = next(
        number for number, message in enumerate(read) if message.publish_timestamp() >= target
    )
    reader.seek(target)
    assert [reader.read_next(RECEIVE_MS).data() for _ in range(first, 11)] == [
        str(n).encode() for n in range(first, 11)
    ]
    assert not reader.has_message_available()


def test_dead_letters(server: ServerProcess, client: pulsar.Client) -> None:
    """What is nacked too often goes to the dead letter topic, whose initial subscription has it
    after a restart."""
    policy = pulsar.ConsumerDeadLetterPolicy(
        max_redeliver_count=2, initial_subscription_name="audit"
    )
    consumer = client.subscribe(
        "letters",
        "s",
        consumer_type=SHARED,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy,
    )
    producer = client.create_producer("letters")
    for number in range(3):
        producer.send(str(number).encode())
    nacked = 0
    while nacked < 9:
        message = consumer.receive(RECEIVE_MS)
        assert message.redelivery_count() < 3
        consumer.negative_acknowledge(message)
        nacked += 1
    audit = client.subscribe("letters-s-DLQ", "audit", consumer_type=SHARED)
    found = {audit.receive(RECEIVE_MS).data() for _ in range(3)}
    assert found == {b"0", b"1", b"2"}
    # the client acknowledges a letter's original once it has the receipt of the letter
    deadline = time.monotonic() + 120
    while statistics(server, "letters")["msgBacklog"]:
        assert time.monotonic() < deadline, statistics(server, "letters")
        time.sleep(0.05)
    consumer.close()
    audit.close()
    restart_gently(server)
    audit = client.subscribe("letters-s-DLQ", "audit", consumer_type=SHARED)
    assert sorted(take(audit, 3)) == [b"0", b"1", b"2"]
    assert take(client.subscribe("letters", "s", consumer_type=SHARED), 0) == []


def test_a_consumer_at_its_limit_waits_for_acknowledgements(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """A topic policy limits what a Shared consumer may hold; it holds after a restart, and ends
    when the policy does."""
    topic, count = "limited", 20
    client.subscribe(topic, "s", consumer_type=SHARED).close()
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send(str(number).encode())
    policy = f"/admin/v2/persistent/public/default/{topic}/maxUnackedMessagesOnConsumer"
    assert ask(server, "POST", policy, b"5") == 204
    restart(server)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    held = [consumer.receive(RECEIVE_MS) for _ in range(5)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(SHORT_MS)
    (shown,) = statistics(server, topic)["consumers"]
    assert (shown["unackedMessages"], shown["blockedConsumerOnUnackedMsgs"]) == (5, True)
    for message in held:
        consumer.acknowledge(message)
    for _ in range(5):
        consumer.receive(RECEIVE_MS)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(SHORT_MS)
    assert ask(server, "DELETE", policy) == 204
    for _ in range(10):
        consumer.receive(RECEIVE_MS)


def test_a_subscription_is_reset_over_rest(server: ServerProcess, client: pulsar.Client) -> None:
    """To a time and to an id, with its consumer connected: it comes back and begins there, also
    after a restart."""
    topic = "rest-reset"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    messages = []
    for number in range(6):
        producer.send(str(number).encode())
        messages.append(consumer.receive(RECEIVE_MS))
        consumer.acknowledge(messages[-1])
    moves = f"/admin/v2/persistent/public/default/{topic}/subscription/s/resetcursor"
    target = messages[3].publish_timestamp()
    first = next(
        number for number, message in enumerate(messages) if message.publish_timestamp() >= target
    )
    assert ask(server, "POST", f"{moves}/{target}") == 204
    assert take(consumer, 6 - first) == [str(number).encode() for number in range(first, 6)]
    identifier = messages[1].message_id()
    body = f'{{"ledgerId": {identifier.ledger_id()}, "entryId": {identifier.entry_id()}}}'.encode()
    assert ask(server, "POST", moves, body) == 204
    consumer.close()
    restart(server)
    assert take(client.subscribe(topic, "s"), 5) == [b"1", b"2", b"3", b"4", b"5"]


def test_consumers_without_a_queue(server: ServerProcess, client: pulsar.Client) -> None:
    """One permit per receive: a message that nobody asked for yet stays available to others."""
    consumers = [
        client.subscribe("zero", "s", consumer_type=SHARED, receiver_queue_size=0) for _ in range(2)
    ]
    producer = client.create_producer("zero")
    for number in range(4):
        producer.send(str(number).encode())
    first = consumers[0].receive()
    consumers[0].acknowledge(first)
    restart_gently(server)
    for _ in range(3):
        message = consumers[1].receive()
        consumers[1].acknowledge(message)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe("zero", "s")  # another type


def test_last_message_id_after_a_restart(server: ServerProcess, client: pulsar.Client) -> None:
    """Empty, plain and batched topics."""
    consumer = client.subscribe("last", "s")
    assert consumer.get_last_message_id().entry_id() == -1
    identifier = client.create_producer("last").send(b"1")
    restart(server)
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (identifier.ledger_id(), identifier.entry_id())


def test_the_type_of_a_subscription_switches_with_nobody_connected(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Also over a restart; with a consumer connected another type is refused."""
    client.subscribe("switch", "s").close()
    producer = client.create_producer("switch")
    producer.send(b"1")
    restart(server)
    shared = client.subscribe("switch", "s", consumer_type=SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("switch", "s")
    assert take(shared, 1) == [b"1"]

"""The official Java and Go clients against a standalone server: what a first program does, with
a restart of the server in between."""

from __future__ import annotations

import pytest

from dev.server_process import ServerProcess
from dev.testbed.foreign import Client, Driver, ForeignError, ids
from tests.clients.restarts import await_consumers, restart

pytestmark = [pytest.mark.slow, pytest.mark.java]
NUMBERS = [str(number).encode() for number in range(20)]
SEND_TIMEOUT_MS = 120_000
"""Longer than a restart takes on a busy machine."""


def test_messages_survive_a_restart_with_all_that_came_with_them(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Key, ordering key, properties and event time of acknowledged messages come back after
    SIGKILL, in order, to a client that stayed."""
    producer = foreign.producer(topic, properties={"team": "one"})
    sent = [
        producer.send(
            value,
            key=f"key-{index % 3}",
            ordering_key=f"order-{index}",
            properties={"index": str(index)},
            event_time_ms=1000 + index,
        )
        for index, value in enumerate(NUMBERS)
    ]
    restart(shared_server)
    consumer = foreign.consumer(topic, "s", position="Earliest")
    got = consumer.receive(20, ack=True)
    assert [message.value for message in got] == NUMBERS
    assert [
        (message.key, message.ordering_key, message.properties, message.event_time_ms)
        for message in got
    ] == [
        (f"key-{index % 3}", f"order-{index}", {"index": str(index)}, 1000 + index)
        for index in range(20)
    ]
    assert [(message.id.ledger, message.id.entry) for message in got] == [
        (one.ledger, one.entry) for one in sent
    ]
    assert producer.send(b"after") not in sent
    assert consumer.values(1) == [b"after"]


def test_sends_in_flight_reach_the_log_over_a_restart(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Sends that a SIGKILL catches are repeated by the client: every one gets a receipt, order
    is kept, nothing acknowledged is missing."""
    consumer = foreign.consumer(topic, "s", position="Earliest")
    producer = foreign.producer(topic, send_timeout_ms=SEND_TIMEOUT_MS)
    values = [str(number).encode() for number in range(500)]
    answer = producer.begin_send({"value": value} for value in values)
    first = consumer.receive(5, ack=True)
    restart(shared_server)
    assert len(ids(answer)) == 500
    assert [message.value for message in first] + consumer.distinct_values(495) == values


def test_batches_of_every_compression_come_back(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Batches come back message by message before and after a restart, and one entry holds many
    messages."""
    values = [value * 10 for value in NUMBERS * 10]
    topics = {
        compression: f"{topic}-{compression}"
        for compression in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
    }
    for compression, name in topics.items():
        producer = foreign.producer(
            name,
            batching=True,
            batching_max_messages=50,
            batching_delay_ms=100,
            compression=compression,
        )
        sent = producer.send_all(values)
        assert len({(one.ledger, one.entry) for one in sent}) < 100
        assert foreign.consumer(name, "first", position="Earliest").values(200) == values
    restart(shared_server)
    for name in topics.values():
        assert foreign.consumer(name, "second", position="Earliest").values(200) == values


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_acknowledgements_survive_a_restart(
    shared_server: ServerProcess, foreign: Client, topic: str, kind: str
) -> None:
    """Messages acknowledged one by one, with holes, stay away after SIGKILL; the others come
    back to the consumer that stayed connected."""
    consumer = foreign.consumer(topic, "s", type=kind)
    foreign.producer(topic).send_all(NUMBERS)
    got = consumer.receive(20)
    consumer.ack(*got[:5])
    consumer.ack(got[7])
    consumer.ack(got[19])
    consumer.close()
    restart(shared_server)
    again = foreign.consumer(topic, "s", type=kind)
    left = again.receive(13, ack=True)
    assert sorted(int(message.value) for message in left) == [5, 6, *range(8, 19)]
    again.expect_nothing()


def test_cumulative_acknowledgement_survives_a_restart(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Everything up to the acknowledged message stays away."""
    consumer = foreign.consumer(topic, "s")
    foreign.producer(topic).send_all(NUMBERS)
    got = consumer.receive(20)
    consumer.ack_cumulative(got[11])
    consumer.close()
    restart(shared_server)
    assert foreign.consumer(topic, "s").values(8) == NUMBERS[12:]


def test_acknowledged_indexes_of_a_batch_survive_a_restart(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Single messages of a batch are acknowledged; after SIGKILL only the others of that batch
    are given out."""
    consumer = foreign.consumer(topic, "s", type="Shared", batch_index_ack=True)
    producer = foreign.producer(
        topic, batching=True, batching_max_messages=20, batching_delay_ms=60_000
    )
    sent = producer.send_all(NUMBERS)
    assert len({(one.ledger, one.entry) for one in sent}) == 1
    got = consumer.receive(20)
    assert [message.id.batch_index for message in got] == list(range(20))
    consumer.ack(*[message for message in got if int(message.value) % 2])
    consumer.close()
    restart(shared_server)
    again = foreign.consumer(topic, "s", type="Shared", batch_index_ack=True)
    assert again.values(10) == NUMBERS[::2]
    again.expect_nothing()


def test_shared_consumers_divide_and_inherit(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Every message goes to one of two Shared consumers; what the leaving one has not
    acknowledged goes to the other, also after a restart."""
    first = foreign.consumer(topic, "s", type="Shared", queue=5, name="first")
    second = foreign.consumer(topic, "s", type="Shared", queue=5, name="second")
    producer = foreign.producer(topic)
    producer.send_all(NUMBERS)
    held = first.receive(3)
    restart(shared_server)
    first.close()
    got = second.distinct_values(20)
    assert sorted(got) == sorted(NUMBERS)
    assert {message.value for message in held} <= set(got)


def test_exclusive_refuses_a_second_consumer(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """The second Exclusive consumer learns that the subscription is taken; so after a restart;
    a left one is free."""
    consumer = foreign.consumer(topic, "s")
    with pytest.raises(ForeignError, match=r"ConsumerBusy|Exclusive consumer"):
        foreign.consumer(topic, "s")
    restart(shared_server)
    foreign.producer(topic).send(b"one")
    assert consumer.values(1) == [b"one"]
    with pytest.raises(ForeignError, match=r"ConsumerBusy|Exclusive consumer"):
        foreign.consumer(topic, "s")
    consumer.close()
    foreign.consumer(topic, "s").close()


def test_negative_acknowledgement_redelivers_with_its_count(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """A nacked message of a Shared subscription comes back counted, again and again, and after a
    restart from nought."""
    consumer = foreign.consumer(topic, "s", type="Shared", nack_delay_ms=100)
    foreign.producer(topic).send(b"again")
    for count in range(3):
        (message,) = consumer.receive(1)
        assert (message.value, message.redelivery_count) == (b"again", count)
        consumer.nack(message)
    restart(shared_server)
    # it may have been redelivered before, to a client that has not come back yet
    assert consumer.values(1) == [b"again"]


def test_reader_starts_where_it_is_placed(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Earliest, after an id, at an id, latest; the end is known before and after a restart; an
    empty topic has no message."""
    empty = foreign.reader(topic)
    assert not empty.has_next()
    producer = foreign.producer(topic)
    sent = producer.send_all(NUMBERS)
    assert empty.has_next()
    assert empty.values(20) == NUMBERS
    assert not empty.has_next()
    assert (empty.last_id().ledger, empty.last_id().entry) == (sent[-1].ledger, sent[-1].entry)
    restart(shared_server)
    after = foreign.reader(topic, sent[2])
    assert after.has_next()
    assert after.values(17) == NUMBERS[3:]
    assert not after.has_next()
    assert foreign.reader(topic, sent[2], start_inclusive=True).values(18) == NUMBERS[2:]
    latest = foreign.reader(topic, "latest")
    assert not latest.has_next()
    producer.send(b"new")
    assert latest.values(1) == empty.values(1) == [b"new"]


def test_reader_inside_a_batch(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A reader that starts at a message inside a batch gives the rest of that batch, and knows
    the batch's last index."""
    producer = foreign.producer(
        topic, batching=True, batching_max_messages=10, batching_delay_ms=60_000
    )
    sent = producer.send_all(NUMBERS)
    restart(shared_server)
    reader = foreign.reader(topic, sent[4])
    assert reader.last_id().batch_index == 9
    assert reader.values(15) == NUMBERS[5:]
    assert not reader.has_next()


def test_last_message_ids_of_a_consumer(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """An empty topic's last id is before every message; later it is the last one's, also after a
    restart."""
    consumer = foreign.consumer(topic, "s")
    assert [one.entry for one in consumer.last_ids()] == [-1]
    sent = foreign.producer(topic).send_all(NUMBERS[:3])
    assert [one.entry for one in consumer.last_ids()] == [sent[-1].entry]
    restart(shared_server)
    assert [(one.ledger, one.entry) for one in foreign.consumer(topic, "other").last_ids()] == [
        (sent[-1].ledger, sent[-1].entry)
    ]


def test_seek_by_id(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """Back to an id, to the earliest and to the latest message, over what was acknowledged,
    before and after a restart."""
    consumer = foreign.consumer(topic, "s", position="Earliest")
    sent = foreign.producer(topic).send_all(NUMBERS)
    assert consumer.values(20) == NUMBERS
    consumer.seek(sent[4])
    assert consumer.values(15) == NUMBERS[5:]
    restart(shared_server)
    consumer.seek("earliest")
    assert consumer.values(20) == NUMBERS
    consumer.seek("earliest")
    consumer.seek("latest")
    consumer.expect_nothing()


def test_seek_includes_the_message_if_asked_to(
    shared_server: ServerProcess, driver: Driver, foreign: Client, topic: str
) -> None:
    """With `start_inclusive` the message of the id is the next one; a seek that is followed by
    SIGKILL was durable."""
    consumer = foreign.consumer(topic, "s", start_inclusive=True)
    sent = foreign.producer(topic).send_all(NUMBERS)
    consumer.receive(20, ack=True)
    consumer.seek(sent[4])
    restart(shared_server)
    if driver.language == "java":  # Go's client comes back before it does anything else
        consumer.last_ids()  # it is back: else what it has asked for keeps others out
    consumer.close()
    assert foreign.consumer(topic, "s").values(16) == NUMBERS[4:]


def test_unsubscribe_forgets(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """After unsubscribe the name starts again, and stays gone over a restart."""
    consumer = foreign.consumer(topic, "s")
    foreign.producer(topic).send(b"1")
    consumer.unsubscribe()
    restart(shared_server)
    foreign.consumer(topic, "s").expect_nothing()


def test_queue_of_nought_takes_one_message_at_a_time(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """A consumer without a queue asks for one message per receive; what it did not ask for is
    another's, also after a restart."""
    first = foreign.consumer(topic, "s", type="Shared", queue=0)
    producer = foreign.producer(topic)
    producer.send_all(NUMBERS)
    assert first.values(2) == NUMBERS[:2]
    second = foreign.consumer(topic, "s", type="Shared")
    assert sorted(second.values(18)) == sorted(NUMBERS[2:])
    restart(shared_server)
    # The Java client forgets what it asked for before it was attached again, and ends its
    # connection, which both share, when a consumer was closed while it came back.
    for consumer in (first, second):
        consumer.last_ids()
    second.close()
    await_consumers(shared_server, topic, "s", 1)
    producer.send(b"late")
    assert first.values(1) == [b"late"]


def test_unknown_namespace_is_refused(foreign: Client) -> None:
    """A topic in a namespace that does not exist is refused, not after a time-out."""
    with pytest.raises(ForeignError, match=r"TopicNotFound|TopicDoesNotExist"):
        foreign.producer("persistent://nobody/nowhere/topic")


def test_producer_name_is_taken(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A second producer of the same name is refused while the first lives, also after a restart,
    and welcome when it has gone."""
    producer = foreign.producer(topic, name="only-one")
    with pytest.raises(ForeignError, match=r"(?i)busy|already"):
        foreign.producer(topic, name="only-one")
    restart(shared_server)
    producer.send(b"still there")
    with pytest.raises(ForeignError, match=r"(?i)busy|already"):
        foreign.producer(topic, name="only-one")
    producer.close()
    assert foreign.producer(topic, name="only-one").name == "only-one"

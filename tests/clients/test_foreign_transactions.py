"""The official Java and Go clients in transactions: what is committed is there once and in order,
what is aborted never was.

Every test runs on a standalone server and on brokers with coordinators; with PEER=1 on Apache
Pulsar as well, where `places.REFERENCE_DIFFERS` says what does not hold there (`PEER=1 pytest -k
apache` runs only that; strictly, so that the list stays true).
"""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import pytest

from dev.server_process import ServerProcess
from dev.testbed.foreign import (
    Client,
    Consumer,
    Driver,
    ForeignError,
    Producer,
    rest_is_empty,
    schema_of_tables,
)
from dev.testbed.foreign_messages import Received
from dev.testbed.rest import Admin
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.places import ABORT, COMMIT, SETTINGS, Place, unload

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.etcd]

SHORT_S = 10.0
"""What is done in a transaction that is to time out must be done by then."""
SEND_TIMEOUT_MS = 60_000
"""Refusals come before it, also when a producer has to come again first."""
NUMBERS = [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_commit_shows_everything_at_once_in_order(
    app: Client, topic: str, batching: bool
) -> None:
    """Four topics in one transaction: a reader finds nothing before the commit, and right after
    it everything, in the order sent."""
    topics = [f"{topic}-{number}" for number in range(4)]
    readers, producers = (
        [app.reader(name) for name in topics],
        [app.producer(name, batching=batching) for name in topics],
    )
    txn = app.transaction()
    for producer in producers:
        producer.send_all(NUMBERS, txn)
    assert not any(reader.has_next() for reader in readers)
    txn.commit()
    assert txn.state == "COMMITTED"
    for reader in readers:
        assert reader.values(10) == NUMBERS
        assert not reader.has_next()


def test_ordinary_messages_pass_an_open_transaction(app: Client, topic: str) -> None:
    """What is sent without a transaction comes at once; the transaction's messages come when it
    commits, with ids behind it."""
    consumer, producer = app.consumer(topic, "s"), app.producer(topic)
    txn = app.transaction()
    producer.send_all(NUMBERS, txn)
    producer.send(b"ordinary")
    (first,) = consumer.receive(1, ack=True)
    assert first.value == b"ordinary"
    txn.commit()
    rest = consumer.receive(10, ack=True)
    assert [message.value for message in rest] == NUMBERS
    positions = [(message.id.ledger, message.id.entry) for message in (first, *rest)]
    assert positions == sorted(set(positions))
    rest_is_empty(consumer, app, topic)


def test_an_abort_leaves_nothing_and_gives_back(app: Client, topic: str) -> None:
    """Output of an aborted transaction never comes, from single and batched sends; what it
    acknowledged comes again."""
    source = f"{topic}-source"
    inputs = app.consumer(source, "work", type="Shared")
    app.producer(source).send(b"in")
    watching = app.consumer(topic, "watch")
    outputs = [app.producer(topic, batching=batching) for batching in (False, True)]
    (message,) = inputs.receive(1)
    txn = app.transaction()
    for producer in outputs:
        producer.send_all(NUMBERS, txn)
    inputs.ack(message, txn=txn)
    txn.abort()
    assert txn.state == "ABORTED"
    rest_is_empty(watching, app, topic)
    assert inputs.values(1) == [b"in"]
    rest_is_empty(inputs, app, source)


def test_a_timeout_aborts(place: Place, app: Client, topic: str) -> None:
    """The server ends it without being asked: its input comes again, its output never; a commit
    is too late for client and coordinator."""
    source = f"{topic}-source"
    inputs = app.consumer(source, "work", type="Shared")
    app.producer(source).send(b"in")
    watching, producer = app.consumer(topic, "watch"), app.producer(topic)
    (message,) = inputs.receive(1)
    txn = app.transaction(SHORT_S)
    producer.send(b"never", txn)
    inputs.ack(message, txn=txn)
    assert inputs.values(1) == [b"in"]
    with pytest.raises(
        ForeignError, match=r"InvalidTxnStatus|InvalidStatus|actual: TxnTimeout|NotOpen"
    ):
        txn.commit()
    # by the client's own clock, or by the coordinator's answer
    assert txn.state in ("TIMEOUT", "ERROR")
    rest_is_empty(watching, app, topic)
    late = place.ended(txn.id, COMMIT)
    assert (late.error, "ABORT" in late.message) == (api.InvalidTxnStatus, True), late
    assert not place.ended(txn.id, ABORT).HasField("error")


def test_two_producers_share_a_transaction(app: Client, topic: str) -> None:
    """Their messages come in the order of the receipts; sequence ids of one say nothing about
    the other's."""
    reader = app.reader(topic)
    producers = [app.producer(topic, name=f"{topic}-{name}") for name in ("one", "two")]
    expected = []
    for producer in producers:
        producer.send(b"before")
    txn = app.transaction()
    for number, producer in itertools.product(range(3), producers):
        expected.append(f"{producer.name} {number}".encode())
        producer.send(expected[-1], txn)
    txn.commit()
    for producer in producers:
        producer.send(b"after")
    assert reader.values(10) == [b"before"] * 2 + expected + [b"after"] * 2


def test_partitions_take_part_one_by_one(place: Place, app: Client, topic: str) -> None:
    """A transaction over three partitions, committed, beside an aborted one: each partition in
    order, nothing twice."""
    Admin(place).topic("PUT", topic, "partitions", 3)
    consumer, producer = app.consumer(topic, "s"), app.producer(topic)
    committed, aborted = app.transaction(), app.transaction()
    values = [b"%d" % number for number in range(30)]
    for value in values:
        producer.send(value, committed, key=f"key-{int(value)}")
        producer.send(b"never", aborted, key=f"key-{int(value)}")
    aborted.abort()
    committed.commit()
    received = consumer.receive(30, ack=True)
    assert {message.id.partition for message in received} == {0, 1, 2}
    by_partition: dict[int, list[int]] = {}
    for message in received:
        by_partition.setdefault(message.id.partition, []).append(int(message.value))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    assert sorted(number for numbers in by_partition.values() for number in numbers) == list(
        range(30)
    )
    after = [b"after-%d" % number for number in range(9)]
    producer.send_all(after)
    assert sorted(consumer.values(9)) == after


def test_seek_over_committed_messages(app: Client, topic: str) -> None:
    """To an id that a consumer has seen, and to the beginning: committed messages are where they
    were."""
    consumer, producer = app.consumer(topic, "s", start_inclusive=True), app.producer(topic)
    producer.send(b"before")
    txn, aborted = app.transaction(), app.transaction()
    producer.send_all([b"one", b"two", b"three"], txn)
    producer.send_all([b"never"] * 3, aborted)
    aborted.abort()
    txn.commit()
    producer.send(b"after")
    expected = [b"before", b"one", b"two", b"three", b"after"]
    received = consumer.receive(5, ack=True)
    assert [message.value for message in received] == expected
    for where, count in ((received[2].id, 3), ("earliest", 5)):
        consumer.seek(where)
        assert consumer.values(count) == expected[-count:]
    reader = app.reader(topic, received[2].id, start_inclusive=True)
    assert reader.values(3) == expected[2:]
    assert not reader.has_next()
    assert (reader.last_id().ledger, reader.last_id().entry) == (
        received[4].id.ledger,
        received[4].id.entry,
    )


def test_ids_of_receipts_say_where_to_begin(app: Client, topic: str) -> None:
    """A seek or a reader to the id of a transaction's receipt: to the message if it was committed,
    else to what followed it when it was sent."""
    consumer, producer = app.consumer(topic, "s", start_inclusive=True), app.producer(topic)
    committed, aborted = app.transaction(), app.transaction()
    producer.send(b"before")
    never = producer.send(b"never", aborted)
    producer.send(b"middle")
    receipts = producer.send_all([b"one", b"two", b"three"], committed)
    committed.commit()
    aborted.abort()
    producer.send(b"after")
    expected = [b"before", b"middle", b"one", b"two", b"three", b"after"]
    assert consumer.values(6) == expected
    for where, count in ((receipts[1], 3), (receipts[0], 4), (never, 5)):
        consumer.seek(where)
        assert consumer.values(count) == expected[-count:]
    assert app.reader(topic, receipts[2], start_inclusive=True).values(2) == expected[4:]


def test_moves_under_open_transactions(place: Place, app: Client, topic: str) -> None:
    """Both topics are unloaded twice, on a cluster to wherever they belong: the transactions go
    on, and end as requested."""
    source = f"{topic}-source"
    inputs = app.consumer(source, "work", type="Shared")
    app.producer(source).send_all([b"a", b"b"])
    first, second = inputs.receive(2)
    watching, producer = app.consumer(topic, "watch", type="Shared"), app.producer(topic)
    committed, aborted = app.transaction(), app.transaction()
    producer.send(b"one", committed)
    producer.send(b"never", aborted)
    inputs.ack(first, txn=committed)
    inputs.ack(second, txn=aborted)
    unload(place, topic, source)
    producer.send(b"two", committed)
    unload(place, topic, source)
    aborted.abort()
    committed.commit()
    assert watching.distinct_values(2) == [b"one", b"two"]
    assert inputs.distinct_values(1) == [b"b"]
    inputs.close()
    rest_is_empty(app.consumer(source, "work", type="Shared"), app, source)


def test_a_message_in_chunks(app: Client, topic: str) -> None:
    """Chunks of a committed message come whole, those of an aborted one never; acknowledged in a
    transaction nothing of it is left."""
    consumer = app.consumer(topic, "s")
    producer = app.producer(topic, chunking=True, chunk_max_size=10_000)
    large = bytes(range(256)) * 200
    committed, aborted = app.transaction(), app.transaction()
    producer.send(b"x" * 30_000, aborted)
    producer.send(large, committed)
    aborted.abort()
    committed.commit()
    (message,) = consumer.receive(1)
    assert message.value == large
    txn = app.transaction()
    consumer.ack(message, txn=txn)
    txn.commit()
    consumer.close()
    rest_is_empty(app.consumer(topic, "s"), app, topic)


@pytest.mark.parametrize("driver", ["go"], indirect=True)
def test_a_batch_with_the_name_of_an_ended_transaction(app: Client, topic: str) -> None:
    """The Go client names a producer's last transaction in its later batches without one, too:
    these are refused, with the reason, until it sends in the next transaction. A producer that only
    sends in transactions, or none, notices nothing.
    """
    consumer = app.consumer(topic, "s")
    producer, beside = (
        app.producer(topic, batching=True, send_timeout_ms=SEND_TIMEOUT_MS) for _ in range(2)
    )
    committed, aborted, last = app.transaction(), app.transaction(), app.transaction()
    producer.send_all([b"one", b"two"], committed)
    committed.commit()
    refused_twice(producer)
    beside.send_all([b"three", b"four"])
    producer.send(b"never", aborted)
    aborted.abort()
    refused_twice(producer)
    producer.send_all([b"five", b"six"], last)
    last.commit()
    assert consumer.values(6) == [b"one", b"two", b"three", b"four", b"five", b"six"]
    rest_is_empty(consumer, app, topic)


def refused_twice(producer: Producer) -> None:
    for _ in range(2):
        with pytest.raises(ForeignError, match="begin another one"):
            producer.send(b"refused")


@pytest.mark.parametrize("driver", ["go"], indirect=True)
def test_such_a_batch_is_an_ordinary_one_if_the_server_is_set_so(
    tmp_path: Path, driver: Driver, topic: str
) -> None:
    """`txn_late_sends_as_ordinary`: after a commit such batches are ordinary messages, after an
    abort they are refused."""
    settings = {**SETTINGS, "MAGNETAR_TXN_LATE_SENDS_AS_ORDINARY": "1"}
    with (
        ServerProcess(tmp_path, environment=settings) as server,
        closing(driver.client(server.service_url, transactions=True)) as app,
    ):
        consumer = app.consumer(topic, "s")
        producer = app.producer(topic, batching=True, send_timeout_ms=SEND_TIMEOUT_MS)
        committed, aborted, last = app.transaction(), app.transaction(), app.transaction()
        producer.send_all([b"one", b"two"], committed)
        committed.commit()
        producer.send_all([b"three", b"four"])
        producer.send(b"never", aborted)
        aborted.abort()
        refused_twice(producer)
        producer.send_all([b"five", b"six"], last)
        last.commit()
        assert consumer.values(6) == [b"one", b"two", b"three", b"four", b"five", b"six"]
        rest_is_empty(consumer, app, topic)


@pytest.mark.parametrize("action", [COMMIT, ABORT], ids=["commit", "abort"])
def test_a_producer_outlives_a_refused_message(
    place: Place, app: Client, topic: str, action: int
) -> None:
    """A transaction that has ended behind its client's back: the SEND fails with the reason, and
    what the producer sends then is stored."""
    consumer, producer = (
        app.consumer(topic, "s"),
        app.producer(topic, send_timeout_ms=SEND_TIMEOUT_MS),
    )
    for number in range(3):
        txn = app.transaction()
        producer.send(b"in %d" % number, txn)
        assert not place.ended(txn.id, action).HasField("error")
        with pytest.raises(ForeignError, match="begin another one"):
            producer.send(b"late", txn)
        producer.send(b"ordinary %d" % number)
    kinds = [b"in", b"ordinary"] if action == COMMIT else [b"ordinary"]
    assert consumer.values(3 * len(kinds)) == [
        kind + b" %d" % number for number in range(3) for kind in kinds
    ]
    rest_is_empty(consumer, app, topic)


def test_a_table_shows_what_is_committed(app: Client, topic: str) -> None:
    """Views of the latest value per key, and readers of the compacted topic, know committed
    values and no aborted ones."""
    name = f"persistent://public/default/{topic}"
    producer = app.producer(name, schema=schema_of_tables(app))
    producer.send(b"old", key="a")
    txn, aborted = app.transaction(), app.transaction()
    producer.send(b"new", txn, key="a")
    producer.send(b"never", aborted, key="a")
    producer.send(b"never", aborted, key="b")
    table = app.table(name)
    assert table.entries() == {"a": b"old"}
    aborted.abort()
    txn.commit()
    assert table.await_entry("a", b"new") == {"a": b"new"}
    producer.send(b"end", key="c")
    assert table.await_entry("c", b"end") == {"a": b"new", "c": b"end"}
    table.close()
    assert app.reader(name, read_compacted=True).values(3) == [b"old", b"new", b"end"]


def test_consume_transform_produce(app: Client, topic: str) -> None:
    """Input becomes output in transactions of five, every second of which is aborted at first:
    each exactly once, in order."""
    source = f"{topic}-source"
    inputs, watching = app.consumer(source, "work"), app.consumer(topic, "watch")
    app.producer(source).send_all([b"%d" % number for number in range(20)])
    output = app.producer(topic, batching=True)
    for start in range(0, 20, 5):
        for commits in [False, True] if start % 10 else [True]:
            messages = _expected(inputs, range(start, start + 5))
            txn = app.transaction()
            output.send_all([b"<%s>" % message.value for message in messages], txn)
            for message in messages:
                inputs.ack(message, txn=txn)
            txn.commit() if commits else txn.abort()
            if not commits:
                inputs.close()
                inputs = app.consumer(source, "work")
    assert watching.distinct_values(20) == [b"<%d>" % number for number in range(20)]
    rest_is_empty(watching, app, topic)
    inputs.close()
    rest_is_empty(app.consumer(source, "work"), app, source)


def _expected(consumer: Consumer, numbers: range) -> list[Received]:
    messages = consumer.receive(len(numbers))
    assert [int(message.value) for message in messages] == list(numbers)
    return messages


def test_ending_again_gives_the_same_answer(
    place: Place, driver: Driver, app: Client, topic: str
) -> None:
    """END_TXN after completion: the same again succeeds and changes nothing; the opposite is
    refused, naming the outcome."""
    watching, producer = app.consumer(topic, "watch"), app.producer(topic)
    committed, aborted = app.transaction(), app.transaction()
    producer.send(b"kept", committed)
    producer.send(b"never", aborted)
    committed.commit()
    aborted.abort()
    for _ in range(2):
        for txn, right, outcome in ((committed, COMMIT, "COMMITTED"), (aborted, ABORT, "ABORTED")):
            assert not place.ended(txn.id, right).HasField("error")
            wrong = place.ended(txn.id, 1 - right)
            assert (wrong.error, outcome in wrong.message) == (api.InvalidTxnStatus, True), wrong
            if driver.language == "java":
                txn.end_again(commit=right == COMMIT)
                with pytest.raises(ForeignError, match=f"InvalidTxnStatusException.*{outcome}"):
                    txn.end_again(commit=right != COMMIT)
    assert watching.values(1) == [b"kept"]
    rest_is_empty(watching, app, topic)


def test_transactions_outlive_a_crash(place: Place, app: Client, topic: str) -> None:
    """SIGKILL under a committed, an aborted and an open transaction: the open one goes on and
    commits, the others stay what they were."""
    source = f"{topic}-source"
    inputs = app.consumer(source, "work", type="Shared")
    app.producer(source).send_all([b"a", b"b", b"c"])
    first, second, third = inputs.receive(3)
    watching, producer = app.consumer(topic, "watch", type="Shared"), app.producer(topic)
    committed, aborted, left_open = [app.transaction() for _ in range(3)]
    for txn, message in ((committed, first), (aborted, second), (left_open, third)):
        producer.send_all([message.value + b"1", message.value + b"2"], txn)
        inputs.ack(message, txn=txn)
    committed.commit()
    aborted.abort()
    assert watching.values(2) == [b"a1", b"a2"]
    place.restart()
    producer.send(b"c3", left_open)
    assert inputs.distinct_values(1) == [b"b"]
    left_open.commit()
    assert watching.distinct_values(3) == [b"c1", b"c2", b"c3"]
    for txn, right in ((committed, COMMIT), (aborted, ABORT), (left_open, COMMIT)):
        assert not place.ended(txn.id, right).HasField("error")
        assert place.ended(txn.id, 1 - right).error == api.InvalidTxnStatus
    rest_is_empty(watching, app, topic)
    inputs.close()
    rest_is_empty(app.consumer(source, "work", type="Shared"), app, source)

"""The official Java and Go clients acknowledge in transactions: on every type of subscription, in
part and up to a message, against each other.

They run where `test_foreign_transactions` runs, on Apache Pulsar too.
"""

from __future__ import annotations

import pytest

from dev.testbed.foreign import Client, Consumer, Driver, ForeignError, Transaction, rest_is_empty
from dev.testbed.foreign_messages import Received
from tests.clients.places import ABORT, Place

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.etcd]

NUMBERS = [b"%d" % number for number in range(10)]
TYPES = ("Exclusive", "Failover", "Shared", "Key_Shared")


def test_a_second_transaction_conflicts(
    place: Place, driver: Driver, app: Client, topic: str
) -> None:
    """The holder of an acknowledgement keeps it; the other's client gets TransactionConflict,
    and cannot commit what it has sent."""
    source = f"{topic}-source"
    inputs = app.consumer(source, "work", type="Shared")
    app.producer(source).send(b"in")
    watching, producer = app.consumer(topic, "watch"), app.producer(topic)
    (message,) = inputs.receive(1)
    holder, late = app.transaction(), app.transaction()
    producer.send(b"late", late)
    inputs.ack(message, txn=holder)
    with pytest.raises(ForeignError, match="TransactionConflict"):
        inputs.ack(message, txn=late)
    with pytest.raises(ForeignError, match=r"TransactionHasOperationFailed|actual: TxnError"):
        late.commit()
    assert late.state == {"java": "ABORTED", "go": "ERROR"}[driver.language]
    producer.send(b"kept", holder)
    holder.commit()
    if driver.language == "go":  # it can neither commit nor abort a transaction with a failed part
        assert not place.ended(late.id, ABORT).HasField("error")
    assert watching.values(1) == [b"kept"]
    inputs.close()
    rest_is_empty(app.consumer(source, "work", type="Shared"), app, source)


def test_the_same_transaction_may_acknowledge_again(app: Client, topic: str) -> None:
    """A repetition within the transaction is no conflict."""
    inputs = app.consumer(topic, "work", type="Shared")
    app.producer(topic).send(b"in")
    (message,) = inputs.receive(1)
    txn = app.transaction()
    inputs.ack(message, txn=txn)
    inputs.ack(message, txn=txn)
    txn.commit()
    inputs.close()
    rest_is_empty(app.consumer(topic, "work", type="Shared"), app, topic)


@pytest.mark.parametrize("kind", TYPES)
def test_acknowledgements_of_every_type(app: Client, topic: str, kind: str) -> None:
    """Half is acknowledged and committed, half aborted: the latter comes again, in the order of
    its keys; then nothing is left."""
    consumer, producer = app.consumer(topic, "s", type=kind), app.producer(topic)
    for value in NUMBERS:
        producer.send(value, key=f"key-{int(value) % 3}")
    received = consumer.receive(10)
    committed, aborted = app.transaction(), app.transaction()
    for number, message in enumerate(received):
        consumer.ack(message, txn=committed if number % 2 else aborted)
    committed.commit()
    aborted.abort()
    again = _distinct(consumer, 5)
    assert sorted(message.value for message in again) == sorted(
        message.value for message in received[::2]
    )
    if kind != "Shared":
        assert all(_in_order(again, key) for key in {message.key for message in again})
    consumer.close()
    rest_is_empty(app.consumer(topic, "s", type=kind), app, topic)


def _distinct(consumer: Consumer, count: int) -> list[Received]:
    """The next `count` different messages, acknowledged; a client that asks for redelivery may
    see one twice."""
    found: dict[bytes, Received] = {}
    while len(found) < count:
        for message in consumer.receive(1, ack=True):
            found.setdefault(message.value, message)
    return list(found.values())


def _in_order(messages: list[Received], key: str | None) -> bool:
    values = [int(message.value) for message in messages if message.key == key]
    return values == sorted(values)


# the Go client has no cumulative acknowledgement in a transaction
@pytest.mark.parametrize("driver", ["java"], indirect=True)
def test_cumulative_acknowledgements(app: Client, topic: str) -> None:
    """Up to a message: an abort gives everything back, another transaction conflicts, a commit
    is for good."""
    consumer = app.consumer(topic, "s")
    app.producer(topic).send_all(NUMBERS)
    aborted = app.transaction()
    consumer.ack_cumulative(consumer.receive(10)[4], txn=aborted)
    aborted.abort()
    received = consumer.receive(10)
    assert [message.value for message in received] == NUMBERS
    holder, late = app.transaction(), app.transaction()
    consumer.ack_cumulative(received[4], txn=holder)
    with pytest.raises(ForeignError, match="TransactionConflict"):
        consumer.ack_cumulative(received[2], txn=late)
    late.abort()
    holder.commit()
    consumer.close()
    again = app.consumer(topic, "s")
    assert again.values(5) == NUMBERS[5:]
    rest_is_empty(again, app, topic)


@pytest.mark.parametrize("driver", ["java"], indirect=True)
def test_cumulative_acknowledgements_within_a_batch(app: Client, topic: str) -> None:
    """Transaction after transaction, each a few messages further into one batch, and behind an
    acknowledgement without one; a commit is for good."""
    consumer = app.consumer(topic, "s", batch_index_ack=True)
    app.producer(topic, batching=True, batching_max_messages=10, batching_delay_ms=60_000).send_all(
        NUMBERS
    )
    received = consumer.receive(10)
    assert [message.id.batch_index for message in received] == list(range(10))
    consumer.ack_cumulative(received[0])
    for number in (2, 5):
        txn = app.transaction()
        consumer.ack_cumulative(received[number], txn=txn)
        txn.commit()
    consumer.close()
    again = app.consumer(topic, "s", batch_index_ack=True)
    assert again.values(4) == NUMBERS[6:]
    rest_is_empty(again, app, topic)


def test_parts_of_a_batch(app: Client, topic: str) -> None:
    """Two of four messages of one entry in a committed transaction, one more in an aborted one:
    two are left."""
    consumer = app.consumer(topic, "s", type="Shared", batch_index_ack=True)
    app.producer(topic, batching=True, batching_max_messages=4, batching_delay_ms=60_000).send_all(
        NUMBERS[:4]
    )
    received = consumer.receive(4)
    assert [message.id.batch_index for message in received] == [0, 1, 2, 3]
    _ack_in(app.transaction(), consumer, received[:2]).commit()
    consumer.close()
    consumer = app.consumer(topic, "s", type="Shared", batch_index_ack=True)
    received = consumer.receive(2)
    assert [message.value for message in received] == NUMBERS[2:4]
    _ack_in(app.transaction(), consumer, received[:1]).abort()
    consumer.close()
    consumer = app.consumer(topic, "s", type="Shared", batch_index_ack=True)
    assert consumer.values(2) == NUMBERS[2:4]
    rest_is_empty(consumer, app, topic)


def _ack_in(txn: Transaction, consumer: Consumer, messages: list[Received]) -> Transaction:
    for message in messages:
        consumer.ack(message, txn=txn)
    return txn


def test_what_is_held_is_not_given_out(app: Client, topic: str) -> None:
    """Neither to a client that asks for it again, nor to the next consumer; an abort gives it to
    the consumers that are there."""
    consumer = app.consumer(topic, "s", type="Shared", nack_delay_ms=100)
    app.producer(topic).send_all([b"held", b"free"])
    held, free = consumer.receive(2)
    txn = app.transaction()
    consumer.ack(held, txn=txn)
    consumer.nack(held, free)
    assert consumer.receive(1)[0].value == b"free"
    consumer.close()
    consumer = app.consumer(topic, "s", type="Shared")
    assert consumer.values(1) == [b"free"]
    rest_is_empty(consumer, app, topic)
    txn.abort()
    assert consumer.values(1) == [b"held"]

"""What `magnetar.client` promises, tried on a server that is running.

Owns: scenarios that run unchanged against Magnetar (`tests/clients`) and against Apache Pulsar
(`python -m dev.peer_client`). Imports: magnetar.client. Invariant: each makes topics of its own and
ends with an assertion about what a fresh reader or consumer finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from magnetar.client import (
    EARLIEST,
    Batching,
    Client,
    Compression,
    Consumer,
    DeadLetterPolicy,
    JsonSchema,
    Message,
    RedeliveryBackoff,
    Transaction,
    TransactionAborted,
    TransactionState,
    exactly_once,
)
from magnetar.errors import TransactionConflict

QUIET_S = 1.0
SHORT_S = 5
"""What is done in a transaction that is to time out must be done by then."""
WAIT_S = 120.0


class Forced(Exception):  # what an application may raise
    """Raised by a scenario inside of a transaction."""


async def drained(consumer: Consumer, expected: int) -> list[Message]:
    """`expected` messages, and proof that no further one comes soon."""
    found = [await consumer.receive(WAIT_S) for _ in range(expected)]
    try:
        extra = await consumer.receive(QUIET_S)
    except TimeoutError:
        return found
    raise AssertionError(f"an unexpected message: {extra}")


def values(messages: Iterable[Message]) -> list[bytes]:
    """What messages say."""
    return [message.value for message in messages]


async def committed_messages_appear_together(client: Client, topic: str) -> None:
    """Two topics and one subscription: nothing is seen before the commit, everything after it."""
    source, one, two = (f"{topic}-{name}" for name in ("source", "one", "two"))
    watching = {
        name: await client.subscribe(name, "watch", initial_position="Earliest")
        for name in (one, two)
    }
    reading = await client.subscribe(source, "work", type="Shared", initial_position="Earliest")
    inputs, outputs = (
        await client.create_producer(source),
        [await client.create_producer(name) for name in (one, two)],
    )
    for number in range(4):
        await inputs.send(b"%d" % number)
    async with client.transaction() as txn:
        for message in [await reading.receive(WAIT_S) for _ in range(4)]:
            await asyncio.gather(*(producer.send(message.value, txn=txn) for producer in outputs))
            await reading.acknowledge(message, txn=txn)
        for consumer in watching.values():
            await drained(consumer, 0)
    assert txn.state is TransactionState.COMMITTED
    for consumer in watching.values():
        assert values(await drained(consumer, 4)) == [b"0", b"1", b"2", b"3"]
    reading.redeliver_unacknowledged()
    await drained(reading, 0)


async def aborted_messages_never_appear(client: Client, topic: str) -> None:
    """An exception aborts; what was acknowledged comes again."""
    source, target = f"{topic}-source", f"{topic}-target"
    watching = await client.subscribe(target, "watch", initial_position="Earliest")
    reading = await client.subscribe(source, "work", type="Shared", initial_position="Earliest")
    await (await client.create_producer(source)).send(b"in")
    output = await client.create_producer(target)
    message = await reading.receive(WAIT_S)
    try:
        async with client.transaction() as txn:
            await output.send(b"never", txn=txn)
            await reading.acknowledge(message, txn=txn)
            raise Forced
    except Forced:
        pass
    assert txn.state is TransactionState.ABORTED
    await output.send(b"after")
    assert values(await drained(watching, 1)) == [b"after"]
    assert values(await drained(reading, 1)) == [b"in"]


async def two_transactions_conflict_on_one_message(client: Client, topic: str) -> None:
    """The second acknowledgement is refused, and its transaction can only abort."""
    reading = await client.subscribe(topic, "work", type="Shared", initial_position="Earliest")
    await (await client.create_producer(topic)).send(b"in")
    message = await reading.receive(WAIT_S)
    async with client.transaction() as holder:
        await reading.acknowledge(message, txn=holder)
        late = client.transaction()
        await late.begin()
        try:
            await reading.acknowledge(message, txn=late)
        except TransactionConflict:
            pass
        else:
            raise AssertionError("the second acknowledgement was accepted")
        try:
            await late.commit()
        except TransactionAborted:
            pass
        else:
            raise AssertionError("a transaction with a failed part was committed")
    assert holder.state is TransactionState.COMMITTED
    reading.redeliver_unacknowledged()
    await drained(reading, 0)


async def a_transaction_that_timed_out_is_aborted(client: Client, topic: str) -> None:
    """Its commit comes too late and says so."""
    watching = await client.subscribe(topic, "watch", initial_position="Earliest")
    producer = await client.create_producer(topic)
    txn = client.transaction(timeout_s=SHORT_S)
    await txn.begin()
    await producer.send(b"late", txn=txn)
    await producer.send(b"plain")
    # Apache Pulsar holds it back until the transaction has ended
    assert values(await drained(watching, 1)) == [b"plain"]
    # the scenario is about a clock of the server that passes
    await asyncio.sleep(SHORT_S + 1)
    try:
        await txn.commit()
    except TransactionAborted:
        assert txn.state is TransactionState.ABORTED
    else:
        raise AssertionError("a transaction was committed after its timeout")


async def batches_and_cumulative_acknowledgements_in_transactions(
    client: Client, topic: str
) -> None:
    """Batched messages of a transaction, acknowledged one by one and up to one, aborted and then
    committed."""
    # one batch, however long it takes until all ten are there
    producer = await client.create_producer(topic, batching=Batching(messages_max=10, linger_s=60))
    async with client.transaction() as txn:
        await asyncio.gather(*(producer.send(b"%d" % number, txn=txn) for number in range(10)))
    reading = await client.subscribe(topic, "work", initial_position="Earliest")
    messages = await drained(reading, 10)
    assert values(messages) == [b"%d" % number for number in range(10)]
    assert messages[3].id.batch_index == 3
    txn = client.transaction()
    await txn.begin()
    await reading.acknowledge_cumulative(messages[9], txn=txn)
    await txn.abort()
    messages = await drained(reading, 10)
    async with client.transaction() as txn:
        for message in messages[:9]:
            await reading.acknowledge(message, txn=txn)
    await reading.close()
    reading = await client.subscribe(topic, "work")
    assert values(await drained(reading, 1)) == [b"9"]


async def a_poisonous_message_becomes_a_dead_letter(client: Client, topic: str) -> None:
    """Refused with back-off twice, not acknowledged in time once; then it lies in the
    dead-letter topic, and the subscription is empty."""
    policy = DeadLetterPolicy(3, initial_subscription="graves")
    reading = await client.subscribe(
        topic,
        "work",
        type="Shared",
        initial_position="Earliest",
        negative_ack_backoff=RedeliveryBackoff(0.05, 0.2),
        ack_timeout_s=3,
        dead_letter=policy,
    )
    producer = await client.create_producer(topic)
    await producer.send(b"fine")
    await producer.send(b"poison", key="k")
    attempts: list[int] = []
    # a busy client may acknowledge the other one so late that it comes again
    while len(attempts) < 4:
        message = await reading.receive(WAIT_S)
        if message.value == b"fine":
            await reading.acknowledge(message)
            continue
        attempts.append(message.redelivery_count)
        if message.redelivery_count != 1:
            reading.negative_acknowledge(message)
    assert attempts == [0, 1, 2, 3], attempts
    graves = await client.subscribe(f"{topic}-work-DLQ", "graves", initial_position="Earliest")
    (letter,) = await drained(graves, 1)
    assert (letter.value, letter.key, letter.properties["REAL_TOPIC"][-len(topic) :]) == (
        b"poison",
        "k",
        topic,
    )
    await reading.close()
    reading = await client.subscribe(topic, "work", type="Shared")
    await drained(reading, 0)


async def exactly_once_moves_every_message_once(client: Client, topic: str) -> None:
    """Batches of input become output; an exception of the work and a forced abort leave nothing
    double or missing."""
    source, target = f"{topic}-source", f"{topic}-target"
    watching = await client.subscribe(target, "watch", initial_position="Earliest")
    reading = await client.subscribe(
        source, "work", type="Shared", initial_position="Earliest", negative_ack_delay_s=0.1
    )
    inputs, output = (
        await client.create_producer(source, batching=Batching()),
        await client.create_producer(target),
    )
    await asyncio.gather(*(inputs.send(b"%d" % number) for number in range(200)))
    calls = 0

    async def work(messages: Sequence[Message], txn: Transaction) -> None:
        nonlocal calls
        calls += 1
        await asyncio.gather(*(output.send(message.value, txn=txn) for message in messages))
        if calls == 2:
            raise Forced
        if calls == 4:
            await txn.abort()

    moved = 0
    while True:
        try:
            moved += await exactly_once(client, reading, work, messages_max=50, idle_s=5)
        except Forced:
            continue
        break
    found = sorted(int(value) for value in values(await drained(watching, 200)))
    assert found == list(range(200))


@dataclass(frozen=True)
class Order:
    """What the typed scenario sends."""

    number: int
    customer: str
    note: str | None = None


async def typed_values_arrive_as_they_were_sent(client: Client, topic: str) -> None:
    """JSON of a dataclass with every codec, batched; a reader without a schema sees the bytes."""
    orders = JsonSchema(Order)
    consumer = await client.subscribe(topic, "work", schema=orders, initial_position="Earliest")
    expected = []
    for codec in Compression:
        producer = await client.create_producer(
            topic, schema=orders, compression=codec, batching=Batching(linger_s=0.01)
        )
        batch = [Order(number, codec.value, "x" * 1000) for number in range(5)]
        await asyncio.gather(
            *(
                producer.send(order, key=order.customer, event_time=order.number + 1)
                for order in batch
            )
        )
        await producer.close()
        expected += batch
    for order in expected:
        message = await consumer.receive(WAIT_S)
        assert (message.value, message.key, message.event_time_ms) == (
            order,
            order.customer,
            order.number + 1,
        )
        consumer.acknowledge_nowait(message)
    reader = await client.create_reader(topic, EARLIEST)
    raw = []
    while await reader.has_message_available():
        raw.append((await reader.receive(WAIT_S)).value)
    assert [orders.decode(data) for data in raw] == expected


async def a_message_beyond_the_limit_travels_in_chunks(client: Client, topic: str) -> None:
    """Two of 12 MB, interleaved with a small one; acknowledged, nothing of them is left."""
    consumer = await client.subscribe(topic, "work", type="Shared", initial_position="Earliest")
    one, two = [
        await client.create_producer(topic, chunking=True, send_timeout_s=None) for _ in range(2)
    ]
    large = [bytes([number]) * 12_000_000 for number in (1, 2)]
    await asyncio.gather(one.send(large[0]), two.send(large[1]), two.send(b"small"))
    messages = await drained(consumer, 3)
    assert sorted(values(messages)) == sorted([*large, b"small"])
    await asyncio.gather(*(consumer.acknowledge(message) for message in messages))
    await consumer.close()
    await drained(await client.subscribe(topic, "work", type="Shared"), 0)


BASIC: tuple[Callable[[Client, str], Awaitable[None]], ...] = (
    a_poisonous_message_becomes_a_dead_letter,
    typed_values_arrive_as_they_were_sent,
    a_message_beyond_the_limit_travels_in_chunks,
)
"""What every server offers."""
TRANSACTIONAL: tuple[Callable[[Client, str], Awaitable[None]], ...] = (
    committed_messages_appear_together,
    aborted_messages_never_appear,
    two_transactions_conflict_on_one_message,
    a_transaction_that_timed_out_is_aborted,
    batches_and_cumulative_acknowledgements_in_transactions,
    exactly_once_moves_every_message_once,
)
"""What needs transaction coordinators."""

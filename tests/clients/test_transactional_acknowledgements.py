"""Acknowledgements in transactions with our own client and a real server that is killed in
between: what is held, ended and delivered again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from dev.server_process import ServerProcess
from magnetar.client import (
    Batching,
    Client,
    Consumer,
    Message,
    MessageId,
    Transaction,
    TransactionAborted,
    exactly_once,
)
from magnetar.errors import TransactionConflict
from tests.clients.coordinators import ENDS_ARE_CARRIED_OUT

pytestmark = pytest.mark.slow

TIMEOUT_S = 300.0
RECEIVE_S = 120.0
QUIET_S = 0.3
SHORT_S = 10.0
"""What is done in a transaction that is to time out must be done by then."""
TYPES = ["Exclusive", "Shared", "Failover", "Key_Shared"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("acknowledgements"),
        environment={"MAGNETAR_FAILOVER_DELAY_MS": "0", **ENDS_ARE_CARRIED_OUT},
    ) as server:
        yield server


async def receive(consumer: Consumer[bytes], count: int) -> list[Message[bytes]]:
    return [await consumer.receive(RECEIVE_S) for _ in range(count)]


async def is_quiet(consumer: Consumer[bytes]) -> bool:
    """True once nothing has come for a moment; what would be wrong to come was there before.
    Raises AssertionError naming it."""
    try:
        message = await consumer.receive(QUIET_S)
    except TimeoutError:
        return True
    raise AssertionError(f"{message.id} came though a transaction holds it, or has acknowledged it")


async def published(client: Client, topic: str, count: int, *, batched: bool = False) -> None:
    batching = Batching(messages_max=count, linger_s=60.0) if batched else None
    producer = await client.create_producer(topic, batching=batching)
    sending = [
        asyncio.ensure_future(
            producer.send(b"%d" % number, key=str(number) if not batched else None)
        )
        for number in range(count)
    ]
    await asyncio.sleep(0)
    await producer.flush()
    await asyncio.gather(*sending)
    await producer.close()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("batched", [False, True], ids=["entries", "batch"])
async def test_commits_and_aborts_of_acknowledgements(
    own: ServerProcess, kind: str, batched: bool
) -> None:
    """Single messages and those of one batch: an abort brings them back, a commit does not, and
    SIGKILL undoes neither."""
    topic = f"ends-{kind}-{batched}"

    async with asyncio.timeout(TIMEOUT_S), Client(own.service_url) as client:
        consumer = await client.subscribe(topic, "s", type=kind, initial_position="Earliest")
        await published(client, topic, 6, batched=batched)
        messages = {message.value: message for message in await receive(consumer, 6)}
        aborted = client.transaction()
        await aborted.begin()
        for value in (b"0", b"3"):
            await consumer.acknowledge(messages[value], txn=aborted)
        async with client.transaction() as committed:
            for value in (b"1", b"2"):
                await consumer.acknowledge(messages[value], txn=committed)
        await asyncio.to_thread(own.kill)
        await asyncio.to_thread(own.start)
        await aborted.abort()
        again: set[bytes] = set()
        while not {b"0", b"3"} <= again:
            again.add((await consumer.receive(RECEIVE_S)).value)
        assert not again & {b"1", b"2"}, "acknowledged by a commit"
        await consumer.close()
        consumer = await client.subscribe(topic, "s", type=kind)
        left = await receive(consumer, 4)
        assert sorted(message.value for message in left) == [b"0", b"3", b"4", b"5"]
        async with client.transaction() as last:
            for message in left:
                await consumer.acknowledge(message, txn=last)
        await consumer.close()
        assert await is_quiet(await client.subscribe(topic, "s", type=kind))


async def test_a_conflict_names_the_holder_and_aborts_the_one_that_was_too_late(
    own: ServerProcess,
) -> None:
    """Two consumers of a subscription that were given the same message, one after the other."""

    topic = "conflict"
    async with asyncio.timeout(TIMEOUT_S), Client(own.service_url) as client:
        consumer = await client.subscribe(topic, "s", type="Shared", initial_position="Earliest")
        await published(client, topic, 2)
        first, second = await receive(consumer, 2)
        async with client.transaction() as holder:
            await consumer.acknowledge(first, txn=holder)
            late = client.transaction()
            await late.begin()
            with pytest.raises(TransactionConflict) as refusal:
                await consumer.acknowledge(first, txn=late)
            assert f"held by transaction {holder.id}" in str(refusal.value)
            with pytest.raises(TransactionAborted):
                await late.commit()
            await consumer.acknowledge(first, txn=holder)
        with pytest.raises(TransactionConflict, match="acknowledged already"):
            async with client.transaction() as late:
                await consumer.acknowledge(first, txn=late)
        await consumer.acknowledge(second)
        await consumer.close()
        assert await is_quiet(await client.subscribe(topic, "s", type="Shared"))


async def test_a_cumulative_acknowledgement_that_is_aborted_loses_nothing(
    own: ServerProcess,
) -> None:
    """Whatever the client has received and not handed out yet by then (Pulsar 10431): all of it
    comes, in order."""

    topic = "cumulative"
    async with asyncio.timeout(TIMEOUT_S), Client(own.service_url) as client:
        consumer = await client.subscribe(topic, "s", initial_position="Earliest")
        await published(client, topic, 20)
        for _ in range(3):
            messages = await receive(consumer, 10)
            assert [message.value for message in messages] == [
                b"%d" % number for number in range(10)
            ]
            txn = client.transaction()
            await txn.begin()
            await consumer.acknowledge_cumulative(messages[-1], txn=txn)
            await txn.abort()
        messages = await receive(consumer, 20)
        assert [message.value for message in messages] == [b"%d" % number for number in range(20)]
        async with client.transaction() as txn:
            await consumer.acknowledge_cumulative(messages[14], txn=txn)
        await consumer.close()
        consumer = await client.subscribe(topic, "s")
        assert [message.value for message in await receive(consumer, 5)] == [
            b"%d" % number for number in range(15, 20)
        ]


async def test_a_transaction_that_times_out_gives_back_what_it_holds(own: ServerProcess) -> None:
    """Nobody ends it but its coordinator, also when its client has gone; a consumer that is
    there gets the message."""

    topic = "timeout"
    async with asyncio.timeout(TIMEOUT_S), Client(own.service_url) as client:
        consumer = await client.subscribe(topic, "s", type="Shared", initial_position="Earliest")
        await published(client, topic, 1)
        (message,) = await receive(consumer, 1)
        txn = client.transaction(timeout_s=SHORT_S)
        await txn.begin()
        await consumer.acknowledge(message, txn=txn)
        (again,) = await receive(consumer, 1)
        assert (again.value, again.id) == (b"0", message.id)
        with pytest.raises(TransactionAborted):
            await txn.commit()
        await consumer.acknowledge(again)


@pytest.mark.parametrize("kind", ["Shared", "Failover"])
async def test_outputs_and_acknowledgements_are_one(own: ServerProcess, kind: str) -> None:
    """Consume, transform, produce: both or neither, with aborts, and the server killed while a
    transaction is open; each output is there once."""

    source, target, count = f"source-{kind}", f"target-{kind}", 24
    async with asyncio.timeout(TIMEOUT_S), Client(own.service_url) as client:
        consumer = await client.subscribe(source, "s", type=kind, initial_position="Earliest")
        seen = await client.subscribe(target, "s", initial_position="Earliest")
        output = await client.create_producer(target)
        await published(client, source, count)
        turn = 0

        async def work(messages: Sequence[Message[bytes]], txn: Transaction) -> None:
            nonlocal turn
            turn += 1
            for message in messages:
                await output.send(message.value + b"!", txn=txn)
                await consumer.acknowledge(message, txn=txn)
            if turn in (2, 5):
                await asyncio.to_thread(own.kill)
                await asyncio.to_thread(own.start)
            if turn % 3 == 1:
                await txn.abort()

        moving = asyncio.create_task(exactly_once(client, consumer, work, messages_max=4))
        outputs: dict[
            MessageId, bytes
        ] = {}  # a message may come twice, as nobody acknowledges it: an output may not be there twice
        while len(outputs) < count:
            message = await seen.receive()
            outputs[message.id] = message.value
        moving.cancel()
        await asyncio.wait([moving])
        for message in await seen.batch_receive(timeout_s=QUIET_S):
            outputs[message.id] = message.value
        assert turn > 5, "the server must be killed twice, or it proves little"
        assert sorted(outputs.values()) == sorted(b"%d!" % number for number in range(count))
        await consumer.close()
        assert await is_quiet(await client.subscribe(source, "s", type=kind))

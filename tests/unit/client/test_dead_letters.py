"""Dead letters of batches and chunks against a scripted broker: nothing is acknowledged unseen,
given up twice or forgotten when a step fails."""

from __future__ import annotations

from typing import Any

from magnetar.client import Client, Consumer, DeadLetterPolicy, MessageId
from magnetar.errors import WireCode
from magnetar.wire import commands
from magnetar.wire.entries import parse_entry
from tests.support.client_scenarios import acknowledged, batch, entry, redelivered, run
from tests.support.memory import ScriptedBroker, Session
from tests.support.scripted_coordinator import ScriptedCoordinator
from tests.support.scripted_coordinator import run as run_with_coordinator

DELAY_S = 0.02


async def subscribed(client: Client, **options: Any) -> Consumer[bytes]:
    """A consumer whose messages have their last chance with their first redelivery."""
    options = {
        "negative_ack_delay_s": DELAY_S,
        "dead_letter": DeadLetterPolicy(1, "graves"),
        **options,
    }
    return await client.subscribe("t", "s", type="Shared", **options)


def letters(broker: ScriptedBroker) -> list[bytes]:
    return [bytes(parse_entry(raw).payload) for _, raw in broker.stored]


def refuse_ack(broker: ScriptedBroker, number: int) -> None:
    """Have the acknowledgement of this number, from 1 on, refused for now."""

    def answer(_: Session, ack: Any) -> bytes:
        refusal = (
            (WireCode.SERVICE_NOT_READY, "is being unloaded")
            if len(broker.of("ack")) == number
            else ()
        )
        return commands.ack_response(ack.consumer_id, ack.request_id, *refusal)

    broker.script["ack"] = answer


def refuse_first_producer(broker: ScriptedBroker) -> None:
    def answer(_: Session, ask: Any) -> bytes:
        del broker.script["producer"]
        return commands.error(ask.request_id, WireCode.NOT_ALLOWED, "no")

    broker.script["producer"] = answer


def tracked(consumer: Consumer[bytes]) -> int:
    """Last chances that are remembered."""
    return len(consumer._partitions[0]._unacknowledged._last_chances)


def test_a_dead_entry_that_cannot_be_buried_is_asked_for_again() -> None:
    """Its messages were acknowledged in a transaction that was aborted, so that they came once
    too often."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        refuse_first_producer(broker)
        consumer = await subscribed(client)
        broker.deliver(0, [batch(b"a", b"b", b"c")], redelivery_counts=[1])
        messages = [await consumer.receive() for _ in range(2)]
        txn = client.transaction()
        await txn.begin()
        await consumer.acknowledge(messages[0], txn=txn)
        await txn.abort()
        broker.deliver(0, [batch(b"a", b"b", b"c")], redelivery_counts=[2])
        await broker.arrival("redeliver_unacknowledged_messages")
        assert (redelivered(broker), letters(broker), tracked(consumer)) == ([[0]], [], 0)
        broker.deliver(0, [batch(b"a", b"b", b"c")], redelivery_counts=[3])
        await broker.arrival("ack", 2)
        assert letters(broker) == [b"a", b"b", b"c"]

    run_with_coordinator(scenario)


def test_last_chances_of_what_transactions_acknowledge_are_forgotten() -> None:
    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        consumer = await subscribed(client)
        broker.deliver(0, [batch(b"a", b"b")], redelivery_counts=[1])
        async with client.transaction() as txn:
            for message in [await consumer.receive() for _ in range(2)]:
                assert tracked(consumer) == 1
                await consumer.acknowledge(message, txn=txn)
        assert tracked(consumer) == 0

    run_with_coordinator(scenario)


def test_what_is_a_dead_letter_already_may_be_refused_late() -> None:
    """By a handler that was slower than its time: the rest of the batch is not touched by that."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await subscribed(client, ack_timeout_s=0.05)
        broker.deliver(0, [batch(b"a", b"b", b"c")], redelivery_counts=[1])
        slow = await consumer.receive()
        await broker.arrival("ack", 1)
        consumer.negative_acknowledge(slow)
        rest = [await consumer.receive() for _ in range(2)]
        assert [message.value for message in rest] == [b"b", b"c"]
        for message in rest:
            await consumer.acknowledge(message)
        assert [acknowledged(ack) for ack in broker.of("ack")] == [
            [(0, [0b110])],
            [(0, [0b100])],
            [(0, [])],
        ]
        assert (letters(broker), redelivered(broker), tracked(consumer)) == ([b"a"], [], 0)

    run(scenario)


def test_the_rest_of_a_batch_has_its_time_again_when_one_of_it_is_buried() -> None:
    """`a` is refused, `b` is neither refused nor acknowledged: it is given up when its own time
    is over."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await subscribed(client, ack_timeout_s=0.1)
        broker.deliver(0, [batch(b"a", b"b")], redelivery_counts=[1])
        first, _second = [await consumer.receive() for _ in range(2)]
        consumer.negative_acknowledge(first)
        await broker.arrival("ack", 1)
        assert letters(broker) == [b"a"]
        await broker.arrival("ack", 2)
        assert letters(broker) == [b"a", b"b"]

    run(scenario)


def test_all_chunks_of_a_dead_letter_are_acknowledged_again_after_a_refusal() -> None:
    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        refuse_ack(broker, 1)
        consumer = await subscribed(client)
        chunks: dict[str, Any] = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 4}
        broker.deliver(
            0,
            [entry(b"ab", chunk_id=0, **chunks), entry(b"cd", chunk_id=1, **chunks)],
            redelivery_counts=[1, 1],
        )
        consumer.negative_acknowledge(await consumer.receive())
        await broker.arrival("ack", 2)
        assert [acknowledged(ack) for ack in broker.of("ack")] == [[(0, []), (1, [])]] * 2

    run(scenario)


def test_a_batch_that_was_acknowledged_whole_is_so_again_after_a_refusal() -> None:
    """A broker without acknowledgements of parts would keep it permanently."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        refuse_ack(broker, 2)
        consumer = await subscribed(client)
        broker.deliver(0, [batch(b"a", b"b")], redelivery_counts=[1])
        first, second = [await consumer.receive() for _ in range(2)]
        await consumer.acknowledge(first)
        consumer.negative_acknowledge(second)
        await broker.arrival("ack", 3)
        assert [acknowledged(ack) for ack in broker.of("ack")] == [
            [(0, [0b10])],
            [(0, [])],
            [(0, [])],
        ]

    run(scenario)


def test_an_entry_that_is_buried_is_not_given_up_once_more_when_its_time_is_over() -> None:
    """The application holds a message of an earlier delivery."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await subscribed(client, ack_timeout_s=0.05)
        broker.deliver(0, [batch(b"a", b"b")], redelivery_counts=[1])
        await consumer.receive()
        broker.deliver(0, [batch(b"a", b"b")], redelivery_counts=[2])
        await broker.arrival("ack", 1)
        assert (tracked(consumer), len(consumer._partitions[0]._unacknowledged._schedule)) == (0, 0)
        assert letters(broker) == [b"a", b"b"]

    run(scenario)


def test_an_id_of_a_whole_entry_refuses_all_that_is_held_of_it() -> None:
    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await subscribed(client)
        broker.deliver(0, [batch(b"a", b"b", b"c")], redelivery_counts=[1])
        first, _second = [await consumer.receive() for _ in range(2)]
        consumer.negative_acknowledge(MessageId(first.id.ledger, first.id.entry))
        await broker.arrival("ack", 2)
        assert letters(broker) == [b"a", b"b"]
        assert (await consumer.receive()).value == b"c"

    run(scenario)


def test_what_is_acknowledged_while_its_burial_fails_is_no_dead_letter() -> None:
    """Two were refused; the application acknowledges one of them after all, and only the other
    one is tried again."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        asked: list[tuple[Session, Any]] = []

        def hold(session: Session, ask: Any) -> None:
            asked.append((session, ask))
            del broker.script["producer"]

        broker.script["producer"] = hold
        consumer = await subscribed(client)
        broker.deliver(0, [batch(b"a", b"b", b"c")], redelivery_counts=[1])
        first, second, third = [await consumer.receive() for _ in range(3)]
        consumer.negative_acknowledge(first)
        consumer.negative_acknowledge(second)
        await broker.arrival("producer")
        await consumer.acknowledge(first)
        session, ask = asked[0]
        session.write(commands.error(ask.request_id, WireCode.NOT_ALLOWED, "no"))
        await broker.arrival("ack", 2)
        await consumer.acknowledge(third)
        assert [acknowledged(ack) for ack in broker.of("ack")] == [
            [(0, [0b110])],
            [(0, [0b100])],
            [(0, [])],
        ]
        assert (letters(broker), tracked(consumer)) == ([b"b"], 0)

    run(scenario)


def test_a_producer_of_dead_letters_that_was_refused_for_good_is_replaced() -> None:
    """Its topic was terminated, then deleted: the next attempt makes a producer of the topic
    that is there now."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        def terminated(_: Session, send: Any) -> bytes:
            del broker.script["send"]
            return commands.send_error(
                send.producer_id, send.sequence_id, WireCode.TOPIC_TERMINATED, "terminated"
            )

        broker.script["send"] = terminated
        consumer = await subscribed(client)
        broker.deliver(0, [entry(b"a")], redelivery_counts=[1])
        consumer.negative_acknowledge(await consumer.receive())
        await broker.arrival("ack", 1)
        assert (letters(broker), len(broker.of("producer"))) == ([b"a"], 2)

    run(scenario)


def test_nothing_is_buried_or_asked_for_after_close() -> None:
    """Neither what a slow handler refuses then, nor a dead entry that was on its way."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await subscribed(client, negative_ack_delay_s=0)
        broker.deliver(0, [entry(b"a")], redelivery_counts=[1])
        message = await consumer.receive()
        partition = consumer._partitions[0]
        await consumer.close()
        consumer.negative_acknowledge(message)
        partition._unacknowledged.bury(message.id.position, [message])
        assert (
            partition._unacknowledged._timer,
            partition._unacknowledged._burying,
            broker.of("producer"),
        ) == (None, set(), [])

    run(scenario)

"""Negative acknowledgements, timeouts, dead letters and grouped acknowledgements: the schedule
alone, and consumers against a scripted broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import Client, DeadLetterPolicy, RedeliveryBackoff
from magnetar.client.redelivery import Schedule
from magnetar.errors import InvalidRequest, WireCode
from magnetar.wire import commands
from magnetar.wire.commands import Position
from magnetar.wire.entries import parse_entry
from tests.support.client_scenarios import acknowledged, batch, entry, redelivered, run
from tests.support.memory import ScriptedBroker


def test_backoff_grows_by_its_factor_up_to_its_limit() -> None:
    """1, 2, 4, 5, 5 ...; a huge count costs nothing; nonsense is refused."""
    backoff = RedeliveryBackoff(1, 5, 2)
    assert [backoff.delay_s(count) for count in (0, 1, 2, 3, 4, 1 << 40)] == [1, 2, 4, 5, 5, 5]
    assert RedeliveryBackoff(2, 2, 1).delay_s(1 << 40) == 2
    for wrong in ((2.0, 1.0, 2.0), (-1.0, 1.0, 2.0), (1.0, 2.0, 0.5)):
        with pytest.raises(InvalidRequest, match="back-off"):
            RedeliveryBackoff(*wrong)
    with pytest.raises(InvalidRequest, match="redeliveries_max is 0"):
        DeadLetterPolicy(0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "discard", "through", "take", "clear"]),
            st.integers(0, 5),
            st.integers(0, 9),
        )
    )
)
def test_schedule_agrees_with_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    """The last wish for an entry counts; what is taken is due, in log order; `next` is the
    earliest."""
    schedule, model = Schedule(), dict[Position, float]()
    for step, number, moment in steps:
        position = Position(0, number)
        if step == "put":
            schedule.put(position, moment)
            model[position] = moment
        elif step == "discard":
            schedule.discard(position)
            model.pop(position, None)
        elif step == "through":
            schedule.discard_through(position)
            model = {entry: at for entry, at in model.items() if entry > position}
        elif step == "take":
            due = sorted(entry for entry, at in model.items() if at <= moment)
            assert schedule.take(moment) == due
            model = {entry: at for entry, at in model.items() if entry not in due}
        else:
            schedule.clear()
            model.clear()
        assert (schedule.next(), len(schedule)) == (min(model.values(), default=None), len(model))


def test_negative_acknowledgements_come_back_after_delays_of_their_own() -> None:
    """A message refused often waits longer; one acknowledged concurrently does not come."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        backoff = RedeliveryBackoff(0.02, 600, 100)
        consumer = await client.subscribe("t", "s", type="Shared", negative_ack_backoff=backoff)
        broker.deliver(
            0, [entry(b"often"), entry(b"first"), entry(b"fine")], redelivery_counts=[3, 0, 0]
        )
        often, first, fine = [await consumer.receive() for _ in range(3)]
        for message in (often, first, fine):
            consumer.negative_acknowledge(message)
        consumer.acknowledge_nowait(fine)
        await broker.arrival("redeliver_unacknowledged_messages")
        assert redelivered(broker) == [[1]]
        consumer.redeliver([often])
        await broker.arrival("redeliver_unacknowledged_messages", 2)
        assert redelivered(broker) == [[1], [0]]

    run(scenario)


def test_what_is_not_acknowledged_in_time_is_delivered_again() -> None:
    """Of a batch the whole entry, as long as one message of it is missing; messages that nobody
    took have no deadline."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type="Shared", ack_timeout_s=0.03)
        broker.deliver(0, [batch(b"a", b"b"), entry(b"c"), batch(b"d", b"e"), entry(b"f")])
        broker.sessions[-1].write(commands.PING)
        await broker.arrival("pong")  # everything is here: what follows happens in one turn
        for message in await consumer.batch_receive(4):
            if message.value != b"c":
                consumer.acknowledge_nowait(message)
        while sum(map(len, redelivered(broker))) < 2:
            await broker.arrival("redeliver_unacknowledged_messages", len(redelivered(broker)) + 1)
        assert [entry_id for ids in redelivered(broker) for entry_id in ids] == [1, 2]

    run(scenario)


def test_a_reconnect_forgets_what_comes_again_anyway() -> None:
    """After a new SUBSCRIBE the broker delivers everything unacknowledged; nothing is asked for
    on top."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type="Shared", negative_ack_delay_s=2.0)
        broker.deliver(0, [entry(b"a")])
        consumer.negative_acknowledge(await consumer.receive())
        broker.sessions[-1].drop()
        await broker.arrival("flow", 2)
        broker.deliver(0, [entry(b"b")], 1)
        consumer.negative_acknowledge(await consumer.receive())
        await broker.arrival("redeliver_unacknowledged_messages")
        assert redelivered(broker) == [[1]]

    run(scenario)


def test_messages_beyond_their_last_chance_become_dead_letters() -> None:
    """Refused once more: published with its origin, then acknowledged; one that comes once too
    often never reaches the application."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        policy = DeadLetterPolicy(2, initial_subscription="graves")
        consumer = await client.subscribe(
            "t", "s", type="Shared", negative_ack_delay_s=0.01, dead_letter=policy
        )
        fields = {"partition_key": "k", "event_time": 9}
        broker.deliver(
            0,
            [entry(b"last chance", **fields), entry(b"too often"), entry(b"young")],
            redelivery_counts=[2, 3, 1],
        )
        last, young = await consumer.receive(), await consumer.receive()
        assert (last.value, young.value) == (b"last chance", b"young")
        await broker.arrival("ack", 1)
        assert acknowledged(broker.of("ack")[0]) == [(1, [])]
        consumer.negative_acknowledge(last)
        await broker.arrival("ack", 2)
        assert acknowledged(broker.of("ack")[1]) == [(0, [])]
        assert broker.of("producer")[0].topic == "persistent://public/default/t-s-DLQ"
        assert broker.of("producer")[0].initial_subscription_name == "graves"
        assert len(broker.of("producer")) == 1
        letters = [parse_entry(raw) for _, raw in broker.stored]
        assert [bytes(letter.payload) for letter in letters] == [b"too often", b"last chance"]
        metadata = letters[1].metadata
        assert (metadata.partition_key, metadata.event_time) == ("k", 9)
        assert {pair.key: pair.value for pair in metadata.properties} == {
            "REAL_TOPIC": "persistent://public/default/t",
            "ORIGIN_MESSAGE_ID": "7:0:-1",
        }
        consumer.negative_acknowledge(young)
        await broker.arrival("redeliver_unacknowledged_messages")
        assert redelivered(broker) == [[2]]

    run(scenario)


def test_a_dead_letter_that_cannot_be_published_is_delivered_again() -> None:
    """Its topic refuses producers: the message is not acknowledged, and asked for again."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.script["producer"] = lambda _, ask: commands.error(
            ask.request_id, WireCode.NOT_ALLOWED, "no"
        )
        consumer = await client.subscribe(
            "t",
            "s",
            type="Shared",
            negative_ack_delay_s=0.01,
            dead_letter=DeadLetterPolicy(1, "graves"),
        )
        broker.deliver(0, [entry(b"x")], redelivery_counts=[2])
        await broker.arrival("redeliver_unacknowledged_messages")
        assert (redelivered(broker), broker.of("ack")) == ([[0]], [])
        await consumer.close()

    run(scenario)


def test_of_a_batch_only_what_was_refused_becomes_a_dead_letter() -> None:
    """What the application has taken and not refused stays with it, what it has not taken yet
    comes, and only the refused one is acknowledged."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe(
            "t",
            "s",
            type="Shared",
            negative_ack_delay_s=0.01,
            dead_letter=DeadLetterPolicy(1, "graves"),
        )
        broker.deliver(0, [batch(b"a", b"b", b"c", b"d")], redelivery_counts=[1])
        first, second = await _received(consumer, 2)
        consumer.negative_acknowledge(first)
        await broker.arrival("ack", 1)
        assert acknowledged(broker.of("ack")[0]) == [(0, [0b1110])]
        assert [bytes(parse_entry(raw).payload) for _, raw in broker.stored] == [b"a"]
        third, fourth = await _received(consumer, 2)
        assert (second.value, third.value, fourth.value) == (b"b", b"c", b"d")
        await consumer.acknowledge(second)
        consumer.negative_acknowledge(third)
        await consumer.acknowledge(fourth)
        await broker.arrival("ack", 4)
        assert [acknowledged(ack) for ack in broker.of("ack")[1:]] == [
            [(0, [0b1100])],
            [(0, [0b0100])],
            [(0, [])],
        ]
        assert [bytes(parse_entry(raw).payload) for _, raw in broker.stored] == [b"a", b"c"]
        assert redelivered(broker) == []

    run(scenario)


def test_of_a_batch_for_the_last_time_all_that_is_not_acknowledged_in_time_is_a_dead_letter() -> (
    None
):
    """Nothing was refused: what was taken is given up together, what was not taken is not."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe(
            "t", "s", type="Shared", ack_timeout_s=0.03, dead_letter=DeadLetterPolicy(1, "graves")
        )
        broker.deliver(0, [batch(b"a", b"b", b"c", b"d")], redelivery_counts=[1])
        broker.sessions[-1].write(commands.PING)
        await broker.arrival("pong")
        messages = await consumer.batch_receive(3)
        await consumer.acknowledge(messages[1])
        await broker.arrival("ack", 3)
        assert [acknowledged(ack) for ack in broker.of("ack")] == [
            [(0, [0b1101])],
            [(0, [0b1100])],
            [(0, [0b1000])],
        ]
        assert [bytes(parse_entry(raw).payload) for _, raw in broker.stored] == [b"a", b"c"]
        assert (await consumer.receive()).value == b"d"

    run(scenario)


def test_a_dead_letter_of_a_batch_that_cannot_be_published_is_tried_again() -> None:
    """It is neither acknowledged nor forgotten concurrently."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        refusals = [1, 2]

        def refuse(_: Any, ask: Any) -> bytes:
            refusals.pop()
            if not refusals:
                del broker.script["producer"]
            return commands.error(ask.request_id, WireCode.NOT_ALLOWED, "no")

        broker.script["producer"] = refuse
        consumer = await client.subscribe(
            "t",
            "s",
            type="Shared",
            negative_ack_delay_s=0.01,
            dead_letter=DeadLetterPolicy(1, "graves"),
        )
        broker.deliver(0, [batch(b"a", b"b")], redelivery_counts=[1])
        consumer.negative_acknowledge(await consumer.receive())
        await broker.arrival("ack", 1)
        assert acknowledged(broker.of("ack")[0]) == [(0, [0b10])]
        assert [bytes(parse_entry(raw).payload) for _, raw in broker.stored] == [b"a"]

    run(scenario)


def test_unconfirmed_acknowledgements_wait_for_others() -> None:
    """Within the group time they travel in one command; close sends what waits."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", ack_group_s=600)
        broker.deliver(0, [entry(b"a"), entry(b"b"), entry(b"c")])
        for message in await _received(consumer, 3):
            consumer.acknowledge_nowait(message)
            await asyncio.sleep(0)
        assert broker.of("ack") == []
        await consumer.close()
        assert [acknowledged(ack) for ack in broker.of("ack")] == [[(0, []), (1, []), (2, [])]]

    run(scenario)


async def _received(consumer: Any, count: int) -> list[Any]:
    return [await consumer.receive() for _ in range(count)]


def test_batch_receive_takes_what_is_here() -> None:
    """At most the number asked for, [] after the timeout, no waiting once there is one."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s")
        assert await consumer.batch_receive(2, timeout_s=0.005) == []
        broker.deliver(0, [batch(b"a", b"b", b"c")])
        assert [message.value for message in await consumer.batch_receive(2)] == [b"a", b"b"]
        assert [message.value for message in await consumer.batch_receive(2)] == [b"c"]

    run(scenario)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"dead_letter": DeadLetterPolicy(1)}, "needs a Shared"),
        ({"ack_timeout_s": 0}, "ack_timeout_s is 0"),
        ({"ack_group_s": -1}, "ack_group_s is -1"),
        ({"receiver_queue": 0}, "receiver_queue is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: dict[str, Any], text: str) -> None:
    """Before anything is sent, naming the field and the value."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        with pytest.raises(InvalidRequest, match=text):
            await client.subscribe("t", "s", **option)
        assert broker.of("subscribe") == []

    run(scenario)

"""Consumers and readers against a scripted broker: permits, acknowledgements, redelivery,
seeking, reconnects."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from magnetar.client import EARLIEST, AlreadyClosed, Client, ConnectionLost, MessageId
from magnetar.client.chunks import UNFINISHED_MESSAGES_MAX
from magnetar.errors import ConsumerBusy, InvalidRequest, WireCode
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import Position
from tests.support.client_scenarios import acknowledged, batch, entry, run
from tests.support.memory import MemoryNetwork, ScriptedBroker, Session


def test_messages_arrive_with_what_they_carry() -> None:
    """Key, properties, times, producer; the id has the partition of MESSAGE."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", initial_position="Earliest", consumer_name="me")
        ask = broker.of("subscribe")[0]
        assert (ask.topic, ask.subType, ask.initialPosition, ask.consumer_name) == (
            "persistent://public/default/t",
            0,
            1,
            "me",
        )
        properties = [api.KeyValue(key="a", value="b")]
        broker.deliver(
            0,
            [entry(b"v", partition_key="k", event_time=9, properties=properties)],
            partition=4,
            redelivery_counts=[2],
        )
        message = await consumer.receive()
        assert message.id == MessageId(7, 0, partition=4)
        assert str(message.id) == "7:0:4"
        assert (message.value, message.key, message.event_time_ms, message.publish_time_ms) == (
            b"v",
            "k",
            9,
            5,
        )
        assert (dict(message.properties), message.producer_name, message.redelivery_count) == (
            {"a": "b"},
            "p",
            2,
        )

    run(scenario)


def test_receive_times_out_and_iteration_ends_with_the_consumer() -> None:
    """TimeoutError leaves nothing behind; close ends `async for`."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s")
        with pytest.raises(TimeoutError):
            await consumer.receive(0.005)
        broker.deliver(0, [entry(b"a"), entry(b"b")])
        seen = []
        async for message in consumer:
            seen.append(message.value)
            if len(seen) == 2:
                await consumer.close()
        assert seen == [b"a", b"b"]
        with pytest.raises(AlreadyClosed):
            await consumer.receive()

    run(scenario)


def test_permits_are_given_again_at_half_the_queue_and_afresh_after_a_reconnect() -> None:
    """FLOW(10), then FLOW(5) per five messages taken; after a reconnect FLOW(10) and nothing
    from before is handed out."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", receiver_queue=10)
        await broker.arrival("flow")
        broker.deliver(0, [entry(b"%d" % index) for index in range(10)])
        for _ in range(4):
            await consumer.receive()
        assert [flow.messagePermits for flow in broker.of("flow")] == [10]
        await consumer.receive()
        assert (await broker.arrival("flow", 2)).messagePermits == 5
        broker.sessions[-1].drop()
        assert (await broker.arrival("flow", 3)).messagePermits == 10
        broker.deliver(0, [entry(b"again")], 5)
        assert (await consumer.receive()).value == b"again"

    run(scenario)


def test_a_batch_is_split_and_what_is_acknowledged_or_compacted_away_is_left_out() -> None:
    """ack_set bits of 0 were not charged; a compacted message was, so its permit returns."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", receiver_queue=2)
        broker.deliver(0, [batch(b"a", b"b", b"c", b"d", gone=(2,))], ack_sets=[[0b1110]])
        assert (await broker.arrival("flow", 2)).messagePermits == 1
        ids = [(await consumer.receive()).id for _ in range(2)]
        assert ids == [MessageId(7, 0, 1, -1, 4), MessageId(7, 0, 3, -1, 4)]

    run(scenario)


def test_acknowledging_parts_of_a_batch_sends_what_remains_and_the_last_part_the_whole() -> None:
    """Bits of 1 are not acknowledged yet; without any left the id stands alone."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type="Shared")
        broker.deliver(0, [batch(*(b"%d" % index for index in range(65))), entry(b"single")])
        messages = [await consumer.receive() for _ in range(66)]
        await consumer.acknowledge(messages[0])
        await consumer.acknowledge(messages[64])
        await consumer.acknowledge(messages[65])
        assert [acknowledged(ack) for ack in broker.of("ack")] == [
            [(0, [-2, 1])],
            [(0, [-2, 0])],
            [(1, [])],
        ]
        for message in messages[1:64]:
            consumer.acknowledge_nowait(message)
        last = acknowledged(await broker.arrival("ack", 4))
        assert last[-1] == (0, [])
        assert len(last) == 63
        with pytest.raises(InvalidRequest, match="Exclusive or Failover"):
            await consumer.acknowledge_cumulative(messages[0])

    run(scenario)


def test_cumulative_acknowledgement_covers_a_prefix_of_the_batch() -> None:
    """Index 1 of 3 leaves bit 2; index 2 covers the entry."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s")
        broker.deliver(0, [batch(b"a", b"b", b"c")])
        messages = [await consumer.receive() for _ in range(3)]
        await consumer.acknowledge_cumulative(messages[1])
        await consumer.acknowledge_cumulative(messages[2])
        assert [acknowledged(ack) for ack in broker.of("ack")] == [[(0, [0b100])], [(0, [])]]
        assert {ack.ack_type for ack in broker.of("ack")} == {api.CommandAck.Cumulative}

    run(scenario)


def test_acknowledge_reports_refusals_and_unknown_outcomes() -> None:
    """ACK_RESPONSE with an error raises it; a broken connection raises ConnectionLost."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s")
        broker.deliver(0, [entry(b"a")])
        message = await consumer.receive()
        broker.script["ack"] = lambda _, ack: commands.ack_response(
            ack.consumer_id, ack.request_id, WireCode.CONSUMER_BUSY, "no"
        )
        with pytest.raises(ConsumerBusy, match="no"):
            await consumer.acknowledge(message)
        broker.script["ack"] = lambda session, _: session.drop()
        with pytest.raises(ConnectionLost, match="outcome unknown"):
            await consumer.acknowledge(message)

    run(scenario)


def test_negative_acknowledgement_redelivers_single_messages_on_shared_subscriptions() -> None:
    """After its delay, those asked for, once; together, and sorted then, unless the machine was
    busy between the two."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type="Shared", negative_ack_delay_s=0.005)
        broker.deliver(0, [entry(b"a"), entry(b"b")])
        messages = [await consumer.receive() for _ in range(2)]
        consumer.negative_acknowledge(messages[1])
        consumer.negative_acknowledge(messages[0])
        asked: list[list[int]] = []
        while sum(map(len, asked)) < 2:
            command = await broker.arrival("redeliver_unacknowledged_messages", len(asked) + 1)
            asked.append([item.entryId for item in command.message_ids])
        assert asked in ([[0, 1]], [[1], [0]])

    run(scenario)


def test_redelivery_on_an_exclusive_subscription_starts_a_new_epoch() -> None:
    """What waits is dropped and its permits returned; messages of the old epoch that still
    arrive are dropped too."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", receiver_queue=4)
        broker.deliver(0, [entry(b"a"), entry(b"b"), entry(b"c")])
        await consumer.receive()
        consumer.redeliver_unacknowledged()
        asked = await broker.arrival("redeliver_unacknowledged_messages")
        assert (list(asked.message_ids), asked.consumer_epoch) == ([], 1)
        assert (await broker.arrival("flow", 2)).messagePermits == 2
        broker.deliver(0, [entry(b"old")], consumer_epoch=0)
        broker.deliver(0, [entry(b"new")], consumer_epoch=1)
        assert (await consumer.receive()).value == b"new"

    run(scenario)


def test_damaged_entries_are_reported_and_the_subscription_goes_on() -> None:
    """A wrong checksum is acknowledged with the reason, never handed out."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s")
        damaged = bytearray(entry(b"abc"))
        damaged[-1] ^= 1
        broker.deliver(0, [bytes(damaged), entry(b"ok")])
        assert (await consumer.receive()).value == b"ok"
        assert (await broker.arrival("ack")).validation_error == api.CommandAck.ChecksumMismatch

    run(scenario)


async def test_a_moved_consumer_follows_the_assigned_broker() -> None:
    """PIP-307 for consumers: no lookup, and permits are given there."""

    network = MemoryNetwork()
    broker, other = ScriptedBroker(network, "a"), ScriptedBroker(network, "b")
    async with Client("pulsar://a:6650", network=network) as client:
        consumer = await client.subscribe("t", "s")
        broker.sessions[-1].write(commands.close_consumer(0, other.url))
        await other.arrival("flow")
        other.deliver(0, [entry(b"x")])
        assert (await consumer.receive()).value == b"x"
    assert len(broker.of("lookup")) == 1


def test_busy_is_final_when_subscribing_but_not_when_coming_back() -> None:
    """Our own dead connection may hold an exclusive subscription for a while."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        def busy(_session: Session, ask: Any) -> bytes:
            return commands.error(ask.request_id, WireCode.CONSUMER_BUSY, "taken")

        consumer = await client.subscribe("t", "s")
        broker.script["subscribe"] = busy
        with pytest.raises(ConsumerBusy):
            await client.subscribe("t", "s")
        broker.sessions[-1].drop()
        await broker.arrival("subscribe", 3)
        del broker.script["subscribe"]
        await broker.arrival("flow", 2)
        broker.deliver(0, [entry(b"x")])
        assert (await consumer.receive()).value == b"x"

    run(scenario)


def test_seek_drops_what_was_on_its_way_and_comes_back() -> None:
    """The broker detaches us before SUCCESS; what it had sent before never appears."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s")
        broker.deliver(0, [entry(b"before")])

        def on_seek(session: Session, seek: Any) -> bytes:
            broker.deliver(0, [entry(b"on its way")], 1)
            session.write(commands.close_consumer(seek.consumer_id))
            return commands.success(seek.request_id)

        broker.script["seek"] = on_seek
        await consumer.seek(MessageId(3, 4))
        assert broker.of("seek")[0].message_id.entryId == 4
        await broker.arrival("flow", 2)
        broker.deliver(0, [entry(b"sought")], 4)
        assert (await consumer.receive()).value == b"sought"

    run(scenario)


def test_partitions_share_an_inbox_and_get_their_own_acknowledgements() -> None:
    """One consumer per partition, each acknowledged on its own."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 2
        consumer = await client.subscribe("t", "s")
        topics = {ask.topic[-1]: ask.consumer_id for ask in broker.of("subscribe")}
        for partition in (1, 0):
            broker.deliver(topics[str(partition)], [entry(b"%d" % partition)], partition=partition)
            message = await consumer.receive()
            assert (message.value, message.topic[-1]) == (b"%d" % partition, str(partition))
            await consumer.acknowledge(message)
        assert [ack.consumer_id for ack in broker.of("ack")] == [topics["1"], topics["0"]]
        with pytest.raises(InvalidRequest, match="without partitions"):
            await consumer.last_message_id()

    run(scenario)


def test_unsubscribe_deletes_and_close_leaves() -> None:
    """Both end the consumer; only one deletes the subscription."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        first = await client.subscribe("t", "one")
        second = await client.subscribe("t", "two")
        await first.unsubscribe()
        await second.close()
        await second.close()
        assert [ask.consumer_id for ask in broker.of("unsubscribe")] == [0]
        assert [ask.consumer_id for ask in broker.of("close_consumer")] == [1]

    run(scenario)


def test_a_reader_starts_behind_its_position_and_goes_on_behind_what_it_took() -> None:
    """The broker delivers the start entry again, whole; the client leaves out what comes before."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        reader = await client.create_reader("t", MessageId(7, 3, 1, -1, 3))
        ask = broker.of("subscribe")[0]
        assert (ask.durable, ask.start_message_id.entryId, ask.subscription[:7]) == (
            False,
            3,
            "reader-",
        )
        broker.deliver(0, [batch(b"a", b"b", b"c"), entry(b"d")], 3)
        assert (await reader.receive()).value == b"c"
        broker.sessions[-1].drop()
        again = await broker.arrival("subscribe", 2)
        assert (again.start_message_id.entryId, again.start_message_id.batch_index) == (3, 2)
        await broker.arrival("flow", 2)
        broker.deliver(0, [batch(b"a", b"b", b"c"), entry(b"d")], 3)
        assert (await reader.receive()).value == b"d"

    run(scenario)


def test_has_message_available_compares_with_what_was_taken() -> None:
    """Empty topic, unread topic, read to the end."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        last = [commands.message_id_data(commands.EARLIEST)]
        broker.script["get_last_message_id"] = lambda _, ask: commands.last_message_id(
            ask.request_id, last[0]
        )
        reader = await client.create_reader("t", EARLIEST)
        assert not await reader.has_message_available()
        last[0] = commands.message_id_data(Position(7, 0))
        assert await reader.has_message_available()
        broker.deliver(0, [entry(b"a")])
        assert (await reader.receive()).value == b"a"
        assert not await reader.has_message_available()
        assert await reader.last_message_id() == MessageId(7, 0)

    run(scenario)


def test_a_silent_broker_is_left_and_a_ping_is_answered() -> None:
    """Keep-alive: PING after an interval, reconnect when nothing came since."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        await client.subscribe("t", "s")
        broker.sessions[-1].write(commands.PING)
        await broker.arrival("pong")
        await broker.arrival("ping")
        broker.script["ping"] = lambda *_: None
        await broker.arrival("subscribe", 2)
        assert len(broker.sessions) == 2

    run(scenario, keep_alive_s=0.3)


def test_a_refused_handshake_is_a_typed_error() -> None:
    """ERROR with request id -1 answers CONNECT."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.script["connect"] = lambda *_: commands.error(
            commands.NO_REQUEST, WireCode.CONSUMER_BUSY, "go away"
        )
        with pytest.raises(ConsumerBusy, match="go away"):
            await client.subscribe("t", "s")

    run(scenario)


def test_a_cancelled_subscribe_leaves_nothing_attached() -> None:
    """One partition attached, the other hung: the client closes both."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 2
        broker.script["subscribe"] = lambda _, ask: (
            commands.success(ask.request_id) if ask.topic.endswith("0") else None
        )
        subscribing = asyncio.create_task(client.subscribe("t", "s"))
        await broker.arrival("subscribe", 2)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        await broker.arrival("close_consumer", 2)
        assert {ask.consumer_id for ask in broker.of("close_consumer")} == {0, 1}

    run(scenario)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
def test_messages_whose_chunks_never_end_do_not_keep_back_others(kind: str) -> None:
    """More unfinished messages than a consumer holds: what follows arrives, and they are not
    asked for at once, again and again."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type=kind, negative_ack_delay_s=0.2)
        chunks = [
            entry(
                b"x", uuid=f"u{number}", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=9
            )
            for number in range(UNFINISHED_MESSAGES_MAX + 2)
        ]
        broker.deliver(0, [*chunks, entry(b"good")])
        assert (await consumer.receive()).value == b"good"
        assert broker.of("redeliver_unacknowledged_messages") == []
        if kind == "Shared":
            # Two were given up one after the other: a tick of the tracker may come between them.
            asked: list[int] = []
            for count in itertools.count(1):
                command = await broker.arrival("redeliver_unacknowledged_messages", count)
                asked += [found.entryId for found in command.message_ids]
                if len(asked) >= 2:
                    break
            assert asked == [0, 1]

    run(scenario)

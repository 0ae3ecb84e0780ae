"""Producers against a scripted broker: order over reconnects, refusals, batches, limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.client import AlreadyClosed, Batching, Client, SendTimeout
from magnetar.client.messages import MessageId
from magnetar.errors import (
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    ServiceNotReady,
    TopicNotFound,
    WireCode,
)
from magnetar.wire import commands
from magnetar.wire.commands import DUPLICATE
from magnetar.wire.entries import decode_batch, parse_entry
from tests.support.client_scenarios import run_on_network as run
from tests.support.memory import MemoryNetwork, ScriptedBroker, Session


def hold_sends(broker: ScriptedBroker) -> list[int]:
    """Let the broker swallow SENDs; returns the list of their sequence ids."""
    held: list[int] = []

    def swallow(_session: Session, send: Any) -> None:
        held.append(send.sequence_id)

    broker.script["send"] = swallow
    return held


def test_an_option_that_no_message_has_is_refused() -> None:
    """A misspelt option raises TypeError instead of being dropped silently."""

    async def scenario(_: MemoryNetwork, _broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")
        misspelt: dict[str, Any] = {"sequence": 1}
        with pytest.raises(TypeError, match="sequence"):
            await producer.send(b"x", **misspelt)
        with pytest.raises(TypeError, match="sequence"):
            producer.send_nowait(b"x", **misspelt)

    run(scenario)


def test_a_message_is_sent_and_its_receipt_gives_the_id() -> None:
    """Key, properties, times and sequence ids arrive; the id is the broker's."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")
        assert producer.name == "made-up"
        assert await producer.send(b"zero") == MessageId(7, 0)
        assert await producer.send(None, key="k", properties={"a": "b"}, event_time=5) == MessageId(
            7, 1
        )
        entry = parse_entry(broker.stored[1][1])
        assert (
            entry.metadata.sequence_id,
            entry.metadata.partition_key,
            entry.metadata.event_time,
        ) == (1, "k", 5)
        assert (entry.metadata.null_value, entry.batched, bytes(entry.payload)) == (
            True,
            False,
            b"",
        )
        assert entry.metadata.properties[0].key == "a"

    run(scenario)


def test_the_queue_is_sent_again_in_order_after_a_reconnect() -> None:
    """The connection breaks with five messages in flight; their bytes come again, once each, in
    order, before a sixth."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")
        held = hold_sends(broker)
        receipts = [producer.send_nowait(b"%d" % index) for index in range(5)]
        await broker.arrival("send", 5)
        assert held == [0, 1, 2, 3, 4]
        del broker.script["send"]
        broker.sessions[-1].drop()
        receipts.append(producer.send_nowait(b"5"))
        ids = await asyncio.gather(*receipts)
        assert [sequence for sequence, _ in broker.stored] == [0, 1, 2, 3, 4, 5]
        assert ids == [MessageId(7, index) for index in range(6)]
        first, again = broker.of("producer")
        assert (again.producer_name, again.epoch) == ("made-up", first.epoch + 1)

    run(scenario)


def test_a_persistence_error_reconnects_and_sends_again() -> None:
    """SEND_ERROR PersistenceError means try again; nothing fails and order holds."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")

        def refuse_once(_session: Session, send: Any) -> bytes:
            del broker.script["send"]
            return commands.send_error(
                send.producer_id, send.sequence_id, WireCode.PERSISTENCE, "disk"
            )

        broker.script["send"] = refuse_once
        await asyncio.gather(producer.send_nowait(b"a"), producer.send_nowait(b"b"))
        assert [sequence for sequence, _ in broker.stored][-2:] == [0, 1]

    run(scenario)


def test_a_final_refusal_fails_its_message_only() -> None:
    """SEND_ERROR NotAllowed is the answer to that message; the next one goes through."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")
        broker.script["send"] = lambda _, send: commands.send_error(
            send.producer_id, send.sequence_id, WireCode.NOT_ALLOWED, "Exceed maximum message size"
        )
        with pytest.raises(NotAllowed, match="Exceed"):
            await producer.send(b"a")
        del broker.script["send"]
        assert await producer.send(b"b")

    run(scenario)


def test_a_move_with_an_assigned_url_is_followed_without_a_lookup() -> None:
    """PIP-307: CLOSE_PRODUCER names broker b; the queue arrives there."""

    async def scenario(network: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        other = ScriptedBroker(network, "b")
        producer = await client.create_producer("t")
        hold_sends(broker)
        receipt = producer.send_nowait(b"x")
        await broker.arrival("send")
        broker.sessions[-1].write(commands.close_producer(0, other.url))
        await receipt
        assert [sequence for sequence, _ in other.stored] == [0]
        assert len(broker.of("lookup")) == 1
        assert other.of("lookup") == []

    run(scenario)


def test_a_close_without_url_looks_the_topic_up_again() -> None:
    """Also when the successor that was named does not answer."""

    async def scenario(network: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        other = ScriptedBroker(network, "b")
        producer = await client.create_producer("t")
        broker.script["lookup"] = lambda _, lookup: commands.lookup_connect(
            lookup.request_id, other.url
        )
        broker.sessions[-1].write(commands.close_producer(0, "pulsar://nobody:1"))
        await other.arrival("producer")
        await producer.send(b"x")
        assert len(broker.of("lookup")) == 2
        assert len(other.stored) == 1

    run(scenario)


def test_lookups_follow_redirects_and_pass_authoritative_on() -> None:
    """a redirects to b, b to c; c serves."""

    async def scenario(network: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        b, c = ScriptedBroker(network, "b"), ScriptedBroker(network, "c")
        broker.script["lookup"] = lambda _, ask: commands.lookup_redirect(
            ask.request_id, b.url, authoritative=True
        )
        b.script["lookup"] = lambda _, ask: commands.lookup_redirect(
            ask.request_id, c.url, authoritative=False
        )
        await (await client.create_producer("t")).send(b"x")
        assert [broker.of("lookup")[0].authoritative, b.of("lookup")[0].authoritative] == [
            False,
            True,
        ]
        assert c.of("lookup")[0].authoritative is False
        assert len(c.stored) == 1

    run(scenario)


def test_endless_redirects_end_with_an_error() -> None:
    """A broker that redirects to itself is asked at most 21 times per attempt."""

    async def scenario(network: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        del network
        broker.script["lookup"] = lambda _, ask: commands.lookup_redirect(
            ask.request_id, broker.url, authoritative=False
        )
        with pytest.raises(ServiceNotReady, match="redirected more than 20 times"):
            await client._session.pool.locate("persistent://public/default/t")
        assert len(broker.of("lookup")) == 21

    run(scenario)


def test_a_proxied_broker_is_reached_through_the_service_url() -> None:
    """proxy_through_service_url: connect to the service address, naming the broker in CONNECT."""

    async def scenario(network: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        broker.script["lookup"] = lambda _, ask: commands.lookup_connect(
            ask.request_id, "pulsar://inner:6650", through_proxy=True
        )
        await client.create_producer("t")
        assert network.connected == [("a", 6650), ("a", 6650)]
        assert [connect.proxy_to_broker_url for connect in broker.of("connect")] == [
            "",
            "inner:6650",
        ]

    run(scenario)


def test_a_refused_producer_raises_the_typed_error_at_once() -> None:
    """TopicNotFound is final; ServiceNotReady is tried again."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        broker.script["producer"] = lambda _, ask: commands.error(
            ask.request_id, WireCode.TOPIC_NOT_FOUND, "absent"
        )
        with pytest.raises(TopicNotFound, match="absent"):
            await client.create_producer("t")
        assert len(broker.of("producer")) == 1

        def unready_once(_session: Session, ask: Any) -> bytes:
            del broker.script["producer"]
            return commands.error(ask.request_id, WireCode.SERVICE_NOT_READY, "is being unloaded")

        broker.script["producer"] = unready_once
        await client.create_producer("t")
        assert len(broker.of("producer")) == 3

    run(scenario)


def test_batches_hold_what_was_sent_together_and_ids_name_the_place_inside() -> None:
    """Three messages share an entry; a lone one is sent unbatched."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer(
            "t", batching=Batching(messages_max=3, linger_s=5), compression="zlib"
        )
        receipts = [producer.send_nowait(b"m%d" % index, key=f"k{index}") for index in range(4)]
        assert await receipts[1] == MessageId(7, 0, 1, -1, 3)
        send = broker.of("send")[0]
        assert (send.sequence_id, send.highest_sequence_id, send.num_messages) == (0, 2, 3)
        entry = parse_entry(broker.stored[0][1])
        assert entry.metadata.compression == 2
        import zlib

        batch = decode_batch(entry.metadata, zlib.decompress(entry.payload))
        assert [(bytes(item.payload), item.metadata.partition_key) for item in batch] == [
            (b"m0", "k0"),
            (b"m1", "k1"),
            (b"m2", "k2"),
        ]
        await producer.flush()
        assert await receipts[3] == MessageId(7, 1)
        assert not parse_entry(broker.stored[1][1]).batched

    run(scenario)


def test_linger_sends_an_open_batch() -> None:
    """Without reaching a limit."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", batching=Batching(linger_s=0.005))
        await asyncio.gather(*(producer.send(b"x") for _ in range(4)))
        assert [send.num_messages for send in broker.of("send")] == [4]

    run(scenario)


def test_partitions_by_key_as_java_chooses_and_in_turn_without() -> None:
    """hash("key") = 106079 in Java, so partition 3 of 4; keyless messages visit every partition."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 4
        producer = await client.create_producer("t")
        topics = {ask.producer_id: ask.topic for ask in broker.of("producer")}
        for _index in range(2):
            await producer.send(b"x", key="key")
        assert {topics[send.producer_id] for send in broker.of("send")} == {
            "persistent://public/default/t-partition-3"
        }
        ids = [await producer.send(b"x") for _ in range(4)]
        assert {message_id.partition for message_id in ids} == {0, 1, 2, 3}

    run(scenario)


def test_pending_messages_are_limited_and_waiting_senders_keep_their_order() -> None:
    """send_nowait refuses, send waits; first come, first served."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", pending_max=2)
        held = hold_sends(broker)
        sends = [asyncio.create_task(producer.send(b"%d" % index)) for index in range(6)]
        await broker.arrival("send", 2)
        with pytest.raises(LimitExceeded, match="wait for receipts"):
            producer.send_nowait(b"x")
        assert held == [0, 1]
        del broker.script["send"]
        broker.sessions[-1].drop()
        await asyncio.gather(*sends)
        assert [bytes(parse_entry(entry).payload) for _, entry in broker.stored] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
            b"5",
        ]

    run(scenario)


def test_a_send_without_receipt_times_out_and_a_late_receipt_harms_nothing() -> None:
    """The outcome is unknown, and the next message still gets its own receipt."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", send_timeout_s=2.0)
        hold_sends(broker)
        with pytest.raises(SendTimeout, match="outcome unknown"):
            await producer.send(b"a")
        del broker.script["send"]
        broker.sessions[-1].write(commands.send_receipt(0, 0, commands.Position(7, 99)))
        assert (await producer.send(b"b")).entry == 0

    run(scenario)


def test_a_receipt_from_the_future_makes_the_client_reconnect() -> None:
    """A gap in receipts would mean a lost message."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")
        hold_sends(broker)
        receipts = [producer.send_nowait(b"a"), producer.send_nowait(b"b")]
        await broker.arrival("send", 2)
        del broker.script["send"]
        broker.sessions[-1].write(commands.send_receipt(0, 1, commands.Position(7, 1)))
        await asyncio.gather(*receipts)
        assert [sequence for sequence, _ in broker.stored] == [0, 1]
        assert len(broker.of("producer")) == 2

    run(scenario)


def test_sequence_ids_go_on_where_the_broker_remembers_and_duplicates_are_successes() -> None:
    """PRODUCER_SUCCESS.last_sequence_id, and ids of (-1, -1)."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        broker.script["producer"] = lambda _, ask: commands.producer_success(
            ask.request_id, ask.producer_name, 41
        )
        producer = await client.create_producer("t", "me")
        await producer.send(b"x")
        assert broker.of("send")[0].sequence_id == 42
        broker.script["send"] = lambda _, send: commands.send_receipt(
            send.producer_id, send.sequence_id, DUPLICATE
        )
        assert await producer.send(b"x", sequence_id=7) == MessageId(-1, -1)

    run(scenario)


def test_too_large_messages_fail_here() -> None:
    """The limit is the broker's, from CONNECTED."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")
        with pytest.raises(InvalidRequest, match="exceeds the limit of 100000"):
            await producer.send(b"x" * 100_001)
        await producer.send(b"x" * 99_000)
        assert len(broker.of("send")) == 1

    run(scenario)


def test_close_waits_for_receipts_then_leaves_and_later_use_is_refused() -> None:
    """CLOSE_PRODUCER comes after the last SEND."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", batching=Batching(linger_s=5))
        receipt = producer.send_nowait(b"x")
        await producer.close()
        assert receipt.done()
        assert [name for name, _ in broker.received][-2:] == ["send", "close_producer"]
        with pytest.raises(AlreadyClosed):
            producer.send_nowait(b"y")
        await producer.close()

    run(scenario)


def test_deliver_after_is_a_moment_of_the_clients_clock() -> None:
    """Both ways at once, and what is no time to wait, are refused."""

    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t")
        for after in (90, 90.0):
            before = client.clock.wall_ms()
            await producer.send(b"x", deliver_after=after)
            due_ms = parse_entry(broker.stored[-1][1]).metadata.deliver_at_time
            assert before + 90_000 <= due_ms <= client.clock.wall_ms() + 90_000
        refused: tuple[dict[str, Any], ...] = (
            {"deliver_after": -1},
            {"deliver_after": float("nan")},
            {"deliver_after": 1, "deliver_at": 5},
        )
        for options in refused:
            with pytest.raises(InvalidRequest, match="deliver_after"):
                await producer.send(b"x", **options)

    run(scenario)


def test_a_cancelled_send_that_waits_for_room_sends_nothing() -> None:
    async def scenario(_: MemoryNetwork, broker: ScriptedBroker, client: Client) -> None:
        held = hold_sends(broker)
        producer = await client.create_producer("t", pending_max=1, send_timeout_s=None)
        first = producer.send_nowait(b"a")
        waits = asyncio.create_task(producer.send(b"b"))
        await asyncio.sleep(0.01)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert waits.cancelled()
        assert not first.done()
        assert held == [0]
        assert producer.last_sequence_id == 0
        first.cancel()

    run(scenario)


def test_a_cancelled_send_that_was_queued_is_sent_all_the_same() -> None:
    """Its receipt disturbs nobody, and later messages get theirs."""

    async def scenario(_: MemoryNetwork, _broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", batching=Batching(linger_s=0.02))
        cancelled = asyncio.create_task(producer.send(b"a"))
        other = asyncio.create_task(producer.send(b"b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await other).entry == 0
        assert cancelled.cancelled()
        assert (await producer.send(b"c")).entry == 1
        assert producer.last_sequence_id == 2

    run(scenario)

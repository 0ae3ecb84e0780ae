"""Delivery seen from the other end of a real socket: delays, chunks, readers, acknowledgements,
statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.clock import SystemClock
from magnetar.errors import WireCode
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.topics.dispatch.base import Delivery
from magnetar.topics.dispatch.shared import SharedDispatcher
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.frames import encode_command
from tests.support.brokers import CLOCK, SETTINGS, TOPIC, Node, Peer, Type, open_peer
from tests.support.deliveries import (
    EXCLUSIVE,
    LATEST_ID,
    NOBODY,
    SHARED,
    acknowledge,
    ask,
    play,
    publish,
    received,
    redelivery,
    seek,
)

# --- readers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ((0, 1), [1, 2]),
        ((0, NOBODY), [0, 1, 2]),
        ((NOBODY, NOBODY), [0, 1, 2]),
        ((LATEST_ID, LATEST_ID), []),
    ],
    ids=["an entry", "before the first", "earliest", "latest"],
)
def test_where_a_reader_starts(tmp_path: Path, start: tuple[int, int], expected: list[int]) -> None:
    """At the entry itself, whole (the client leaves out what it has seen); whatever the initial
    position says."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for _ in range(3):
            identifier = await publish(peer)
        ledger = start[0] or identifier.ledgerId
        request = api.CommandSubscribe(
            topic=TOPIC,
            subscription="reader-1",
            subType=EXCLUSIVE,
            consumer_id=1,
            request_id=5,
            consumer_name="",
            durable=False,
        )
        request.start_message_id.CopyFrom(api.MessageIdData(ledgerId=ledger, entryId=start[1]))
        (answer,) = await ask(peer, "subscribe", request)
        assert answer.type == Type.SUCCESS
        peer.write(requests.flow(1, 10))
        assert [(await peer.message())[0].message_id.entryId for _ in expected] == expected
        assert await peer.is_quiet()

    play(tmp_path, script)


def test_a_reader_starts_with_the_first_chunk_of_a_message(tmp_path: Path) -> None:
    """The id of a chunked message is its last chunk's; the first one's travels inside."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await publish(peer)
        ids = [
            await publish(
                peer, uuid="u", chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3
            )
            for number in range(3)
        ]
        start = api.MessageIdData(
            ledgerId=ids[2].ledgerId, entryId=ids[2].entryId, first_chunk_message_id=ids[0]
        )
        request = api.CommandSubscribe(
            topic=TOPIC,
            subscription="reader-1",
            subType=EXCLUSIVE,
            consumer_id=1,
            request_id=5,
            durable=False,
            start_message_id=start,
        )
        await ask(peer, "subscribe", request)
        assert await received(peer, 3) == [1, 2, 3]
        await seek(peer, message_id=start)
        await ask(peer, "subscribe", request)
        assert await received(peer, 3) == [1, 2, 3]

    play(tmp_path, script)


def test_durable_and_not_durable_do_not_mix(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await peer.subscribe(subType=SHARED)
        async with open_peer(broker) as other:
            answer = await other.subscribe(subType=SHARED, durable=False)
            assert answer.error.error == int(WireCode.NOT_ALLOWED)

    play(tmp_path, script)


# --- acknowledgements -----------------------------------------------------------------------------


def test_an_acknowledgement_that_can_do_nothing_is_answered_too(tmp_path: Path) -> None:
    """Foreign ids, ids not delivered or not there yet, no ids, several cumulative ones, before
    the consumer is there and after it was closed."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        real = await publish(peer)
        early = await acknowledge(peer, real)
        assert early.error == int(WireCode.CONSUMER_NOT_FOUND)
        await peer.subscribe()
        foreign = api.MessageIdData(ledgerId=real.ledgerId + 5, entryId=3)
        ahead = api.MessageIdData(ledgerId=real.ledgerId, entryId=3)
        for identifiers, cumulative in (
            ((foreign, ahead), False),
            ((), False),
            ((foreign,), True),
            ((ahead,), True),
            ((real, real), True),
        ):
            response = await acknowledge(peer, *identifiers, cumulative=cumulative)
            assert (response.consumer_id, response.request_id, response.HasField("error")) == (
                1,
                9,
                False,
            )
        assert await received(peer, 1) == [0], "nothing of that acknowledged it"
        await peer.ask("close_consumer", consumer_id=1)
        refused = await acknowledge(peer, real)
        assert refused.error == int(WireCode.CONSUMER_NOT_FOUND)

    play(tmp_path, script)


def test_what_was_not_delivered_may_be_acknowledged(tmp_path: Path) -> None:
    """It then never comes."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ids = [await publish(peer) for _ in range(3)]
        await peer.subscribe(subType=SHARED)
        await acknowledge(peer, ids[1])
        assert await received(peer, 2) == [0, 2]

    play(tmp_path, script)


@pytest.mark.parametrize("packed", [False, True])
async def test_batch_index_acknowledgements_survive_a_restart(tmp_path: Path, packed: bool) -> None:
    """Packed or not, ANDed; a new incarnation shows what is left, and an entry of which nothing
    is left never comes again."""

    def frame(identifier: api.MessageIdData, mask: int) -> bytes:
        entry = api.MessageIdData(
            ledgerId=identifier.ledgerId, entryId=identifier.entryId, ack_set=[mask]
        )
        plain = encode_command(
            api.BaseCommand(
                type=Type.ACK,
                ack=api.CommandAck(
                    consumer_id=1,
                    ack_type=api.CommandAck.Individual,
                    message_id=[entry],
                    request_id=3,
                ),
            )
        )
        if not packed:
            return plain
        # A single small word: the unpacked field is tag 0x28 and the word; packed it is tag 0x2a,
        # length and the word. Lengths around it grow.
        encoded = bytearray(entry.SerializeToString())
        at = len(encoded) - 2
        assert encoded[at] == 0x28
        encoded[at:] = bytes((0x2A, 1, mask))
        ack = b"\x08\x01\x10\x00\x1a" + bytes([len(encoded)]) + encoded + b"\x40\x03"
        command = b"\x08" + bytes([Type.ACK]) + b"\x52" + bytes([len(ack)]) + ack
        return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command

    async def main() -> None:
        store, volume = MemoryStore(CLOCK), PosixVolume(tmp_path)
        node = Node(store, volume, "broker-0", SETTINGS)
        broker = await node.start()
        async with open_peer(broker) as peer:
            await peer.lookup()
            await peer.produce()
            ids = [await publish(peer, num_messages_in_batch=4) for _ in range(2)]
            await peer.subscribe(subType=SHARED)
            for identifier, mask in (
                (ids[0], 0b1110),
                (ids[0], 0b0111),
                (ids[1], 0b0011),
                (ids[1], 0b1100),
            ):
                peer.write(frame(identifier, mask))
                assert not (await peer.answer(Type.ACK_RESPONSE)).ack_response.HasField("error")
        await broker.close()
        broker = await node.start()
        async with open_peer(broker) as peer:
            await peer.lookup()
            await peer.subscribe(subType=SHARED)
            peer.write(requests.flow(1, 10))
            message, _ = await peer.message()
            assert (message.message_id.entryId, list(message.ack_set)) == (0, [0b0110])
            assert await peer.is_quiet()
        await broker.close()
        await store.close()
        await volume.close()

    await main()


def test_an_ack_set_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """A peer chooses its length; it must not size an integer of the broker."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer, num_messages_in_batch=4)
        await peer.subscribe()
        identifier.ack_set.extend([1] * 3)
        refused = await acknowledge(peer, identifier)
        assert refused.error == int(WireCode.NOT_ALLOWED)
        assert "ack_set_words_max" in refused.message

    play(tmp_path, script, ack_set_words_max=2)


def test_cumulative_on_shared_changes_nothing(tmp_path: Path) -> None:
    """The request succeeds all the same."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ids = [await publish(peer) for _ in range(3)]
        await peer.subscribe(subType=SHARED)
        await received(peer, 3)
        assert not (await acknowledge(peer, ids[2], cumulative=True)).HasField("error")
        await peer.ask("close_consumer", consumer_id=1)
        await peer.subscribe(subType=SHARED)
        assert await received(peer, 3) == [0, 1, 2]

    play(tmp_path, script)


def test_cumulative_into_a_batch(tmp_path: Path) -> None:
    """Everything before the entry, and of the entry what the ack set has cleared."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ids = [await publish(peer, num_messages_in_batch=3) for _ in range(3)]
        await peer.subscribe()
        peer.write(requests.flow(1, 9))
        for _ in range(3):
            await peer.message()
        ids[1].ack_set.append(0b100)
        await acknowledge(peer, ids[1], cumulative=True)
        await peer.ask("close_consumer", consumer_id=1)
        await peer.subscribe()
        peer.write(requests.flow(1, 10))
        left = [(await peer.message())[0] for _ in range(2)]
        assert [(message.message_id.entryId, list(message.ack_set)) for message in left] == [
            (1, [0b100]),
            (2, []),
        ]

    play(tmp_path, script)


def test_the_last_message_id_of_a_trimmed_topic(tmp_path: Path) -> None:
    """An id of what is gone would have a reader wait for it permanently."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for _ in range(3):
            await publish(peer)
        await peer.subscribe()
        topic = next(
            owned.topics[TOPIC]
            for owned in broker.ownership.owned.values()
            if TOPIC in owned.topics
        )
        for kept, expected in ((2, 2), (3, NOBODY)):
            topic.core.ledgers.drop_before(kept)
            found = (
                await peer.ask("get_last_message_id", consumer_id=1)
            ).get_last_message_id_response
            assert found.last_message_id.entryId == expected
        await publish(peer)
        found = (await peer.ask("get_last_message_id", consumer_id=1)).get_last_message_id_response
        assert found.last_message_id.entryId == 3

    play(tmp_path, script)


def test_the_last_message_id_comes_with_the_mark_delete_position(tmp_path: Path) -> None:
    """By which a client that has sought knows whether there is anything to read."""

    async def script(_broker: Broker, peer: Peer) -> None:
        async def positions() -> tuple[int, int]:
            found = (
                await peer.ask("get_last_message_id", consumer_id=1)
            ).get_last_message_id_response
            assert found.HasField("consumer_mark_delete_position")
            return found.last_message_id.entryId, found.consumer_mark_delete_position.entryId

        await peer.subscribe()
        assert await positions() == (NOBODY, NOBODY)
        await peer.produce()
        ids = [await publish(peer) for _ in range(4)]
        assert await positions() == (3, NOBODY)
        await acknowledge(peer, ids[2], cumulative=True)
        assert await positions() == (3, 2)
        await seek(peer, message_id=ids[1])
        await peer.subscribe()
        assert await positions() == (3, 0)
        assert (await peer.ask("get_last_message_id", consumer_id=9)).error.error == int(
            WireCode.METADATA
        )

    play(tmp_path, script)


# --- delays and chunks ----------------------------------------------------------------------------


def test_delayed_messages_wait_on_shared_and_nowhere_else(tmp_path: Path) -> None:
    """Those behind them do not wait; they count as backlog; a subscription of another type gets
    them at once."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await publish(peer, deliver_at_time=CLOCK.wall_ms() + 600_000)
        await publish(peer)
        soon = CLOCK.wall_ms() + 300
        await publish(peer, deliver_at_time=soon)
        await peer.subscribe(subType=SHARED)
        assert await received(peer, 2) == [1, 2], "the last one when its time has come"
        assert CLOCK.wall_ms() >= soon - 1
        assert (
            await peer.ask("consumer_stats", consumer_id=1)
        ).consumer_stats_response.msgBacklog == 3
        await peer.subscribe(consumer_id=2, subscription="exclusive")
        assert await received(peer, 3, consumer_id=2) == [0, 1, 2]

    play(tmp_path, script)


def test_a_message_whose_time_comes_just_as_it_is_put_aside_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else happens to the subscription that would have it look again."""
    ahead_ms, wall_ms, dispatch = 0, SystemClock.wall_ms, SharedDispatcher.dispatch

    def dispatched(dispatcher: SharedDispatcher, *arguments: Any) -> list[Delivery]:
        nonlocal ahead_ms
        found = dispatch(dispatcher, *arguments)
        ahead_ms = 600_000
        return found

    monkeypatch.setattr(SystemClock, "wall_ms", lambda clock: wall_ms(clock) + ahead_ms)
    monkeypatch.setattr(SharedDispatcher, "dispatch", dispatched)

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await publish(peer, deliver_at_time=CLOCK.wall_ms() + 300_000)
        await peer.subscribe(subType=SHARED)
        assert await received(peer, 1) == [0]

    play(tmp_path, script)


def test_filtered_entries_cost_no_permits(tmp_path: Path) -> None:
    """One permit gets the one message that is due, behind a hundred that are not."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        later = CLOCK.wall_ms() + 600_000
        for _ in range(100):
            await publish(peer, deliver_at_time=later)
        await publish(peer)
        await peer.subscribe(subType=SHARED)
        assert await received(peer, 1) == [100]

    play(tmp_path, script)


def test_the_chunks_of_a_message_go_to_one_consumer_in_order(tmp_path: Path) -> None:
    """Also when that consumer has no permits for a while: others get what is theirs, the chunks
    wait."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.subscribe(subType=SHARED)
        async with open_peer(broker) as other:
            await other.subscribe(consumer_id=2, subType=SHARED)
            await peer.produce()
            peer.write(requests.flow(1, 1))
            await publish(peer, uuid="u", chunk_id=0, num_chunks_from_msg=3, total_chunk_msg_size=3)
            assert (await peer.message())[0].message_id.entryId == 0
            other.write(requests.flow(2, 10))
            for number in (1, 2):
                await publish(
                    peer, uuid="u", chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3
                )
            await publish(peer)
            assert (await other.message())[0].message_id.entryId == 3
            assert await other.is_quiet()
            assert await received(peer, 2) == [1, 2]
            await peer.ask("close_consumer", consumer_id=1)
            assert [(await other.message())[0].message_id.entryId for _ in range(3)] == [0, 1, 2]

    play(tmp_path, script)


# --- consumers ------------------------------------------------------------------------------------


def test_consumer_statistics(tmp_path: Path) -> None:
    """Counts, type and rates of what really happened; an unknown consumer has an error code."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ids = [await publish(peer, num_messages_in_batch=3) for _ in range(4)]
        await peer.subscribe(subType=SHARED, consumer_name="me")
        peer.write(requests.flow(1, 20))
        for _ in range(4):
            await peer.message()
        peer.write(redelivery(1, ids[3]))
        assert (await peer.message())[0].redelivery_count == 1
        await acknowledge(peer, ids[0])
        found = (await peer.ask("consumer_stats", consumer_id=1)).consumer_stats_response
        assert (
            found.type,
            found.consumerName,
            found.availablePermits,
            found.unackedMessages,
            found.msgBacklog,
        ) == (
            "Shared",
            "me",
            5,
            9,
            3,
        )
        assert found.msgRateOut == pytest.approx(5 * found.messageAckRate)
        assert found.msgRateOut == pytest.approx(15 * found.msgRateRedeliver)
        assert found.msgThroughputOut > found.msgRateOut > 0
        assert found.connectedSince.endswith("Z")
        assert not found.HasField("error_code")
        missing = (await peer.ask("consumer_stats", consumer_id=7)).consumer_stats_response
        assert missing.error_code == int(WireCode.CONSUMER_NOT_FOUND)

    play(tmp_path, script)


def test_unsubscribe_with_others_attached(tmp_path: Path) -> None:
    """Refused; with force they are sent away, and the name begins again."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await peer.subscribe(subType=SHARED)
        await publish(peer)
        async with open_peer(broker) as other:
            await other.subscribe(consumer_id=2, subType=SHARED)
            answer = await peer.ask("unsubscribe", consumer_id=1)
            assert answer.error.error == int(WireCode.METADATA)
            assert (await peer.ask("unsubscribe", consumer_id=1, force=True)).type == Type.SUCCESS
            await other.answer(Type.CLOSE_CONSUMER)
            await other.subscribe(consumer_id=2, subType=SHARED, initialPosition=0)
            other.write(requests.flow(2, 5))
            assert await other.is_quiet()

    play(tmp_path, script)


def test_properties_of_a_subscription_are_set_by_who_brings_them_first(tmp_path: Path) -> None:
    """A later consumer does not change them."""

    async def script(broker: Broker, peer: Peer) -> None:
        topic = None
        for consumer_id, properties in ((1, {}), (2, {"a": "1"}), (3, {"a": "2"})):
            request = api.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=SHARED,
                consumer_id=consumer_id,
                request_id=consumer_id,
            )
            for key, value in properties.items():
                request.subscription_properties.add(key=key, value=value)
            (answer,) = await ask(peer, "subscribe", request)
            assert answer.type == Type.SUCCESS
        topic = next(
            owned.topics[TOPIC]
            for owned in broker.ownership.owned.values()
            if TOPIC in owned.topics
        )
        assert topic.core.subscription("s").properties == {"a": "1"}

    play(tmp_path, script)


def test_a_dead_exclusive_consumer_does_not_keep_its_successor_out(tmp_path: Path) -> None:
    """A connection that answers no PING within the time limit is evicted; one that lives keeps
    its place."""

    async def script(broker: Broker, peer: Peer) -> None:
        async with open_peer(broker) as alive:
            await alive.subscribe()
            async with alive.alive():
                assert (await peer.subscribe(consumer_id=2)).error.error == int(
                    WireCode.CONSUMER_BUSY
                )
            assert (await peer.subscribe(consumer_id=3)).type == Type.SUCCESS

    play(tmp_path, script, liveness_check_s=2.0)


def test_the_end_of_a_terminated_topic_is_reported_once_all_is_acknowledged(tmp_path: Path) -> None:
    """Not to C++ and Go clients, which would close the connection; to those who come later at
    once."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer)
        await peer.subscribe()
        topic = next(
            owned.topics[TOPIC]
            for owned in broker.ownership.owned.values()
            if TOPIC in owned.topics
        )
        await topic.update_properties({"terminated": f"{identifier.ledgerId}:0"})
        for host in topic.subscriptions.values():
            host.end_of_topic()
        assert await peer.is_quiet()
        peer.write(requests.ack(1, [identifier]))
        assert (await peer.answer(Type.REACHED_END_OF_TOPIC)).reached_end_of_topic.consumer_id == 1
        for version in ("Pulsar-CPP-v4.2.0", "Pulsar-Go-v0.19.0"):
            async with open_peer(broker, handshake=False) as other:
                other.write(requests.connect(version, 20))
                await other.answer(Type.CONNECTED)
                await other.subscribe(subscription="fresh", initialPosition=0)
                assert await other.is_quiet()
        await peer.subscribe(consumer_id=2, subscription="late", initialPosition=0)
        assert (await peer.answer(Type.REACHED_END_OF_TOPIC)).reached_end_of_topic.consumer_id == 2

    play(tmp_path, script)

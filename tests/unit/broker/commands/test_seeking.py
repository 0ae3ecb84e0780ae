"""SEEK and rollback seen from the other end of a real socket."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.publish_times import first_published_at
from magnetar.clock import elapsed_ms
from magnetar.errors import WireCode
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import CLOCK, TOPIC, Peer, Type, open_peer
from tests.support.deliveries import (
    LATEST_ID,
    NOBODY,
    SHARED,
    acknowledge,
    play,
    publish,
    received,
    redelivery,
    seek,
)
from tests.support.transacting import ended, late_commit, send_in

# --- seek -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("since", "first"), [(0, 0), (1000, 0), (1001, 1), (1500, 5), (1900, 9)])
def test_seek_by_time_goes_behind_the_last_entry_published_before(
    tmp_path: Path, since: int, first: int
) -> None:
    """CLOSE_CONSUMER first, SUCCESS when the cursor is durable; the next consumer begins there,
    whatever was acknowledged."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for number in range(10):
            last = await publish(peer, publish_time=1000 + 100 * number)
        await peer.subscribe()
        await received(peer, 10)
        await acknowledge(peer, last, cumulative=True)
        assert await seek(peer, message_publish_time=since) == [Type.CLOSE_CONSUMER, Type.SUCCESS]
        await peer.subscribe()
        assert await received(peer, 10 - first) == list(range(first, 10))
        assert await peer.is_quiet()

    play(tmp_path, script)


def test_seek_beyond_the_last_publish_time_waits_for_new_messages(tmp_path: Path) -> None:
    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for _ in range(3):
            await publish(peer, publish_time=1000)
        await peer.subscribe()
        await seek(peer, message_publish_time=1001)
        await peer.subscribe()
        peer.write(requests.flow(1, 10))
        assert await peer.is_quiet()
        await publish(peer, publish_time=1002)
        assert (await peer.message())[0].message_id.entryId == 3

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("since", "first"),
    [(900, 0), (1000, 0), (1101, 2), (1500, 5), (1900, 9), (1901, 10), (2000, 10), (2001, 41)],
)
def test_seek_by_time_is_not_led_astray_by_a_late_commit(
    tmp_path: Path, since: int, first: int
) -> None:
    """Its entries were sent before those that they lie behind: plain ones decide, and nothing
    that was published since is passed over."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await late_commit(peer, TxnId(0, 0))
        await publish(peer, publish_time=2000)
        await peer.subscribe()
        assert await seek(peer, message_publish_time=since) == [Type.CLOSE_CONSUMER, Type.SUCCESS]
        await peer.subscribe()
        assert await received(peer, 41 - first) == list(range(first, 41))
        assert await peer.is_quiet()

    play(tmp_path, script)


def test_seek_by_time_where_everything_was_published_in_transactions(tmp_path: Path) -> None:
    """No plain entry decides: what is known to have been committed before is passed over, no
    more than that."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        topic, now_ms = (
            await broker.service.open_topic(TopicName.parse(TOPIC), create=True),
            CLOCK.wall_ms(),
        )
        began_ms = elapsed_ms(CLOCK)
        for number, age_ms in ((0, 60_000), (1, 30_000)):
            for sequence in range(3):
                await send_in(
                    peer,
                    TxnId(0, number),
                    b"in",
                    3 * number + sequence,
                    publish_time=now_ms - 90_000,
                )
            await ended(peer, TxnId(0, number), commit=True)
            topic.core.age(began_ms - age_ms)
        found = [
            await first_published_at(topic, now_ms - age_ms)
            for age_ms in (100_000, 61_000, 59_000, 40_000, 31_000, 20_000)
        ]
        assert found == [0, 0, 3, 3, 3, 6]
        await send_in(peer, TxnId(0, 2), b"in", 6, publish_time=now_ms)
        await ended(peer, TxnId(0, 2), commit=True)
        assert await first_published_at(topic, now_ms) == 6
        assert await first_published_at(topic, CLOCK.wall_ms() + 60_000) == 7

    play(tmp_path, script, topic_check_s=1000.0)


def test_a_time_seek_of_an_empty_topic(tmp_path: Path) -> None:
    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.subscribe()
        assert await seek(peer, message_publish_time=5) == [Type.CLOSE_CONSUMER, Type.SUCCESS]
        assert (await peer.subscribe()).type == Type.SUCCESS

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("ledger_offset", "entry", "first"),
    [(0, 3, 3), (0, 99, 5), (1, 0, 5), (-1, 0, 0), (0, NOBODY, 0)],
    ids=["entry", "behind the last", "a later ledger", "an earlier ledger", "before the first"],
)
def test_seek_to_an_id_that_need_not_exist(
    tmp_path: Path, ledger_offset: int, entry: int, first: int
) -> None:
    """The next valid position counts; (5 is the end of the topic)."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for _ in range(5):
            identifier = await publish(peer)
        await peer.subscribe()
        target = api.MessageIdData(ledgerId=identifier.ledgerId + ledger_offset, entryId=entry)
        await seek(peer, message_id=target)
        await peer.subscribe()
        await publish(peer)
        assert await received(peer, 6 - first) == list(range(first, 6))

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("extreme", "first"), [(NOBODY, 0), (LATEST_ID, 4)], ids=["earliest", "latest"]
)
def test_seek_to_the_ends(tmp_path: Path, extreme: int, first: int) -> None:
    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for _ in range(4):
            await publish(peer)
        await peer.subscribe()
        await seek(peer, message_id=api.MessageIdData(ledgerId=extreme, entryId=extreme))
        await peer.subscribe()
        await publish(peer)
        assert await received(peer, 5 - first) == list(range(first, 5))

    play(tmp_path, script)


def test_seek_into_a_batch_delivers_what_the_ack_set_leaves(tmp_path: Path) -> None:
    """The bits that are 1 are to come; they travel with the entry, which costs as many permits."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer, num_messages_in_batch=4)
        await publish(peer)
        await peer.subscribe()
        target = api.MessageIdData(
            ledgerId=identifier.ledgerId, entryId=0, batch_index=2, ack_set=[0b1100]
        )
        await seek(peer, message_id=target)
        await peer.subscribe()
        peer.write(requests.flow(1, 3))
        first, second = [(await peer.message())[0] for _ in range(2)]
        assert (first.message_id.entryId, list(first.ack_set)) == (0, [0b1100])
        assert (second.message_id.entryId, list(second.ack_set)) == (1, [])

    play(tmp_path, script)


def test_seek_with_several_consumers_disconnects_all_and_forgets_redeliveries(
    tmp_path: Path,
) -> None:
    """Shared: everybody comes back with 0 permits; counts begin again."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer)
        await peer.subscribe(subType=SHARED)
        async with open_peer(broker) as other:
            await other.subscribe(consumer_id=8, subType=SHARED)
            await received(peer, 1)
            peer.write(redelivery(1, identifier))
            assert await received(peer, 1) == [0]
            assert await seek(peer, message_id=identifier) == [Type.CLOSE_CONSUMER, Type.SUCCESS]
            assert (await other.answer(Type.CLOSE_CONSUMER)).close_consumer.consumer_id == 8
            await other.subscribe(consumer_id=8, subType=SHARED)
            other.write(requests.flow(8, 5))
            message, _ = await other.message()
            assert message.redelivery_count == 0

    play(tmp_path, script)


def test_seek_says_what_it_lacks(tmp_path: Path) -> None:
    """Neither id nor time, and an unknown consumer: MetadataError, and nobody is disconnected."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.subscribe()
        for answer in (
            await peer.ask("seek", consumer_id=1),
            await peer.ask("seek", consumer_id=5, message_publish_time=1),
        ):
            assert (answer.type, answer.error.error) == (Type.ERROR, int(WireCode.METADATA))

    play(tmp_path, script)


@pytest.mark.parametrize("by_time", [False, True])
def test_a_reader_keeps_the_place_it_sought(tmp_path: Path, by_time: bool) -> None:
    """Its subscription outlives the moment without a consumer: a client that seeks by time comes
    back with a start that means nothing."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for number in range(5):
            identifier = await publish(peer, publish_time=1000 + number)
        await peer.subscribe(durable=False, subscription="reader-0")
        await received(peer, 5)
        identifier.entryId = 3
        target = {"message_publish_time": 1003} if by_time else {"message_id": identifier}
        assert await seek(peer, **target) == [Type.CLOSE_CONSUMER, Type.SUCCESS]
        await peer.subscribe(durable=False, subscription="reader-0", initialPosition=1)
        assert await received(peer, 2) == [3, 4]

    play(tmp_path, script)


def test_a_reader_that_does_not_come_back_leaves_nothing_behind(tmp_path: Path) -> None:
    """After a seek the place is kept for `reader_return_s`, then the subscription is gone."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.subscribe(durable=False, subscription="reader-0")
        await seek(peer, message_publish_time=1)
        topic = next(
            owned.topics[TOPIC]
            for owned in broker.ownership.owned.values()
            if TOPIC in owned.topics
        )
        assert "reader-0" in topic.subscriptions
        while topic.subscriptions:
            await asyncio.sleep(0.01)

    play(tmp_path, script, reader_return_s=1.0)


def test_rollback_begins_with_what_was_published_since(tmp_path: Path) -> None:
    """`start_message_rollback_duration_sec` counts back from now; it does not disturb consumers
    that are there."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        now = CLOCK.wall_ms()
        for age_s in (3600, 1800, 60, 0):
            await publish(peer, publish_time=now - 1000 * age_s)
        for durable, name in ((True, "s"), (False, "reader-0")):
            options: dict[str, Any] = {
                "subscription": name,
                "durable": durable,
                "subType": SHARED,
                "start_message_rollback_duration_sec": 600,
            }
            await peer.subscribe(initialPosition=0, **options)
            assert await received(peer, 2) == [2, 3]
            async with open_peer(broker) as other:
                assert (await other.subscribe(**options)).type == Type.SUCCESS
                assert await other.is_quiet()
            assert (await peer.ask("close_consumer", consumer_id=1)).type == Type.SUCCESS

    play(tmp_path, script)


def test_what_waits_in_the_broker_is_not_sent_after_a_seek(tmp_path: Path) -> None:
    """Messages of before that reach a client behind its SEEK are those that the sockets held,
    and no more."""
    message_bytes, messages, waiting_bytes_max = 64 << 10, 300, 16 << 20

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for number in range(messages):
            await peer.send(bytes(message_bytes), number)
        async with open_peer(broker, receive_buffer_bytes=4096) as slow:
            await slow.subscribe()
            (connection,) = [
                found for found in broker._connections._open if found.sessions.consumers
            ]
            assert connection._transport is not None
            connection._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10
            )
            slow.write(requests.flow(1, messages))
            await slow.message()
            while connection._outbound.size < waiting_bytes_max // 2:
                await asyncio.sleep(0.01)
            slow.write(
                requests.seek(
                    1,
                    slow.next_request(),
                    message_id=api.MessageIdData(ledgerId=NOBODY, entryId=NOBODY),
                )
            )
            late = 0
            while (received := await slow.receive())[0].type != Type.CLOSE_CONSUMER:
                late += len(received[1])
            assert late < 2 << 20, f"{late} bytes"
            await slow.answer(Type.SUCCESS)
            await slow.subscribe()
            slow.write(requests.flow(1, 2))
            assert (await slow.message())[0].message_id.entryId == 0, "what was dropped comes again"

    play(tmp_path, script, write_buffer_bytes_max=waiting_bytes_max, keep_alive_s=120)


def test_nothing_is_delivered_while_a_seek_looks_for_its_place(tmp_path: Path) -> None:
    """A SEEK by time reads the log; a client may take what goes out concurrently for what follows
    the SEEK."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for number in range(5):
            await publish(peer, publish_time=1000 + number)
        await peer.subscribe()
        host = (
            await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        ).subscriptions["s"]
        found, looking = asyncio.Event(), asyncio.Event()

        async def slowly(*_: Any) -> int:
            looking.set()
            await found.wait()
            return 3

        with mock.patch("magnetar.broker.commands.seeking.first_published_at", slowly):
            peer.write(requests.seek(1, peer.next_request(), publish_time_ms=1003))
            await looking.wait()
            peer.write(requests.flow(1, 10))
            assert await peer.is_quiet()
            found.set()
            assert (await peer.answer()).type == Type.CLOSE_CONSUMER
        await peer.answer(Type.SUCCESS)
        await peer.subscribe()
        assert await received(peer, 2) == [3, 4]
        assert host.core.connected

    play(tmp_path, script)

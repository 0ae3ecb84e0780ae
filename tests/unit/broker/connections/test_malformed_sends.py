"""SENDs that must not be stored, and stored entries that nobody can read: neither stops a topic.

The wire refuses the first; the second stand for foreign or older data, and are put into the log
past the wire.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.incarnation import Broker
from magnetar.broker.ports import SendRun
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep.expiry import expire
from magnetar.errors import WireCode
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.checksum import CHECKSUM_BYTES
from magnetar.wire.entries import encode_entry
from tests.support.brokers import (
    CLOCK,
    TOPIC,
    Peer,
    Type,
    connected_peer,
    entry,
    open_peer,
    running_broker,
)
from tests.support.deliveries import acknowledge, play, publish, received, seek

UNREADABLE = [b"", b"\x0e\x01", b"\xff" * 50, b"\0\0\0\2\xff\xff"]


def batch_of(count: int) -> bytes:
    return entry(b"x", num_messages_in_batch=count)


REFUSED = {
    "no metadata": (bytes(4), 1),
    "unparseable": (b"\0\0\0\2\xff\xff", 1),
    "fields missing": ((2).to_bytes(4, "big") + b"\x10\x01", 1),
    "a count of SEND alone": (entry(b"x"), 2**31 - 1),
    "a count of the metadata alone": (batch_of(7), 1),
    "both counts beyond the payload": (batch_of(2**31 - 1), 2**31 - 1),
    "a chunk beyond the last": (
        entry(b"x", uuid="u", chunk_id=3, num_chunks_from_msg=3, total_chunk_msg_size=3),
        1,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_send_fails_alone(tmp_path: Path, case: str) -> None:
    """It is refused, in order; its neighbours are stored and delivered, and cost a consumer
    one permit each."""
    body, messages = REFUSED[case]

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await peer.subscribe()
        peer.write(
            requests.send(1, 0, entry(b"a", 0))
            + requests.send(1, 1, body, messages=messages)
            + requests.send(1, 2, entry(b"b", 2))
        )
        assert (await peer.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == 0
        refusal = (await peer.answer(Type.SEND_ERROR)).send_error
        assert (refusal.sequence_id, refusal.error) == (1, int(WireCode.NOT_ALLOWED))
        assert (await peer.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == 2
        assert await received(peer, 2) == [0, 1]
        await peer.send(b"c", 3)
        assert await received(peer, 1) == [2]

    play(tmp_path, script)


@pytest.mark.parametrize("body", [b"", b"\x0e\x01", b"\0\0\1\0x"])
def test_a_send_that_is_cut_off_ends_its_connection_alone(tmp_path: Path, body: bytes) -> None:
    """Nothing of it is stored: the topic's consumer and the producer of another connection
    notice nothing."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await peer.subscribe()
        async with open_peer(broker) as other:
            await other.produce(7)
            other.write(requests.send(7, 0, body))
            assert await other.closed_by_broker()
        await peer.send(b"a", 0)
        assert await received(peer, 1) == [0]

    play(tmp_path, script)


def test_a_run_of_sends_is_checked_to_its_end(tmp_path: Path) -> None:
    """SENDs whose commands repeat each other are distinguished by their metadata: a malformed
    one among them is found."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        sends = [requests.send(1, 200 + number, numbered(200 + number)) for number in range(20)]
        broken = bytearray(numbered(210))
        broken[CHECKSUM_BYTES + 4] = 0xFF  # the first tag of its metadata
        sends[10] = requests.send(1, 210, bytes(broken[CHECKSUM_BYTES:]))
        sends[15] = requests.send(
            1,
            215,
            encode_entry(
                api.MessageMetadata(producer_name="p", sequence_id=215, publish_time=1 << 63), b"x"
            ),
        )
        peer.write(b"".join(sends))
        answers = [await peer.answer() for _ in sends]
        refused = [
            answer.send_error.sequence_id for answer in answers if answer.type == Type.SEND_ERROR
        ]
        assert refused == [210, 215]

    play(tmp_path, script)


def numbered(sequence: int) -> bytes:
    return encode_entry(
        api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=5), b"x" * 40
    )


# --- what is stored already -----------------------------------------------------------------------


async def host_of(broker: Broker) -> TopicHost:
    return await broker.service.open_topic(TopicName.parse(TOPIC), create=True)


async def store(broker: Broker, peer: Peer, times: list[Any]) -> TopicHost:
    """Entries published at these times; bytes stand for an entry that is stored as it is, each
    in a run of its own."""
    topic = await host_of(broker)
    await peer.produce()
    (producer,) = topic.core.producers.by_name.values()
    session = producer.handle
    assert isinstance(session, ProducerSession)
    for time in times:
        if isinstance(time, bytes):
            topic._append(session, SendRun([memoryview(time)], [1], [0]), None)
            await peer.answer(Type.SEND_RECEIPT)
        else:
            await publish(peer, publish_time=time)
    return topic


async def check_all_works(broker: Broker, peer: Peer) -> None:
    """What every entry of [1000, unreadable, 3000, unreadable, unreadable, 6000] must not
    prevent."""
    await peer.subscribe()
    assert await received(peer, 6) == list(range(6))
    for since, first in ((1000, 0), (1001, 1), (3000, 1), (3001, 3), (6000, 3)):
        assert await seek(peer, message_publish_time=since) == [Type.CLOSE_CONSUMER, Type.SUCCESS]
        await peer.subscribe()
        assert await received(peer, 6 - first) == list(range(first, 6)), since
    for consumer, kind in enumerate(
        (api.CommandSubscribe.Shared, api.CommandSubscribe.Key_Shared), 2
    ):
        await peer.subscribe(
            consumer, subscription=api.CommandSubscribe.SubType.Name(kind), subType=kind
        )
        assert await received(peer, 6, consumer) == list(range(6))
    topic = await host_of(broker)
    assert await expire(topic.subscriptions["Shared"], 0) == 6
    await topic.trim(3)
    assert topic.core.ledgers.first == 3
    assert broker.ready


@pytest.mark.parametrize("unreadable", UNREADABLE, ids=range(4))
async def test_unreadable_entries_are_delivered_as_they_are(
    tmp_path: Path, unreadable: bytes
) -> None:
    """From memory, and from storage in a later incarnation: subscriptions, SEEK by time, expiry
    and trimming go on."""

    store_of_cluster = MemoryStore(CLOCK)
    async with connected_peer(tmp_path, store=store_of_cluster) as (broker, peer):
        await store(broker, peer, [1000, unreadable, 3000, unreadable, unreadable, 6000])
        await peer.subscribe(9, subscription="last")
        last = (await peer.ask("get_last_message_id", consumer_id=9)).get_last_message_id_response
        assert last.last_message_id.entryId == 5
    async with (
        running_broker(tmp_path, store=store_of_cluster) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await check_all_works(broker, peer)
    await store_of_cluster.close()


@pytest.mark.parametrize("unreadable", UNREADABLE, ids=range(4))
def test_an_unreadable_last_entry_is_a_last_message(tmp_path: Path, unreadable: bytes) -> None:
    """GET_LAST_MESSAGE_ID names it, without a batch index, and it can be acknowledged."""

    async def script(broker: Broker, peer: Peer) -> None:
        await store(broker, peer, [1000, unreadable])
        await peer.subscribe()
        last = (
            await peer.ask("get_last_message_id", consumer_id=1)
        ).get_last_message_id_response.last_message_id
        assert (last.entryId, last.batch_index) == (1, -1)
        assert await received(peer, 2) == [0, 1]
        host = (await host_of(broker)).subscriptions["s"]
        await acknowledge(peer, last)
        assert host.core.backlog == 1
        assert await expire(host, 0) == 1
        assert host.core.backlog == 0

    play(tmp_path, script, topic_check_s=1000.0)

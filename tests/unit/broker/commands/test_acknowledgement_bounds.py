"""What acknowledgements may take: of time, of memory, of the log; and that none is lost or
confirmed too early at its bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from magnetar.broker.bundles import cursor_writing
from magnetar.broker.incarnation import Broker
from magnetar.errors import LimitExceeded, StorageFull, WireCode
from magnetar.names import TopicName
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.acknowledging import (
    DONE,
    A,
    B,
    C,
    ack_in,
    end,
    pending_of,
    published,
    some_of,
    subscription_of,
)
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.deliveries import acknowledge, play, publish


def test_many_long_ack_sets_in_one_command_are_refused(tmp_path: Path) -> None:
    """Each is of a length that is allowed; together they would take the loop, and the memory,
    that all connections share."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer, num_messages_in_batch=4)
        await peer.subscribe()
        identifier.ack_set.extend([1] * 2)
        refused = await acknowledge(peer, *[identifier] * 17)
        assert refused.error == int(WireCode.NOT_ALLOWED)
        assert "34 words in one ACK are more than 32" in refused.message
        assert not (await acknowledge(peer, *[identifier] * 16)).HasField("error")

    play(tmp_path, script, ack_set_words_max=2)


def test_a_subscription_takes_so_many_holes(tmp_path: Path) -> None:
    """A consumer that acknowledges every second undelivered message is refused: it has to begin
    with the oldest. That then works."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifiers = [await publish(peer, sequence_id=number) for number in range(12)]
        await peer.subscribe(subType=api.CommandSubscribe.Shared)
        host = (
            await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        ).subscriptions["s"]
        host.core.cursor._ranges_max = 2
        for identifier in identifiers[2:9:2]:
            assert not (await acknowledge(peer, identifier)).HasField("error")
        peer.write(requests.ack(1, [identifiers[10]]))  # without a request id there is no answer
        refused = await acknowledge(peer, identifiers[10])
        assert (refused.error, host.core.cursor.range_count) == (int(WireCode.TOO_MANY_REQUESTS), 4)
        assert "acknowledge the oldest messages first" in refused.message
        for identifier in (*identifiers[:2], identifiers[10]):
            assert not (await acknowledge(peer, identifier)).HasField("error")
        assert host.core.cursor.range_count == 4

    play(tmp_path, script)


def test_transactions_pass_round_no_bound_on_holes(tmp_path: Path) -> None:
    """What they hold goes into the cursor when they commit: one that would open a hole more is
    refused before anything is held.

    What fills holes is held, and what a transaction held before may be acknowledged in it again.
    """

    async def script(broker: Broker, peer: Peer) -> None:
        identifiers = await published(peer, 14)
        batch = await publish(peer, num_messages_in_batch=4)
        await peer.subscribe(subType=api.CommandSubscribe.Shared)
        cursor = (await subscription_of(broker)).core.cursor
        cursor._ranges_max = 2
        for identifier in identifiers[2:7:2]:
            assert not (await acknowledge(peer, identifier)).HasField("error")
        assert (
            await ack_in(peer, A, identifiers[8]) == await ack_in(peer, B, identifiers[10]) == DONE
        )
        assert await end(broker, A, commit=True) == DONE
        assert (cursor.range_count, cursor.crowded) == (4, True)
        for refused in (identifiers[12], some_of(batch, 0b1101, 4)):
            error, text = await ack_in(peer, C, refused)
            assert (error, "acknowledge the oldest messages first" in text) == (
                int(WireCode.NOT_ALLOWED),
                True,
            )
        assert list((await pending_of(broker)).open_transactions()) == [B], (
            "nothing is held of what was refused"
        )
        assert await ack_in(peer, B, identifiers[10]) == DONE, "B holds it since before"
        assert await ack_in(peer, C, *identifiers[:2], identifiers[3]) == DONE
        assert await end(broker, C, commit=True) == DONE
        assert (cursor.mark_delete, cursor.range_count) == (5, 2)

    play(tmp_path, script)


def test_a_cumulative_acknowledgement_in_a_transaction_empties_a_crowded_cursor(
    tmp_path: Path,
) -> None:
    """Though it ends within a batch: everything before that batch is acknowledged when it
    commits."""

    async def script(broker: Broker, peer: Peer) -> None:
        identifiers = await published(peer, 9)
        batch = await publish(peer, num_messages_in_batch=4)
        await peer.subscribe()
        cursor = (await subscription_of(broker)).core.cursor
        cursor._ranges_max = 2
        for identifier in identifiers[1:8:2]:
            assert not (await acknowledge(peer, identifier)).HasField("error")
        assert cursor.crowded
        assert await ack_in(peer, A, some_of(batch, 0b1100, 4), cumulative=True) == DONE
        assert await end(broker, A, commit=True) == DONE
        assert (cursor.mark_delete, cursor.range_count, cursor.partial) == (9, 0, {9: 0b1100})

    play(tmp_path, script)


def test_acknowledgements_wait_in_the_cursor_while_there_is_no_space(tmp_path: Path) -> None:
    """Each of them in the log's queue would fill it, and then nobody is read any more; with
    space again one record confirms them all."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifiers = [await publish(peer, sequence_id=number) for number in range(4)]
        await peer.subscribe(subType=api.CommandSubscribe.Shared)
        log = broker.context.log
        log.space.stalled = StorageFull("no space left")
        bundle = (await broker.service.open_topic(TopicName.parse(TOPIC), create=False)).bundle
        append = mock.Mock(wraps=bundle.append)
        bundle.append = append  # type: ignore[method-assign]
        for number, identifier in enumerate(identifiers):
            peer.write(requests.ack(1, [identifier], request_id=100 + number))
        peer.write(commands.PING)
        assert (await peer.answer()).type == Type.PONG
        assert log.pending_bytes == 0
        assert (await peer.ask("close_consumer", consumer_id=1)).type == Type.SUCCESS
        assert (await peer.subscribe(subType=api.CommandSubscribe.Shared)).type == Type.SUCCESS, (
            "what is there can be consumed all the same"
        )
        log.space.stalled = None
        answers = [(await peer.answer(Type.ACK_RESPONSE)).ack_response for _ in identifiers]
        assert [(answer.request_id, answer.HasField("error")) for answer in answers] == [
            (100 + n, False) for n in range(4)
        ]
        assert append.call_count == 1

    play(tmp_path, script)


def test_a_cursor_that_cannot_be_written_is_written_later_and_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    """The log refuses one record; what it held is not lost, and others that were due at the same
    time are written."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer)
        await peer.subscribe(1, subscription="one")
        await peer.subscribe(2, subscription="two")
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        bundle, refused, written = topic.bundle, [LimitExceeded("no room")], asyncio.Event()
        append = bundle.append

        def append_second(record: Any, on_durable: Any) -> None:
            if refused:
                raise refused.pop()
            append(record, on_durable)
            if not any(host.core.dirty for host in topic.subscriptions.values()):
                written.set()

        with (
            mock.patch.object(bundle, "append", append_second),
            mock.patch.object(cursor_writing, "DIRTY_RETRY_S", 0.01),
        ):
            peer.write(requests.ack(1, [identifier]) + requests.ack(2, [identifier]))
            async with asyncio.timeout(120):
                await written.wait()
            assert refused == []
            following = await publish(peer, sequence_id=1)
            refused.append(LimitExceeded("no room again"))
            # who waits for it learns of it then
            assert not (await acknowledge(peer, following)).HasField("error")
        assert refused == []
        assert [host.core.cursor.backlog for host in topic.subscriptions.values()] == [0, 1]

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [
        (
            {"subscription": "s" * 1025},
            WireCode.PRODUCER_BUSY,
            "1025 characters; choose one of at most 1024",
        ),
        (
            {"subscription_properties": [api.KeyValue(key="k", value="v" * (128 << 10))]},
            WireCode.NOT_ALLOWED,
            "at most 131072 are kept",
        ),
    ],
)
def test_a_subscription_that_no_record_can_hold_is_refused(
    tmp_path: Path, values: dict[str, Any], code: WireCode, text: str
) -> None:
    """For good, and nothing of it stays."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.lookup()
        refused = await peer.subscribe(**values)
        assert (refused.error.error, text in refused.error.message) == (int(code), True)
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=True)
        assert not topic.subscriptions

    play(tmp_path, script)

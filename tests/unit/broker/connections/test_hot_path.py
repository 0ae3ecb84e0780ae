"""The hot path on real sockets: what the fast ways of SEND, ACK and dispatch must not change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.wire import requests
from magnetar.wire.commands import Position, message_id_data
from tests.support.brokers import TOPIC, Peer, Type, command_frame, connected_peer, entry, open_peer

Script = Callable[[Broker, Peer], Coroutine[Any, Any, None]]
CONDITION_S = 120.0


async def play(directory: Path, script: Script, **settings: Any) -> None:
    """Run `script` with a broker that owns TOPIC's bundle, and one peer."""

    async with connected_peer(directory, **settings) as (broker, peer):
        await script(broker, peer)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come true."""
    async with asyncio.timeout(CONDITION_S):
        while not condition():
            await asyncio.sleep(0.005)


def damaged(frame: bytes) -> bytes:
    return frame[:-1] + bytes((frame[-1] ^ 1,))


@pytest.mark.parametrize("cut", [1, 37, 4096])
async def test_sends_of_one_read_are_answered_and_delivered_one_by_one_and_in_order(
    tmp_path: Path, cut: int
) -> None:
    """Two producers, gaps, a damaged entry and every size of read: each SEND gets its answer,
    each intact one its message."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce(1)
        await peer.produce(2, topic=TOPIC)
        await peer.subscribe()
        peer.write(command_frame("flow", consumer_id=1, messagePermits=1000))
        plan = [(1, sequence) for sequence in range(120, 140)] + [
            (2, sequence) for sequence in range(5)
        ]
        plan += [(1, sequence) for sequence in (200, 201, 202, 300)]
        frames = [
            requests.send(producer, sequence, entry(b"%d/%d" % (producer, sequence), sequence))
            for producer, sequence in plan
        ]
        bad = plan.index((1, 130))
        frames[bad] = damaged(frames[bad])
        stream = b"".join(frames)
        for at in range(0, len(stream), cut):
            peer.write(stream[at : at + cut])
            if cut > 1:
                await asyncio.sleep(0)
        receipts: dict[int, list[int]] = {1: [], 2: []}
        errors: list[tuple[int, int]] = []
        delivered: list[tuple[int, bytes]] = []
        while (
            len(delivered) < len(plan) - 1
            or sum(map(len, receipts.values())) < len(plan) - 1
            or not errors
        ):
            command, body = await peer.receive()
            if command.type == Type.SEND_RECEIPT:
                receipts[command.send_receipt.producer_id].append(command.send_receipt.sequence_id)
            elif command.type == Type.SEND_ERROR:
                errors.append((command.send_error.producer_id, command.send_error.sequence_id))
            else:
                assert command.type == Type.MESSAGE, command
                delivered.append((command.message.message_id.entryId, bytes(body)))
        intact = [item for item in plan if item != (1, 130)]
        assert errors == [(1, 130)]
        for producer, got in receipts.items():
            assert got == [sequence for owner, sequence in intact if owner == producer]
        assert [number for number, _ in delivered] == list(range(len(intact)))
        assert [body.rpartition(b"/")[2] for _, body in delivered] == [
            b"%d" % sequence for _, sequence in intact
        ]

    await play(tmp_path, script)


async def test_an_ack_of_a_span_moves_the_cursor_over_what_exists_of_it(tmp_path: Path) -> None:
    """Acknowledged in one group, partly beyond the end: nothing of it comes again, and what
    follows does."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ledger, _ = await peer.send(b"0", 0)
        for sequence in range(1, 30):
            await peer.send(b"%d" % sequence, sequence)
        await peer.subscribe()
        peer.write(
            requests.ack(1, [message_id_data(Position(ledger, number)) for number in range(40)])
        )
        # nobody's: dropped
        peer.write(
            requests.ack(7, [message_id_data(Position(ledger, number)) for number in range(40)])
        )
        assert await peer.is_quiet()
        await peer.send(b"next", 30)
        peer.write(command_frame("flow", consumer_id=1, messagePermits=10))
        assert (await peer.message())[0].message_id.entryId == 30
        assert broker.metrics.traffic().messages_out == 1

    await play(tmp_path, script)


async def test_a_consumer_that_does_not_read_is_not_sent_everything_it_may_have(
    tmp_path: Path,
) -> None:
    """Permits for 40 MB, a reader that has stopped: what waits for it is bounded by bytes; all
    of it comes when it reads again."""
    count, size = 400, 100_000

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for sequence in range(count):
            await peer.send(bytes(size), sequence)
        async with open_peer(broker) as slow:
            await slow.subscribe()
            slow.write(command_frame("flow", consumer_id=1, messagePermits=count))
            await until(lambda: broker.metrics.traffic().messages_out > 0)
            assert broker.metrics.traffic().messages_out < count // 2, (
                "everything was queued in one turn"
            )
            assert [(await slow.message())[0].message_id.entryId for _ in range(count)] == list(
                range(count)
            )

    await play(tmp_path, script, write_buffer_bytes_max=1 << 20)


async def test_a_backlog_of_single_messages_is_read_from_storage_in_order(tmp_path: Path) -> None:
    """One entry per flush, between those of another topic, and none of it in memory any more."""

    async def script(broker: Broker, peer: Peer) -> None:
        other = "persistent://public/default/other"
        await peer.lookup(other)
        await peer.produce(1)
        await peer.produce(2, topic=other)
        for sequence in range(100):
            await peer.send(b"%05d" % sequence + bytes(1000), sequence)
            await peer.send(bytes(3000), sequence, producer_id=2)
        await peer.subscribe()
        peer.write(command_frame("flow", consumer_id=1, messagePermits=1000))
        found = [(await peer.message())[1] for _ in range(100)]
        assert [body.rstrip(b"\0")[-5:] for body in found] == [
            b"%05d" % sequence for sequence in range(100)
        ]
        assert broker.metrics.tail_misses > 0

    await play(tmp_path, script, tail_cache_bytes_max=64 << 10)

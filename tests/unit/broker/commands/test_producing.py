"""Producers as clients see them: names, access modes, the order of answers, what a topic
refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.errors import WireCode
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.topics import producers
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import (
    CLOCK,
    TOPIC,
    Peer,
    Type,
    command_frame,
    connected_peer,
    entry,
    open_peer,
    running_broker,
)

EXCLUSIVE, WAIT, FENCING = api.Exclusive, api.WaitForExclusive, api.ExclusiveWithFencing
Script = Callable[[Broker, Peer], Coroutine[Any, Any, None]]


async def play(directory: Path, script: Script, **settings: Any) -> None:
    """Run `script` with a broker that owns TOPIC's bundle, and one peer."""

    async with connected_peer(directory, **settings) as (broker, peer):
        await script(broker, peer)


def error_of(command: api.BaseCommand) -> int:
    assert command.type == Type.ERROR, command
    return int(command.error.error)


async def host_of(broker: Broker) -> TopicHost:
    return await broker.service.open_topic(TopicName.parse(TOPIC), create=True)


async def ask(peer: Peer, producer_id: int = 1, **values: Any) -> api.BaseCommand:
    """PRODUCER, and the first answer."""
    return await peer.ask("producer", topic=TOPIC, producer_id=producer_id, **values)


# --- names ----------------------------------------------------------------------------------------


async def test_a_name_in_use_is_refused_while_its_holder_lives(tmp_path: Path) -> None:
    """The holder is asked by PING; it answers, so the other gets ProducerBusy. A lost connection
    frees the name at once."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="me")
        async with open_peer(broker) as other:
            asked = asyncio.create_task(ask(other, producer_name="me"))
            await peer.answer(Type.PING)
            peer.write(command_frame("pong"))
            assert error_of(await asked) == WireCode.PRODUCER_BUSY
            names = {(await other.produce(number)).producer_name for number in range(2, 6)}
            assert len(names) == 4, "names that the broker gives are unique"
            await peer.close()
            await other.produce(9, producer_name="me")

    await play(tmp_path, script)


async def test_a_name_held_by_a_dead_connection_is_free(tmp_path: Path) -> None:
    """A peer that does not answer the PING is removed, with everything it had."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="me")
        async with open_peer(broker) as other:
            await other.produce(producer_name="me")
            assert await peer.closed_by_broker()
            await other.send(b"mine")

    await play(tmp_path, script, liveness_check_s=0.2)


async def test_the_next_self_of_a_producer_replaces_it(tmp_path: Path) -> None:
    """The same id and name with a higher epoch; with the same epoch it is the same producer, and
    the answer says so."""

    async def script(_broker: Broker, peer: Peer) -> None:
        name = (await peer.produce()).producer_name
        for epoch in (0, 1, 1):
            assert (
                await peer.produce(
                    producer_name=name, epoch=epoch, user_provided_producer_name=False
                )
            ).producer_name == name
            await peer.send(b"x", epoch)
        assert error_of(await ask(peer, 2, producer_name=name, epoch=9)) == WireCode.PRODUCER_BUSY
        assert (
            error_of(await peer.ask("producer", topic=f"{TOPIC}-2", producer_id=1))
            == WireCode.METADATA
        )

    await play(tmp_path, script)


async def test_a_name_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """A name is in every record of the log."""

    async def script(_broker: Broker, peer: Peer) -> None:
        assert error_of(await ask(peer, producer_name="x" * 65)) == WireCode.TOO_MANY_REQUESTS
        await peer.produce(producer_name="x" * 64)

    await play(tmp_path, script, producer_name_bytes_max=64)


# --- access modes ---------------------------------------------------------------------------------


async def test_exclusive_access_and_how_others_are_refused(tmp_path: Path) -> None:
    """topic_epoch in the answer of exclusive modes only; ProducerFenced for another exclusive
    one, ProducerBusy for a shared one."""

    async def script(_broker: Broker, peer: Peer) -> None:
        assert (await peer.produce(1, producer_access_mode=EXCLUSIVE)).topic_epoch == 0
        assert (
            error_of(await ask(peer, 2, producer_access_mode=EXCLUSIVE)) == WireCode.PRODUCER_FENCED
        )
        assert error_of(await ask(peer, 2)) == WireCode.PRODUCER_BUSY
        peer.write(requests.close_producer(1, 50))
        await peer.answer(Type.SUCCESS)
        assert not (await peer.produce(2)).HasField("topic_epoch")
        assert (
            error_of(await ask(peer, 1, producer_access_mode=EXCLUSIVE)) == WireCode.PRODUCER_FENCED
        )

    await play(tmp_path, script)


@pytest.mark.parametrize("mode", [api.Shared, EXCLUSIVE, WAIT])
async def test_exclusive_access_of_a_dead_connection_is_free(
    tmp_path: Path, mode: api.ProducerAccessMode
) -> None:
    """Under another name, too; and so is that of a dead one that waited for it. One that lives
    keeps it."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_access_mode=EXCLUSIVE)
        async with open_peer(broker) as waiting, open_peer(broker) as other:
            asked = asyncio.create_task(ask(waiting, producer_access_mode=WAIT))
            await peer.answer(Type.PING)
            peer.write(command_frame("pong"))
            assert not (await asked).producer_success.producer_ready
            assert (await other.produce(producer_access_mode=mode)).producer_ready
            assert await peer.closed_by_broker()
            assert await waiting.closed_by_broker()
            await other.send(b"mine")

    await play(tmp_path, script, liveness_check_s=2.0)


async def test_dead_connections_keep_nobody_from_exclusive_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared producers of any name, and one that waits: ProducerFenced would be final. All are
    asked at once, so many at a time."""
    monkeypatch.setattr(producers, "ASKED_AT_ONCE_MAX", 2)

    async def script(broker: Broker, peer: Peer) -> None:
        async with (
            open_peer(broker) as second,
            open_peer(broker) as waiting,
            open_peer(broker) as other,
        ):
            await peer.produce()
            await second.produce()
            assert not (
                await ask(waiting, producer_access_mode=WAIT)
            ).producer_success.producer_ready
            assert (await other.produce(producer_access_mode=EXCLUSIVE)).producer_ready
            for ghost in (peer, second, waiting):
                assert await ghost.closed_by_broker()
            await other.send(b"mine")

    await play(tmp_path, script, liveness_check_s=0.2)


async def test_one_that_lives_among_the_dead_keeps_exclusive_access_away(tmp_path: Path) -> None:
    """Only dead producers are removed."""

    async def script(broker: Broker, peer: Peer) -> None:
        async with open_peer(broker) as alive, open_peer(broker) as other:
            await peer.produce()
            await alive.produce()
            async with alive.alive():
                assert (
                    error_of(await ask(other, producer_access_mode=EXCLUSIVE))
                    == WireCode.PRODUCER_FENCED
                )
            assert await peer.closed_by_broker()
            await alive.send(b"mine")

    await play(tmp_path, script, liveness_check_s=5.0)


async def test_a_waiting_producer_is_answered_twice_with_one_request_id(tmp_path: Path) -> None:
    """Not ready, then ready with the epoch; requests behind it are not held up; a SEND before
    that ends the connection."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(1, producer_access_mode=WAIT)
        waiting = (await ask(peer, 2, producer_access_mode=WAIT)).producer_success
        assert (waiting.producer_ready, waiting.HasField("topic_epoch")) == (False, False)
        await peer.send(b"x", producer_id=1)
        peer.write(requests.close_producer(1, 50))
        answers = {answer.type: answer for answer in [await peer.answer(), await peer.answer()]}
        ready = answers[Type.PRODUCER_SUCCESS].producer_success
        assert (ready.request_id, ready.producer_name) == (
            waiting.request_id,
            waiting.producer_name,
        )
        assert (ready.producer_ready, ready.topic_epoch) == (True, 1)
        assert Type.SUCCESS in answers
        await peer.send(b"y", producer_id=2)
        async with open_peer(broker) as other, peer.alive():
            assert not (await ask(other, producer_access_mode=WAIT)).producer_success.producer_ready
            other.write(requests.send(1, 0, entry(b"too early")))
            assert await other.closed_by_broker()

    await play(tmp_path, script)


async def test_waiting_ends_with_close_and_with_the_connection(tmp_path: Path) -> None:
    """The first gives up, the second loses its connection: the third is the next, and nothing of
    the others is left."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(1, producer_access_mode=EXCLUSIVE)
        assert not (await ask(peer, 2, producer_access_mode=WAIT)).producer_success.producer_ready
        async with open_peer(broker) as lost, open_peer(broker) as third:
            async with peer.alive():
                for each in (lost, third):
                    assert not (
                        await ask(each, 3, producer_access_mode=WAIT)
                    ).producer_success.producer_ready
            peer.write(requests.close_producer(2, 50))
            assert (await peer.answer(Type.SUCCESS)).success.request_id == 50
            await lost.close()
            topic = await host_of(broker)
            while len(list(topic.core.producers.waiting)) > 1:
                await asyncio.sleep(0.001)
            await peer.close()
            ready = (await third.answer(Type.PRODUCER_SUCCESS)).producer_success
            assert (ready.producer_ready, ready.topic_epoch) == (True, 1)

    await play(tmp_path, script)


async def test_fencing_removes_all_producers_and_is_never_undone(tmp_path: Path) -> None:
    """The holder gets its receipts and CLOSE_PRODUCER, a waiting one an error; coming back with the
    old epoch is ProducerFenced."""

    async def script(broker: Broker, peer: Peer) -> None:
        held = await peer.produce(1, producer_access_mode=EXCLUSIVE, producer_name="old")
        assert not (await ask(peer, 2, producer_access_mode=WAIT)).producer_success.producer_ready
        peer.write(b"".join(requests.send(1, n, entry(b"x", n)) for n in range(5)))
        async with open_peer(broker) as other:
            assert (
                await other.produce(1, producer_access_mode=FENCING, producer_name="old")
            ).topic_epoch == 1
            replies = [await peer.answer() for _ in range(7)]
            assert [answer.type for answer in replies if answer.type != Type.ERROR] == [
                Type.SEND_RECEIPT
            ] * 5 + [Type.CLOSE_PRODUCER]
            assert [error_of(answer) for answer in replies if answer.type == Type.ERROR] == [
                WireCode.PRODUCER_FENCED
            ]
            peer.write(requests.send(1, 5, entry(b"late")))
            assert await peer.is_quiet(), "what was on its way is dropped silently"
            for mode in (EXCLUSIVE, WAIT, FENCING):
                refused = await ask(
                    peer, 1, producer_access_mode=mode, topic_epoch=held.topic_epoch
                )
                assert error_of(refused) == WireCode.PRODUCER_FENCED
            await other.send(b"mine")

    await play(tmp_path, script)


async def test_the_epoch_of_a_topic_outlives_its_broker(tmp_path: Path) -> None:
    """It is a durable property: the next incarnation fences producers with an older one, and
    goes on counting."""

    store = MemoryStore(CLOCK)
    for expected in range(2):
        async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
            await peer.lookup()
            if expected:
                assert (
                    error_of(await ask(peer, producer_access_mode=EXCLUSIVE, topic_epoch=0))
                    == WireCode.PRODUCER_FENCED
                )
            for count in range(2):
                assert (
                    await peer.produce(1, producer_access_mode=EXCLUSIVE)
                ).topic_epoch == 2 * expected + count
                peer.write(requests.close_producer(1, 50))
                await peer.answer(Type.SUCCESS)
    await store.close()


async def test_producers_that_wait_on_a_topic_that_leaves_may_come_back(tmp_path: Path) -> None:
    """ServiceNotReady with words that no client takes for the end; those that are in get
    CLOSE_PRODUCER."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(1, producer_access_mode=EXCLUSIVE)
        waiting = (await ask(peer, 2, producer_access_mode=WAIT)).producer_success
        (await host_of(broker)).close_clients(lambda _listener: "pulsar://elsewhere:6650")
        closed, refused = sorted(
            [await peer.answer(), await peer.answer()], key=lambda answer: answer.type, reverse=True
        )
        assert closed.close_producer.assignedBrokerServiceUrl == "pulsar://elsewhere:6650"
        assert (refused.error.request_id, refused.error.error) == (
            waiting.request_id,
            int(WireCode.SERVICE_NOT_READY),
        )
        assert "is being unloaded" in refused.error.message
        assert await peer.is_quiet()

    await play(tmp_path, script)


# --- the order of answers -------------------------------------------------------------------------


async def test_an_error_does_not_overtake_receipts(tmp_path: Path) -> None:
    """SENDs good and damaged in turn: the answers come in the order of the SENDs, those in the
    middle of a flush too."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        frames, kinds = [], []
        for number in range(200):
            body = bytearray(entry(b"x", number))
            if number % 7 in (2, 3):
                body[-1] ^= 1
            frames.append(requests.send(1, number, bytes(body)))
            kinds.append(Type.SEND_ERROR if number % 7 in (2, 3) else Type.SEND_RECEIPT)
        peer.write(b"".join(frames) + requests.close_producer(1, 50))
        answers = [await peer.answer() for _ in range(201)]
        assert [answer.type for answer in answers] == [*kinds, Type.SUCCESS]
        sequences = [
            (a.send_receipt if a.type == Type.SEND_RECEIPT else a.send_error).sequence_id
            for a in answers[:-1]
        ]
        assert sequences == list(range(200))

    await play(tmp_path, script)


async def test_closing_twice_and_closing_what_is_not_there_succeeds(tmp_path: Path) -> None:
    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for producer_id in (1, 1, 77):
            peer.write(requests.close_producer(producer_id, producer_id))
            assert (await peer.answer(Type.SUCCESS)).success.request_id == producer_id

    await play(tmp_path, script)


# --- what a topic refuses -------------------------------------------------------------------------


async def test_a_terminated_topic_takes_no_producers(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await (await host_of(broker)).update_properties({"terminated": "1:2"})
        assert error_of(await ask(peer)) == WireCode.TOPIC_TERMINATED

    await play(tmp_path, script)


async def test_an_initial_subscription_is_there_before_the_first_message(tmp_path: Path) -> None:
    """It begins at the first message, though nobody subscribed."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce(1, initial_subscription_name="dead-letters")
        await peer.send(b"first")
        await peer.subscribe(subscription="dead-letters", initialPosition=0)
        peer.write(requests.flow(1, 1))
        assert (await peer.message())[0].message_id.entryId == 0

    await play(tmp_path, script)

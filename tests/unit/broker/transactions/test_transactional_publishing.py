"""Messages of transactions on a real broker: unseen until commit, in order, once, and there
after whatever happens to broker and files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.broker.upkeep.expiry import delete_unused
from magnetar.errors import NotAllowed, WireCode
from magnetar.hosting.settings import ENTRY_HEAD_BYTES_MAX
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import COORDINATORS_MAX
from magnetar.names import TopicName, sidecar_of
from magnetar.topics.ledgers import TERMINATED
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.frames import encode_command
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
from tests.support.published_topics import QUICK, entries_of, stored
from tests.support.transacting import end, ended, refused_send, send_in, signed

A, B, C = TxnId(0, 0), TxnId(0, 1), TxnId(3, 0)


async def receive(peer: Peer, count: int) -> list[bytes]:
    """The next messages of consumer 1."""
    peer.write(requests.flow(1, count))
    return [(await peer.message())[1] for _ in range(count)]


async def test_nothing_is_seen_before_the_commit_and_then_all_of_it_in_order(
    tmp_path: Path,
) -> None:
    """Ordinary messages concurrently are delivered at once; ids follow them, and receipts had named
    the sidecar."""

    async with connected_peer(tmp_path) as (broker, peer):
        await peer.produce()
        assert (await peer.subscribe()).type == Type.SUCCESS
        first = await send_in(peer, A, b"a0", 0)
        assert first[0] % 2 == 0
        assert await send_in(peer, A, b"a1", 1) == (first[0], 1)
        plain = await peer.send(b"plain", 2)
        assert plain == (first[0] + 1, 0)
        assert await receive(peer, 1) == entries_of((b"plain", 2))
        assert await send_in(peer, A, b"a2", 3) == (first[0], 2)
        peer.write(requests.flow(1, 10))
        assert await peer.is_quiet()
        # The messages come before the answer to the client that ends it.
        peer.write(requests.end_txn_on_partition(9, A, TOPIC, commit=True, low_watermark=-1))
        found = []
        for _ in range(4):
            command, body = await peer.receive()
            if command.type == Type.MESSAGE:
                found.append((signed(command.message.message_id), body))
            else:
                assert command.type == Type.END_TXN_ON_PARTITION_RESPONSE
        wanted = entries_of((b"a0", 0), (b"a1", 1), (b"a2", 3))
        assert found == [((plain[0], 1 + n), body) for n, body in enumerate(wanted)]
        assert await peer.send(b"next", 4) == (plain[0], 4)
        assert await stored(broker) == entries_of(
            (b"plain", 2), (b"a0", 0), (b"a1", 1), (b"a2", 3), (b"next", 4)
        )


async def test_nothing_of_an_aborted_transaction_is_ever_seen(tmp_path: Path) -> None:
    """Two producers in it; another one commits beside it; later SENDs of both are answered as
    documented."""

    async with connected_peer(tmp_path) as (broker, peer):
        await peer.produce(1, producer_name="one")
        await peer.produce(2, producer_name="two")
        await send_in(peer, A, b"a0", 0)
        await send_in(peer, B, b"b0", 1)
        await send_in(peer, A, b"a1", 0, 2)
        cache = next(iter(broker.ownership.owned.values())).tail_cache
        assert cache.bytes == sum(map(len, entries_of((b"a0", 0), (b"b0", 1), (b"a1", 0))))
        await ended(peer, A, commit=False)
        assert cache.bytes == len(entry(b"b0", 1)), "what nobody will read is not kept in memory"
        await ended(peer, B, commit=True)
        assert await stored(broker) == entries_of((b"b0", 1))
        error = await refused_send(peer, A, b"a2", 5)
        assert error.error == int(WireCode.NOT_ALLOWED)
        assert "ABORT" in error.message
        ledger, _ = await send_in(peer, B, b"b0", 1)  # a repetition: where it has gone to
        assert ledger % 2 == 1
        error = await refused_send(peer, B, b"late", 6)
        assert error.error == int(WireCode.NOT_ALLOWED)
        assert "COMMITTED" in error.message
        await peer.send(b"ordinary", 7)
        assert await stored(broker) == entries_of((b"b0", 1), (b"ordinary", 7))


async def test_a_late_send_is_an_ordinary_message_where_that_is_set(tmp_path: Path) -> None:
    """`txn_late_sends_as_ordinary`: after a commit it is published and counted; after an abort
    it is refused all the same."""

    async with connected_peer(tmp_path, txn_late_sends_as_ordinary=1) as (broker, peer):
        await peer.produce(1, producer_name="p")
        ledger, _ = await send_in(peer, A, b"a", 0)
        await send_in(peer, B, b"b", 1)
        await ended(peer, A, commit=True)
        await ended(peer, B, commit=False)
        assert await send_in(peer, A, b"late", 2) == (ledger + 1, 1)
        assert (await refused_send(peer, B, b"late", 3)).error == int(WireCode.NOT_ALLOWED)
        assert await stored(broker) == entries_of((b"a", 0), (b"late", 2))
        assert b"magnetar_transaction_late_messages_total 1.0" in broker.metrics.exposition()


async def test_repetitions_are_stored_once(tmp_path: Path) -> None:
    """By the same connection, by another one while the first is on its way, and within one read."""

    async with connected_peer(tmp_path) as (broker, peer):
        await peer.produce(1, producer_name="p")
        frames = [
            requests.send(1, number, entry(b"x", number), txn=A) for number in (0, 1, 1, 2, 0)
        ]
        peer.write(b"".join(frames))
        receipts = [(await peer.answer(Type.SEND_RECEIPT)).send_receipt for _ in frames]
        assert [receipt.sequence_id for receipt in receipts] == [0, 1, 1, 2, 0]
        places = [signed(receipt.message_id)[1] for receipt in receipts]
        assert places == [0, 1, 1, 2, -1]
        await ended(peer, A, commit=True)
        assert await stored(broker) == entries_of((b"x", 0), (b"x", 1), (b"x", 2))
        async with open_peer(broker) as other:
            await other.lookup()
            peer.writer.close()
            created = await other.ask("producer", topic=TOPIC, producer_id=7, producer_name="p")
            # until the broker has learned of the end of the first one
            while created.type != Type.PRODUCER_SUCCESS:
                created = await other.ask("producer", topic=TOPIC, producer_id=7, producer_name="p")
            assert created.producer_success.last_sequence_id == 2


async def test_a_number_that_no_coordinator_has_is_refused_and_forgotten(tmp_path: Path) -> None:
    """The SEND fails, in order among the receipts; its end as well; the topic is one that
    was never used with transactions."""

    async with connected_peer(tmp_path) as (broker, peer):
        await peer.produce()
        await peer.send(b"before", 0)
        for number, most in enumerate((COORDINATORS_MAX, (1 << 64) - 1), 1):
            forged = TxnId(most, 0)
            error = await refused_send(peer, forged, b"forged", number)
            assert error.error == int(WireCode.NOT_ALLOWED)
            assert (
                f"txnid_most_bits: {most} is no transaction coordinator's number, they are "
                "0..15" in error.message
            )
            assert (await end(peer, forged, commit=True)).error == int(WireCode.NOT_ALLOWED)
        await peer.send(b"after", 3)
        assert await stored(broker) == entries_of((b"before", 0), (b"after", 3))
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        assert host.transactions is None


async def test_a_client_that_a_refusal_makes_deaf_comes_again_instead(tmp_path: Path) -> None:
    """The Go client's producer is closed behind its receipts; its next PRODUCER is refused with
    the reason, the one after that works; nothing behind the refused SEND was taken.
    """

    async with (
        connected_peer(tmp_path) as (broker, _peer),
        open_peer(broker, handshake=False) as go,
    ):
        go.write(requests.connect("Pulsar-Go-0.19.0", 21))
        await go.answer(Type.CONNECTED)
        await go.produce(producer_name="p")
        await send_in(go, A, b"never", 0)
        await ended(go, A, commit=False)
        go.write(
            requests.send(1, 1, entry(b"one", 1))
            + requests.send(1, 2, entry(b"late", 2), txn=A)
            + requests.send(1, 3, entry(b"later", 3), txn=A)
            + requests.send(1, 4, entry(b"ordinary", 4))
        )
        assert (await go.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == 1
        assert (await go.answer(Type.CLOSE_PRODUCER)).close_producer.producer_id == 1
        assert await go.is_quiet()
        refused = (
            await go.ask("producer", topic=TOPIC, producer_id=1, producer_name="p", epoch=1)
        ).error
        assert refused.error == int(WireCode.PRODUCER_BLOCKED_QUOTA_EXCEPTION)
        assert "begin another one" in refused.message
        await go.produce(producer_name="p", epoch=2)
        await go.send(b"two", 5)
        assert await stored(broker) == entries_of((b"one", 1), (b"two", 5))


@pytest.mark.parametrize(
    "why", ["max_message_bytes", "encryption_required", TERMINATED, "too large for the server"]
)
async def test_an_ordinary_message_that_is_refused_makes_it_come_again_as_well(
    tmp_path: Path, why: str
) -> None:
    """By a policy or at the end of its topic, and nothing behind it is taken, not even what is
    small enough; other clients are refused at once."""
    late = (
        bytes(1024 + ENTRY_HEAD_BYTES_MAX) if why == "too large for the server" else b"late" * 100
    )

    async with (
        connected_peer(tmp_path, max_message_bytes=1024) as (broker, peer),
        open_peer(broker, handshake=False) as go,
    ):
        go.write(requests.connect("Pulsar-Go-0.19.0", 21))
        await go.answer(Type.CONNECTED)
        await go.produce(producer_name="p")
        await peer.produce(producer_name="q")
        await go.send(b"one", 1)
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        if why == TERMINATED:
            host.core.properties[TERMINATED] = "as decided, and on its way to the log"
        elif why == "encryption_required":
            host.policies = replace(host.policies, encryption_required=True)
        elif why == "max_message_bytes":
            host.policies = replace(host.policies, max_message_bytes=200)
        host.admission.refresh()
        for sequence in (2, 3):
            peer.write(requests.send(1, sequence, entry(late, sequence)))
            assert (await peer.answer(Type.SEND_ERROR)).send_error.sequence_id == sequence
        go.write(requests.send(1, 2, entry(late, 2)) + requests.send(1, 3, entry(b"later", 3)))
        assert (await go.answer(Type.CLOSE_PRODUCER)).close_producer.producer_id == 1
        assert await go.is_quiet()
        refused = (
            await go.ask("producer", topic=TOPIC, producer_id=1, producer_name="p", epoch=1)
        ).error
        assert refused.error == int(WireCode.PRODUCER_BLOCKED_QUOTA_EXCEPTION)
        assert await stored(broker) == entries_of((b"one", 1))


async def test_refusals_that_nobody_comes_for_are_bounded(tmp_path: Path) -> None:
    """The first ones are forgotten."""

    async with (
        connected_peer(tmp_path, producers_per_connection_max=2) as (broker, _peer),
        open_peer(broker, handshake=False) as go,
    ):
        go.write(requests.connect("Pulsar-Go-0.19.0", 21))
        await go.answer(Type.CONNECTED)
        for producer_id in range(4):
            await go.produce(producer_id)
            go.write(
                requests.send(producer_id, 0, entry(b"forged", 0), txn=TxnId(COORDINATORS_MAX, 0))
            )
            await go.answer(Type.CLOSE_PRODUCER)
        answers = [
            await go.ask("producer", topic=TOPIC, producer_id=producer_id)
            for producer_id in (3, 2, 1, 0)
        ]
        assert [answer.type for answer in answers] == [
            Type.ERROR,
            Type.ERROR,
            Type.PRODUCER_SUCCESS,
            Type.PRODUCER_SUCCESS,
        ]


async def test_an_end_may_come_again_and_not_the_other_way(tmp_path: Path) -> None:
    """Without messages too: it leaves a fence. What is below the low watermark has ended,
    whatever it was."""

    async with connected_peer(tmp_path) as (broker, peer):
        await peer.produce()
        await send_in(peer, A, b"a", 0)
        for _ in range(2):
            await ended(peer, A, commit=True)
            await ended(peer, C, commit=False)
        other = await end(peer, A, commit=False)
        assert other.error == int(WireCode.INVALID_TXN_STATUS)
        assert (await end(peer, C, commit=True)).error == int(WireCode.INVALID_TXN_STATUS)
        assert (await refused_send(peer, C, b"c", 1)).error == int(WireCode.NOT_ALLOWED)
        await send_in(peer, B, b"b", 2)
        await ended(peer, TxnId(0, 5), commit=True, low_watermark=3)
        await ended(peer, B, commit=False)  # an orphan: it was aborted with that
        assert await stored(broker) == entries_of((b"a", 0))
        await ended(peer, A, commit=False, low_watermark=3)
        missing = await end(peer, A, commit=True, topic="persistent://public/default/not-there")
        assert missing.error in (int(WireCode.TOPIC_NOT_FOUND), int(WireCode.SERVICE_NOT_READY))


async def test_the_other_end_is_refused_behind_the_one_that_is_on_its_way(tmp_path: Path) -> None:
    """The coordinator takes that refusal for the end: it must not come before the end is
    durable."""

    async with connected_peer(tmp_path) as (_, peer):
        await peer.produce()
        await send_in(peer, A, b"a", 0)
        abort, commit = peer.next_request(), peer.next_request()
        peer.write(
            requests.end_txn_on_partition(abort, A, TOPIC, commit=False, low_watermark=-1)
            + requests.end_txn_on_partition(commit, A, TOPIC, commit=True, low_watermark=-1)
        )
        answers = [
            (await peer.answer(Type.END_TXN_ON_PARTITION_RESPONSE)).end_txn_on_partition_response
            for _ in range(2)
        ]
        assert [(found.request_id, found.HasField("error")) for found in answers] == [
            (abort, False),
            (commit, True),
        ]


async def test_receipts_say_where_to_begin(tmp_path: Path) -> None:
    """SEEK and a reader's start name what a receipt did: the entry that it has become, or the
    place where it would have been."""

    async with connected_peer(tmp_path) as (_broker, peer):
        await peer.produce()
        await peer.send(b"first", 0)
        committed = [await send_in(peer, A, b"a", number) for number in (1, 2)]
        aborted = await send_in(peer, B, b"b", 3)
        await peer.send(b"second", 4)
        waiting = await send_in(peer, C, b"c", 5)
        await ended(peer, A, commit=True)
        await ended(peer, B, commit=False)
        await peer.send(b"last", 6)
        everything = entries_of((b"first", 0), (b"second", 4), (b"a", 1), (b"a", 2), (b"last", 6))
        assert (await peer.subscribe()).type == Type.SUCCESS
        for place, begins_with in (
            (committed[1], 3),
            (committed[0], 2),
            (aborted, 1),
            (waiting, 2),
        ):
            named = api.MessageIdData(ledgerId=place[0], entryId=place[1])
            peer.write(requests.seek(1, peer.next_request(), message_id=named))
            await peer.answer(Type.CLOSE_CONSUMER)
            await peer.answer(Type.SUCCESS)
            await peer.subscribe()
            assert await receive(peer, len(everything) - begins_with) == everything[begins_with:]
            request = api.CommandSubscribe(
                topic=TOPIC, subscription="reader", subType=api.CommandSubscribe.Exclusive, consumer_id=2, durable=False,
                request_id=peer.next_request(),
            )  # fmt: skip
            request.start_message_id.ledgerId, request.start_message_id.entryId = place
            peer.write(encode_command(api.BaseCommand(type=Type.SUBSCRIBE, subscribe=request)))
            await peer.answer(Type.SUCCESS)
            peer.write(requests.flow(2, 1))
            assert (await peer.message())[1] == everything[begins_with]
            assert (await peer.ask("close_consumer", consumer_id=2)).type == Type.SUCCESS


async def test_open_transactions_of_a_topic_are_limited_together(tmp_path: Path) -> None:
    """By the broker's setting: a SEND that is one entry too much is refused for good, and the
    end of another transaction makes room."""

    async with connected_peer(tmp_path, txn_open_entries_per_topic_max=2) as (_, peer):
        await peer.produce()
        await send_in(peer, A, b"a", 0)
        await send_in(peer, B, b"b", 1)
        error = await refused_send(peer, B, b"b", 2)
        assert (error.error, "txn_open_entries_per_topic_max=2" in error.message) == (
            int(WireCode.NOT_ALLOWED),
            True,
        )
        await ended(peer, A, commit=True)
        await send_in(peer, B, b"b", 3)


async def test_limits_and_names(tmp_path: Path) -> None:
    """What is too much is refused by NotAllowed, which fails a SEND for good; a sidecar's name
    is nobody's topic."""

    async with connected_peer(tmp_path, txn_open_per_topic_max=1, txn_entries_max=2) as (
        broker,
        peer,
    ):
        await peer.produce()
        await send_in(peer, A, b"a", 0)
        error = await refused_send(peer, B, b"b", 1)
        assert (error.error, "txn_open_per_topic_max" in error.message) == (
            int(WireCode.NOT_ALLOWED),
            True,
        )
        await send_in(peer, A, b"a", 2)
        error = await refused_send(peer, A, b"a", 3)
        assert (error.error, "txn_entries_max=2" in error.message) == (
            int(WireCode.NOT_ALLOWED),
            True,
        )
        answer = await peer.ask("producer", topic=sidecar_of(TOPIC), producer_id=2)
        assert (answer.type, answer.error.error) == (Type.ERROR, int(WireCode.NOT_ALLOWED))
        await peer.lookup("non-persistent://public/default/n")
        await peer.produce(3, "non-persistent://public/default/n")
        assert (await refused_send(peer, A, b"n", 0, 3)).error == int(WireCode.NOT_ALLOWED)
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        assert host.transactions is not None
        assert host.transactions.buffer.is_open(A)


async def test_a_topic_with_open_transactions_is_neither_terminated_nor_deleted_for_lack_of_use(
    tmp_path: Path,
) -> None:
    """Asked to commit, such a topic would answer that there is nothing, and its coordinator would
    take that for done."""

    async with connected_peer(tmp_path, inactive_topic_s=0.001) as (broker, peer):
        await peer.produce()
        await send_in(peer, A, b"a", 0)
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        with pytest.raises(NotAllowed, match="open transactions"):
            await host.terminate()
        assert (await peer.ask("close_producer", producer_id=1)).type == Type.SUCCESS
        hour_ms = 3_600_000
        for later in (1, 2):
            await delete_unused(host, CLOCK.wall_ms() + later * hour_ms)
        assert host.bundle.held(host.name) is host
        await ended(peer, A, commit=True)
        assert await stored(broker) == entries_of((b"a", 0))
        assert (await host.terminate()).entry == 0
        for later in (3, 4):
            await delete_unused(host, CLOCK.wall_ms() + later * hour_ms)
        assert host.bundle.held(host.name) is None


async def test_a_terminated_topic_ends_the_producer_and_what_a_policy_refuses_fails_alone(
    tmp_path: Path,
) -> None:
    """As with ordinary SENDs: TopicTerminated for what is new, a receipt for what is there. Any
    code but that and NotAllowed would make clients send again permanently.
    """

    async with connected_peer(tmp_path) as (broker, peer):
        await peer.produce()
        place = await send_in(peer, A, b"a", 0)
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        host.policies = replace(host.policies, encryption_required=True)
        error = await refused_send(peer, A, b"plain text", 1)
        assert (error.error, error.message) == (
            int(WireCode.NOT_ALLOWED),
            "Messages must be encrypted",
        )
        host.policies = replace(host.policies, encryption_required=False)
        host.core.properties[TERMINATED] = "as decided, and on its way to the log"
        error = await refused_send(peer, A, b"late", 2)
        assert (error.error, error.sequence_id) == (int(WireCode.TOPIC_TERMINATED), 2)
        assert "was already terminated" in error.message
        assert await send_in(peer, A, b"a", 0) == place


async def test_open_and_committed_transactions_survive_whatever_happens_to_files_and_broker(
    tmp_path: Path,
) -> None:
    """Sealed files, checkpoints, rewriting, collection and a new incarnation: in every order the
    same entries are there, and an open one can commit."""

    store = MemoryStore(CLOCK)
    wanted: list[bytes] = []
    number, held = 0, list[int]()
    waiting = TxnId(1, 0)
    for life in range(3):
        async with (
            running_broker(tmp_path, store=store, **QUICK) as broker,
            open_peer(broker) as peer,
        ):
            await peer.lookup()
            created = await peer.produce(producer_name="p")
            number = max(number, created.last_sequence_id + 1)
            if life:
                assert await stored(broker) == wanted
                await ended(peer, waiting, commit=True)
                wanted += [entry(b"waiting", at) for at in held]
            held.clear()
            waiting = TxnId(1, life + 1)
            for turn in range(3):
                txn = TxnId(0, 10 * life + turn)
                bodies = []
                for _ in range(4):
                    for name in (txn, waiting):
                        await send_in(peer, name, b"waiting" if name is waiting else b"x", number)
                        (held if name is waiting else bodies).append(number)
                        number += 1
                await peer.send(b"plain", number)
                wanted.append(entry(b"plain", number))
                number += 1
                await ended(peer, txn, commit=turn != 1)
                if turn != 1:
                    wanted += [entry(b"x", at) for at in bodies]
                await broker.service.roll(TopicName.parse(TOPIC))
                assert await stored(broker) == wanted
                for _ in range(2):
                    await broker.maintenance.round()
                    await asyncio.sleep(0.06)
                assert await stored(broker) == wanted
                host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
                # what is still in memory hides nothing
                host.index.drop_before(host.core.ledgers.end)
                assert await stored(broker) == wanted
    async with (
        running_broker(tmp_path, store=store, **QUICK) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await ended(peer, waiting, commit=True)
        wanted += [entry(b"waiting", at) for at in held]
        await broker.service.roll(TopicName.parse(TOPIC))
        for _ in range(6):
            await broker.maintenance.round()
            await asyncio.sleep(0.06)
        assert await stored(broker) == wanted
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        # All of it has been rewritten as the partition's own, and no file with sidecar entries
        # is listed any more.
        sidecar = [
            file
            for file in host.bundle.catalog.manifest.level0
            if sidecar_of(TOPIC) in (await host.bundle.catalog.index(file)).topics()
        ]
        assert not sidecar
        segments = host.bundle.catalog.manifest.topic(TOPIC).level1
        assert sum(segment.entries for segment in segments) == len(wanted)
    await store.close()

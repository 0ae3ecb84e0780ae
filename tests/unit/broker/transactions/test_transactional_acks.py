"""Acknowledgements in transactions, seen from the other end of a real socket: what is held,
refused and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.errors import WireCode
from magnetar.metadata.records import COORDINATORS_MAX
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.acknowledging import (
    CONFLICT,
    DONE,
    ENDED,
    A,
    B,
    C,
    ack_in,
    end,
    host_of,
    pending_of,
    published,
    some_of,
    subscription_of,
)
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.deliveries import (
    EXCLUSIVE,
    SHARED,
    acknowledge,
    play,
    publish,
    received,
    redelivery,
)

REFUSED = int(WireCode.NOT_ALLOWED)
FAILOVER, KEY_SHARED = api.CommandSubscribe.Failover, api.CommandSubscribe.Key_Shared


# --- holding and ending ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
def test_an_abort_delivers_again_and_a_commit_acknowledges(tmp_path: Path, kind: int) -> None:
    """On every type. Until the transaction ends, what is held is delivered to no consumer, even on
    request, and no other acknowledgement takes it."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 4)
        await peer.subscribe(subType=kind)
        assert await received_messages(peer, 4) == [0, 1, 2, 3]
        assert await ack_in(peer, A, ids[1], ids[2]) == DONE
        await acknowledge(peer, *ids)
        host = await subscription_of(broker)
        assert (host.core.backlog, host.core.cursor.mark_delete) == (2, 1)
        peer.write(redelivery(1))
        peer.write(requests.flow(1, 100))
        assert await peer.is_quiet(), "held: not delivered again"
        assert await end(broker, A, commit=False) == DONE
        assert [(await peer.message())[0].message_id.entryId for _ in range(2)] == [1, 2]
        assert await ack_in(peer, B, *ids[1:3]) == DONE
        assert await end(broker, B, commit=True) == DONE
        assert (host.core.backlog, host.core.deferred) == (0, None)
        assert await peer.is_quiet()

    play(tmp_path, script, failover_delay_ms=0)


async def received_messages(peer: Peer, count: int) -> list[int]:
    """As `received`; a Failover consumer is notified first that it is active."""
    peer.write(requests.flow(1, count))
    found: list[int] = []
    while len(found) < count:
        command, _ = await peer.receive()
        if command.type == Type.MESSAGE:
            found.append(command.message.message_id.entryId)
    return found


def test_a_cumulative_acknowledgement_holds_all_before_it(tmp_path: Path) -> None:
    """Up to a message of a batch; an abort brings all of it again, with the epoch that the
    consumer has by then."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 2)
        ids.append(await publish(peer, num_messages_in_batch=3))
        await peer.subscribe()
        peer.write(requests.flow(1, 5))
        assert [(await peer.message())[0].message_id.entryId for _ in range(3)] == [0, 1, 2]
        assert await ack_in(peer, A, some_of(ids[2], 0b100, 3), cumulative=True) == DONE
        assert await end(broker, A, commit=False) == DONE
        peer.write(requests.flow(1, 5))
        again = [(await peer.message())[0] for _ in range(3)]
        assert [(found.message_id.entryId, [*found.ack_set]) for found in again] == [
            (0, []),
            (1, []),
            (2, []),
        ]
        assert await ack_in(peer, B, some_of(ids[2], 0b100, 3), cumulative=True) == DONE
        assert await end(broker, B, commit=True) == DONE
        host = await subscription_of(broker)
        assert (host.core.cursor.mark_delete, host.core.cursor.partial) == (2, {2: 0b100})

    play(tmp_path, script)


def test_messages_of_one_batch_in_several_transactions(tmp_path: Path) -> None:
    """Clients send an ack set and, not all of them, how large the batch is."""

    async def script(broker: Broker, peer: Peer) -> None:
        (batch,) = await published(peer, 1, num_messages_in_batch=3)
        await peer.subscribe(subType=SHARED)
        await received(peer, 1)
        assert await ack_in(peer, A, some_of(batch, 0b110, 3)) == DONE
        assert await ack_in(peer, B, some_of(batch, 0b101)) == DONE
        code, text = await ack_in(peer, C, some_of(batch, 0b001, 3))
        assert (code, "held by transaction (0,1)" in text) == (CONFLICT, True), text
        assert await ack_in(peer, C, some_of(batch, 0b011)) == DONE
        peer.write(redelivery(1))
        peer.write(requests.flow(1, 10))
        assert await peer.is_quiet(), "nothing of it is free"
        assert await end(broker, B, commit=False) == DONE
        message, _ = await peer.message()
        assert [*message.ack_set] == [0b010]
        await end(broker, A, commit=True)
        await end(broker, C, commit=True)
        await acknowledge(peer, batch)
        assert (await subscription_of(broker)).core.backlog == 0

    play(tmp_path, script)


def test_an_acknowledgement_without_request_id_acts_and_is_not_answered(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 2)
        await peer.subscribe()
        for txn in (A, B):  # the second one is a conflict, which is not reported
            peer.write(requests.ack(1, ids[:1], txn=txn))
        assert await peer.is_quiet()
        host = await subscription_of(broker)
        assert [str(txn) for txn in (await pending_of(broker)).open_transactions()] == ["(0,0)"]
        await end(broker, A, commit=True)
        assert host.core.backlog == 1

    play(tmp_path, script)


def test_the_same_transaction_may_acknowledge_again(tmp_path: Path) -> None:
    """A client that lost the answer does; in Apache Pulsar that is a conflict with itself."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 3)
        await peer.subscribe()
        for _ in range(2):
            assert await ack_in(peer, A, ids[0]) == DONE
            assert await ack_in(peer, A, ids[1], cumulative=True) == DONE
        assert await ack_in(peer, A, ids[1], ids[2]) == DONE
        assert await end(broker, A, commit=True) == DONE

    play(tmp_path, script)


def test_the_first_transaction_of_all_is_one_like_any_other(tmp_path: Path) -> None:
    """(0,0): the fields are there, though their values are what absent ones have; and so is the
    last one that there can ever be."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 2)
        await peer.subscribe()
        last = TxnId(COORDINATORS_MAX - 1, (1 << 64) - 2)
        assert await ack_in(peer, TxnId(0, 0), ids[0]) == DONE
        assert await ack_in(peer, last, ids[1]) == DONE
        code, text = await ack_in(peer, TxnId(0, 1), ids[0])
        assert (code, "held by transaction (0,0)" in text) == (CONFLICT, True)
        assert await end(broker, TxnId(0, 0), commit=True) == DONE
        assert await end(broker, last, commit=True) == DONE
        assert (await subscription_of(broker)).core.backlog == 0

    play(tmp_path, script)


# --- refusals -------------------------------------------------------------------------------------


def test_a_number_that_no_coordinator_has_is_refused_and_forgotten(tmp_path: Path) -> None:
    """Individual, cumulative, and the end: each answer says why, and neither topic nor
    subscription keeps anything of it."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 2)
        await peer.subscribe()
        for most in (COORDINATORS_MAX, (1 << 64) - 1):
            forged = TxnId(most, 0)
            for answer in (
                await ack_in(peer, forged, ids[0]),
                await ack_in(peer, forged, ids[0], cumulative=True),
                await end(broker, forged, commit=True),
            ):
                assert answer[0] == REFUSED
                assert (
                    f"txnid_most_bits: {most} is no transaction coordinator's number, they are "
                    "0..15" in answer[1]
                )
        assert (await host_of(broker)).transactions is None

    play(tmp_path, script)


def test_conflicts_name_the_holder_and_hold_nothing(tmp_path: Path) -> None:
    """Every refusal has a text: Go takes one without for a success."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 5)
        await peer.subscribe()
        await acknowledge(peer, ids[0])
        assert await ack_in(peer, A, ids[2]) == DONE
        ledger = ids[0].ledgerId
        beyond = api.MessageIdData(ledgerId=ledger, entryId=9)
        for named, cumulative, words in (
            ([ids[1], ids[2]], False, f"{ledger}:2 is held by transaction (0,0)"),
            ([ids[3]], True, f"{ledger}:2 is held by transaction (0,0)"),
            ([ids[0]], False, f"{ledger}:0 is acknowledged already"),
            ([ids[0]], True, f"{ledger}:0 and all before it are acknowledged already"),
            ([ids[1], beyond], False, f"{ledger}:9 does not exist"),
            ([beyond], True, f"{ledger}:9 does not exist"),
        ):
            code, text = await ack_in(peer, B, *named, cumulative=cumulative)
            assert (code, words in text, "(0,1)" in text) == (CONFLICT, True, True), text
        assert list((await pending_of(broker)).open_transactions()) == [A]
        assert await ack_in(peer, A, ids[3], cumulative=True) == DONE, "its own are no obstacle"

    play(tmp_path, script)


def test_what_cannot_be_acknowledged_in_a_transaction(tmp_path: Path) -> None:
    """A reader's subscription, a topic without storage, cumulative ones of Shared or of several
    messages, batches beyond all bounds."""

    async def script(broker: Broker, peer: Peer) -> None:
        (first, second) = await published(peer, 2)
        await peer.subscribe(1, subType=SHARED)
        for identifiers, cumulative, words in (
            ([first], True, "is SHARED"),
            ([first, second], True, "names one message, this one 2"),
            ([], True, "names one message, this one 0"),
            ([some_of(first, 1, 1 << 30)], False, "ack_set_words_max=4096"),
            (
                [api.MessageIdData(ledgerId=first.ledgerId, entryId=0, ack_set=[1] * 4097)],
                False,
                "ack_set_words_max=4096",
            ),
        ):
            code, text = await ack_in(peer, A, *identifiers, cumulative=cumulative)
            assert (code, words in text) == (REFUSED, True), text
        assert await ack_in(peer, A) == DONE, "nothing is named, nothing is held"
        await peer.subscribe(2, subscription="reader", durable=False)
        code, text = await ack_in(peer, A, first, consumer_id=2)
        assert (code, "is not durable" in text) == (REFUSED, True), text
        with pytest.raises(KeyError):
            await pending_of(broker, "reader")
        volatile = "non-persistent://public/default/n"
        await peer.lookup(volatile)
        await peer.subscribe(3, volatile)
        code, text = await ack_in(peer, A, first, consumer_id=3)
        assert (code, "is not persistent" in text) == (REFUSED, True), text
        assert (await end(broker, A, commit=True, subscription="reader"))[0] == int(
            WireCode.SUBSCRIPTION_NOT_FOUND
        )

    play(tmp_path, script)


def test_an_ended_transaction_acknowledges_nothing_more(tmp_path: Path) -> None:
    """Its end left a fence, also where it had held nothing; the same end again is done, the
    opposite is refused."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 3)
        await peer.subscribe()
        await ack_in(peer, A, ids[0])
        assert await end(broker, A, commit=True) == DONE
        assert await end(broker, B, commit=False) == DONE
        for txn, commit, word in ((A, True, "committed"), (B, False, "aborted")):
            assert await end(broker, txn, commit=commit) == DONE
            code, text = await end(broker, txn, commit=not commit)
            assert (code, f"was {word}" in text) == (ENDED, True)
            code, text = await ack_in(peer, txn, ids[1])
            assert (code, f"was {word}" in text) == (ENDED, True)

    play(tmp_path, script)


def test_what_does_not_exist_is_said_only_where_it_is_certain(tmp_path: Path) -> None:
    """A coordinator takes that for the end: a topic that is leaving answers to come again."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 1)
        await peer.subscribe()
        await ack_in(peer, A, ids[0])
        assert (await end(broker, A, commit=True, subscription="other"))[0] == int(
            WireCode.SUBSCRIPTION_NOT_FOUND
        )
        absent = TOPIC + "-absent"
        await peer.lookup(absent)
        assert (await end(broker, A, commit=True, topic=absent))[0] == int(WireCode.TOPIC_NOT_FOUND)
        assert absent not in (await host_of(broker)).bundle.topics, "nobody made it"
        host = await host_of(broker)
        host.core.freeze()
        code, text = await end(broker, A, commit=True)
        assert (code, "is being unloaded" in text) == (int(WireCode.SERVICE_NOT_READY), True)
        assert (await ack_in(peer, A, ids[0]))[0] == int(WireCode.SERVICE_NOT_READY)
        host.core.thaw()
        assert await end(broker, A, commit=True) == DONE

    play(tmp_path, script)

"""Acknowledgements in transactions while other things happen: consumers leave, cursors move,
nobody ends them, brokers change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.administration.explanation import pin_in_words
from magnetar.broker.administration.owned_facts import owned_facts
from magnetar.broker.commands.acknowledgements import acknowledge as handle_ack
from magnetar.broker.incarnation import Broker
from magnetar.broker.transactions.subscription_transactions import SubscriptionTransactions
from magnetar.broker.upkeep.expiry import expire_to, skip
from magnetar.errors import ServiceNotReady, WireCode
from magnetar.names import TopicName
from magnetar.topics.ledgers import Position
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import EndAcks, Outcome
from magnetar.transactions.records import Action
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.frames import encode_command
from tests.support.acknowledging import (
    CONFLICT,
    DONE,
    ENDED,
    A,
    B,
    C,
    Lives,
    ack_in,
    end,
    host_of,
    pending_of,
    play_lives,
    published,
    some_of,
    subscription_of,
)
from tests.support.brokers import Peer, Type, command_frame, open_peer
from tests.support.deliveries import SHARED, acknowledge, play, publish, received, seek
from tests.support.transacting import ended, send_in

# --- what others do concurrently ------------------------------------------------------------------


def test_a_consumer_that_leaves_takes_nothing_of_its_transaction_along(tmp_path: Path) -> None:
    """What it held and did not acknowledge goes to the next one; what its transaction holds
    stays where it is."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 3)
        async with open_peer(broker) as other:
            await other.subscribe(subType=SHARED)
            assert await received(other, 3) == [0, 1, 2]
            assert await ack_in(other, A, ids[1]) == DONE
        await peer.subscribe(subType=SHARED)
        peer.write(requests.flow(1, 10))
        assert [(await peer.message())[0].message_id.entryId for _ in range(2)] == [0, 2]
        assert await peer.is_quiet()
        assert await end(broker, A, commit=False) == DONE
        assert (await peer.message())[0].message_id.entryId == 1

    play(tmp_path, script)


def test_a_seek_while_something_is_held(tmp_path: Path) -> None:
    """Held messages are passed over wherever delivery begins; a commit acknowledges them at the
    new place as well."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 4)
        await peer.subscribe()
        assert await received(peer, 4) == [0, 1, 2, 3]
        await acknowledge(peer, ids[0])
        assert await ack_in(peer, A, ids[1]) == DONE
        assert await ack_in(peer, B, ids[2]) == DONE
        await seek(peer, message_id=ids[0])
        await peer.subscribe()
        assert await received(peer, 2) == [0, 3]
        assert await end(broker, A, commit=True) == DONE
        await seek(peer, message_id=ids[3])
        assert await end(broker, B, commit=False) == DONE
        await peer.subscribe()
        assert await received(peer, 1) == [3], "delivery begins behind what has come back"
        await seek(peer, message_id=ids[0])
        await peer.subscribe()
        assert await received(peer, 4) == [0, 1, 2, 3], (
            "a seek after the commit undoes it, as it undoes any acknowledgement"
        )
        assert (await subscription_of(broker)).core.backlog == 4

    play(tmp_path, script)


def test_skipping_and_expiry_leave_what_is_held(tmp_path: Path) -> None:
    """Only its end decides; what is aborted afterwards is delivered."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 6)
        await peer.subscribe()
        assert await ack_in(peer, A, ids[1], ids[3]) == DONE
        host = await subscription_of(broker)
        await skip(host, 2)
        assert (host.core.cursor.mark_delete, host.core.backlog) == (1, 4), "0 and 2 are skipped"
        await expire_to(host, Position(ids[4].ledgerId, 4))
        assert host.core.backlog == 3
        await skip(host, None)
        assert host.core.backlog == 2
        assert await end(broker, A, commit=False) == DONE
        assert await received(peer, 2) == [1, 3]

    play(tmp_path, script)


def test_a_coordinator_learns_of_a_deleted_subscription_once_that_is_durable(
    tmp_path: Path,
) -> None:
    """After a crash before that it would be there again, with what its transaction holds. A
    coordinator that took it for gone would never end that."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 2)
        await peer.subscribe()
        assert await ack_in(peer, A, ids[0]) == DONE
        topic, log, gate = await host_of(broker), broker.context.log, asyncio.Event()
        append = log._tail._append

        async def slow(*arguments: Any) -> int:
            await gate.wait()
            return await append(*arguments)

        log._tail._append = slow  # type: ignore[method-assign, assignment]
        peer.write(command_frame("unsubscribe", request_id=70, consumer_id=1))
        while topic.subscriptions:
            await asyncio.sleep(0.005)
        asking = asyncio.create_task(end(broker, A, commit=True))
        while len(log._waiting) < 2 and not asking.done():
            await asyncio.sleep(0.005)
        answered = asking.done()
        gate.set()
        assert not answered
        assert (await asking)[0] == int(WireCode.SUBSCRIPTION_NOT_FOUND)
        assert (await peer.answer(Type.SUCCESS)).success.request_id == 70

    play(tmp_path, script)


def test_unsubscribing_forgets_what_was_held(tmp_path: Path) -> None:
    """The subscription is gone with it; another one of the same name has an incarnation of its own,
    before and after a restart."""

    async def script(lives: Lives) -> None:
        async with lives.life() as (broker, peer):
            ids = await published(peer, 2)
            await peer.subscribe()
            assert await ack_in(peer, A, ids[0]) == DONE
            assert (await peer.ask("unsubscribe", consumer_id=1)).type == Type.SUCCESS
            assert (await end(broker, A, commit=True))[0] == int(WireCode.SUBSCRIPTION_NOT_FOUND)
            await peer.subscribe()
            assert await received(peer, 2) == [0, 1]
            assert await ack_in(peer, B, ids[0]) == DONE
        async with lives.life() as (broker, peer):
            host = await subscription_of(broker)
            assert list((await pending_of(broker)).open_transactions()) == [B]
            assert await end(broker, B, commit=True) == DONE
            assert host.core.cursor.mark_delete == 1

    play_lives(tmp_path, script)


def test_trimming_takes_what_is_held_too(tmp_path: Path) -> None:
    """Truncating a topic takes precedence; the ends of transactions find nothing left and
    succeed."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 3)
        await peer.subscribe()
        assert await ack_in(peer, A, ids[1]) == DONE
        await (await host_of(broker)).truncate()
        assert (await subscription_of(broker)).core.deferred is None
        code, text = await ack_in(peer, B, ids[2])
        assert (code, "does not exist (any more)" in text) == (CONFLICT, True), text
        assert await end(broker, A, commit=False) == DONE
        await publish(peer)
        assert await received(peer, 1) == [3]

    play(tmp_path, script)


def test_an_explanation_names_who_holds_what_is_not_delivered(tmp_path: Path) -> None:
    """A backlog that nobody gets is no riddle: the topic's explanation names the transaction
    that has held of it for longest."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 4)
        batch = await publish(peer, num_messages_in_batch=3)
        await peer.subscribe(subType=SHARED)
        name = (await host_of(broker)).name
        assert facts_of(broker, name)["held"] is None
        await ack_in(peer, C, ids[1], ids[2])
        await ack_in(peer, A, some_of(batch, 0b110, 3))
        held = facts_of(broker, name)["held"]
        assert held == {"entries": 3, "transactions": 2, "longest": "(3,0)"}
        words = (
            "has not acknowledged 5 entries, 3 of them held by 2 open transactions, the longest by "
            "(3,0)"
        )
        assert words in pin_in_words(facts_of(broker, name))
        await end(broker, C, commit=False)
        await end(broker, A, commit=False)
        assert "held" not in pin_in_words(facts_of(broker, name))

    play(tmp_path, script)


def facts_of(broker: Broker, name: TopicName) -> dict[str, Any]:
    [bundle] = broker.ownership.owned.values()
    pin: dict[str, Any] = owned_facts(broker, bundle.name, name)["topic"]["pin"]
    return pin


# --- transactions that nobody ends ----------------------------------------------------------------


def test_an_end_releases_transactions_below_the_low_watermark(tmp_path: Path) -> None:
    """They were never registered with their coordinator; those of other coordinators are none of
    its business."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 4)
        await peer.subscribe()
        assert await received(peer, 4) == [0, 1, 2, 3]
        for txn, identifier in zip((A, B, C, TxnId(0, 7)), ids, strict=True):
            assert await ack_in(peer, txn, identifier) == DONE
        assert await end(broker, B, commit=True, floor=2) == DONE
        peer.write(requests.flow(1, 10))
        assert (await peer.message())[0].message_id.entryId == 0
        assert list((await pending_of(broker)).open_transactions()) == [C, TxnId(0, 7)]
        code, text = await ack_in(peer, A, ids[0])
        assert (code, "has ended" in text) == (ENDED, True)
        assert await end(broker, A, commit=True, floor=2) == DONE, (
            "below the watermark every end is done"
        )
        assert await end(broker, A, commit=False, floor=2) == DONE

    play(tmp_path, script)


def test_an_orphan_of_another_coordinator_keeps_that_ones_watermark(tmp_path: Path) -> None:
    """One may be left over, when the broker died before its release was written: releasing it
    now ends none of its coordinator's others."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 3)
        await peer.subscribe()
        assert await received(peer, 3) == [0, 1, 2]
        left_over, going_on = TxnId(3, 0), TxnId(3, 5)
        for txn, identifier in zip((left_over, going_on, A), ids, strict=True):
            assert await ack_in(peer, txn, identifier) == DONE
        pending = await pending_of(broker)
        pending.apply(EndAcks(TxnId(3, 1), 2, Outcome.ABORTED))  # as replay does
        assert pending.orphans() == [left_over]
        assert await end(broker, A, commit=True, floor=100) == DONE
        assert pending.fences.floors() == {0: 100, 3: 2}
        assert await end(broker, B, commit=True, floor=100) == DONE
        assert list(pending.open_transactions()) == [going_on]
        assert await end(broker, going_on, commit=True) == DONE
        assert list((await subscription_of(broker)).core.cursor.unacknowledged(0, 3)) == [(0, 1)]

    play(tmp_path, script)


# --- later incarnations ---------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["none", "before", "while", "after"])
def test_a_restart_changes_nothing_of_what_is_held_or_ended(
    tmp_path: Path, checkpoint: str
) -> None:
    """Wherever a checkpoint lies: open ones hold on, ended ones are fenced, confirmed
    acknowledgements are there."""

    async def script(lives: Lives) -> None:
        async with lives.life() as (broker, peer):

            async def take(when: str) -> None:
                if checkpoint == when:
                    await broker.ownership.checkpointer.checkpoint(
                        str((await host_of(broker)).bundle.name)
                    )

            ids = await published(peer, 5)
            batch = await publish(peer, num_messages_in_batch=3)
            await peer.subscribe(subType=SHARED)
            await take("before")
            assert await ack_in(peer, A, ids[0], some_of(batch, 0b110, 3)) == DONE
            assert await ack_in(peer, B, ids[1]) == DONE
            assert await ack_in(peer, C, ids[2], ids[4]) == DONE
            await take("while")
            assert await end(broker, B, commit=True) == DONE
            assert await end(broker, C, commit=False) == DONE
            await acknowledge(peer, ids[2])
            await take("after")
        async with lives.life() as (broker, peer):
            host = await subscription_of(broker)
            assert list((await pending_of(broker)).open_transactions()) == [A]
            assert (host.core.backlog, host.core.cursor.mark_delete) == (4, 0)
            await peer.subscribe(subType=SHARED)
            peer.write(requests.flow(1, 100))
            found = [(await peer.message())[0] for _ in range(3)]
            assert [(one.message_id.entryId, [*one.ack_set]) for one in found] == [
                (3, []),
                (4, []),
                (5, [0b110]),
            ]
            assert await peer.is_quiet()
            for txn, commit, word in ((B, True, "committed"), (C, False, "aborted")):
                assert await end(broker, txn, commit=commit) == DONE
                assert f"was {word}" in (await ack_in(peer, txn, ids[3]))[1]
            assert "held by transaction (0,0)" in (await ack_in(peer, TxnId(0, 9), ids[0]))[1]
            assert await ack_in(peer, A, ids[0]) == DONE, "the same one, who lost the answer"
            assert await end(broker, A, commit=True) == DONE
            assert (host.core.cursor.mark_delete, host.core.cursor.partial) == (3, {5: 0b110})
        async with lives.life() as (broker, peer):
            host = await subscription_of(broker)
            assert (host.core.cursor.mark_delete, host.core.cursor.partial, host.core.deferred) == (
                3,
                {5: 0b110},
                None,
            )

    play_lives(tmp_path, script)


def test_an_ordinary_acknowledgement_that_a_cumulative_one_builds_on_is_not_lost(
    tmp_path: Path,
) -> None:
    """A client acknowledges one message without waiting, then everything up to a later one in a
    transaction: confirmed is confirmed."""

    async def script(lives: Lives) -> None:
        async with lives.life() as (broker, peer):
            ids = await published(peer, 3)
            await peer.subscribe()
            peer.write(requests.ack(1, ids[:1]))
            assert await ack_in(peer, A, ids[2], cumulative=True) == DONE
        async with lives.life() as (broker, peer):
            assert await end(broker, A, commit=True) == DONE
            assert (await subscription_of(broker)).core.backlog == 0

    play_lives(tmp_path, script, ack_write_delay_s=60.0)


def test_sizes_of_batches_are_read_from_storage_if_need_be(tmp_path: Path) -> None:
    """Go sends an ack set alone; the entry says how many messages its batch has, also when only
    a sealed file knows."""

    async def script(broker: Broker, peer: Peer) -> None:
        (batch,) = await published(peer, 1, num_messages_in_batch=3)
        await peer.subscribe(subType=SHARED)
        topic = await host_of(broker)
        await broker.ownership.checkpointer.cover(str(topic.bundle.name))
        topic.index.drop_before(1)
        assert topic.index.run_of(0) is None
        assert await ack_in(peer, A, some_of(batch, 0b110)) == DONE
        (held,) = [
            found for found in (await pending_of(broker)).to_state().pending if found.txn == A
        ]
        assert held.partial == ((batch.ledgerId, 0, 3, (0b110,)),)

    play(tmp_path, script)


def test_a_split_holds_acknowledgements_back_and_loses_none(tmp_path: Path) -> None:
    """What comes while the bundle is divided is done in its child; what was held before is held
    there."""

    async def script(lives: Lives) -> None:
        async with lives.life() as (broker, peer):
            ids = await published(peer, 4)
            await peer.subscribe()
            assert await ack_in(peer, A, ids[0]) == DONE
            host, bundle = await subscription_of(broker), (await host_of(broker)).bundle
            connection = host.sessions()[0].connection
            splitting = asyncio.create_task(
                broker.ownership.split(bundle.name, ((bundle.name.low + bundle.name.high) // 2,))
            )
            while bundle.buffered is None:
                await asyncio.sleep(0)
            for number, identifier in ((71, ids[0]), (72, ids[1])):
                ack = api.CommandAck(
                    consumer_id=1,
                    ack_type=api.CommandAck.Individual,
                    message_id=[identifier],
                    request_id=number,
                )
                ack.txnid_most_bits, ack.txnid_least_bits = B
                handle_ack(connection, ack)
            with pytest.raises(ServiceNotReady, match="is being unloaded"):
                await SubscriptionTransactions(host).end(A, Action.COMMIT, 0)
            assert bundle.buffered is not None, "all of that came while the bundle was divided"
            await splitting
            answers = [(await peer.answer(Type.ACK_RESPONSE)).ack_response for _ in range(2)]
            assert [(found.request_id, int(found.error)) for found in answers] == [
                (71, CONFLICT),
                (72, 0),
            ]
            assert (await host_of(broker)).bundle is not bundle
            assert await ack_in(peer, A, ids[2]) == DONE
            assert await end(broker, A, commit=True) == DONE
        async with lives.life() as (broker, peer):
            host = await subscription_of(broker)
            assert list((await pending_of(broker)).open_transactions()) == [B]
            assert [*host.core.cursor.unacknowledged(0, 4)] == [(1, 2), (3, 4)]

    play_lives(tmp_path, script)


def test_a_move_takes_what_is_held_along(tmp_path: Path) -> None:
    """A planned end hands the bundle over; the next incarnation has read what the record says,
    checkpoint and all."""

    async def script(lives: Lives) -> None:
        broker = await lives.node.start()
        try:
            async with open_peer(broker) as peer:
                await peer.lookup()
                ids = await published(peer, 3)
                await peer.subscribe()
                assert await ack_in(peer, A, ids[0]) == DONE
                assert await ack_in(peer, B, ids[1]) == DONE
                assert await end(broker, B, commit=True) == DONE
        finally:
            await asyncio.wait_for(broker.stop(), 120)
        async with lives.life() as (broker, peer):
            host = await subscription_of(broker)
            assert list((await pending_of(broker)).open_transactions()) == [A]
            assert [*host.core.cursor.unacknowledged(0, 3)] == [(0, 1), (2, 3)]

    play_lives(tmp_path, script)


# --- ids of receipts ------------------------------------------------------------------------------


def test_ids_of_receipts_name_what_became_of_them(tmp_path: Path) -> None:
    """A receipt in a transaction has an id of the sidecar: after the commit it is the entry
    behind the marker, in every kind of ACK."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 1)
        receipts = [
            api.MessageIdData(ledgerId=found[0], entryId=found[1])
            for found in [await send_in(peer, A, b"x", 1 + n) for n in range(6)]
        ]
        ids.append(await publish(peer))
        lost = [
            api.MessageIdData(ledgerId=found[0], entryId=found[1])
            for found in [await send_in(peer, B, b"x", 7)]
        ]
        await peer.subscribe()
        host = await subscription_of(broker)
        for named in (receipts[0], lost[0]):
            assert not (await acknowledge(peer, named)).HasField("error"), (
                "open: nothing is there to acknowledge"
            )
            assert (await ack_in(peer, C, named))[0] == CONFLICT
        assert host.core.backlog == 2
        async with open_peer(broker) as coordinator:
            await ended(coordinator, A, commit=True)
            await ended(coordinator, B, commit=False)
        assert host.core.backlog == 8
        await acknowledge(peer, receipts[0])
        assert [*host.core.cursor.unacknowledged(0, 8)] == [(0, 2), (3, 8)]
        assert await ack_in(peer, C, receipts[1]) == DONE
        (held,) = [
            found for found in (await pending_of(broker)).to_state().pending if found.txn == C
        ]
        assert held.ranges == ((ids[0].ledgerId, 3, 3),)
        assert await ack_in(peer, C, receipts[3], cumulative=True) == DONE
        assert (await ack_in(peer, TxnId(4, 0), lost[0]))[0] == CONFLICT, (
            "aborted: there is no such message"
        )
        assert not (await acknowledge(peer, lost[0])).HasField("error")
        await end(broker, C, commit=True)
        assert [*host.core.cursor.unacknowledged(0, 8)] == [(6, 8)]
        await acknowledge(peer, receipts[4], cumulative=True)
        assert [*host.core.cursor.unacknowledged(0, 8)] == [(7, 8)]
        body = api.CommandAck(
            consumer_id=1, ack_type=api.CommandAck.Individual, message_id=receipts
        )
        peer.write(encode_command(api.BaseCommand(type=Type.ACK, ack=body)))
        assert await peer.is_quiet()
        assert host.core.backlog == 0

    play(tmp_path, script)


def test_ids_of_a_sidecar_that_nobody_knows_acknowledge_nothing(tmp_path: Path) -> None:
    """Of a topic that is used with transactions: passed over by ordinary acknowledgements, a
    conflict in a transaction."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await published(peer, 3)
        await peer.subscribe()
        assert await ack_in(peer, A, ids[0]) == DONE
        unknown = [
            api.MessageIdData(ledgerId=ids[0].ledgerId - 1, entryId=entry) for entry in range(30)
        ]
        for cumulative in (False, True):
            assert not (await acknowledge(peer, unknown[1], cumulative=cumulative)).HasField(
                "error"
            )
        body = api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual, message_id=unknown)
        peer.write(encode_command(api.BaseCommand(type=Type.ACK, ack=body)))
        assert await peer.is_quiet()
        assert (await subscription_of(broker)).core.backlog == 3
        for cumulative in (False, True):
            code, text = await ack_in(peer, A, unknown[1], cumulative=cumulative)
            assert (code, "does not exist" in text) == (CONFLICT, True), text

    play(tmp_path, script)

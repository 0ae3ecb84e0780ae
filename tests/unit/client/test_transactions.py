"""Transactions against a scripted coordinator: what is registered when, how they end, lost
answers, refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.client import (
    Batching,
    Client,
    TransactionAborted,
    TransactionOutcomeUnknown,
    TransactionState,
)
from magnetar.client.coordinators import ASSIGN_TOPIC
from magnetar.client.transactions import Transaction
from magnetar.errors import (
    InvalidRequest,
    InvalidTxnStatus,
    NotAllowed,
    TransactionConflict,
    WireCode,
)
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, transactions
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry, parse_entry
from magnetar.wire.transactions import Refusal
from tests.support.memory import ScriptedBroker, Session
from tests.support.scripted_coordinator import ScriptedCoordinator, run, txn_of


def entry(value: bytes) -> bytes:
    return encode_entry(
        api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=5), value
    )


def batch(*payloads: bytes) -> bytes:
    items = [
        BatchMessage(api.SingleMessageMetadata(payload_size=0), payload) for payload in payloads
    ]
    metadata = api.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=5, num_messages_in_batch=len(payloads)
    )
    return encode_entry(metadata, encode_batch(items))


def test_a_transaction_registers_before_it_sends_and_ends_last() -> None:
    """Each partition and subscription once; TxnID (0,0) is set on SEND, in the entry and on ACK;
    milliseconds in NEW_TXN."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        producer, consumer = await client.create_producer("out"), await client.subscribe("in", "s")
        broker.deliver(0, [entry(b"a"), entry(b"b")])
        async with client.transaction(timeout_s=7) as txn:
            assert txn.id == TxnId(0, 0)
            for _ in range(2):
                message = await consumer.receive()
                await producer.send(message.value, txn=txn)
                await consumer.acknowledge(message, txn=txn)
        assert (txn.state, str(txn)) == (TransactionState.COMMITTED, "(0,0)")
        assert coordinator.steps() == [
            "new_txn", "add_partition_to_txn", "send", "add_subscription_to_txn", "ack", "send", "ack", "end_txn",
        ]  # fmt: skip
        assert broker.of("new_txn")[0].txn_ttl_seconds == 7000
        assert list(broker.of("add_partition_to_txn")[0].partitions) == [
            "persistent://public/default/out"
        ]
        named = broker.of("add_subscription_to_txn")[0].subscription[0]
        assert (named.topic, named.subscription) == ("persistent://public/default/in", "s")
        for command in (*broker.of("send"), *broker.of("ack")):
            assert command.HasField("txnid_most_bits")
            assert txn_of(command) == TxnId(0, 0)
        assert parse_entry(broker.stored[0][1]).metadata.HasField("txnid_least_bits")
        await producer.send(b"ordinary")
        assert not broker.of("send")[-1].HasField("txnid_least_bits")
        assert [
            ask.metadata_auto_creation_enabled
            for ask in broker.of("partitioned_metadata")
            if ask.topic == ASSIGN_TOPIC
        ] == [False]

    run(scenario)


def test_transactions_go_to_the_coordinators_in_turn_and_follow_the_id_they_get() -> None:
    """A retired coordinator answers with a TxnID of another one: what follows goes there."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        seen = set()
        for _ in range(6):
            async with client.transaction() as txn:
                seen.add(txn.id.most)
        assert seen == {0, 1, 2}
        assert len(broker.of("tc_client_connect_request")) == 3
        broker.script["new_txn"] = lambda _, ask: transactions.new_txn_response(
            ask.request_id, TxnId(5, 9)
        )
        async with client.transaction() as txn:
            assert txn.id == TxnId(5, 9)
        assert broker.of("tc_client_connect_request")[-1].tc_id == 5
        assert txn_of(broker.of("end_txn")[-1]) == TxnId(5, 9)

    run(scenario, coordinators=3)


def test_batches_hold_messages_of_one_transaction() -> None:
    """A message of another transaction, or of none, begins another batch."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        producer = await client.create_producer("t", batching=Batching(linger_s=0.05))
        async with client.transaction() as one, client.transaction() as two:
            await asyncio.gather(producer.send(b"a", txn=one), producer.send(b"b", txn=two))
            work = [(b"1", one), (b"2", one), (b"3", two), (b"4", two), (b"5", None), (b"6", None)]
            await asyncio.gather(*(producer.send(value, txn=txn) for value, txn in work))
        found = [
            (send.num_messages, txn_of(send) if send.HasField("txnid_most_bits") else None)
            for send in broker.of("send")
        ]
        assert found[2:] == [(2, TxnId(0, 0)), (2, TxnId(0, 1)), (2, None)]

    run(scenario)


def test_concurrent_sends_keep_their_order_while_the_partition_is_registered() -> None:
    """The registration is slow; sends that come concurrently and right after it leave in the order
    of the calls."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        held: list[tuple[Session, Any]] = []
        broker.script["add_partition_to_txn"] = lambda session, ask: held.append((session, ask))
        producer = await client.create_producer("t")
        async with client.transaction() as txn:
            sends = [
                asyncio.create_task(producer.send(b"%d" % number, txn=txn)) for number in range(5)
            ]
            await broker.arrival("add_partition_to_txn")
            session, ask = held[0]
            session.write(transactions.add_partition_response(ask.request_id, txn.id))
            # tasks that begin in the turns in which the answer arrives
            for number in range(5, 200):
                sends.append(asyncio.create_task(producer.send(b"%d" % number, txn=txn)))
                await asyncio.sleep(0)
            await asyncio.gather(*sends)
        assert [bytes(parse_entry(raw).payload) for _, raw in broker.stored] == [
            b"%d" % number for number in range(200)
        ]
        assert len(held) == 1

    run(scenario)


def test_first_sends_of_transactions_side_by_side_share_their_batches() -> None:
    """What waits for a registration leaves in one go: messages of two transactions do not take
    turns, which would make each a batch."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        producer = await client.create_producer("t", batching=Batching(linger_s=0.05))
        async with client.transaction() as one, client.transaction() as two:
            await asyncio.gather(
                *(producer.send(b"m", txn=txn) for txn in (one, two) for _ in range(5))
            )
        assert [(send.num_messages, txn_of(send)) for send in broker.of("send")] == [
            (5, TxnId(0, 0)),
            (5, TxnId(0, 1)),
        ]

    run(scenario)


def test_an_exception_aborts_and_passes_on() -> None:
    """The block's own exception comes out; nothing can be added afterwards."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        producer = await client.create_producer("t")
        txn = client.transaction()

        async def work() -> None:
            async with txn:
                await producer.send(b"never", txn=txn)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
        assert (txn.state, coordinator.ended) == (TransactionState.ABORTED, {TxnId(0, 0): False})
        with pytest.raises(InvalidRequest, match="is aborted; nothing can be added"):
            await producer.send(b"late", txn=txn)
        with pytest.raises(InvalidTxnStatus, match="cannot be committed"):
            await txn.commit()
        await txn.abort()
        assert len(broker.of("end_txn")) == 1

    run(scenario)


def test_a_cancelled_block_aborts() -> None:
    """A client that gives up in the middle leaves nothing open."""

    async def scenario(_: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client) -> None:
        txn, inside = client.transaction(), asyncio.Event()

        async def work() -> None:
            async with txn:
                inside.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(work())
        await inside.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (txn.state, coordinator.ended) == (TransactionState.ABORTED, {TxnId(0, 0): False})

    run(scenario)


def test_commit_waits_for_what_is_on_its_way() -> None:
    """END_TXN leaves after the receipt of the last message."""

    async def scenario(_: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client) -> None:
        producer = await client.create_producer("t", batching=Batching(linger_s=0.02))
        async with client.transaction() as txn:
            sends = [
                asyncio.create_task(producer.send(b"%d" % number, txn=txn)) for number in range(3)
            ]
            await asyncio.sleep(0)
        assert coordinator.steps()[-2:] == ["send", "end_txn"]
        assert all(send.done() for send in sends)

    run(scenario)


def test_a_failed_part_leaves_only_the_abort() -> None:
    """The application survived a conflict; commit aborts and names it."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        broker.script["ack"] = lambda _, ack: commands.ack_response(
            ack.consumer_id, ack.request_id, WireCode.TRANSACTION_CONFLICT, "held by (0,7)"
        )
        consumer = await client.subscribe("t", "s", type="Shared")
        broker.deliver(0, [entry(b"a")])
        message = await consumer.receive()
        txn = client.transaction()
        await txn.begin()
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge(message, txn=txn)
        with pytest.raises(TransactionAborted, match="held by") as caught:
            await txn.commit()
        assert isinstance(caught.value.__cause__, TransactionConflict)
        assert (txn.state, coordinator.ended) == (TransactionState.ABORTED, {TxnId(0, 0): False})

    run(scenario)


def test_a_commit_whose_answer_is_lost_is_asked_for_again() -> None:
    """The coordinator commits and its connection breaks: the same question on the next one has
    the answer."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        def lose(session: Session, ask: Any) -> None:
            coordinator.end(session, ask)
            broker.script["end_txn"] = coordinator.end
            session.drop()

        broker.script["end_txn"] = lose
        async with client.transaction() as txn:
            pass
        assert txn.state is TransactionState.COMMITTED
        assert [txn_of(ask) for ask in broker.of("end_txn")] == [TxnId(0, 0)] * 2
        assert len(broker.of("tc_client_connect_request")) == 2

    run(scenario)


def test_a_coordinator_that_moved_is_looked_up_again() -> None:
    """TransactionCoordinatorNotFound on END_TXN: lookup, connect, the same request; no outcome
    is in doubt."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        def moved(_: Session, ask: Any) -> bytes:
            broker.script["end_txn"] = coordinator.end
            refusal = Refusal(WireCode.TRANSACTION_COORDINATOR_NOT_FOUND, "not here")
            return transactions.end_txn_response(ask.request_id, txn_of(ask), refusal)

        broker.script["end_txn"] = moved
        before = len(broker.of("lookup"))
        async with client.transaction() as txn:
            pass
        assert txn.state is TransactionState.COMMITTED
        assert len(broker.of("lookup")) == before + 2

    run(scenario)


@pytest.mark.parametrize("code", [WireCode.INVALID_TXN_STATUS, WireCode.TRANSACTION_NOT_FOUND])
def test_a_commit_refused_at_once_did_not_take_place(code: WireCode) -> None:
    """It had timed out: TransactionAborted, worth a new transaction."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        broker.script["end_txn"] = lambda _, ask: transactions.end_txn_response(
            ask.request_id, txn_of(ask), Refusal(code, "too late")
        )
        txn = client.transaction()
        await txn.begin()
        with pytest.raises(TransactionAborted, match="did not take place"):
            await txn.commit()
        assert txn.state is TransactionState.ABORTED

    run(scenario)


@pytest.mark.parametrize(
    ("code", "text", "aborted"),
    [
        (WireCode.TRANSACTION_NOT_FOUND, "forgotten", False),
        (WireCode.INVALID_TXN_STATUS, "transaction (0,0) is COMMITTED", False),
        (WireCode.INVALID_TXN_STATUS, "transaction (0,0) is ABORTED", True),
    ],
)
def test_a_repeated_commit_is_only_believed_what_it_names(
    code: WireCode, text: str, *, aborted: bool
) -> None:
    """After a lost answer a refusal may be about our own success: unknown, unless it names the
    abort. Asking again may still tell."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        def lose(session: Session, _: Any) -> None:
            broker.script["end_txn"] = lambda _, ask: transactions.end_txn_response(
                ask.request_id, txn_of(ask), Refusal(code, text)
            )
            session.drop()

        broker.script["end_txn"] = lose
        txn = client.transaction()
        await txn.begin()
        with pytest.raises(TransactionAborted if aborted else TransactionOutcomeUnknown):
            await txn.commit()
        if aborted:
            assert txn.state is TransactionState.ABORTED
            return
        assert txn.state is TransactionState.UNKNOWN
        with pytest.raises(TransactionOutcomeUnknown):  # the earlier question stays in doubt
            await txn.commit()
        broker.script["end_txn"] = coordinator.end
        await txn.commit()
        assert txn.state is TransactionState.COMMITTED

    run(scenario)


def test_no_answer_is_an_unknown_outcome_and_an_abort_then_shows_which() -> None:
    """The coordinator stays silent; later an abort is refused because the transaction was
    committed."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        def silent(session: Session, ask: Any) -> None:
            coordinator.end(session, ask)

        broker.script["end_txn"] = silent
        txn = Transaction(client._coordinators, 60, outcome_wait_s=2.0)
        await txn.begin()
        with pytest.raises(TransactionOutcomeUnknown):
            await txn.commit()
        broker.script["end_txn"] = coordinator.end
        with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
            await txn.abort()
        assert txn.state is TransactionState.COMMITTED
        await txn.commit()

    run(scenario)


def test_an_abort_that_nobody_answers_is_left_to_the_timeout() -> None:
    """Its outcome is certain, because nobody asked for a commit."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        broker.script["end_txn"] = lambda *_: None
        txn = client.transaction()
        await txn.begin()
        await txn.abort()
        assert txn.state is TransactionState.ABORTED

    run(scenario, operation_timeout_s=1.0)


def test_acknowledging_in_a_batch_names_just_that_message() -> None:
    """Other acknowledgements of the batch are not claimed; cumulative ones name the prefix, and
    their abort has all delivered again."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        consumer = await client.subscribe("t", "s")
        broker.deliver(0, [batch(b"a", b"b", b"c"), batch(b"d")])
        messages = [await consumer.receive() for _ in range(4)]
        await consumer.acknowledge(messages[0])
        async with client.transaction() as txn:
            await consumer.acknowledge(messages[1], txn=txn)
            await consumer.acknowledge(messages[3], txn=txn)
        sets = [
            [(item.entryId, list(item.ack_set), item.batch_size) for item in ack.message_id]
            for ack in broker.of("ack")
        ]
        assert sets == [[(0, [0b110], 3)], [(0, [0b101], 3)], [(1, [], 1)]]
        txn = client.transaction()
        await txn.begin()
        await consumer.acknowledge_cumulative(messages[1], txn=txn)
        assert (
            broker.of("ack")[-1].ack_type,
            list(broker.of("ack")[-1].message_id[0].ack_set),
        ) == (1, [0b100])
        assert not broker.of("redeliver_unacknowledged_messages")
        await txn.abort()
        assert (await broker.arrival("redeliver_unacknowledged_messages")).consumer_epoch == 1

    run(scenario)


def test_a_cluster_without_coordinators_says_so() -> None:
    """No partitions, or no such topic: NotAllowed at the first transaction; the client itself
    works."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        coordinator.count = 0
        with pytest.raises(NotAllowed, match="no transaction coordinators"):
            await client.transaction().begin()
        broker.script["partitioned_metadata"] = lambda _, ask: commands.partitioned_metadata_failed(
            ask.request_id, WireCode.TOPIC_NOT_FOUND, "none"
        )
        with pytest.raises(NotAllowed, match="no transaction coordinators"):
            await client.transaction().begin()

    run(scenario)


def test_a_transaction_is_used_once_and_in_order() -> None:
    """Before it begins it has no id; a second begin is refused; a timeout must be above 0."""

    async def scenario(_: ScriptedBroker, __: ScriptedCoordinator, client: Client) -> None:
        txn = client.transaction()
        with pytest.raises(InvalidRequest, match="has not begun"):
            _ = txn.id
        with pytest.raises(InvalidRequest, match="is new"):
            await txn.commit()
        await txn.begin()
        with pytest.raises(InvalidRequest, match="make a new one"):
            await txn.begin()
        await txn.commit()
        await txn.commit()
        with pytest.raises(InvalidRequest, match="above 0"):
            client.transaction(timeout_s=0)

    run(scenario)

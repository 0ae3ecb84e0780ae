"""Consume, transform, produce against a scripted coordinator: commits, aborts, unknown outcomes,
exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.client import Client, Message, Transaction, exactly_once
from magnetar.errors import NotAllowed, WireCode
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, transactions
from magnetar.wire.entries import parse_entry
from magnetar.wire.transactions import Refusal
from tests.support.client_scenarios import entry
from tests.support.memory import ScriptedBroker, Session
from tests.support.scripted_coordinator import ScriptedCoordinator, run, txn_of


def redeliveries(broker: ScriptedBroker, entries: dict[int, bytes]) -> None:
    """Have the script deliver again what is asked for."""

    def again(_: Session, ask: Any) -> None:
        for item in ask.message_ids:
            broker.deliver(0, [entry(entries[item.entryId])], item.entryId)

    broker.script["redeliver_unacknowledged_messages"] = again


def test_each_batch_is_a_transaction_and_the_count_is_what_was_committed() -> None:
    """Five messages, two at a time: three commits; outputs and acknowledgements belong to them."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        consumer = await client.subscribe("in", "s", type="Shared")
        producer = await client.create_producer("out")
        broker.deliver(0, [entry(b"%d" % number) for number in range(5)])

        async def work(messages: Sequence[Message], txn: Transaction) -> None:
            await asyncio.gather(
                *(producer.send(message.value * 2, txn=txn) for message in messages)
            )

        assert await exactly_once(client, consumer, work, messages_max=2, idle_s=1) == 5
        assert coordinator.ended == {TxnId(0, 0): True, TxnId(0, 1): True, TxnId(0, 2): True}
        assert [bytes(parse_entry(raw).payload) for _, raw in broker.stored] == [
            b"00",
            b"11",
            b"22",
            b"33",
            b"44",
        ]
        assert [txn_of(send).least for send in broker.of("send")] == [0, 0, 1, 1, 2]
        assert sorted(txn_of(ack).least for ack in broker.of("ack")) == [0, 0, 1, 1, 2]

    run(scenario)


def test_an_aborted_batch_is_delivered_again_and_a_conflict_is_waited_for() -> None:
    """First a refused commit, then an acknowledgement that another transaction holds; the third
    attempt commits."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        redeliveries(broker, {0: b"x"})

        def refuse(_: Session, ask: Any) -> bytes:
            broker.script["end_txn"] = coordinator.end
            broker.script["ack"] = conflict
            # what the transaction had acknowledged comes again with its abort
            broker.deliver(0, [entry(b"x")])
            return transactions.end_txn_response(
                ask.request_id, txn_of(ask), Refusal(WireCode.INVALID_TXN_STATUS, "is ABORTED")
            )

        def conflict(_: Session, ack: Any) -> bytes:
            del broker.script["ack"]
            return commands.ack_response(
                ack.consumer_id, ack.request_id, WireCode.TRANSACTION_CONFLICT, "held by (9,9)"
            )

        broker.script["end_txn"] = refuse
        consumer = await client.subscribe("in", "s", type="Shared")
        broker.deliver(0, [entry(b"x")])
        attempts: list[TxnId] = []

        async def work(_: Sequence[Message], txn: Transaction) -> None:
            attempts.append(txn.id)

        assert await exactly_once(client, consumer, work, idle_s=1) == 1
        assert attempts == [TxnId(0, 0), TxnId(0, 1), TxnId(0, 2)]
        assert coordinator.ended == {TxnId(0, 1): False, TxnId(0, 2): True}
        assert len(broker.of("redeliver_unacknowledged_messages")) == 1  # after the conflict only

    run(scenario)


def test_after_an_unknown_outcome_the_broker_decides() -> None:
    """The commit took place, its answer was lost and then forgotten: nothing comes again,
    nothing is published twice."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        def lose(session: Session, _: Any) -> None:
            broker.script["end_txn"] = lambda _, ask: transactions.end_txn_response(
                ask.request_id, txn_of(ask), Refusal(WireCode.TRANSACTION_NOT_FOUND, "forgotten")
            )
            session.drop()

        broker.script["end_txn"] = lose
        consumer = await client.subscribe("in", "s", type="Shared")
        broker.deliver(0, [entry(b"x")])
        calls = []

        async def work(messages: Sequence[Message], _: Transaction) -> None:
            calls.append(len(messages))

        assert await exactly_once(client, consumer, work, idle_s=1) == 0
        assert calls == [1]
        # what the broker still has would have come again by itself
        assert len(broker.of("subscribe")) == 2
        assert coordinator.ended == {}

    run(scenario)


def test_an_exception_of_the_work_aborts_refuses_the_messages_and_is_raised() -> None:
    """The negative acknowledgement brings them back after its delay."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        consumer = await client.subscribe("in", "s", type="Shared", negative_ack_delay_s=0.01)
        broker.deliver(0, [entry(b"x")])

        async def work(_: Sequence[Message], __: Transaction) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await exactly_once(client, consumer, work)
        assert coordinator.ended == {TxnId(0, 0): False}
        again = await broker.arrival("redeliver_unacknowledged_messages")
        assert [item.entryId for item in again.message_ids] == [0]
        assert broker.of("ack") == []

    run(scenario)


def test_a_final_refusal_is_raised_and_the_messages_come_again() -> None:
    """A cluster without coordinators."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        coordinator.count = 0
        consumer = await client.subscribe("in", "s", type="Shared")
        broker.deliver(0, [entry(b"x")])

        async def work(_: Sequence[Message], __: Transaction) -> None:
            raise AssertionError("never called")

        with pytest.raises(NotAllowed):
            await exactly_once(client, consumer, work)
        await broker.arrival("redeliver_unacknowledged_messages")

    run(scenario)


def test_an_exclusive_subscription_starts_again_after_a_failure() -> None:
    """What waits here would come twice otherwise: a new consumer epoch drops it, and order is
    kept."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        def refuse(_: Session, ask: Any) -> bytes:
            broker.script["end_txn"] = coordinator.end
            return transactions.end_txn_response(
                ask.request_id, txn_of(ask), Refusal(WireCode.TRANSACTION_NOT_FOUND, "timed out")
            )

        def again(_: Session, ask: Any) -> None:
            broker.deliver(0, [entry(b"0"), entry(b"1")], consumer_epoch=ask.consumer_epoch)

        broker.script.update(end_txn=refuse, redeliver_unacknowledged_messages=again)
        consumer = await client.subscribe("in", "s")
        broker.deliver(0, [entry(b"0"), entry(b"1")])
        seen: list[bytes] = []

        async def work(messages: Sequence[Message], _: Transaction) -> None:
            seen.extend(message.value for message in messages)

        assert await exactly_once(client, consumer, work, messages_max=1, idle_s=1) == 2
        assert seen == [b"0", b"0", b"1"]

    run(scenario)


def test_a_second_copy_of_a_message_in_a_batch_is_left_out() -> None:
    """After a reconnect a message may be here twice; one transaction would acknowledge it once
    and publish what follows from it twice."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        consumer = await client.subscribe("in", "s", type="Shared")
        for _ in range(2):
            broker.deliver(0, [entry(b"a"), entry(b"b")])
        broker.sessions[-1].write(commands.PING)
        await broker.arrival("pong")  # all four are here
        seen: list[bytes] = []

        async def work(messages: Sequence[Message], _: Transaction) -> None:
            seen.extend(message.value for message in messages)

        assert await exactly_once(client, consumer, work, idle_s=0.5) == 2
        assert seen == [b"a", b"b"]

    run(scenario)

"""Of an entry that comes again nothing is handed out twice: the bookkeeping alone, and consumers
against a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import Client, Message, Transaction, exactly_once
from magnetar.client.copies import Copies
from magnetar.errors import WireCode
from magnetar.wire import commands, transactions
from magnetar.wire.commands import Position
from magnetar.wire.transactions import Refusal
from tests.support.client_scenarios import batch, entry, run
from tests.support.memory import ScriptedBroker, Session
from tests.support.scripted_coordinator import ScriptedCoordinator, txn_of
from tests.support.scripted_coordinator import run as run_with_coordinator

STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "come_again", "everything", "take"]), st.integers(0, 3))
)


@given(STEPS)
def test_copies_agree_with_a_queue_that_is_searched(steps: list[tuple[str, int]]) -> None:
    """What may be handed out is what a queue holds from which every copy of an entry is removed
    when it comes again."""
    copies, queue, model = Copies(), list[tuple[int, Position]](), list[tuple[int, Position]]()
    for step, number in steps:
        position = Position(0, number)
        if step == "arrive":
            model = [waiting for waiting in model if waiting[1] != position]
            arrived = copies.arrived(), position
            if queue:
                copies.came_again(position)
            queue.append(arrived)
            model.append(arrived)
        elif step == "come_again":
            model = [waiting for waiting in model if waiting[1] != position]
            if queue:
                copies.come_again([position])
        elif step == "everything":
            model.clear()
            copies.all_come_again()
        elif queue:
            while queue and copies.comes_again(*queue[0]):
                queue.pop(0)
            assert queue[:1] == model[:1]
            if queue:
                copies.passed(queue.pop(0)[0])
                model.pop(0)
        assert [waiting for waiting in queue if not copies.comes_again(*waiting)] == model
        assert all(copies.counted(copy) for copy, _ in model)


def test_what_is_remembered_is_forgotten_once_the_inbox_has_moved_on() -> None:
    """A thousand entries asked for again are forgotten with the next message that arrived behind
    them."""
    copies = Copies()
    waiting = copies.arrived()
    copies.come_again([Position(0, number) for number in range(1000)])
    copies.passed(waiting)
    assert len(copies._until) == 1000
    copies.passed(copies.arrived())
    assert not copies._until


def test_of_a_batch_asked_for_again_nothing_that_waits_is_handed_out_twice() -> None:
    """Two of four were taken: the two that wait come with the batch, once, and their permits are
    given back."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type="Shared", receiver_queue=4)
        broker.deliver(0, [batch(b"a", b"b", b"c", b"d")])
        first = [await consumer.receive() for _ in range(2)]
        assert (await broker.arrival("flow", 2)).messagePermits == 2
        consumer.redeliver(first)
        await broker.arrival("redeliver_unacknowledged_messages")
        broker.deliver(0, [batch(b"a", b"b", b"c", b"d")], redelivery_counts=[1])
        assert [(await consumer.receive()).value for _ in range(4)] == [b"a", b"b", b"c", b"d"]
        assert await consumer.batch_receive(1, 0.01) == []
        assert sum(flow.messagePermits for flow in broker.of("flow")[1:]) == 2 + 2 + 4

    run(scenario)


def test_a_batch_that_the_broker_delivers_again_by_itself_replaces_what_waits_of_it() -> None:
    """After the abort of a transaction: what is acknowledged by then is not handed out. What
    waited before keeps its order."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type="Shared")
        broker.deliver(0, [batch(b"a", b"b", b"c", b"d"), entry(b"e")])
        assert (await consumer.receive()).value == b"a"
        broker.deliver(
            0, [batch(b"a", b"b", b"c", b"d")], redelivery_counts=[1], ack_sets=[[0b1101]]
        )
        broker.sessions[-1].write(commands.PING)
        await broker.arrival("pong")  # both copies are here
        assert [message.value for message in await consumer.batch_receive(9)] == [
            b"e",
            b"a",
            b"c",
            b"d",
        ]

    run(scenario)


def test_a_copy_that_is_damaged_on_its_way_replaces_nothing() -> None:
    """What waits of the copy before it is handed out."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        consumer = await client.subscribe("t", "s", type="Shared")
        whole = batch(b"a", b"b", b"c")
        broker.deliver(0, [whole])
        assert (await consumer.receive()).value == b"a"
        broker.deliver(0, [whole[:-1] + bytes([whole[-1] ^ 1])], redelivery_counts=[1])
        await broker.arrival("ack")
        assert broker.of("ack")[0].validation_error
        assert [message.value for message in await consumer.batch_receive(9)] == [b"b", b"c"]

    run(scenario)


def test_an_abort_in_the_middle_of_a_batch_costs_one_more_transaction() -> None:
    """One batch of nine, three per transaction, the second of which is refused: no message is
    acknowledged in two that commit."""

    async def scenario(
        broker: ScriptedBroker, coordinator: ScriptedCoordinator, client: Client
    ) -> None:
        raw = batch(*(b"%d" % number for number in range(9)))
        acknowledged: dict[int, set[int]] = {}

        def again(_: Session, _ask: Any) -> None:
            broker.deliver(0, [raw], redelivery_counts=[1], ack_sets=[[0b111111000]])

        def hold(_: Session, ack: Any) -> bytes:
            (item,) = ack.message_id
            (index,) = (index for index in range(9) if not item.ack_set[0] >> index & 1)
            acknowledged.setdefault(txn_of(ack).least, set()).add(index)
            return commands.ack_response(ack.consumer_id, ack.request_id)

        def refuse_the_second(session: Session, ask: Any) -> bytes:
            if txn_of(ask).least != 1:
                return coordinator.end(session, ask)
            acknowledged.pop(1)
            again(session, ask)  # what it had acknowledged comes again with its abort
            return transactions.end_txn_response(
                ask.request_id, txn_of(ask), Refusal(WireCode.INVALID_TXN_STATUS, "is ABORTED")
            )

        broker.script |= {
            "redeliver_unacknowledged_messages": again,
            "ack": hold,
            "end_txn": refuse_the_second,
        }
        consumer = await client.subscribe("in", "s", type="Shared")
        broker.deliver(0, [raw])

        async def work(_messages: Sequence[Message], _txn: Transaction) -> None:
            await asyncio.sleep(0)

        assert await exactly_once(client, consumer, work, messages_max=3, idle_s=1) == 9
        assert acknowledged == {0: {0, 1, 2}, 2: {3, 4, 5}, 3: {6, 7, 8}}

    run_with_coordinator(scenario)


def test_an_exclusive_consumer_begins_again_after_an_abort() -> None:
    """The broker goes back to what the transaction had acknowledged: what waits is dropped, for
    it comes behind that."""

    async def scenario(broker: ScriptedBroker, _: ScriptedCoordinator, client: Client) -> None:
        consumer = await client.subscribe("in", "s")
        broker.deliver(0, [entry(b"%d" % number) for number in range(4)])
        taken = [await consumer.receive() for _ in range(2)]
        txn = client.transaction()
        await txn.begin()
        await consumer.acknowledge(taken[0], txn=txn)
        await txn.abort()
        asked = await broker.arrival("redeliver_unacknowledged_messages")
        assert (list(asked.message_ids), asked.consumer_epoch) == ([], 1)
        broker.deliver(0, [entry(b"%d" % number) for number in range(4)], consumer_epoch=1)
        assert [(await consumer.receive()).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]

    run_with_coordinator(scenario)

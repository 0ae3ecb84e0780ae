"""The client's transactions against a coordinator, a topic and a subscription that lose requests,
answers and connections.

In virtual time, from a seed. The model keeps what docs/transactions.md promises of transactions, in
a few lines; Pulsar's coordinator, which forgets what has ended, is a variant of it. Proven: what
`commit` says is true, and `exactly_once` moves every message once, whatever is lost. A client that
sends again after an unknown outcome is the control that the checks notice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from magnetar.client import (
    Client,
    Message,
    Transaction,
    TransactionAborted,
    TransactionOutcomeUnknown,
    TransactionState,
    exactly_once,
)
from magnetar.client.coordinators import ASSIGN_TOPIC
from magnetar.errors import MagnetarError, WireCode
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, runs, transactions
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import encode_entry, parse_entry
from magnetar.wire.transactions import Refusal
from tests.simulation.kernel.clock import SimClock
from tests.simulation.kernel.loop import SimLoop
from tests.support.memory import MemoryNetwork, ScriptedBroker, Session

FAULT_PROBABILITY = 0.06
TIMEOUT_S = 20.0
VIRTUAL_TIME_MAX_S = 100_000.0
NEVER_LOST_ALONE = ("send", "subscribe", "redeliver_unacknowledged_messages")
"""Nobody waits long, or at all, for an answer to these: a server that drops them drops the
connection."""
Handler = Callable[[Session, Any], bytes | None]


@dataclass
class Txn:
    """A transaction of the model."""

    state: str = "OPEN"
    staged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)


class Model:
    """One broker with one coordinator: a source subscription of `count` messages, and a target."""

    def __init__(
        self, broker: ScriptedBroker, chance: random.Random, count: int, *, forgets: bool
    ) -> None:
        self.chance = chance
        self.forgets = forgets
        self.faults = 0
        self.txns: dict[TxnId, Txn] = {}
        self.known: dict[TxnId, Txn] = {}
        self.waiting = set(range(count))
        self.target: list[bytes] = []
        self._consumer: tuple[Session, int] | None = None
        self._loop = asyncio.get_running_loop()
        handlers: dict[str, Handler] = {
            "partitioned_metadata": self._partitions,
            "tc_client_connect_request": lambda _, ask: transactions.coordinator_connected(
                ask.request_id
            ),
            "new_txn": self._new,
            "add_partition_to_txn": lambda _, ask: transactions.add_partition_response(
                ask.request_id, _id(ask), self._closed(ask)
            ),
            "add_subscription_to_txn": lambda _, ask: transactions.add_subscription_response(
                ask.request_id, _id(ask), self._closed(ask)
            ),
            "end_txn": self._end,
            "send": self._send,
            "ack": self._ack,
            "subscribe": self._subscribe,
            "redeliver_unacknowledged_messages": self._redeliver,
        }
        broker.script.update(
            {name: self._faulty(name, handler) for name, handler in handlers.items()}
        )

    def _faulty(self, name: str, handler: Handler) -> Handler:
        """Sometimes the request is lost, or its answer, or the connection with either; or the
        coordinator is elsewhere just now."""

        def handle(session: Session, ask: Any) -> bytes | None:
            if name == "partitioned_metadata" or self.chance.random() > FAULT_PROBABILITY:
                return handler(session, ask)
            self.faults += 1
            fault = self.chance.choice(
                ["lost", "unanswered", "cut before", "cut after", "elsewhere"]
            )
            if fault == "elsewhere" and name == "end_txn":
                refusal = Refusal(WireCode.TRANSACTION_COORDINATOR_NOT_FOUND, "elsewhere")
                return transactions.end_txn_response(ask.request_id, _id(ask), refusal)
            if fault in ("unanswered", "cut after"):
                handler(session, ask)
            if (
                fault.startswith("cut") or name in NEVER_LOST_ALONE
            ) and session.transport is not None:
                session.drop()
            return None

        return handle

    # --- the coordinator

    def _partitions(self, _: Session, ask: Any) -> bytes:
        return commands.partitioned_metadata(ask.request_id, 1 if ask.topic == ASSIGN_TOPIC else 0)

    def _new(self, _: Session, ask: Any) -> bytes:
        txn_id = TxnId(0, len(self.known))
        self.txns[txn_id] = self.known[txn_id] = Txn()
        self._loop.call_later(ask.txn_ttl_seconds / 1000, self._conclude, txn_id, "ABORTED")
        return transactions.new_txn_response(ask.request_id, txn_id)

    def _closed(self, ask: Any) -> Refusal | None:
        txn = self.txns.get(_id(ask))
        if txn is None:
            return Refusal(WireCode.TRANSACTION_NOT_FOUND, "forgotten")
        return (
            None if txn.state == "OPEN" else Refusal(WireCode.INVALID_TXN_STATUS, f"is {txn.state}")
        )

    def _end(self, _: Session, ask: Any) -> bytes:
        txn_id, wish = _id(ask), "COMMITTED" if ask.txn_action == api.COMMIT else "ABORTED"
        txn = self.txns.get(txn_id)
        if txn is None:
            return transactions.end_txn_response(
                ask.request_id, txn_id, Refusal(WireCode.TRANSACTION_NOT_FOUND, "forgotten")
            )
        self._conclude(txn_id, wish)
        refusal = (
            None
            if txn.state == wish
            else Refusal(WireCode.INVALID_TXN_STATUS, f"transaction is {txn.state}")
        )
        return transactions.end_txn_response(ask.request_id, txn_id, refusal)

    def _conclude(self, txn_id: TxnId, state: str) -> None:
        txn = self.known[txn_id]
        if txn.state != "OPEN":
            return
        txn.state = state
        if state == "COMMITTED":
            self.target += txn.staged.values()
            self.waiting -= txn.acknowledged
        else:
            self._deliver(sorted(txn.acknowledged))
        if self.forgets:
            del self.txns[txn_id]

    # --- the topic and the subscription

    def _send(self, session: Session, send: Any) -> bytes | None:
        refusal = self._closed(send)
        if refusal is not None:
            return commands.send_error(
                send.producer_id, send.sequence_id, WireCode.NOT_ALLOWED, refusal.message
            )
        payload = bytes(parse_entry(self._bodies(session, send)).payload)
        self.txns[_id(send)].staged.setdefault((send.producer_id, send.sequence_id), payload)
        return bytes(runs.send_receipts(send.producer_id, 6, send.sequence_id, [send.sequence_id]))

    def _bodies(self, session: Session, send: Any) -> bytes:
        return session.broker.bodies[send.producer_id, send.sequence_id]

    def _ack(self, _: Session, ack: Any) -> bytes:
        (number,) = (item.entryId for item in ack.message_id)
        txn_id = _id(ack)
        held = any(
            number in txn.acknowledged
            for key, txn in self.known.items()
            if txn.state == "OPEN" and key != txn_id
        )
        if self._closed(ack) is not None:
            return commands.ack_response(
                ack.consumer_id, ack.request_id, WireCode.INVALID_TXN_STATUS, "has ended"
            )
        if held or number not in self.waiting:
            return commands.ack_response(
                ack.consumer_id,
                ack.request_id,
                WireCode.TRANSACTION_CONFLICT,
                "acknowledged already",
            )
        self.txns[txn_id].acknowledged.add(number)
        return commands.ack_response(ack.consumer_id, ack.request_id)

    def _subscribe(self, session: Session, ask: Any) -> bytes:
        self._consumer = (session, ask.consumer_id)
        self._loop.call_later(0.01, self._deliver_all, session)
        return commands.success(ask.request_id)

    def _deliver_all(self, session: Session) -> None:
        if self._consumer is not None and self._consumer[0] is session:
            self._deliver(sorted(self.waiting))

    def _redeliver(self, _: Session, ask: Any) -> None:
        self._deliver([item.entryId for item in ask.message_ids])

    def _deliver(self, numbers: Sequence[int]) -> None:
        held = {
            number
            for txn in self.known.values()
            if txn.state == "OPEN"
            for number in txn.acknowledged
        }
        session, consumer_id = self._consumer if self._consumer is not None else (None, 0)
        if session is None or session.transport is None:
            return
        for number in numbers:
            if number in self.waiting and number not in held:
                metadata = api.MessageMetadata(
                    producer_name="p", sequence_id=number, publish_time=1
                )
                entry = encode_entry(metadata, b"%d" % number)
                for buffer in runs.scattered_message_frames(consumer_id, 7, [number], [entry]):
                    session.write(bytes(buffer))


class Broker(ScriptedBroker):
    """Keeps the entries that come, for the model."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__(network, "a")
        self.bodies: dict[tuple[int, int], bytes] = {}

    def receive(self, session: Session, command: api.BaseCommand, body: bytes) -> None:
        if command.type == api.BaseCommand.Type.SEND:
            self.bodies[command.send.producer_id, command.send.sequence_id] = body
        super().receive(session, command, body)


def _id(ask: Any) -> TxnId:
    return TxnId(ask.txnid_most_bits, ask.txnid_least_bits)


def play(
    seed: int, scenario: Callable[[Model, Client], Any], count: int = 30, *, forgets: bool = False
) -> Model:
    """Run a scenario in virtual time; the model as it stands at the end."""
    loop = SimLoop(seed)

    async def body() -> Model:
        network = MemoryNetwork()
        model = Model(Broker(network), random.Random(f"{seed}/faults"), count, forgets=forgets)
        client = Client(
            "pulsar://a:6650",
            network=network,
            clock=SimClock(loop, loop.kernel),
            operation_timeout_s=5,
        )
        async with asyncio.timeout(VIRTUAL_TIME_MAX_S):
            await scenario(model, client)
        await client.close()
        return model

    try:
        return loop.run_until_complete(body())
    finally:
        loop.close()


async def tell_the_truth(model: Model, client: Client) -> None:
    """Twenty transactions, committed or aborted; whatever the client says of one agrees with the
    coordinator."""
    producer = await client.create_producer("target", send_timeout_s=None)
    for number in range(20):
        txn = client.transaction(timeout_s=TIMEOUT_S)
        try:
            await txn.begin()
            await producer.send(b"%d" % number, txn=txn)
            await (txn.commit() if number % 4 else txn.abort())
        except TransactionAborted:
            assert model.known[txn.id].state != "COMMITTED"
            assert txn.state is TransactionState.ABORTED
        except TransactionOutcomeUnknown:
            assert model.forgets, "a coordinator that keeps outcomes always answers in the end"
        except MagnetarError:
            continue  # not begun, or a refused part
        else:
            state = model.known[txn.id].state
            # an abort that did not arrive is left to the timeout
            assert (state == "COMMITTED") is (number % 4 != 0)


async def move(model: Model, client: Client) -> None:
    """Everything from the source to the target."""
    consumer = await client.subscribe("source", "s", type="Shared")
    producer = await client.create_producer("target", send_timeout_s=None)

    async def work(messages: Sequence[Message], txn: Transaction) -> None:
        await asyncio.gather(*(producer.send(message.value, txn=txn) for message in messages))

    while model.waiting:
        try:
            await exactly_once(
                client,
                consumer,
                work,
                messages_max=7,
                idle_s=3 * TIMEOUT_S,
                transaction_timeout_s=TIMEOUT_S,
            )
        except MagnetarError:
            continue  # a row of failures


async def move_and_send_again(model: Model, client: Client) -> None:
    """The control: after a failed commit the same messages go into a new transaction,
    acknowledged as far as they can be."""
    consumer = await client.subscribe("source", "s", type="Shared")
    producer = await client.create_producer("target", send_timeout_s=None)
    while model.waiting:
        messages = await consumer.batch_receive(7, 3 * TIMEOUT_S)
        done = not messages
        while not done:
            try:
                async with client.transaction(timeout_s=TIMEOUT_S) as txn:
                    await asyncio.gather(
                        *(producer.send(message.value, txn=txn) for message in messages)
                    )
                    for message in messages:
                        if int(message.value) in model.waiting:
                            await consumer.acknowledge(message, txn=txn)
                done = True
            except MagnetarError:
                continue


@pytest.mark.parametrize("forgets", [False, True], ids=["keeps outcomes", "forgets outcomes"])
def test_what_a_commit_says_is_true(forgets: bool) -> None:
    """Over many seeds: no commit that returned was aborted, no TransactionAborted was committed."""
    faults = sum(play(seed, tell_the_truth, forgets=forgets).faults for seed in range(60))
    assert faults > 200


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True], ids=["keeps outcomes", "forgets outcomes"])
def test_exactly_once_moves_every_message_once(forgets: bool) -> None:
    """Lost requests, answers and connections, with a coordinator that keeps outcomes and with
    one that does not."""
    faults = 0
    for seed in range(40):
        model = play(seed, move, forgets=forgets)
        assert Counter(model.target) == Counter(b"%d" % number for number in range(30)), (
            f"seed {seed}"
        )
        faults += model.faults
    assert faults > 100


def test_sending_again_after_an_unknown_outcome_is_noticed() -> None:
    """The control: with a coordinator that forgets, sending again from memory publishes twice."""
    for seed in range(60):
        model = play(seed, move_and_send_again, forgets=True)
        if max(Counter(model.target).values()) > 1:
            return
    raise AssertionError("no seed made a duplicate: the model tests nothing")

"""A transaction coordinator in a few lines, beside the scripted broker.

It keeps what it received and answers as documented: END_TXN is idempotent and its outcome can be
asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.client import Client
from magnetar.client.coordinators import ASSIGN_TOPIC
from magnetar.errors import WireCode
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, transactions
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.transactions import Refusal
from tests.support.memory import MemoryNetwork, ScriptedBroker, Session
from tests.support.virtual_time import VirtualClock, VirtualLoop, run_virtually


class ScriptedCoordinator:
    """Coordinators of a number of TCIDs on one scripted broker; tests override single commands
    in `broker.script`."""

    def __init__(self, broker: ScriptedBroker, count: int = 1) -> None:
        self.broker = broker
        self.count = count
        self.ended: dict[TxnId, bool] = {}
        self._next: dict[int, int] = {}
        broker.script.update(
            partitioned_metadata=self.partitions,
            tc_client_connect_request=lambda _, ask: transactions.coordinator_connected(
                ask.request_id
            ),
            new_txn=self.new,
            add_partition_to_txn=lambda _, ask: transactions.add_partition_response(
                ask.request_id, txn_of(ask)
            ),
            add_subscription_to_txn=lambda _, ask: transactions.add_subscription_response(
                ask.request_id, txn_of(ask)
            ),
            end_txn=self.end,
        )

    def partitions(self, _: Session, ask: Any) -> bytes:
        count = self.count if ask.topic == ASSIGN_TOPIC else self.broker.partitions
        return commands.partitioned_metadata(ask.request_id, count)

    def new(self, _: Session, ask: Any) -> bytes:
        self._next[ask.tc_id] = self._next.get(ask.tc_id, -1) + 1
        return transactions.new_txn_response(
            ask.request_id, TxnId(ask.tc_id, self._next[ask.tc_id])
        )

    def end(self, _: Session, ask: Any) -> bytes:
        txn, commit = txn_of(ask), ask.txn_action == api.COMMIT
        if self.ended.setdefault(txn, commit) != commit:
            text = f"transaction {txn} is {'COMMITTED' if self.ended[txn] else 'ABORTED'}"
            return transactions.end_txn_response(
                ask.request_id, txn, Refusal(WireCode.INVALID_TXN_STATUS, text)
            )
        return transactions.end_txn_response(ask.request_id, txn)

    def steps(self) -> list[str]:
        """Kinds of commands about transactions, messages and acknowledgements, in the order they
        came."""
        wanted = (
            "new_txn",
            "add_partition_to_txn",
            "add_subscription_to_txn",
            "send",
            "ack",
            "end_txn",
        )
        return [kind for kind, _ in self.broker.received if kind in wanted]


def txn_of(ask: Any) -> TxnId:
    return TxnId(ask.txnid_most_bits, ask.txnid_least_bits)


Scenario = Callable[[ScriptedBroker, ScriptedCoordinator, Client], Awaitable[None]]


def run(scenario: Scenario, coordinators: int = 1, **options: Any) -> None:
    """Run a scenario with one broker, which also has the coordinators, and a client of it, in
    virtual time."""
    loop = VirtualLoop()

    async def body() -> None:
        network = MemoryNetwork()
        broker = ScriptedBroker(network, "a")
        coordinator = ScriptedCoordinator(broker, coordinators)
        async with Client(
            "pulsar://a:6650",
            network=network,
            clock=VirtualClock(loop),
            **{"operation_timeout_s": 5, **options},
        ) as client:
            async with asyncio.timeout(120):
                await scenario(broker, coordinator, client)

    run_virtually(body(), loop)

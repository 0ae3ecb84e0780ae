"""Participants of transactions that keep the rules.

Owns: `scripted_participants`, which has brokers answer END_TXN_ON_PARTITION and
END_TXN_ON_SUBSCRIPTION by recording what they received, where the bundle is served; late, twice, or
not at all as chance has it. Imports: broker.commands.service (patched), the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from magnetar.broker.commands.service import BrokerService, Type
from magnetar.broker.connections.connection import Connection
from magnetar.errors import ServiceNotReady, SubscriptionNotFound, TopicNotFound
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Participant
from magnetar.wire import transactions
from tests.simulation.scenarios.coordinator_cluster import CoordinatorCluster
from tests.simulation.scenarios.coordinator_ledger import Ledger

SLOW_S = (0.0, 1.0)
UNREADY_ONE_IN_BITS = 4
SLOW_ONE_IN_BITS = 3


def scripted_participants(
    cluster: CoordinatorCluster, ledger: Ledger, gone: frozenset[Participant]
) -> None:
    """For brokers of this cluster, from their next incarnation on. `gone` do not exist."""
    made = BrokerService.__init__

    def make(service: BrokerService, *ports: Any) -> None:
        made(service, *ports)
        service._handlers[Type.END_TXN_ON_PARTITION] = _handler(
            service,
            ledger,
            gone,
            lambda body: Participant(body.topic),
            transactions.end_on_partition_response,
        )
        service._handlers[Type.END_TXN_ON_SUBSCRIPTION] = _handler(
            service,
            ledger,
            gone,
            lambda body: Participant(body.subscription.topic, body.subscription.subscription),
            transactions.end_on_subscription_response,
        )

    cluster.patch.setattr(BrokerService, "__init__", make)


def _handler(
    service: BrokerService,
    ledger: Ledger,
    gone: frozenset[Participant],
    named: Callable[[Any], Participant],
    answer: Callable[[int, TxnId], bytes],
) -> Callable[[Connection, Any], Any]:
    clock = service._context.clock

    async def end(connection: Connection, body: Any) -> None:
        participant, txn = named(body), TxnId(body.txnid_most_bits, body.txnid_least_bits)
        await service._ownership.serving_topic(TopicName.parse(participant.topic))
        if participant in gone:
            raise (
                SubscriptionNotFound("gone") if participant.subscription else TopicNotFound("gone")
            )
        if clock.random_bits(UNREADY_ONE_IN_BITS) == 0:
            raise ServiceNotReady("not just now")
        watermark = (
            body.txnid_least_bits_of_low_watermark
            if body.HasField("txnid_least_bits_of_low_watermark")
            else -1
        )
        ledger.receives(participant, txn, Action(body.txn_action), watermark)
        if clock.random_bits(SLOW_ONE_IN_BITS) == 0:
            await asyncio.sleep(clock.uniform(*SLOW_S))
        connection.queue(answer(body.request_id, txn))

    return end

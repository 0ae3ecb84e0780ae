"""Typed refusals.

Owns: which response carries an error for which request (a client that waits for LOOKUP_RESPONSE
ignores ERROR), and the errors of servers without transactions. Imports: wire, errors. Invariants:
every request of the protocol that expects an answer has an entry here; others get none; a command
that only a broker may send ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar.broker.connections.connection import Connection
from magnetar.errors import MagnetarError, ProtocolError, WireCode
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, transactions
from magnetar.wire import pulsar_api_pb2 as api

Type = api.BaseCommand.Type
Refuse = Callable[[Any, WireCode, str], bytes]
NOT_ENABLED = "Transactions are not enabled."
"""Apache Pulsar's own words: clients look for them."""
_NOT_CONFIGURED = "This Broker is not configured with transactionCoordinatorEnabled=true"
"""Apache Pulsar's words to administrators."""
NO_COORDINATOR = (
    f"{_NOT_CONFIGURED}: there is no transaction coordinator; on Kubernetes apply a "
    "TransactionCoordinator, a standalone server is one unless "
    "MAGNETAR_TRANSACTIONS_ENABLED is 0"
)
COORDINATOR_REFUSES = (
    f"{_NOT_CONFIGURED}: the setting transactions_enabled is 0; set it to 1, or take it out of the "
    "TransactionCoordinator"
)
COORDINATOR_KINDS = frozenset(
    {
        Type.NEW_TXN,
        Type.ADD_PARTITION_TO_TXN,
        Type.ADD_SUBSCRIPTION_TO_TXN,
        Type.END_TXN,
        Type.TC_CLIENT_CONNECT_REQUEST,
    }
)
"""What clients ask a transaction coordinator."""
TRANSACTION_KINDS = COORDINATOR_KINDS | {Type.END_TXN_ON_PARTITION, Type.END_TXN_ON_SUBSCRIPTION}


def _txn(request: Any) -> TxnId:
    return TxnId(request.txnid_most_bits, request.txnid_least_bits)


_BY_KIND: dict[int, Refuse] = {
    Type.LOOKUP: lambda r, code, text: commands.lookup_failed(r.request_id, code, text),
    Type.PARTITIONED_METADATA: lambda r, code, text: commands.partitioned_metadata_failed(
        r.request_id, code, text
    ),
    Type.GET_SCHEMA: lambda r, code, text: commands.schema_failed(r.request_id, code, text),
    Type.GET_OR_CREATE_SCHEMA: lambda r, code, text: commands.schema_refused(
        r.request_id, code, text
    ),
    Type.CONSUMER_STATS: lambda r, code, text: commands.consumer_stats_failed(
        r.request_id, code, text
    ),
    Type.END_TXN_ON_PARTITION: lambda r, code, text: transactions.end_on_partition_response(
        r.request_id, _txn(r), transactions.Refusal(code, text)
    ),
    Type.END_TXN_ON_SUBSCRIPTION: lambda r, code, text: transactions.end_on_subscription_response(
        r.request_id, _txn(r), transactions.Refusal(code, text)
    ),
}
_ANSWERED_BY_ERROR = frozenset(
    {
        Type.SUBSCRIBE,
        Type.PRODUCER,
        Type.UNSUBSCRIBE,
        Type.CLOSE_PRODUCER,
        Type.CLOSE_CONSUMER,
        Type.SEEK,
        Type.GET_LAST_MESSAGE_ID,
        Type.GET_TOPICS_OF_NAMESPACE,
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_CLOSE,
        Type.SET_WATERMARK,
        Type.GET_LAST_WATERMARK,
    }
    | COORDINATOR_KINDS
)
"""Clients look for the text of Apache Pulsar's ERROR when transactions are switched off."""
_ANSWERED_BY_NOTHING = frozenset(
    {
        Type.ACK,
        Type.FLOW,
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        Type.SEND,
        Type.AUTH_RESPONSE,
        Type.PING,
        Type.PONG,
    }
)
"""An AUTH_RESPONSE may come late, after its challenge was given up."""


def refuse(connection: Connection, kind: int, request: Any, error: MagnetarError) -> None:
    """Answer a request of type `kind` with an error, in the response that its sender waits for.

    `request` is the sub-message, or the whole command for kinds that no handler took. Raises
    ProtocolError for what only a broker may send.
    """
    if isinstance(request, api.BaseCommand):
        request = getattr(request, commands.FIELD_OF_TYPE[kind])
    build = _BY_KIND.get(kind)
    if build is not None:
        connection.queue(build(request, error.wire_code, str(error)))
    elif kind in _ANSWERED_BY_ERROR:
        connection.queue(commands.error_of(request.request_id, error))
    elif kind not in _ANSWERED_BY_NOTHING:
        raise ProtocolError(
            f"{commands.FIELD_OF_TYPE[kind]} is what a broker sends; a client must not"
        )

"""What a transaction coordinator answers.

Owns: one builder per coordinator response, each returning a whole frame. Imports: errors, frames,
transactions.ids, the generated protocol. Pure. Source: Pulsar's binary protocol. A TxnID is two
u64: `most` is the coordinator's number (TCID), `least` its counter. Invariant: every response
echoes the request id; an error response carries no TxnID unless the request did.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from magnetar.errors import WireCode
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import frame_of


class Refusal(NamedTuple):
    """Why a request failed. Of a transaction that is not known: the first number that has not
    begun (None: not sent), and the floor."""

    code: WireCode
    message: str
    next_least: int | None = None
    floor: int = 0


R = TypeVar(
    "R",
    api.CommandNewTxnResponse,
    api.CommandAddPartitionToTxnResponse,
    api.CommandAddSubscriptionToTxnResponse,
    api.CommandEndTxnResponse,
    api.CommandEndTxnOnPartitionResponse,
    api.CommandEndTxnOnSubscriptionResponse,
)


CARRIES_NUMBERS = (api.CommandAddPartitionToTxnResponse, api.CommandAddSubscriptionToTxnResponse)
"""Responses with the bounds of transaction ids: participants inquire after transactions by their
requests."""


def new_txn_response(request_id: int, outcome: TxnId | Refusal) -> bytes:
    """NEW_TXN_RESPONSE with the new id, or why there is none."""
    body = _answer(api.CommandNewTxnResponse(request_id=request_id), outcome)
    return frame_of(body)


def add_partition_response(request_id: int, txn_id: TxnId, refusal: Refusal | None = None) -> bytes:
    body = _answer(api.CommandAddPartitionToTxnResponse(request_id=request_id), txn_id, refusal)
    return frame_of(body)


def add_subscription_response(
    request_id: int, txn_id: TxnId, refusal: Refusal | None = None
) -> bytes:
    body = _answer(api.CommandAddSubscriptionToTxnResponse(request_id=request_id), txn_id, refusal)
    return frame_of(body)


def end_txn_response(request_id: int, txn_id: TxnId, refusal: Refusal | None = None) -> bytes:
    body = _answer(api.CommandEndTxnResponse(request_id=request_id), txn_id, refusal)
    return frame_of(body)


def end_on_partition_response(
    request_id: int, txn_id: TxnId, refusal: Refusal | None = None
) -> bytes:
    """END_TXN_ON_PARTITION_RESPONSE, from broker to coordinator."""
    body = _answer(api.CommandEndTxnOnPartitionResponse(request_id=request_id), txn_id, refusal)
    return frame_of(body)


def end_on_subscription_response(
    request_id: int, txn_id: TxnId, refusal: Refusal | None = None
) -> bytes:
    """END_TXN_ON_SUBSCRIPTION_RESPONSE, from broker to coordinator."""
    body = _answer(api.CommandEndTxnOnSubscriptionResponse(request_id=request_id), txn_id, refusal)
    return frame_of(body)


def coordinator_connected(request_id: int, refusal: Refusal | None = None) -> bytes:
    """TC_CLIENT_CONNECT_RESPONSE; a coordinator served elsewhere refuses with
    TRANSACTION_COORDINATOR_NOT_FOUND."""
    body = api.CommandTcClientConnectResponse(request_id=request_id)
    if refusal is not None:
        body.error, body.message = api.ServerError.ValueType(int(refusal.code)), refusal.message
    return frame_of(body)


def _answer(body: R, *parts: TxnId | Refusal | None) -> R:
    for part in parts:
        if isinstance(part, TxnId):
            body.txnid_most_bits, body.txnid_least_bits = part
        elif part is not None:
            body.error, body.message = api.ServerError.ValueType(int(part.code)), part.message
            if part.next_least is not None and isinstance(body, CARRIES_NUMBERS):
                body.txnid_least_bits_of_next = part.next_least
                body.txnid_least_bits_of_low_watermark = (part.floor - 1) % (1 << 64)
    return body

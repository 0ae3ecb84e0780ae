"""What can go wrong, seen from a client.

Owns: the map from the wire's error codes to error classes, and the errors that only a client
sees. Imports: errors, wire. Invariant: `failure_of` returns an error whose `retry` says what to do
next; final codes are those that stock clients treat as final.
"""

from __future__ import annotations

from typing import Any

from magnetar.errors import (
    ChecksumMismatch,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidTopicName,
    InvalidTxnStatus,
    LimitExceeded,
    MagnetarError,
    NotAllowed,
    ProducerBusy,
    Retry,
    ServiceNotReady,
    StorageError,
    StoreError,
    SubscriptionNotFound,
    TopicNotFound,
    TransactionConflict,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    WireCode,
)
from magnetar.wire.transactions import CARRIES_NUMBERS


class ConnectionLost(ServiceNotReady):
    """The connection broke before the answer came: whether the request took effect is unknown."""


class SendTimeout(ServiceNotReady):
    """No receipt within the send timeout: whether the message was stored is unknown."""


class AlreadyClosed(MagnetarError):
    """Use of a client, producer or consumer after close()."""

    retry = Retry.NEVER


class TransactionAborted(MagnetarError):
    """The transaction did not take place: none of its messages will be seen, and what it
    acknowledged comes again. Begin a new one."""

    wire_code, retry = WireCode.INVALID_TXN_STATUS, Retry.AFTER_BACKOFF


class TransactionOutcomeUnknown(MagnetarError):
    """No coordinator said how the transaction ended. Do not send again what it held: ask again
    with `commit()` or `abort()`, or have what it acknowledged delivered again, which happens
    only if it did not take place."""

    wire_code, retry = WireCode.TRANSACTION_NOT_FOUND, Retry.NEVER


class Undecodable(MagnetarError):
    """A message whose payload does not fit the schema of its consumer, or a tombstone where a
    value is needed."""

    wire_code, retry = WireCode.INCOMPATIBLE_SCHEMA, Retry.NEVER


class BrokerRefused(MagnetarError):
    """A final refusal for a reason that has no class of its own; `code` says which."""

    retry = Retry.NEVER

    def __init__(self, code: WireCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code


class BrokerUnready(BrokerRefused):
    """As BrokerRefused, but worth another attempt."""

    retry = Retry.AFTER_BACKOFF


_CLASSES: dict[WireCode, type[MagnetarError]] = {
    WireCode.METADATA: StoreError,
    WireCode.PERSISTENCE: StorageError,
    WireCode.CONSUMER_BUSY: ConsumerBusy,
    WireCode.SERVICE_NOT_READY: ServiceNotReady,
    WireCode.CHECKSUM: ChecksumMismatch,
    WireCode.TOPIC_NOT_FOUND: TopicNotFound,
    WireCode.SUBSCRIPTION_NOT_FOUND: SubscriptionNotFound,
    WireCode.TOO_MANY_REQUESTS: LimitExceeded,
    WireCode.PRODUCER_BUSY: ProducerBusy,
    WireCode.INVALID_TOPIC_NAME: InvalidTopicName,
    WireCode.NOT_ALLOWED: NotAllowed,
    WireCode.INCOMPATIBLE_SCHEMA: IncompatibleSchema,
    WireCode.INVALID_TXN_STATUS: InvalidTxnStatus,
    WireCode.TRANSACTION_CONFLICT: TransactionConflict,
    WireCode.TRANSACTION_NOT_FOUND: TransactionNotFound,
    WireCode.TRANSACTION_COORDINATOR_NOT_FOUND: TransactionCoordinatorNotFound,
}
_RETRIED = frozenset({WireCode.UNKNOWN, WireCode.PRODUCER_BLOCKED_QUOTA_ERROR})


def failure_of(code: int, message: str) -> MagnetarError:
    """The error for a wire code; a code newer than this client counts as UNKNOWN."""
    known = WireCode(code) if code in WireCode._value2member_map_ else WireCode.UNKNOWN
    kind = _CLASSES.get(known)
    if kind is not None:
        return kind(message)
    return BrokerUnready(known, message) if known in _RETRIED else BrokerRefused(known, message)


def failure_in(response: Any) -> MagnetarError:
    """The error that a response carries in fields of its own."""
    failure = failure_of(response.error, response.message)
    if (
        isinstance(failure, TransactionNotFound)
        and isinstance(response, CARRIES_NUMBERS)
        and response.HasField("txnid_least_bits_of_next")
    ):
        failure.next_least = response.txnid_least_bits_of_next
        failure.floor = (response.txnid_least_bits_of_low_watermark + 1) % (1 << 64)
    return failure

"""Every error that crosses a boundary.

Owns: the error tree; each class declares its Pulsar wire code (ServerError of facts: protocol field
`CommandError.error`), its HTTP status and what a client should do next. Imports: nothing. Broker
replies, REST statuses, client back-off and docs derive from this one place. Invariant: programmer
errors are not in this tree; they crash. Messages name the field, the value and the remedy.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class WireCode(enum.IntEnum):
    """ServerError numbers of the Pulsar protocol."""

    UNKNOWN = 0
    METADATA = 1
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEPTION = 8
    CHECKSUM = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class Retry(enum.Enum):
    """What the peer should do after this error."""

    NEVER = "never"
    AFTER_BACKOFF = "after back-off, same broker"
    AFTER_LOOKUP = "after a fresh lookup"


class MagnetarError(Exception):
    """Root of all errors that an operator, a peer or a client may cause or see."""

    wire_code: ClassVar[WireCode] = WireCode.UNKNOWN
    http_status: ClassVar[int] = 500
    retry: ClassVar[Retry] = Retry.AFTER_BACKOFF

    def __init__(self, message: str = "", remedy: str = "") -> None:
        """`remedy` says what to do. A message may say it itself, behind its first semicolon; one
        with a name of a peer's choice in front of it gives the remedy on its own."""
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.fault, self.remedy = message, remedy
        if not remedy:
            self.fault, _, self.remedy = message.partition("; ")


# --- the peer broke the rules ---------------------------------------------------------------------


class ProtocolError(MagnetarError):
    """The peer sent bytes that are not the protocol; the connection is closed."""

    retry = Retry.NEVER
    http_status = 400


class FrameTooLarge(ProtocolError):
    """A frame beyond the announced limit."""


class UnsupportedCommand(MagnetarError):
    """A well-formed command that this broker does not offer."""

    wire_code, http_status, retry = WireCode.NOT_ALLOWED, 405, Retry.NEVER


class NotOffered(UnsupportedCommand):
    """Something of Apache Pulsar that this broker does not do; the text says what there is."""


class ChecksumMismatch(MagnetarError):
    """Payload and CRC-32C of a SEND disagree."""

    wire_code, http_status, retry = WireCode.CHECKSUM, 400, Retry.NEVER


class InvalidTopicName(MagnetarError):
    """A topic, namespace or tenant name outside Pulsar's grammar."""

    wire_code, http_status, retry = WireCode.INVALID_TOPIC_NAME, 412, Retry.NEVER


class InvalidSubscriptionName(MagnetarError):
    """A subscription name that is blank, reserved or too long.

    Apache Pulsar answers a wrong name with ProducerBusy; the C++ client and those that wrap it turn
    it into InvalidConfiguration.
    """

    wire_code, http_status, retry = WireCode.PRODUCER_BUSY, 412, Retry.NEVER


class InvalidPartitions(MagnetarError):
    """A number of partitions out of range."""

    wire_code, http_status, retry = WireCode.NOT_ALLOWED, 406, Retry.NEVER


class PartitionsNotPossible(MagnetarError):
    """A change of partitions that the topic as it is does not permit."""

    wire_code, http_status, retry = WireCode.NOT_ALLOWED, 422, Retry.NEVER


class NotPersistent(MagnetarError):
    """A request that only a persistent topic can be asked."""

    wire_code, http_status, retry = WireCode.NOT_ALLOWED, 406, Retry.NEVER


class IncompatibleSchema(MagnetarError):
    """A schema, or a version of one, that does not fit the topic."""

    wire_code, http_status, retry = WireCode.INCOMPATIBLE_SCHEMA, 409, Retry.NEVER


class InvalidSchema(IncompatibleSchema):
    """A schema whose definition is none of its type."""

    http_status = 422


class NotAllowed(MagnetarError):
    """A request that is valid but not permitted in this combination."""

    wire_code, http_status, retry = WireCode.NOT_ALLOWED, 409, Retry.NEVER


class OwnedByResource(NotAllowed):
    """A change of something that a custom resource owns: the resource would only set it back."""


class AuthenticationFailed(MagnetarError):
    """The peer is not known: it showed no credentials, or wrong or expired ones."""

    wire_code, http_status, retry = WireCode.AUTHENTICATION, 401, Retry.NEVER


class NotAuthorized(MagnetarError):
    """The peer's role may not do this."""

    wire_code, http_status, retry = WireCode.AUTHORIZATION, 403, Retry.NEVER


class NotAuthorizedByRole(NotAuthorized):
    """The same on a route where Apache Pulsar answers 401 instead of 403."""

    http_status = 401


class InvalidRequest(MagnetarError):
    """A request whose fields contradict each other or are out of range."""

    wire_code, http_status, retry = WireCode.METADATA, 400, Retry.NEVER


class PreconditionFailed(InvalidRequest):
    """A value out of bounds, or a request that names something which is not there."""

    http_status = 412


class BodyTooLarge(InvalidRequest):
    """The body of an HTTP request is beyond the limit."""

    http_status = 413


# --- the world is not as the request assumed ------------------------------------------------------


class TopicNotFound(MagnetarError):
    """The topic, its namespace or its tenant does not exist and may not be created."""

    wire_code, http_status, retry = WireCode.TOPIC_NOT_FOUND, 404, Retry.NEVER


class NamespaceNotFound(TopicNotFound):
    """The namespace does not exist."""

    @classmethod
    def named(cls, namespace: object, said: str = "Namespace does not exist") -> NamespaceNotFound:
        """`said` is how Pulsar puts it in this place."""
        return cls(
            said,
            f"create {namespace} with PUT /admin/v2/namespaces/{namespace} or a TopicNamespace",
        )


class TopicExists(MagnetarError):
    """Create of something that is there."""

    wire_code, http_status, retry = WireCode.NOT_ALLOWED, 409, Retry.NEVER


class SubscriptionNotFound(MagnetarError):
    """No such subscription on the topic."""

    wire_code, http_status, retry = WireCode.SUBSCRIPTION_NOT_FOUND, 404, Retry.NEVER


class ConsumerNotFound(MagnetarError):
    """No such consumer on this connection."""

    wire_code, http_status, retry = WireCode.METADATA, 404, Retry.NEVER


class ConsumerBusy(MagnetarError):
    """The subscription is taken, or its type differs."""

    wire_code, http_status, retry = WireCode.CONSUMER_BUSY, 409, Retry.NEVER


class ConsumerAssignError(MagnetarError):
    """No hashes can be given to a Key_Shared consumer: its ranges are invalid or taken."""

    wire_code, http_status, retry = WireCode.CONSUMER_ASSIGN, 409, Retry.NEVER


class ProducerBusy(MagnetarError):
    """The producer name is in use on this topic."""

    wire_code, http_status, retry = WireCode.PRODUCER_BUSY, 409, Retry.NEVER


class ProducerFenced(MagnetarError):
    """Exclusive access is taken, or has passed to another since."""

    wire_code, http_status, retry = WireCode.PRODUCER_FENCED, 409, Retry.NEVER


class TopicTerminated(MagnetarError):
    """Nothing can be published to this topic any more."""

    wire_code, http_status, retry = WireCode.TOPIC_TERMINATED, 409, Retry.NEVER


class BacklogQuotaExceeded(MagnetarError):
    """The backlog is beyond its quota, whose policy is to have producers wait."""

    wire_code, http_status, retry = WireCode.PRODUCER_BLOCKED_QUOTA_ERROR, 409, Retry.AFTER_BACKOFF


class BacklogQuotaRefused(BacklogQuotaExceeded):
    """The backlog is beyond its quota, whose policy is to refuse producers."""

    wire_code = WireCode.PRODUCER_BLOCKED_QUOTA_EXCEPTION
    retry = Retry.NEVER


class SendsGivenUp(MagnetarError):
    """A producer is to fail what it has not learned of, one of which can never be taken, and to
    come again.

    Of all errors of PRODUCER the one at which the Go client (0.19) does that, and reports its
    application why.
    """

    wire_code, http_status, retry = (
        WireCode.PRODUCER_BLOCKED_QUOTA_EXCEPTION,
        409,
        Retry.AFTER_BACKOFF,
    )


class InUse(MagnetarError):
    """Something that is to be deleted has clients or contents."""

    wire_code, http_status, retry = WireCode.CONSUMER_BUSY, 412, Retry.NEVER


class AlreadyRunning(MagnetarError):
    """Work on a topic that takes long is under way, and is not begun twice."""

    wire_code, http_status, retry = WireCode.NOT_ALLOWED, 409, Retry.NEVER


class DestinationRefused(MagnetarError):
    """A broker that was named for a bundle takes none: it is draining or cordoned."""

    wire_code, http_status, retry = WireCode.METADATA, 412, Retry.NEVER


class LimitExceeded(MagnetarError):
    """A named limit on size, count or queue was reached."""

    wire_code, http_status, retry = WireCode.TOO_MANY_REQUESTS, 429, Retry.AFTER_BACKOFF


# --- transactions ---------------------------------------------------------------------------------


class InvalidTxnStatus(MagnetarError):
    """The transaction is not open any more, or ends or has ended the other way; the text names
    its status."""

    wire_code, http_status, retry = WireCode.INVALID_TXN_STATUS, 409, Retry.NEVER


class TransactionConflict(MagnetarError):
    """Another transaction has acknowledged the message; the text names it."""

    wire_code, http_status, retry = WireCode.TRANSACTION_CONFLICT, 409, Retry.NEVER


class TransactionNotFound(MagnetarError):
    """No such transaction, or its outcome has been forgotten.

    `next_least` is the first number that its coordinator has not given yet (None: unknown): from
    there on transactions have not begun, below it they have ended. Those below `floor` have ended
    everywhere.
    """

    wire_code, http_status, retry = WireCode.TRANSACTION_NOT_FOUND, 404, Retry.NEVER

    def __init__(self, message: str, next_least: int | None = None, floor: int = 0) -> None:
        super().__init__(message)
        self.next_least, self.floor = next_least, floor


class TransactionCoordinatorNotFound(MagnetarError):
    """The coordinator of this number is served elsewhere, or has no holder now."""

    wire_code, http_status, retry = (
        WireCode.TRANSACTION_COORDINATOR_NOT_FOUND,
        503,
        Retry.AFTER_LOOKUP,
    )


# --- the system cannot do it now ------------------------------------------------------------------


class ServiceNotReady(MagnetarError):
    """No owner could be found or the broker is starting or stopping.

    The text matters: C++ clients close the whole connection on code 6 unless it contains "is being
    unloaded" or "Failed to acquire ownership".
    """

    wire_code, http_status, retry = WireCode.SERVICE_NOT_READY, 503, Retry.AFTER_LOOKUP


class NotOwner(ServiceNotReady):
    """The bundle of this topic is served elsewhere; `http_url` is where to ask by HTTP,
    `http_url_tls` by HTTPS ("" = not known)."""

    def __init__(self, message: str, http_url: str = "", http_url_tls: str = "") -> None:
        super().__init__(message)
        self.http_url, self.http_url_tls = http_url, http_url_tls


class LedgerIdsExhausted(ServiceNotReady):
    """A topic that has no ledger id in this term can get none: all are given. Its bundle is
    about to get a new epoch, and with it new ids."""


class StorageError(MagnetarError):
    """A write or read of durable storage failed; nothing was acknowledged."""

    wire_code, http_status, retry = WireCode.PERSISTENCE, 503, Retry.AFTER_LOOKUP


class Fenced(StorageError):
    """This incarnation's claim is gone: another broker may own its bundles. It acknowledges
    nothing any more."""


class StorageFull(StorageError):
    """No space is left on durable storage; what was asked for may be tried again once there is."""


class RestoreAwaited(StorageError):
    """The metadata store is empty, or its restore is not finished: no process joins it yet."""


class RestoresExhausted(StorageError):
    """The metadata store of this storage was restored so often that message ids have no room for
    one more restore number."""

    retry = Retry.NEVER


class CorruptData(StorageError):
    """Bytes that fail their checksum, or are missing, where only acknowledged data can be.

    `file` and `offset` say where (-1: the file as a whole), `first` and `last` which entries
    ((ledger, entry), of `topic`), where known.
    """

    retry = Retry.NEVER

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        offset: int = -1,
        topic: str = "",
        first: tuple[int, int] | None = None,
        last: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.file, self.offset, self.topic, self.first, self.last = file, offset, topic, first, last


class StoreError(MagnetarError):
    """The metadata store could not answer."""

    wire_code, http_status, retry = WireCode.METADATA, 503, Retry.AFTER_BACKOFF


class StoreUnavailable(StoreError):
    """No answer, or an answer that leaves the outcome unknown."""


class Compacted(StoreError):
    """The revision asked for has been compacted away; list again and watch from there."""


class LeaseLost(StoreError):
    """The lease has expired or was revoked."""

    retry = Retry.NEVER

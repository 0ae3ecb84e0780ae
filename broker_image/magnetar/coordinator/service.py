"""What a transaction coordinator answers.

Owns: the commands of its connections. Imports: wire, errors, names, refusals, transactions. Source:
Pulsar's binary protocol. While transactions are switched off every request about them gets what
Apache Pulsar says then: an ERROR with a text that clients know. Invariants: every request gets
exactly one answer, which names the error and says why; no official client waits for something that
will not come; while the disk is behind nothing more is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.refusals import NOT_ENABLED, TRANSACTION_KINDS, refuse
from magnetar.coordinator.claim import CoordinatorClaim
from magnetar.coordinator.discovery import FIRST
from magnetar.coordinator.identity import check_coordinator, txn_of
from magnetar.coordinator.metrics import CoordinatorMetrics
from magnetar.coordinator.retired import OtherCoordinators, RetiredNumbers
from magnetar.coordinator.transactions import Transactions
from magnetar.errors import (
    InvalidRequest,
    LimitExceeded,
    MagnetarError,
    NotAllowed,
    TopicNotFound,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.names import COORDINATOR_TOPIC, RULES, TopicName, topic_of_sidecar
from magnetar.security.authorization import Place, Right
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.coordinator.events import Caller, EndRequested, JoinRequested
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Participant
from magnetar.wire import commands, transactions
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.runs import AckSpan
from magnetar.wire.transactions import Refusal

if TYPE_CHECKING:
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.hosting.security.guard import Guard

log = structlog.get_logger(__name__)

Type = api.BaseCommand.Type
TIMEOUT_DEFAULT_MS = 60_000
"""Of a transaction whose client names none: what Pulsar's clients name."""
NAMES_BYTES_MAX = 4 << 20
PENDING_BYTES_MAX = 16 << 20
CHECKED_PER_TURN = 500
"""Participants that are looked at in one turn of the loop."""
Named = TypeVar("Named")
"""How a request names a participant."""


class CoordinatorService:
    """Answers the commands of all connections of one coordinator; those about transactions
    refuse until `begin`."""

    def __init__(
        self, tcid: int, metrics: CoordinatorMetrics, security: Authenticator | None = None
    ) -> None:
        self._tcid, self._metrics, self._security = tcid, metrics, security
        self._claim: CoordinatorClaim | None = None
        self._retired: RetiredNumbers | None = None
        self._others: OtherCoordinators | None = None
        self.transactions: Transactions | None = None
        self.guard: Guard | None = None
        """Decides what a principal may do; None without security."""
        self._handlers: dict[
            int, Callable[[Transactions, Connection, Any], Coroutine[Any, Any, bytes]]
        ] = {
            Type.TC_CLIENT_CONNECT_REQUEST: self._connect,
            Type.NEW_TXN: self._new,
            Type.ADD_PARTITION_TO_TXN: self._add_partitions,
            Type.ADD_SUBSCRIPTION_TO_TXN: self._add_subscriptions,
            Type.END_TXN: self._end,
        }

    def begin(
        self,
        found: Transactions,
        claim: CoordinatorClaim,
        retired: RetiredNumbers,
        others: OtherCoordinators,
    ) -> None:
        """Answer about these transactions; new ones begin while `claim` says so, and at one of
        the `others` while it does not."""
        self.transactions, self._claim, self._others = found, claim, others
        if self._tcid == FIRST:
            self._retired = retired

    def acknowledge_span(self, connection: Connection, span: AckSpan) -> None:
        """A coordinator has no consumers: what is left of one is not answered."""

    async def take_list(self, connection: Connection, parts: Iterator[bytes | None]) -> None:
        """As `acknowledge_span`."""

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        """Answer one command, now or later. Raises ProtocolError for what only a server may
        send."""
        kind = command.type
        if self.transactions is not None and kind in self._handlers:
            body = getattr(command, commands.FIELD_OF_TYPE[kind])
            connection.spawn(self._answer(self.transactions, connection, kind, body))
        elif kind == Type.TC_CLIENT_CONNECT_REQUEST:
            # Apache Pulsar says NotAllowedError here, too; the Java client then closes its handler
            # and waits for itself without end. Its discovery, which comes first, meets a topic that
            # is not there: the client fails at once with this answer.
            self._count(kind, "not_enabled")
            refuse(connection, kind, command, TopicNotFound(NOT_ENABLED))
        elif kind in TRANSACTION_KINDS:
            self._count(kind, "not_enabled")
            refuse(connection, kind, command, NotAllowed(NOT_ENABLED))
        else:
            self._metrics.requests.labels("other", "not_offered").inc()
            text = (
                f"{commands.FIELD_OF_TYPE[kind]} is for brokers; this is transaction coordinator "
                f"{self._tcid}"
            )
            refuse(connection, kind, command, NotAllowed(text))

    def _count(self, kind: int, outcome: str) -> None:
        self._metrics.requests.labels(commands.FIELD_OF_TYPE[kind], outcome).inc()

    async def _answer(
        self, found: Transactions, connection: Connection, kind: int, body: Any
    ) -> None:
        try:
            with self._metrics.request_s.labels(commands.FIELD_OF_TYPE[kind]).time():
                answer = await self._handlers[kind](found, connection, body)
        except MagnetarError as error:
            # participants ask, many at once, and log the answer themselves
            asked_after = isinstance(error, TransactionNotFound)
            tell = log.debug if asked_after else log.info
            tell(
                "transaction.refused",
                command=commands.FIELD_OF_TYPE[kind],
                peer=connection.peer,
                error=str(error),
            )
            self._count(kind, "refused")
            refusal = Refusal(error.wire_code, str(error))
            if isinstance(error, TransactionNotFound):
                refusal = refusal._replace(next_least=error.next_least, floor=error.floor)
            connection.queue(_refusal(kind, body, refusal))
        else:
            self._count(kind, "done")
            connection.queue(answer)

    # --- commands ---------------------------------------------------------------------------------

    async def _connect(
        self,
        _found: Transactions,
        _connection: Connection,
        request: api.CommandTcClientConnectRequest,
    ) -> bytes:
        await self._check_number(request.tc_id)
        return transactions.coordinator_connected(request.request_id)

    async def _new(
        self, found: Transactions, connection: Connection, request: api.CommandNewTxn
    ) -> bytes:
        await self._check_number(request.tc_id)
        timeout_ms = request.txn_ttl_seconds or TIMEOUT_DEFAULT_MS
        assert self._claim is not None, "transactions have a claim"
        assert self._others is not None, "and know where else to begin"
        principal = self._caller(connection).principal
        await self._may(
            connection,
            Right.USE,
            "",
            Place(),
            "Client is not authorized to begin transactions: it may use no topic",
        )
        if self._claim.begins:
            internal = connection.principal is not None and connection.principal.internal
            txn = await found.new(timeout_ms, principal, "" if internal else connection.group)
        else:
            txn = await self._others.begin(self._tcid, timeout_ms, principal)
        return transactions.new_txn_response(request.request_id, txn)

    async def _add_partitions(
        self, found: Transactions, connection: Connection, request: api.CommandAddPartitionToTxn
    ) -> bytes:
        txn = txn_of(request)
        participants = await self._participants(
            found, connection, request.partitions, lambda name: Participant(_topic(name))
        )
        await self._join(found, txn, participants, self._caller(connection))
        return transactions.add_partition_response(request.request_id, txn)

    async def _add_subscriptions(
        self, found: Transactions, connection: Connection, request: api.CommandAddSubscriptionToTxn
    ) -> bytes:
        txn = txn_of(request)
        participants = await self._participants(
            found,
            connection,
            request.subscription,
            lambda named: Participant(_topic(named.topic), _subscription(named)),
        )
        await self._join(found, txn, participants, self._caller(connection))
        return transactions.add_subscription_response(request.request_id, txn)

    async def _end(
        self, found: Transactions, connection: Connection, request: api.CommandEndTxn
    ) -> bytes:
        txn, caller = txn_of(request), self._caller(connection)
        if not request.HasField("txn_action"):
            raise InvalidRequest("txn_action is missing; say COMMIT or ABORT")
        await self.end(found, txn, Action(request.txn_action), caller)
        return transactions.end_txn_response(request.request_id, txn)

    # --- also for administrators ------------------------------------------------------------------

    async def end(self, found: Transactions, txn: TxnId, action: Action, caller: Caller) -> None:
        """Decide, or return how it was decided. Raises what END_TXN may be refused with."""
        if txn.most == self._tcid:
            await found.end(txn.least, action, caller)
        else:
            await self._of_retired(
                txn, EndRequested(None, txn.least, action, caller, 0)
            )  # nothing is decided there: no time is needed

    async def core_of(self, found: Transactions, tcid: int) -> CoordinatorCore:
        """What is known of a number's transactions. Raises TransactionCoordinatorNotFound,
        StorageError, StoreError."""
        if tcid == self._tcid:
            return found.core
        if self._retired is None:
            raise self._not_here(tcid)
        return await self._retired.core_of(tcid)

    # --- checks -----------------------------------------------------------------------------------

    async def _may(
        self, connection: Connection, right: Right, namespace: str, place: Place, refusal: str
    ) -> None:
        """Raises NotAuthorized. Without security everybody may."""
        if self.guard is None or connection.principal is None:
            return
        if namespace:
            await self.guard.require(connection.principal, right, namespace, place, refusal)
        else:
            await self.guard.require_anywhere(connection.principal, refusal)

    async def _participants(
        self,
        found: Transactions,
        connection: Connection,
        named: Sequence[Named],
        participant_of: Callable[[Named], Participant],
    ) -> tuple[Participant, ...]:
        """The participants that a request names, if they fit into one record and the peer may use them: publish
        to a topic, consume by a subscription.

        Raises LimitExceeded, NotAuthorized, and what `participant_of` raises. In turns: names are
        parsed at some 10 us each.
        """
        most = found.core.limits.participants_max
        if len(named) > most:
            raise LimitExceeded(
                f"{len(named)} participants are too many for a transaction, the limit is {most}; "
                "name fewer"
            )
        participants: list[Participant] = []
        size = 0
        for item in named:
            if len(participants) % CHECKED_PER_TURN == CHECKED_PER_TURN - 1:
                await asyncio.sleep(0)
            participant = participant_of(item)
            size += len(participant.topic) + len(participant.subscription.encode())
            if size > NAMES_BYTES_MAX:
                raise LimitExceeded(
                    f"{len(named)} names of over {size} bytes are too many for one request, the "
                    f"limit is {NAMES_BYTES_MAX}"
                )
            topic = TopicName.parse(participant.topic)
            right = Right.CONSUME if participant.subscription else Right.PRODUCE
            refusal = f"Client is not authorized to {right.value} on {topic} in a transaction"
            place = Place(topic, participant.subscription)
            await self._may(connection, right, str(topic.namespace_name), place, refusal)
            participants.append(participant)
        return tuple(participants)

    async def _join(
        self, found: Transactions, txn: TxnId, participants: tuple[Participant, ...], caller: Caller
    ) -> None:
        if txn.most == self._tcid:
            await found.join(txn.least, participants, caller)
        else:
            await self._of_retired(txn, JoinRequested(None, txn.least, participants, caller))

    async def _of_retired(self, txn: TxnId, event: EndRequested | JoinRequested) -> None:
        if self._retired is None:
            raise self._not_here(txn.most)
        await self._retired.ask(txn.most, event)

    async def _check_number(self, tcid: int) -> None:
        """Raises TransactionCoordinatorNotFound for a number that is not ours, nor one that is
        gone and for us to answer for, NotAllowed."""
        check_coordinator(tcid)
        if tcid == self._tcid:
            return
        if self._retired is None:
            raise self._not_here(tcid)
        await self._retired.check(tcid)

    def _not_here(self, tcid: int) -> TransactionCoordinatorNotFound:
        return TransactionCoordinatorNotFound(
            f"this is transaction coordinator {self._tcid}, not {tcid}; look it up again"
        )

    def _caller(self, connection: Connection) -> Caller:
        """Who asks: a role that a proxy speaks for acts for itself. Without authorization
        everybody may act on everything."""
        found = connection.principal
        if found is None or self._security is None:
            return Caller()
        document = self._security.source.current.document
        supers = document.super_user_roles
        superuser = (
            found.internal
            or not document.authorization
            or all(role in supers for role in found.roles)
        )
        return Caller(found.original or found.role, superuser)

    # --- back-pressure ----------------------------------------------------------------------------

    def disk_is_behind(self) -> bool:
        """Whether so much waits for a flush that no more requests are read."""
        return self.transactions is not None and self.transactions.pending_bytes > PENDING_BYTES_MAX

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        """Call `resume` once it does not any more."""
        if self.transactions is not None:
            self.transactions.when_at_most(PENDING_BYTES_MAX, resume)
        else:
            resume()


def _topic(text: str) -> str:
    """The name of a topic that may take part, as the client wrote it: it is shown like that, as
    Pulsar does. Raises InvalidTopicName, NotAllowed."""
    topic = TopicName.parse(text)
    if not topic.persistent:
        raise NotAllowed(f"topic {topic} is not persistent: it takes part in no transaction")
    if topic_of_sidecar(str(topic)) is not None:
        raise NotAllowed(
            f"topic {topic} is the broker's own: name the topic whose messages it holds"
        )
    if (
        topic.base == COORDINATOR_TOPIC
    ):  # its partitions are coordinators, who would never carry the end out
        raise NotAllowed(
            f"topic {topic} stands for transaction coordinators: it takes part in no transaction"
        )
    return text


def _subscription(named: api.Subscription) -> str:
    if (violation := RULES["subscription"].violation(named.subscription)) is not None:
        raise InvalidRequest(violation)
    return named.subscription


def _refusal(kind: int, body: Any, refusal: Refusal) -> bytes:
    """A request's own response, with an error."""
    if kind == Type.TC_CLIENT_CONNECT_REQUEST:
        return transactions.coordinator_connected(body.request_id, refusal)
    if kind == Type.NEW_TXN:
        return transactions.new_txn_response(body.request_id, refusal)
    txn = TxnId(body.txnid_most_bits, body.txnid_least_bits)
    if kind == Type.ADD_PARTITION_TO_TXN:
        return transactions.add_partition_response(body.request_id, txn, refusal)
    if kind == Type.ADD_SUBSCRIPTION_TO_TXN:
        return transactions.add_subscription_response(body.request_id, txn, refusal)
    return transactions.end_txn_response(body.request_id, txn, refusal)

"""Routes of transactions.

Owns: `/admin/v3/transactions` in Pulsar's shapes, and `/magnetar/v1/transactions`, which shows
more. Imports: FastAPI, administration, ids. Source: Apache Pulsar 4.0's admin resource
`Transactions` and the classes of its answers (TransactionCoordinatorStats, TransactionMetadata...).
Invariants: any broker answers for all coordinators; a number (TCID) that is gone is answered for by
the first one, as for clients. What Pulsar calls `timeoutAt` is the timeout in milliseconds, there
as here.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.coordinator.probes import LISTED, LISTED_MAX
from magnetar.errors import InvalidRequest, NotAllowed, ServiceNotReady, UnsupportedCommand
from magnetar.hosting.audit import PRINCIPAL
from magnetar.names import TopicName
from magnetar.rest.answers import NO_CONTENT, PersistentTopic
from magnetar.rest.rights import Asked
from magnetar.transactions.ids import TxnId

PULSAR = "/admin/v3/transactions"
OURS = "/magnetar/v1/transactions"
_TOPIC = "{tenant}/{namespace}/{topic:path}"
_SUBSCRIPTION = f"{_TOPIC}/{{subscription}}"
LowWatermarks = Annotated[bool, Query(alias="lowWaterMarks")]
Segments = Annotated[bool, Query(alias="segmentStats")]
Tcid = Annotated[int | None, Query(alias="coordinatorId", ge=0)]


def transaction_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """The routes over `admin`."""
    router = APIRouter(tags=["transactions"], dependencies=asked)
    _add_coordinators(router, admin)
    _add_transactions(router, admin)
    _add_topics(router, admin)
    _add_subscriptions(router, admin)
    _add_ours(router, admin)
    return router


def _add_coordinators(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{PULSAR}/coordinators")
    async def coordinators() -> list[dict[str, Any]]:
        """List the transaction coordinators and where they are."""
        return await admin.transactions.coordinators()

    @router.get(f"{PULSAR}/coordinatorStats")
    async def stats(tcid: Tcid = None) -> dict[str, Any]:
        """Return the state of one coordinator, or of all of them by number."""
        if tcid is not None:
            return _stats(await admin.transactions.coordinator_stats(tcid))
        numbers = [found["id"] for found in await admin.transactions.coordinators()]
        return {
            str(number): _stats(await admin.transactions.coordinator_stats(number))
            for number in numbers
        }

    @router.get(f"{PULSAR}/coordinatorInternalStats/{{tcid}}")
    async def internal(tcid: int, metadata: bool = False) -> dict[str, Any]:
        """Return the state of a coordinator's log."""
        del metadata  # this log has no ledgers whose metadata could be shown
        return _internal(await admin.transactions.coordinator_stats(tcid))

    @router.post(f"{PULSAR}/transactionCoordinator/replicas", status_code=NO_CONTENT)
    async def scale(request: Request) -> None:
        """Refused with what to do instead: the number of coordinators is a field of a custom
        resource."""
        del request
        raise NotAllowed(
            "replicas: coordinators are scaled with `kubectl scale transactioncoordinator NAME "
            "--replicas=N`, up and down; a standalone server "
            "has one"
        )


def _add_transactions(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{PULSAR}/transactionMetadata/{{most}}/{{least}}")
    async def metadata(most: int, least: int, request: Request) -> dict[str, Any]:
        """Return a transaction, or, while it is remembered, how it has ended: to super users, and
        to the role that began it."""
        txn, principal = TxnId(most, least), request.scope.get(PRINCIPAL)
        return _metadata(await admin.transactions.transaction_for(txn, principal))

    @router.get(f"{PULSAR}/slowTransactions/{{timeout}}")
    async def slow(timeout: int, tcid: Tcid = None) -> dict[str, Any]:
        """Return the transactions of one or of all coordinators that began so many milliseconds
        ago and have not ended."""
        found = await admin.transactions.transactions(tcid, max(0, timeout), LISTED_MAX)
        if found["unreachable"]:  # Pulsar's shape has no place for it
            raise ServiceNotReady(
                f"transaction coordinators {found['unreachable']} do not answer; ask for one by "
                f"coordinatorId, or GET {OURS}"
            )
        if found["more"]:
            raise InvalidRequest(
                f"timeout: more than {LISTED_MAX} transactions began {timeout} ms ago or earlier; "
                "ask with a longer time or for one coordinatorId, "
                f"or GET {OURS}, which lists the oldest"
            )
        return {row["txn"]: _metadata(row) for row in found["transactions"]}

    @router.post(f"{PULSAR}/abortTransaction/{{most}}/{{least}}", status_code=NO_CONTENT)
    async def abort(most: int, least: int) -> None:
        """Abort an open transaction of any role."""
        await admin.transactions.abort_transaction(TxnId(most, least))


def _add_topics(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{PULSAR}/transactionBufferStats/{_TOPIC}")
    async def buffer(
        topic: PersistentTopic,
        low_watermarks: LowWatermarks = False,
        segments: Segments = False,
    ) -> dict[str, Any]:
        """Return what a topic knows of transactions."""
        del segments  # snapshots have none here
        return await admin.transactions.transaction_buffer_stats(topic, low_watermarks)

    @router.get(f"{PULSAR}/transactionInBufferStats/{_TOPIC}/{{most}}/{{least}}")
    async def in_buffer(topic: PersistentTopic, most: int, least: int) -> dict[str, Any]:
        """Return where the messages of an open transaction begin in a topic's sidecar, and
        whether it was aborted."""
        return await admin.transactions.transaction_in_buffer(topic, TxnId(most, least))

    @router.get(f"{PULSAR}/transactionBufferInternalStats/{_TOPIC}")
    async def internal(topic: PersistentTopic) -> None:
        """Refused: there are no snapshots in system topics."""
        raise _without_ledgers("Transaction buffer", topic)


def _add_subscriptions(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{PULSAR}/pendingAckStats/{_SUBSCRIPTION}")
    async def pending(
        topic: PersistentTopic,
        subscription: str,
        low_watermarks: LowWatermarks = False,
    ) -> dict[str, Any]:
        """Return what a subscription knows of transactions."""
        return await admin.transactions.pending_ack_stats(topic, subscription, low_watermarks)

    @router.get(f"{PULSAR}/transactionInPendingAckStats/{_SUBSCRIPTION}/{{most}}/{{least}}")
    async def in_pending(
        topic: PersistentTopic, subscription: str, most: int, least: int
    ) -> dict[str, Any]:
        """Return a transaction's cumulative position on a subscription: none, since it holds
        ranges."""
        return await admin.transactions.transaction_in_pending_acks(
            topic, subscription, TxnId(most, least)
        )

    @router.get(f"{PULSAR}/positionStatsInPendingAck/{_SUBSCRIPTION}/{{ledger}}/{{entry}}")
    async def position(
        topic: PersistentTopic,
        subscription: str,
        ledger: int,
        entry: int,
        batch_index: Annotated[int | None, Query(alias="batchIndex")] = None,
    ) -> dict[str, Any]:
        """Tell whether a transaction holds an entry, or messages of it."""
        del batch_index
        return await admin.transactions.position_in_pending_acks(
            topic, subscription, (ledger, entry)
        )

    @router.get(f"{PULSAR}/pendingAckInternalStats/{_SUBSCRIPTION}")
    async def internal(topic: PersistentTopic, subscription: str) -> None:
        """Refused: pending acknowledgements are in the log of all topics."""
        del subscription
        raise _without_ledgers("Pending ack handle", topic)


def _without_ledgers(what: str, topic: TopicName) -> UnsupportedCommand:
    """In Pulsar's words."""
    return UnsupportedCommand(
        f"{what} don't use managedLedger! Topic {topic} keeps it in its broker's log; `magnetar "
        "explain` shows which"
    )


def _add_ours(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(OURS)
    async def transactions(
        tcid: Tcid = None,
        older_ms: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=LISTED_MAX)] = LISTED,
    ) -> dict[str, Any]:
        """List transactions that have not ended everywhere, the oldest first, whether there are
        more, and the coordinators that do not answer."""
        return await admin.transactions.transactions(tcid, older_ms, limit)

    @router.post(f"{OURS}/abort")
    async def abort_of(role: Annotated[str, Query(min_length=1)]) -> dict[str, Any]:
        """Abort open transactions that a role began; `more` says that others are left for
        another call."""
        return await admin.transactions.abort_transactions_of(role)

    @router.get(f"{OURS}/{{most}}/{{least}}")
    async def transaction(most: int, least: int) -> dict[str, Any]:
        """Return a transaction with its participants and those that have not carried its end
        out, or how it has ended."""
        return await admin.transactions.transaction(TxnId(most, least))


# --- Pulsar's shapes ------------------------------------------------------------------------------


def _stats(found: dict[str, Any]) -> dict[str, Any]:
    """TransactionCoordinatorStats."""
    return {
        "state": found["state"],
        "leastSigBits": found["last"],
        "lowWaterMark": found["low_watermark"],
        "ongoingTxnSize": found["live"],
        "recoverStartTime": found["recovery_began_ms"],
        "recoverEndTime": found["recovery_ended_ms"],
    }


def _internal(found: dict[str, Any]) -> dict[str, Any]:
    """TransactionCoordinatorInternalStats, of what a log without ledgers has."""
    log = found.get("log", {"file": 0, "offset": 0, "since_checkpoint": 0})
    return {
        "transactionLogStats": {
            "managedLedgerName": f"coordinators/{found['tcid']}/{found['incarnation']}",
            "managedLedgerInternalStats": {
                "totalSize": log["since_checkpoint"],
                "lastConfirmedEntry": f"{log['file']}:{log['offset']}",
                "state": "LedgerOpened" if found["incarnation"] else "ClosedLedger",
                "ledgers": [],
                "cursors": {},
            },
        }
    }


def _metadata(found: dict[str, Any]) -> dict[str, Any]:
    """TransactionMetadata; of one that has ended nothing but its id, owner and outcome."""
    aborted = found["status"] in ("ABORTING", "ABORTED")
    acknowledged: dict[str, dict[str, Any]] = {}
    for named in found.get("subscriptions", ()):
        acknowledged.setdefault(named["topic"], {})[named["subscription"]] = {
            "cumulativeAckPosition": None
        }
    return {
        "txnId": found["txn"],
        "status": found["status"],
        "openTimestamp": found.get("opened_ms", 0),
        "timeoutAt": found.get("timeout_ms", 0),
        "producedPartitions": {
            topic: {"startPosition": None, "aborted": aborted}
            for topic in found.get("partitions", ())
        },
        "ackedPartitions": acknowledged,
        "owner": found["owner"] or None,
    }

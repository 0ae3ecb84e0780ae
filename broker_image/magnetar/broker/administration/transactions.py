"""Transactions, as administrators see them.

Owns: `TransactionFacts`: the list of coordinators, what each knows of transactions, the forced end
of a transaction, and what topics and subscriptions served here know of transactions. Imports:
metadata, the coordinator's part in this process if it has one, peers. Source: Pulsar's
TransactionsBase. Invariants: the coordinator that answers for a number to clients answers for it
here; a coordinator that does not answer is named, not left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlencode

from magnetar.broker.administration.peers import ask_broker
from magnetar.broker.administration.site import Site
from magnetar.broker.connections.refusals import NO_COORDINATOR
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.coordinator.discovery import FIRST
from magnetar.coordinator.probes import INTERNAL
from magnetar.errors import (
    InvalidRequest,
    MagnetarError,
    NotAuthorized,
    NotAuthorizedByRole,
    ServiceNotReady,
    SubscriptionNotFound,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.metadata import keys
from magnetar.metadata.records import (
    CoordinatorClaimRecord,
    CoordinatorRecord,
    CoordinatorSetRecord,
)
from magnetar.names import TopicName
from magnetar.security.authorization import Place, Principal, Right
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Outcome
from magnetar.transactions.topic.pending_acks import PendingAcks

_NOT_YOURS = (
    f"Unauthorized: a transaction that another role began needs {Right.SUPER.value}, which this "
    "role is not granted; ask an administrator of the cluster"
)


class TransactionFacts:
    """Answers from the coordinators: the one of this process, or those that hold a number."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def coordinators(self) -> list[dict[str, Any]]:
        """Pulsar's TransactionCoordinatorInfo of each. Raises ServiceNotReady if there is none."""
        if self._site.process.coordinator is not None:
            return [{"id": FIRST, "brokerServiceUrl": self._site.broker.service_url}]
        holders = await self._holders()
        return [
            {"id": tcid, "brokerServiceUrl": claim.service_url}
            for tcid, claim in sorted(holders.items())
        ]

    async def coordinator_stats(self, tcid: int) -> dict[str, Any]:
        """As `CoordinatorInspection.stats`."""
        if self._site.process.coordinator is not None:
            return await (await self._site.process.coordinator.inspection()).stats(tcid)
        found: dict[str, Any] = await self._ask(tcid, "GET", "")
        return found

    async def transactions(self, tcid: int | None, older_ms: int, limit: int) -> dict[str, Any]:
        """`transactions`: those of one number or of all, the oldest first, so many at most; `more`:
        whether there are others besides; `unreachable`: numbers whose coordinator does not answer.
        """
        if self._site.process.coordinator is not None:
            inspection = await self._site.process.coordinator.inspection()
            rows = await inspection.transactions(tcid or FIRST, older_ms, limit + 1)
            return {"transactions": rows[:limit], "more": len(rows) > limit, "unreachable": []}
        numbers = [tcid] if tcid is not None else await self._numbers()
        suffix = f"/transactions?{urlencode({'older_ms': older_ms, 'limit': limit + 1})}"
        answers = await asyncio.gather(
            *(self._ask(number, "GET", suffix) for number in numbers), return_exceptions=True
        )
        found: list[dict[str, Any]] = []
        unreachable = []
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, MagnetarError) and tcid is None:
                unreachable.append(number)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        found.sort(key=lambda row: row["opened_ms"])
        return {
            "transactions": found[:limit],
            "more": len(found) > limit,
            "unreachable": unreachable,
        }

    async def transaction(self, txn: TxnId) -> dict[str, Any]:
        """As `CoordinatorInspection.transaction`. Raises TransactionNotFound."""
        if self._site.process.coordinator is not None:
            return await (await self._site.process.coordinator.inspection()).transaction(
                txn.most, txn.least
            )
        found: dict[str, Any] = await self._ask(txn.most, "GET", f"/transactions/{txn.least}")
        return found

    async def transaction_for(self, txn: TxnId, principal: Principal | None) -> dict[str, Any]:
        """As `transaction`, for a super user, or for the role that began it; None: the server has
        no authentication. Raises NotAuthorizedByRole for all others, whether it is there or not."""
        guard, found = self._site.broker.guard, None
        # a standalone server's coordinator is not started for a role that may see nothing of it
        claim = await self._site.broker.context.store.get(keys.coordinator_claim(txn.most))
        if claim is not None:
            with contextlib.suppress(TransactionNotFound):
                found = await self.transaction(txn)
        roles = (principal.original or principal.role,) if principal is not None else ()
        own = found is not None and found["owner"] in roles
        if principal is not None and guard is not None and not own:
            try:
                await guard.require(principal, Right.SUPER, "", Place(), _NOT_YOURS)
            except NotAuthorized as error:
                raise NotAuthorizedByRole(_NOT_YOURS) from error
        return found if found is not None else await self.transaction(txn)

    async def abort_transaction(self, txn: TxnId) -> None:
        """As `CoordinatorInspection.abort`. Raises TransactionNotFound, NotAllowed if it is
        decided already."""
        if self._site.process.coordinator is not None:
            await (await self._site.process.coordinator.inspection()).abort(txn.most, txn.least)
        else:
            await self._ask(txn.most, "POST", f"/transactions/{txn.least}/abort")

    async def abort_transactions_of(self, role: str) -> dict[str, Any]:
        """As `CoordinatorInspection.abort_of`, at all coordinators."""
        if self._site.process.coordinator is not None:
            return await (await self._site.process.coordinator.inspection()).abort_of(FIRST, role)
        suffix = f"/abort?{urlencode({'role': role})}"
        answers = await asyncio.gather(
            *(self._ask(number, "POST", suffix) for number in await self._numbers())
        )
        return {
            "aborted": sum(found["aborted"] for found in answers),
            "more": any(found["more"] for found in answers),
        }

    # --- participants -----------------------------------------------------------------------------

    async def transaction_buffer_stats(
        self, topic: TopicName, low_watermarks: bool
    ) -> dict[str, Any]:
        """Pulsar's TransactionBufferStats. Raises NotOwner, TopicNotFound, InvalidRequest."""
        host = await self._participant(topic)
        buffer = host.transactions.buffer if host.transactions is not None else None
        found: dict[str, Any] = {
            "state": "Ready" if buffer is not None else "NoSnapshot",
            "maxReadPosition": _text(host.core.last_confirmed),
            "lastSnapshotTimestamps": 0,
            "ongoingTxnSize": sum(1 for _ in buffer.open_transactions())
            if buffer is not None
            else 0,
            "recoverStartTime": 0,
            "recoverEndTime": 0,
            "totalAbortedTransactions": buffer.fences.aborted() if buffer is not None else 0,
        }
        if low_watermarks:
            found["lowWaterMarks"] = _watermarks(
                buffer.fences.floors() if buffer is not None else {}
            )
        return found

    async def transaction_in_buffer(self, topic: TopicName, txn: TxnId) -> dict[str, Any]:
        """Pulsar's TransactionInBufferStats; the position is that of the topic's sidecar. Raises
        NotOwner, TopicNotFound, InvalidRequest."""
        host = await self._participant(topic)
        buffer = host.transactions.buffer if host.transactions is not None else None
        spans = buffer.durable_spans(txn) if buffer is not None else ()
        aborted = buffer is not None and buffer.fences.outcome(txn) is Outcome.ABORTED
        return {
            "startPosition": _text((spans[0].ledger, spans[0].first)) if spans else None,
            "aborted": aborted,
        }

    async def pending_ack_stats(
        self, topic: TopicName, subscription: str, low_watermarks: bool
    ) -> dict[str, Any]:
        """Pulsar's TransactionPendingAckStats. Raises NotOwner, TopicNotFound,
        SubscriptionNotFound, InvalidRequest."""
        pending = (await self._pending(topic, subscription))[1]
        found: dict[str, Any] = {
            "state": "Ready" if pending is not None else "None",
            "ongoingTxnSize": len(pending.open_transactions()) if pending is not None else 0,
            "recoverStartTime": 0,
            "recoverEndTime": 0,
        }
        if low_watermarks:
            found["lowWaterMarks"] = _watermarks(
                pending.fences.floors() if pending is not None else {}
            )
        return found

    async def transaction_in_pending_acks(
        self, topic: TopicName, subscription: str, _txn: TxnId
    ) -> dict[str, Any]:
        """Pulsar's TransactionInPendingAckStats: what is held is no position here, but the
        ranges that it covered."""
        await self._pending(topic, subscription)
        return {"cumulativeAckPosition": None}

    async def position_in_pending_acks(
        self, topic: TopicName, subscription: str, position: tuple[int, int]
    ) -> dict[str, Any]:
        """Pulsar's PositionInPendingAckStats. Raises NotOwner, TopicNotFound,
        SubscriptionNotFound, InvalidRequest."""
        host, pending = await self._pending(topic, subscription)
        ordinal = host.core.ledgers.find(position)
        if ordinal is None:
            return {"state": "InvalidPosition"}
        if host.subscriptions[subscription].core.cursor.is_acknowledged(ordinal):
            return {"state": "MarkDelete"}
        return {
            "state": "PendingAck"
            if pending is not None and pending.holders(ordinal)
            else "NotInPendingAck"
        }

    async def _participant(self, topic: TopicName) -> TopicHost:
        if not topic.persistent:
            raise InvalidRequest(
                f"topic {topic} is not persistent: it takes part in no transaction"
            )
        return await self._site.host(topic)

    async def _pending(
        self, topic: TopicName, subscription: str
    ) -> tuple[TopicHost, PendingAcks | None]:
        host = await self._participant(topic)
        if subscription not in host.subscriptions:
            raise SubscriptionNotFound(
                f"subscription {subscription!r} of topic {topic} does not exist; see its "
                "subscriptions"
            )
        return host, host.transactions.pending.get(
            subscription
        ) if host.transactions is not None else None

    # --- processes of their own -------------------------------------------------------------------

    async def _holders(self) -> dict[int, CoordinatorClaimRecord]:
        """Who holds which number. Raises ServiceNotReady if there is no holder."""
        items = (await self._site.broker.context.store.range(keys.COORDINATOR_CLAIMS)).items
        if not items:
            raise ServiceNotReady(NO_COORDINATOR)
        return {
            int(item.key.removeprefix(keys.COORDINATOR_CLAIMS)): CoordinatorClaimRecord.decode(
                item.value
            )
            for item in items
        }

    async def _numbers(self) -> list[int]:
        """Those that are announced to clients, that are held without (any more), or that have left
        transactions open.

        Raises ServiceNotReady if there is no holder.
        """
        store = self._site.broker.context.store
        item = await store.get(keys.COORDINATOR_SET)
        announced = CoordinatorSetRecord.decode(item.value).announced if item is not None else 0
        records = {
            record.key: CoordinatorRecord.decode(record.value)
            for record in (await store.range(keys.COORDINATORS)).items
        }
        left = (
            int(key.removeprefix(keys.COORDINATORS))
            for key, record in records.items()
            if record.open_transactions
        )
        return sorted({*range(announced), *await self._holders(), *left})

    async def _ask(self, tcid: int, method: str, suffix: str) -> Any:
        """What the holder of a number answers, or the first one if it has none."""
        if tcid < 0:
            raise TransactionNotFound(f"coordinator {tcid}: numbers begin with 0")
        holders = await self._holders()
        claim = holders.get(tcid) or holders.get(FIRST)
        if claim is None:
            raise TransactionCoordinatorNotFound(
                f"transaction coordinator {tcid} is not there, nor {FIRST}; look at kubectl get "
                "transactioncoordinators"
            )
        return await ask_broker(
            self._site.broker.context, claim.http_url, method, f"{INTERNAL}/{tcid}{suffix}"
        )


def _watermarks(floors: dict[int, int]) -> dict[str, int]:
    """Up to which sequence every transaction has ended, by coordinator."""
    return {str(tcid): floor - 1 for tcid, floor in floors.items()}


def _text(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"

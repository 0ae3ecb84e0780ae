"""What the REST routes ask about transactions.

Owns: the protocols of one coordinator and of all of them. Imports: names, transaction ids.
Invariant: every method raises errors of `magnetar.errors`.
"""

from __future__ import annotations

from typing import Any, Protocol

from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId


class CoordinatorPort(Protocol):
    """One transaction coordinator, which also answers for numbers that are gone if it is the
    first."""

    async def stats(self, tcid: int) -> dict[str, Any]:
        """tcid, state, incarnation, last, low_watermark, live, outcomes, recovery_began_ms,
        recovery_ended_ms, log."""
        ...

    async def transactions(self, tcid: int, older_ms: int, limit: int) -> list[dict[str, Any]]:
        """Transactions that have not ended everywhere and began so long ago, the oldest first."""
        ...

    async def transaction(self, tcid: int, least: int) -> dict[str, Any]:
        """txn, most, least, status, owner, opened_ms, age_ms, timeout_ms, partitions,
        subscriptions, and those that are waited for."""
        ...

    async def abort(self, tcid: int, least: int) -> None:
        """Raises TransactionNotFound, InvalidTxnStatus."""
        ...

    async def abort_of(self, tcid: int, owner: str) -> dict[str, Any]:
        """End open transactions of a role: `aborted` of them, `more` if there are others."""
        ...


class TransactionPort(Protocol):
    """Transactions of all coordinators. Raises ServiceNotReady if there are none,
    TransactionNotFound."""

    async def coordinators(self) -> list[dict[str, Any]]:
        """Pulsar's TransactionCoordinatorInfo of each."""
        ...

    async def coordinator_stats(self, tcid: int) -> dict[str, Any]:
        """As `CoordinatorPort.stats`."""
        ...

    async def transactions(self, tcid: int | None, older_ms: int, limit: int) -> dict[str, Any]:
        """`transactions` as `CoordinatorPort.transactions`, of all coordinators (None), `more`:
        whether there are others, and `unreachable`: numbers that do not answer.
        """
        ...

    async def transaction(self, txn: TxnId) -> dict[str, Any]:
        """As `CoordinatorPort.transaction`."""
        ...

    async def abort_transaction(self, txn: TxnId) -> None:
        """Raises NotAllowed if it is decided already."""
        ...

    async def abort_transactions_of(self, role: str) -> dict[str, Any]:
        """As `CoordinatorPort.abort_of`, at all coordinators."""
        ...

    async def transaction_buffer_stats(
        self, topic: TopicName, low_watermarks: bool
    ) -> dict[str, Any]:
        """Pulsar's TransactionBufferStats."""
        ...

    async def transaction_in_buffer(self, topic: TopicName, txn: TxnId) -> dict[str, Any]:
        """Pulsar's TransactionInBufferStats."""
        ...

    async def pending_ack_stats(
        self, topic: TopicName, subscription: str, low_watermarks: bool
    ) -> dict[str, Any]:
        """Pulsar's TransactionPendingAckStats. Raises SubscriptionNotFound."""
        ...

    async def transaction_in_pending_acks(
        self, topic: TopicName, subscription: str, txn: TxnId
    ) -> dict[str, Any]:
        """Pulsar's TransactionInPendingAckStats. Raises SubscriptionNotFound."""
        ...

    async def position_in_pending_acks(
        self, topic: TopicName, subscription: str, position: tuple[int, int]
    ) -> dict[str, Any]:
        """Pulsar's PositionInPendingAckStats. Raises SubscriptionNotFound."""
        ...

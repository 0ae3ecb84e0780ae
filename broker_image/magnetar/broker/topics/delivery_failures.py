"""Deliveries of one subscription that fail.

Owns: `DeliveryFailures`: the log events, the damage table's entry and the pause before the next
try. Imports: errors. Invariants: an entry whose producer has a receipt is never skipped, whatever
is wrong with it; the first success clears the damage.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from magnetar.errors import StorageError, StoreError

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedTopic

log = structlog.get_logger(__name__)

READ_RETRY_S = 0.5
READ_RETRY_MAX_S = 30.0


class DeliveryFailures:
    """Counts consecutive failures."""

    __slots__ = ("_count", "_subscription", "_topic")

    def __init__(self, topic: ServedTopic, subscription: str) -> None:
        self._topic, self._subscription = topic, subscription
        self._count = 0

    def surprise(self, error: Exception) -> None:
        """Log and count an error that no code foresaw."""
        self._topic.context.metrics.surprises.note(
            "deliveries", error, topic=str(self._topic.name), subscription=self._subscription
        )

    async def pause(self, error: Exception) -> bool:
        """Report a failed delivery and wait before the next try; True: there will be one."""
        topic = self._topic
        foreseen = isinstance(error, StorageError | StoreError | FileNotFoundError)
        reported = error if foreseen else StorageError(f"a delivery failed: {error!r}")
        names = {
            "topic": str(topic.name),
            "subscription": self._subscription,
            "error": str(reported),
        }
        if isinstance(error, StoreError):
            # The log file is gone, and the store, which has the new manifest, is unavailable.
            # Nothing is damaged.
            log.warning("subscription.read_delayed", **names)
            await asyncio.sleep(READ_RETRY_S)
            return True
        log.error("subscription.read_failed", **names)
        if not foreseen:
            self.surprise(error)
        topic.context.damage.note(
            "read",
            self._damage_name,
            reported,
            bundle=str(topic.bundle.name),
            topic=str(topic.name),
        )
        self._count += 1
        await asyncio.sleep(min(READ_RETRY_MAX_S, READ_RETRY_S * (1 << min(self._count - 1, 10))))
        return True

    def clear(self) -> None:
        """A delivery succeeded, or there will be none any more."""
        if self._count:
            self._count = 0
            self._topic.context.damage.clear("read", self._damage_name)

    @property
    def _damage_name(self) -> str:
        return f"{self._topic.name} {self._subscription}"

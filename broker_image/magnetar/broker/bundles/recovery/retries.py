"""Bundles that cannot be recovered.

Owns: how long a failed recovery waits before its next attempt, and the report of its damage.
Imports: errors, siblings. Invariants: an error that keeps a bundle from being recovered is damage
of that bundle, an unforeseen one too, unless it is the store's; the wait doubles up to
`recovery_retry_max_s` and ends at once when the bundle's record changes; the damage is listed until
the bundle is recovered, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import StorageError, StoreError

log = structlog.get_logger(__name__)

RETRY_S = 0.5
WHAT = "recovery"


class RecoveryRetries:
    """Failed recoveries of this broker, by bundle."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._failures: dict[str, int] = {}

    async def wait(
        self,
        bundle: str,
        epoch: int,
        error: Exception,
        changed: Callable[[], asyncio.Event],
        stale: Callable[[], bool],
    ) -> None:
        """After a failure: until the next attempt is due, or `stale()`, which may become true
        when `changed()` is set."""
        failures = self._failures[bundle] = self._failures.get(bundle, 0) + 1
        foreseen = isinstance(error, StorageError | StoreError)
        damage = (
            error
            if foreseen
            else StorageError(
                f"bundle {bundle} cannot be recovered by this version of the broker: {error!r}"
            )
        )
        log.error(
            "bundle.recovery_failed",
            bundle=bundle,
            epoch=epoch,
            error=str(damage),
            exc_info=None if foreseen else error,
        )
        if isinstance(damage, StorageError):
            self._context.damage.note(WHAT, bundle, damage, bundle=bundle)
        wait_s = min(
            self._context.settings.recovery_retry_max_s, RETRY_S * (1 << min(failures - 1, 16))
        )
        deadline = self._context.clock.monotonic() + wait_s
        while not stale():
            event, remaining = changed(), deadline - self._context.clock.monotonic()
            if remaining <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await event.wait()
        self.over(bundle)

    def over(self, bundle: str) -> None:
        """It was recovered, or has another owner now."""
        if self._failures.pop(bundle, None) is not None:
            self._context.damage.clear(WHAT, bundle)

"""Keeping a lease alive, and knowing when it may be gone.

Owns: `LeaseKeeper`. Imports: asyncio, structlog, clock, errors, store. Invariants: validity counts
from *sending* the grant or renewal, by `Clock.boottime`, so the holder gives up before the store
does; once `valid()` was False it stays False; `on_lost` is called at most once, and never after
`stop`. The lease only detects: what a holder writes is protected by fences and terms, not by this
module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from magnetar.clock import Clock
from magnetar.errors import LeaseLost, StoreError
from magnetar.metadata.store import MetadataStore

RENEWALS_PER_TTL = 3
RETRIES_PER_TTL = 12
NOT_RUNNING = "this process did not run in time"

log = structlog.get_logger(__name__)


def _always() -> bool:
    return True


class LeaseKeeper:
    """Holds one lease of `store` from `start` to `stop`, renewing it every third of its time.

    `may_renew` is asked before each renewal: while it says False the lease runs out. `on_lost` gets
    the reason as a sentence.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        ttl_s: float,
        on_lost: Callable[[str], None],
        may_renew: Callable[[], bool] = _always,
    ) -> None:
        assert ttl_s > 0, ttl_s
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._on_lost = on_lost
        self._may_renew = may_renew
        self._lease = 0
        self._valid_until = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def lease(self) -> int:
        """The lease's id; 0 before `start`."""
        return self._lease

    def valid(self) -> bool:
        """Whether the store must still hold the lease."""
        return self._clock.boottime() < self._valid_until

    async def start(self) -> int:
        """Grant the lease and begin to renew it; returns its id. Raises StoreUnavailable."""
        assert self._task is None, "a keeper keeps one lease; make another keeper"
        sent = self._clock.boottime()
        self._lease = await self._store.grant_lease(self._ttl_s)
        self._valid_until = sent + self._ttl_s
        self._task = asyncio.create_task(self._keep(sent), name=f"lease-{self._lease:x}")
        self._task.add_done_callback(self._ended)
        return self._lease

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A keeper that has a bug renews no more: the holder must learn of it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._valid_until = 0.0
            log.error("lease.keeper_failed", lease=f"{self._lease:x}", exc_info=error)
            self._on_lost(f"the keeper of lease {self._lease:x} failed: {error!r}")

    async def stop(self, revoke: bool) -> None:
        """Stop renewing, and end the lease in the store at once if `revoke` (if that fails, it
        ends by itself)."""
        if self._task is None:
            return
        self._valid_until = 0.0
        self._task.cancel()
        await asyncio.wait([self._task])
        if revoke:
            try:
                await asyncio.wait_for(self._store.revoke_lease(self._lease), self._ttl_s)
            except (StoreError, TimeoutError) as error:
                log.warning(
                    "lease not revoked, it will expire", lease=f"{self._lease:x}", error=str(error)
                )

    async def _keep(self, sent: float) -> None:
        """Renew until the lease is lost."""
        next_at = sent + self._ttl_s / RENEWALS_PER_TTL
        reason = NOT_RUNNING
        while (now := self._clock.boottime()) < self._valid_until:
            if now < next_at:
                await asyncio.sleep(min(next_at, self._valid_until) - now)
                continue
            next_at = now + self._ttl_s / RETRIES_PER_TTL
            if not self._may_renew():
                reason = "the event loop made no progress"
                continue
            try:
                # A renewal that hangs must neither use up the time for another try nor hide the end
                # of the lease.
                patience = min(self._ttl_s / RENEWALS_PER_TTL, self._valid_until - now)
                granted = await asyncio.wait_for(self._store.renew_lease(self._lease), patience)
            except LeaseLost as error:
                reason = str(error)
                break
            except TimeoutError:
                reason = "the metadata store did not answer"
            except StoreError as error:
                reason = str(error)
            else:
                if self._clock.boottime() >= self._valid_until:
                    reason = "the answer came too late"
                    break
                reason = NOT_RUNNING
                self._valid_until = now + min(granted, self._ttl_s)
                next_at = now + self._ttl_s / RENEWALS_PER_TTL
        self._valid_until = 0.0
        log.warning("lease lost", lease=f"{self._lease:x}", reason=reason)
        self._on_lost(f"lease {self._lease:x} was not renewed within {self._ttl_s} s: {reason}")

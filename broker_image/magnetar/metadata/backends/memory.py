"""A metadata store in the memory of one event loop.

Owns: `MemoryStore`: a `StoreCore` behind the `MetadataStore` protocol: watches, and leases that
expire while it runs. It is the base of the embedded store, which adds durability, and is used as it
is by the simulation and by tests. Imports: asyncio, clock, errors, core, store. Invariants: a call
on an expired lease never finds it alive, whether its timer has fired or not; nothing that is not
settled (durable, where a subclass says so) is shown to a reader or a watcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from magnetar.clock import Clock
from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata.backends.core import Change, StoreCore
from magnetar.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    TxnResult,
    WatchBatch,
)

LEASE_ID_BITS = 62
EXPIRY_DELAY_MIN_S = 0.001


class MemoryStore:
    """The store of one event loop; any number of tasks may share it."""

    def __init__(self, clock: Clock, core: StoreCore | None = None) -> None:
        self._clock = clock
        self._core = core or StoreCore()
        self._visible = self._core.revision
        self._changed = asyncio.Event()
        self._closed = ""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    # --- what the embedded store overrides --------------------------------------------------------

    def _record(self, change: Change) -> None:
        """Take note of a decided change; `_show` is called once it is settled."""
        self._show(change.revision)

    async def _settle(self) -> None:
        """Wait until everything decided so far is settled.

        Always lets other tasks run: no caller may starve the loop, or count on being alone between
        a call and its answer.
        """
        await asyncio.sleep(0)

    def _show(self, revision: int) -> None:
        """Let watchers see all changes up to `revision`."""
        self._visible = revision
        self._changed.set()
        self._changed = asyncio.Event()

    # --- MetadataStore ----------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        self._enter()
        item = self._core.get(key)
        await self._settle()
        return item

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        self._enter()
        found = self._core.range(prefix, limit)
        await self._settle()
        return found

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        self._enter()
        result, change = self._core.transact(compares, operations)
        if change:
            self._record(change)
        # A refusal waits too: it may rest on a change that is not durable yet.
        await self._settle()
        return result

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        self._enter()
        existed = self._core.get(key) is not None
        await self.transact((), (Delete(key),))
        return existed

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        if from_revision < 1:
            raise StoreError(f"from_revision {from_revision} is not valid; use 1 or more")
        position = from_revision
        while not self._closed:
            batches, position = self._core.batches(prefix, position, self._visible)
            for batch in batches:
                yield batch
            if position > self._visible and not self._closed:
                await self._changed.wait()
        raise StoreUnavailable(self._closed)

    async def grant_lease(self, ttl_s: float) -> int:
        self._enter()
        lease = self._clock.random_bits(LEASE_ID_BITS) + 1
        self._core.grant(lease, ttl_s, self._clock.boottime())
        self._arm()
        await self._settle()
        return lease

    async def renew_lease(self, lease: int) -> float:
        self._enter()
        ttl_s = self._core.renew(lease, self._clock.boottime())
        await self._settle()
        return ttl_s

    async def revoke_lease(self, lease: int) -> None:
        self._enter()
        if change := self._core.revoke(lease):
            self._record(change)
        await self._settle()

    async def close(self) -> None:
        self._end("the store is closed; open it again")

    def _end(self, reason: str) -> None:
        """Refuse further calls and end all watches, for `reason`."""
        if not self._closed:
            self._closed = reason
            if self._timer is not None:
                self._timer.cancel()
            self._changed.set()

    # --- leases -----------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self._closed:
            raise StoreUnavailable(self._closed)
        self._expire()

    def _expire(self) -> None:
        now = self._clock.boottime()
        while change := self._core.expire(now):
            self._record(change)

    def _arm(self) -> None:
        """Have a timer that fires no later than the first lease ends.

        A renewal needs no new one: the old finds nothing, and re-arms.
        """
        due = self._core.next_expiry()
        if due is None or self._closed or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(due - self._clock.boottime(), EXPIRY_DELAY_MIN_S)
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._expire()
        self._arm()

"""A store that must still be the one that was joined.

Owns: `GuardedStore`, which adds one condition to every change. Imports: asyncio, metadata siblings,
errors. Why: a store that begins empty after a loss, or was restored, does not know earlier
incarnations. Their comparisons could hold by chance, and they would create again what they find
missing. Invariants: once the guard does not hold any more, no change is made, no key is reported
missing, and no list is returned; callers get an error. While the guard is missing, the store waits
for its restore: callers get StoreUnavailable, and a broker with a claim in storage continues to
serve. Any other value is another store: `on_replaced` is called, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata.backends.core import holds
from magnetar.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    Operation,
    Put,
    RangeResult,
    TxnResult,
    WatchBatch,
)

PAUSE_S = 0.5
"""Callers try again as soon as they have an error: a store that does not answer keeps them
longer."""


class GuardedStore:
    """The store behind `guard`; leases and watches pass through, and reads of a key that is
    there."""

    def __init__(
        self, store: MetadataStore, guard: Compare, on_replaced: Callable[[str], None]
    ) -> None:
        self._store, self._guard, self._on_replaced = store, guard, on_replaced
        self._notified = False

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        """As the store's. Raises StoreError once the store is not the one that was joined."""
        result = await self._store.transact((*compares, self._guard), operations)
        if result.succeeded:
            return result
        guarded = next((item for item in result.current if item.key == self._guard.key), None)
        await self._check(guarded)
        return TxnResult(
            False,
            result.revision,
            tuple(item for item in result.current if item.key != self._guard.key),
        )

    async def _check(self, guarded: KeyValue | None) -> None:
        """Raises StoreUnavailable if the guard's key is missing, StoreError, having called
        `on_replaced`, if it has another value."""
        if holds(self._guard, guarded):
            return
        if guarded is None:
            await asyncio.sleep(PAUSE_S)
            raise StoreUnavailable(
                f"the metadata store waits for its restore: {self._guard.key} is missing in it; "
                "restore it"
            )
        reason = f"the metadata store was replaced: {self._guard.key} is {guarded.value!r} in it"
        if not self._notified:
            self._notified = True
            self._on_replaced(reason)
        raise StoreError(reason)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        return (await self.transact((Compare(key, "create", "!=", 0),), (Delete(key),))).succeeded

    async def get(self, key: str) -> KeyValue | None:
        """As the store's; that something is not there is believed only of the store that was
        joined."""
        item = await self._store.get(key)
        if item is None:
            await self._check(await self._store.get(self._guard.key))
        return item

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        """As the store's, of the store that was joined: what is not in it is not anywhere."""
        result = await self._store.range(prefix, limit=limit)
        # After it: a store that was replaced never becomes the one before again.
        await self._check(await self._store.get(self._guard.key))
        return result

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        return self._store.watch(prefix, from_revision)

    async def grant_lease(self, ttl_s: float) -> int:
        return await self._store.grant_lease(ttl_s)

    async def renew_lease(self, lease: int) -> float:
        return await self._store.renew_lease(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._store.revoke_lease(lease)

    async def close(self) -> None:
        await self._store.close()

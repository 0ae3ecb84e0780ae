"""A store that must still be the one that was joined.

Owns: `GuardedStore`, which adds one condition to every change. Imports: metadata siblings, errors.
Why: a store that was lost and begins anew, or was restored, knows nothing of those who live on from before; their comparisons could hold by
chance, and what they find missing they would begin anew.
Invariants: no change is made, and no key is said not to be there, once the guard does not hold any more; whoever asked gets an error, and
`on_replaced` is told, once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from magnetar.errors import StoreError
from magnetar.metadata.core import holds
from magnetar.metadata.store import Compare, Delete, KeyValue, MetadataStore, Operation, Put, RangeResult, TxnResult, WatchBatch


class GuardedStore:
    """The store behind `guard`; leases and watches pass through, and reads that find something."""

    def __init__(self, store: MetadataStore, guard: Compare, on_replaced: Callable[[str], None]) -> None:
        self._store, self._guard, self._on_replaced = store, guard, on_replaced
        self._told = False

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        """As the store's. Raises StoreError once the store is not the one that was joined."""
        result = await self._store.transact((*compares, self._guard), operations)
        if result.succeeded:
            return result
        guarded = next((item for item in result.current if item.key == self._guard.key), None)
        self._check(guarded)
        return TxnResult(False, result.revision, tuple(item for item in result.current if item.key != self._guard.key))

    def _check(self, guarded: KeyValue | None) -> None:
        """Raises StoreError, having told so, if this value of the guard's key does not satisfy it."""
        if holds(self._guard, guarded):
            return
        reason = (
            f"the metadata store was replaced: {self._guard.key} is {guarded.value if guarded is not None else 'missing'!r} in it"
        )
        if not self._told:
            self._told = True
            self._on_replaced(reason)
        raise StoreError(reason)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        return (await self.transact((Compare(key, "create", "!=", 0),), (Delete(key),))).succeeded

    async def get(self, key: str) -> KeyValue | None:
        """As the store's; that something is not there is believed only of the store that was joined."""
        item = await self._store.get(key)
        if item is None:
            self._check(await self._store.get(self._guard.key))
        return item

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        return await self._store.range(prefix, limit=limit)

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

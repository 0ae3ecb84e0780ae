"""A store that misbehaves as the contract permits.

Owns: `FaultyStore` and `FaultPlan`; `lose_answer`, which loses one chosen answer. Imports: asyncio,
clock, errors, store. Faults: a request that is lost, a reply that is lost after the change was made, delays, watches that are cut and resumed,
renewals that fail, a store that cannot be reached at all. Excluded, because no caller could survive
them: lost or reordered changes, wrong reads. Invariant: all chance comes from the clock, so a
seeded clock gives the same faults again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from magnetar.clock import Clock
from magnetar.errors import StoreUnavailable
from magnetar.metadata.store import (
    Compare,
    KeyValue,
    MetadataStore,
    Operation,
    RangeResult,
    TxnResult,
    WatchBatch,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How often what goes wrong: probabilities per request (`disconnect`: per delivered batch),
    delays in seconds."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    delay: float = 0.0
    delay_s_max: float = 0.0
    disconnect: float = 0.0
    lost_renewal: float = 0.0
    unreachable: bool = False


class FaultyStore:
    """`inner` as seen over a bad network. `plan` may be replaced at any time; closing it closes
    `inner` only if it owns it."""

    def __init__(
        self, inner: MetadataStore, clock: Clock, faults: FaultPlan, *, owns_inner: bool = True
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._plan = faults
        self._owns_inner = owns_inner
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def plan(self) -> FaultPlan:
        return self._plan

    @plan.setter
    def plan(self, faults: FaultPlan) -> None:
        self._plan = faults
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._clock.uniform(0, 1) < probability

    async def _pause(self) -> None:
        if self._happens(self._plan.delay):
            await asyncio.sleep(self._clock.uniform(0, self._plan.delay_s_max))

    async def _call(self, request: Callable[[], Awaitable[R]], lost_request: float = 0.0) -> R:
        """Make a request; it, or its reply, may be lost. Raises StoreUnavailable then."""
        await self._pause()
        if self._closed:
            raise StoreUnavailable("the store is closed; open it again")
        if self._plan.unreachable or self._happens(max(self._plan.lost_request, lost_request)):
            raise StoreUnavailable("injected: the request was lost")
        reply = await request()
        await self._pause()
        if self._plan.unreachable or self._happens(self._plan.lost_reply):
            raise StoreUnavailable("injected: the reply was lost")
        return reply

    async def get(self, key: str) -> KeyValue | None:
        return await self._call(lambda: self._inner.get(key))

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        return await self._call(lambda: self._inner.range(prefix, limit=limit))

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        return await self._call(lambda: self._inner.transact(compares, operations))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return await self._call(lambda: self._inner.put(key, value, lease))

    async def delete(self, key: str) -> bool:
        return await self._call(lambda: self._inner.delete(key))

    async def grant_lease(self, ttl_s: float) -> int:
        return await self._call(lambda: self._inner.grant_lease(ttl_s))

    async def renew_lease(self, lease: int) -> float:
        return await self._call(lambda: self._inner.renew_lease(lease), self._plan.lost_renewal)

    async def revoke_lease(self, lease: int) -> None:
        await self._call(lambda: self._inner.revoke_lease(lease))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        position = from_revision
        while True:
            async with aclosing(self._connection(prefix, position)) as batches:
                async for batch in batches:
                    position = batch.revision + 1
                    yield batch

    async def _connection(
        self, prefix: str, from_revision: int
    ) -> AsyncGenerator[WatchBatch, None]:
        """Batches until the connection breaks; batches under way are then lost with it. Raises
        StoreUnavailable once closed."""
        await self._pause()
        watch = self._inner.watch(prefix, from_revision)
        arriving: asyncio.Task[WatchBatch] | None = None
        try:
            while not self._closed:
                changed = asyncio.ensure_future(self._changed.wait())
                if self._plan.unreachable:
                    await changed
                    continue
                arriving = arriving or asyncio.ensure_future(anext(watch))
                try:
                    await asyncio.wait((arriving, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if not arriving.done():
                    continue
                batch, arriving = arriving.result(), None
                await self._pause()
                if self._plan.unreachable or self._happens(self._plan.disconnect):
                    return
                yield batch
            raise StoreUnavailable("the store is closed; open it again")
        finally:
            if arriving is not None:
                arriving.cancel()
                await asyncio.wait([arriving])
            await watch.aclose()

    async def close(self) -> None:
        self._closed = True
        self._wake()
        if self._owns_inner:
            await self._inner.close()


def lose_answer(
    store: FaultyStore, chosen: Callable[[Any], bool], *, committed: bool, least: int = 1
) -> list[int]:
    """The first transaction of which at least so many operations are `chosen` gets no answer,
    committed or not. How many they were, once that has happened."""
    inner, lost = store.transact, list[int]()

    async def lossy(compares: Any, operations: Any) -> TxnResult:
        found = sum(map(chosen, operations))
        if found >= least and not lost:
            lost.append(found)
            if committed:
                await inner(compares, operations)
            raise StoreUnavailable("injected: no answer")
        return await inner(compares, operations)

    store.transact = lossy  # type: ignore[method-assign]
    return lost


def writes(text: bytes) -> Callable[[Any], bool]:
    """Chooses operations that write a value with this text."""
    return lambda operation: text in getattr(operation, "value", b"")

"""The stores that the contract is proved on, behind one handle.

Owns: how each backend is opened, disturbed and compacted, and `PatientStore`: what a caller does
about StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from aetcd import rpc

from dev.testbed.etcd_server import EtcdServer
from magnetar.clock import Clock, SystemClock
from magnetar.errors import StoreUnavailable
from magnetar.metadata.backends.core import StoreCore
from magnetar.metadata.backends.embedded import EmbeddedStore
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.backends.memory import MemoryStore
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
from tests.support.faulty_store import FaultPlan, FaultyStore

R = TypeVar("R")
SEED = 20_240
PATIENCE_S = 240.0
RETRY_S = 0.002
FAULTS = FaultPlan(
    lost_request=0.1, lost_reply=0.1, delay=0.2, delay_s_max=0.004, disconnect=0.1, lost_renewal=0.2
)


class SeededClock(SystemClock):
    """Real time, seeded chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # type: ignore[assignment]  # same methods, but repeatable


class PatientStore:
    """Retries after StoreUnavailable, reading first where the change may have happened. Values
    of one test must differ."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner

    async def _retry(self, request: Callable[[], Awaitable[R]]) -> R:
        while True:
            with suppress(StoreUnavailable):
                return await request()
            await asyncio.sleep(RETRY_S)

    async def get(self, key: str) -> KeyValue | None:
        return await self._retry(lambda: self._inner.get(key))

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        return await self._retry(lambda: self._inner.range(prefix, limit=limit))

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        while True:
            try:
                return await self._inner.transact(compares, operations)
            except StoreUnavailable:
                done = [await self._done(operation) for operation in operations]
                if done and all(done):
                    return TxnResult(True, max(done))

    async def _done(self, operation: Operation) -> int:
        """The revision at which `operation` shows to have happened, or 0."""
        if isinstance(operation, Delete):
            found = await self.range(operation.key) if operation.prefix else None
            gone = not found.items if found else await self.get(operation.key) is None
            return 1 if gone else 0
        item = await self.get(operation.key)
        return (
            item.mod_revision
            if item and (item.value, item.lease) == (operation.value, operation.lease)
            else 0
        )

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        # Only this task deletes the key: if a reply was lost, what was there before is the answer.
        existed = await self.get(key) is not None
        lost = False
        while True:
            try:
                return await self._inner.delete(key) or (lost and existed)
            except StoreUnavailable:
                lost = True

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        return self._inner.watch(prefix, from_revision)

    async def grant_lease(self, ttl_s: float) -> int:
        return await self._retry(lambda: self._inner.grant_lease(ttl_s))

    async def renew_lease(self, lease: int) -> float:
        return await self._retry(lambda: self._inner.renew_lease(lease))

    async def revoke_lease(self, lease: int) -> None:
        await self._retry(lambda: self._inner.revoke_lease(lease))

    async def close(self) -> None:
        await self._inner.close()


class Backend:
    """One kind of store.

    `ttl_s` is the shortest lease that is safe to renew here, `expiry_s` how long after it the keys
    may last.
    """

    ttl_s = 5.0
    expiry_s = 120.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.clock: Clock = SeededClock(SEED)

    async def open(self) -> MetadataStore:
        """An open, empty store."""
        self._core = StoreCore()
        return MemoryStore(self.clock, self._core)

    async def compact(self, revision: int) -> None:
        """Make the history up to `revision` go away."""
        self._core.compact(revision)

    async def disturb(self) -> None:
        """Break the connection between store and caller, as far as there is one."""

    def run(self, scenario: Callable[[PatientStore], Awaitable[None]]) -> None:
        """Run `scenario` on a fresh store."""

        async def body() -> None:
            store = await self.open()
            try:
                await asyncio.wait_for(scenario(PatientStore(store)), PATIENCE_S)
            finally:
                await store.close()

        asyncio.run(body())


class EmbeddedBackend(Backend):
    """Durable, in-process."""

    async def open(self) -> MetadataStore:
        store = await EmbeddedStore.open(self._directory / "embedded", self.clock)
        self._core = store._core
        return store


class FaultyBackend(EmbeddedBackend):
    """The embedded store over a bad network."""

    async def open(self) -> MetadataStore:
        return FaultyStore(await super().open(), self.clock, FAULTS)


class EtcdBackend(Backend):
    """A real etcd, shared by the tests of a session and emptied before each."""

    def __init__(self, directory: Path, server: EtcdServer) -> None:
        super().__init__(directory)
        self._server = server

    async def open(self) -> MetadataStore:
        self._store = EtcdStore([self._server.endpoint], clock=self.clock, request_timeout_s=60.0)
        await self._store.transact((), (Delete("", prefix=True),))
        return self._store

    async def compact(self, revision: int) -> None:
        def invoke(member: Any, patience_s: float) -> Any:
            return member.keys.Compact(rpc.CompactionRequest(revision=revision), timeout=patience_s)

        await self._store._channels.call(invoke, repeatable=True)

    async def disturb(self) -> None:
        self._server.kill()
        await asyncio.to_thread(self._server.start)

"""The simulated metadata store.

Owns: `StoreServer` (the one store of the world, around the production `StoreCore`) and `SimStore`,
each node's `MetadataStore` port. Imports: asyncio, random (seeded), metadata.backends.core, errors,
the loop; the fabric answers for partitions from the host `STORE_HOST`.

Fault model: requests and replies are late or lost (then the caller gets StoreUnavailable after
`store_timeout_s` and does not know the outcome); a request that a partition holds may still be
executed long after its caller gave up; the store is unavailable for a while; leases expire by
virtual time or early; watches are cut and resume without loss or repetition, unless compaction has
passed them. Excluded: a store that loses committed changes or breaks linearizability (restoring a
snapshot is a scenario of its own). Invariant: what the server executes, it executes at one instant
of the kernel, in the order of arrival.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Any, TypeVar

from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata.backends.core import StoreCore
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
from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.network import Fabric
from tests.simulation.kernel.node import Node

T = TypeVar("T")

STORE_HOST = "store"
RECONNECT_S = (0.05, 1.0)
HELD_REQUEST_PROBABILITY = 0.5
HELD_REQUEST_RETRY_S = 0.5
HELD_REQUEST_MAX_S = 10.0


class StoreServer:
    """The store itself; shared by all nodes. `available` False: it answers nothing."""

    def __init__(self, loop: SimLoop, fabric: Fabric, core: StoreCore | None = None) -> None:
        self.loop, self.fabric = loop, fabric
        self.core = core or StoreCore()
        self.available = True
        self.chance = random.Random(f"{loop.seed}/store")
        self.watches: dict[SimWatch, None] = {}
        self._notified = self.core.revision
        self._leases = 0
        self._holders: dict[int, str] = {}
        self._expiry_armed_at = float("inf")

    def reachable(self, node: Node) -> bool:
        return (
            self.available
            and not self.fabric.blocked(node.name, STORE_HOST)
            and not self.fabric.blocked(STORE_HOST, node.name)
        )

    def set_available(self, available: bool) -> None:
        """Begin or end an outage. Nothing changes concurrently; leases that nobody could renew in
        time end with it, all at once."""
        self.loop.record(STORE_HOST, "available" if available else "unavailable")
        self.available = available
        self._expire()
        self._arm_expiry()

    def expire_leases_of(self, name: str) -> int:
        """End all leases granted to the node early, as a store that lost track of renewals does;
        returns how many."""
        held = [lease for lease, holder in self._holders.items() if holder == name]
        for lease in held:
            del self._holders[lease]
            self.core.revoke(lease)
        self.loop.record(STORE_HOST, "leases expired early", name, len(held))
        self.changed()
        return len(held)

    def replace(self, core: StoreCore) -> None:
        """The store is lost, and another one answers at its address; watches go on there, and
        wait for revisions that it may not have yet."""
        self.loop.record(STORE_HOST, "replaced", self.core.revision, core.revision)
        self.core, self._notified = core, core.revision
        self._holders.clear()
        for watch in list(self.watches):
            watch.fetch()

    def compact(self) -> None:
        """Forget the history up to now."""
        self.loop.record(STORE_HOST, "compact", self.core.revision)
        self.core.compact(self.core.revision)

    def execute(self, operation: Callable[[StoreCore, float], T]) -> T:
        """Run `operation` on the core now, with leases expired up to now, and tell the watches."""
        self._expire()
        before = self.core.revision
        try:
            return operation(self.core, self.loop.time())
        finally:
            self._arm_expiry()
            if self.core.revision != before:
                self.changed()

    def grant(self, holder: str, ttl_s: float) -> int:
        """A new lease for `holder`."""
        self._leases += 1
        lease = self._leases
        self._holders[lease] = holder
        self.execute(lambda core, now: core.grant(lease, ttl_s, now))
        return lease

    def changed(self) -> None:
        """Wake the watches: something was committed."""
        before, self._notified = self._notified, self.core.revision
        batches, _ = self.core.batches("", before + 1, self._notified)
        keys = {event.key for batch in batches for event in batch.events}
        probability = self.fabric.faults.compact_probability
        if probability and self.chance.random() < probability:
            self.compact()
        for watch in list(self.watches):
            watch.wake(keys, before)

    def latency_s(self) -> float:
        return self.chance.uniform(*self.fabric.faults.store_latency_s)

    def _arm_expiry(self) -> None:
        """Have one timer at or before the next expiry; after renewals it finds nothing to do and
        sets the next one."""
        due = self.core.next_expiry()
        if self.available and due is not None and due < self._expiry_armed_at:
            self._expiry_armed_at = due
            self.loop.post_at(self.loop.kernel, due, self._expiry_due)

    def _expiry_due(self) -> None:
        self._expiry_armed_at = float("inf")
        self._expire()
        self._arm_expiry()

    def _expire(self) -> None:
        if not self.available:
            return
        expired = False
        while change := self.core.expire(self.loop.time()):
            self.loop.record(STORE_HOST, "lease expired", *(write.key for write in change.writes))
            expired = True
        if expired:
            self.changed()


class SimWatch:
    """One watch: what has arrived at the client, in revision order, and the way there."""

    def __init__(self, server: StoreServer, node: Node, prefix: str, from_revision: int) -> None:
        self._server, self._node, self._prefix, self._next = server, node, prefix, from_revision
        self._arrived: deque[WatchBatch] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: StoreError | None = None
        self._fetching = self._closed = False
        self._passes_at = 0.0
        server.watches[self] = None
        self.fetch()

    def wake(self, keys: Collection[str], before: int) -> None:
        """These keys were changed, `before` being the revision until then. Fetch what is new after
        a latency.

        A fetch that would find nothing is no step, but a moment at which this watch passes: what
        concerns it until then is fetched then.
        """
        if self._fetching or self._closed:
            return
        now, passing = self._server.loop.time(), self._passes_at
        if passing <= now:
            self._next = max(self._next, before + 1)
            passing = now + self._delay()
        prefix = self._prefix
        wanted = self._next <= self._server.core.compacted or any(
            key.startswith(prefix) for key in keys
        )
        if wanted or not (self._node.alive and self._server.reachable(self._node)):
            self._fetching = True
            self._fetch_in(passing - now)
        self._passes_at = passing

    def fetch(self) -> None:
        """Fetch after a latency, whatever there may be."""
        if not self._fetching and not self._closed:
            self._fetching = True
            self._fetch_in(self._delay())

    def _delay(self) -> float:
        """Seconds until the next batch; a stream that was cut needs a new connection first."""
        delay = self._server.latency_s()
        probability = self._server.fabric.faults.watch_disconnect_probability
        if probability and self._server.chance.random() < probability:
            delay += self._server.chance.uniform(*RECONNECT_S)
        return delay

    def _fetch_in(self, delay: float) -> None:
        loop = self._server.loop
        loop.post_at(loop.kernel, loop.time() + delay, self._fetch)

    def _fetch(self) -> None:
        if self._closed:
            return
        if not self._node.alive:
            self.close()
            return
        if not self._server.reachable(self._node):
            self._fetch_in(self._server.chance.uniform(*RECONNECT_S))
            return
        self._fetching = False
        core = self._server.core
        try:
            complete = False
            # at least once: a watch that starts in the compacted past must get the error
            while not complete:
                batches, self._next = core.batches(self._prefix, self._next, core.revision)
                self._arrived.extend(batches)
                complete = self._next > core.revision
        except StoreError as error:
            self.end(error)
        self._notify()

    def end(self, error: StoreError) -> None:
        """No more batches: what has arrived is still delivered, then `error` is raised."""
        self._error = error
        self.close()
        self._notify()

    def close(self) -> None:
        """Fetch no more."""
        self._closed = True
        self._server.watches.pop(self, None)

    def _notify(self) -> None:
        if (
            self._waiter is not None
            and not self._waiter.done()
            and (self._arrived or self._error is not None)
        ):
            self._waiter.set_result(None)

    async def next(self) -> WatchBatch:
        """The next batch. Raises the error that ended the watch."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._waiter = self._server.loop.create_future()
            await self._waiter
        return self._arrived.popleft()


class SimStore:
    """The `MetadataStore` port of one node. For a dead node nothing ever completes."""

    def __init__(self, server: StoreServer, node: Node) -> None:
        self._server, self._node = server, node
        self._watches: list[SimWatch] = []
        self._closed = False

    # --- the interface ----------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        return await self._call(lambda: self._server.execute(lambda core, _: core.get(key)))

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        return await self._call(
            lambda: self._server.execute(lambda core, _: core.range(prefix, limit))
        )

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        conditions, changes = tuple(compares), tuple(operations)
        result = await self._call(
            lambda: self._server.execute(lambda core, _: core.transact(conditions, changes)[0])
        )
        written = [operation.key for operation in changes]
        self._server.loop.record(
            self._node.name, "transact", result.succeeded, result.revision, *written
        )
        return result

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        return await self._call(
            lambda: self._server.execute(
                lambda core, _: core.transact((), (Delete(key),))[1] is not None
            )
        )

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        if self._closed:
            raise StoreUnavailable("this store client is closed")
        watch = SimWatch(self._server, self._node, prefix, from_revision)
        self._watches.append(watch)
        try:
            while True:
                yield await watch.next()
        finally:
            watch.close()
            self._watches.remove(watch)

    async def grant_lease(self, ttl_s: float) -> int:
        return await self._call(lambda: self._server.grant(self._node.name, ttl_s))

    async def renew_lease(self, lease: int) -> float:
        return await self._call(
            lambda: self._server.execute(lambda core, now: core.renew(lease, now))
        )

    async def revoke_lease(self, lease: int) -> None:
        await self._call(lambda: self._server.execute(lambda core, _: core.revoke(lease)))

    async def close(self) -> None:
        self._closed = True
        for watch in self._watches:
            watch.end(StoreUnavailable("this store client was closed"))

    # --- one request ------------------------------------------------------------------------------

    async def _call(self, operation: Callable[[], T]) -> T:
        """Request, execution, reply. Raises what the store answers, or StoreUnavailable when no
        answer came."""
        server, loop = self._server, self._server.loop
        if self._closed:
            raise StoreUnavailable("this store client is closed")
        answer: asyncio.Future[T] = loop.create_future()
        if not self._node.alive:
            return await answer
        timeout = loop.call_later(server.fabric.faults.store_timeout_s, self._give_up, answer)
        if not self._lost(server.fabric.faults.lost_request_probability):
            loop.post_at(
                loop.kernel, loop.time() + server.latency_s(), self._execute, operation, answer
            )
        try:
            return await answer
        finally:
            timeout.cancel()

    def _lost(self, probability: float) -> bool:
        return probability > 0 and self._server.chance.random() < probability

    def _give_up(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(
                StoreUnavailable("no answer from the metadata store; the outcome is unknown")
            )

    def _execute(self, operation: Callable[[], T], answer: asyncio.Future[T]) -> None:
        server, loop = self._server, self._server.loop
        if not server.reachable(self._node):
            # Some requests are lost; others wait in some buffer and are executed when the way is
            # free, wanted or not.
            if self._lost(HELD_REQUEST_PROBABILITY):
                self._hold(operation, answer, loop.time() + HELD_REQUEST_MAX_S)
            return
        error: StoreError | None = None
        result: Any = None
        try:
            result = operation()
        except StoreError as refused:
            error = refused
        if not self._lost(server.fabric.faults.lost_reply_probability):
            loop.post_at(
                loop.kernel, loop.time() + server.latency_s(), self._reply, answer, result, error
            )

    def _hold(self, operation: Callable[[], T], answer: asyncio.Future[T], deadline: float) -> None:
        server, loop = self._server, self._server.loop
        if server.reachable(self._node):
            self._execute(operation, answer)
        elif loop.time() < deadline:
            loop.post_at(
                loop.kernel,
                loop.time() + HELD_REQUEST_RETRY_S,
                self._hold,
                operation,
                answer,
                deadline,
            )

    def _reply(self, answer: asyncio.Future[Any], result: Any, error: StoreError | None) -> None:
        if answer.done() or not self._server.reachable(self._node):
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

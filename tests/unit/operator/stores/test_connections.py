"""Which clusters' stores the operator keeps open, and what one that does not answer costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd_tls import TlsBytes
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import NamespaceRecord
from magnetar.metadata.store import (
    Compare,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    TxnResult,
    WatchBatch,
)
from magnetar.names import NamespaceName
from magnetar_operator.conditions import Blocked
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.stores.connections import ClusterStore, Stores
from magnetar_operator.stores.outages import Outage, StoreOutage

HERE, THERE = ("127.0.0.1:1",), ("127.0.0.1:2",)
"""Nobody listens: a connection that is not used needs nobody."""
ONE, TWO = ("team", "one"), ("team", "two")
KEY = keys.namespace(NamespaceName("acme", "orders"))


async def with_stores(script: Any) -> None:
    stores = Stores(SystemClock(), OperatorMetrics(), "operator", lambda: True)
    try:
        await script(stores)
    finally:
        await stores.close()


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def refused(asked: Coroutine[Any, Any, Any]) -> None:
    await asyncio.sleep(0)  # closing has begun
    with pytest.raises(StoreUnavailable, match="no cluster uses this store"):
        await asked


async def test_a_store_is_open_as_long_as_one_cluster_uses_it() -> None:
    """Two clusters share one; it is closed with its views when the second one has gone, and
    opens nothing any more for who still holds it."""

    async def script(stores: Stores) -> None:
        store = stores.of(ONE, HERE)
        assert stores.of(TWO, HERE) is store
        watched = asyncio.ensure_future(store.record(KEY))
        await asyncio.sleep(0)
        assert "view of namespaces/" in tasks()
        watched.cancel()
        stores.retain([TWO])
        assert stores.opened() == [store]
        stores.retain([])
        assert stores.opened() == []
        await refused(store.record(KEY))
        async with asyncio.timeout(120):
            while "view of namespaces/" in tasks():
                await asyncio.sleep(0.01)
        again = stores.of(ONE, HERE)
        assert again is not store
        assert stores.opened() == [again]

    await with_stores(script)


async def test_a_cluster_that_is_given_another_store_leaves_its_former_one() -> None:
    """At once; a store that another cluster uses stays."""

    async def script(stores: Stores) -> None:
        former, other = stores.of(ONE, HERE), stores.of(TWO, THERE)
        assert stores.of(ONE, THERE) is other
        assert stores.opened() == [other]
        await refused(former.record(KEY))
        assert stores.of(TWO, HERE) is not former
        assert len(stores.opened()) == 2

    await with_stores(script)


class UnavailableStore(MemoryStore):
    """A store that does not answer while it is unavailable; counts the requests that waited."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.unavailable, self.waited, self.gets = True, 0, 0

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        await self._answer()
        return await super().transact(compares, operations)

    async def get(self, key: str) -> KeyValue | None:
        self.gets += 1
        await self._answer()
        return await super().get(key)

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        if self.unavailable:
            await asyncio.sleep(0)
            raise StoreUnavailable("nobody answers")
        return await super().range(prefix, limit=limit)

    async def _answer(self) -> None:
        if self.unavailable:
            self.waited += 1
            await asyncio.sleep(0)
            raise StoreUnavailable("nobody answers")


class Hands(SystemClock):
    """Monotonic time goes on only when the test says so."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


async def test_an_unavailable_store_is_waited_for_once_and_notifies_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred resources of one cluster cost one timeout, not a hundred: the workers are there
    for other clusters."""
    monkeypatch.setattr("magnetar_operator.stores.record_view.RETRY_MIN_S", 0.005)
    monkeypatch.setattr("magnetar_operator.stores.record_view.RETRY_MAX_S", 0.005)

    backend, notified = UnavailableStore(), asyncio.Queue[str]()
    store = ClusterStore(
        backend, Hands(), OperatorMetrics(), "operator", lambda: True, notified.put_nowait
    )
    store.claims["team", "orders"] = {NamespaceName("acme", "orders")}
    try:
        for _ in range(100):
            with pytest.raises(StoreUnavailable, match="nobody answers"):
                await store.record(KEY)
        assert backend.waited == 1
        assert notified.empty()
        backend.unavailable = False
        await backend.put(KEY, b"{}")
        async with asyncio.timeout(120):
            assert await notified.get() == "team/orders"
        found = await store.record(KEY)
        assert found is not None
        assert found.value == b"{}"
    finally:
        await store.close()


async def test_of_a_store_that_becomes_unavailable_later_every_sort_of_request_waits_once() -> None:
    """Its copies are warm, and many want to write, or to read what is not in a copy: one now and
    then finds out, and notifies the others."""
    put = Put(KEY, b"{}")

    backend, clock, notified = UnavailableStore(), Hands(), asyncio.Queue[str]()
    backend.unavailable = False
    store = ClusterStore(
        backend, clock, OperatorMetrics(), "operator", lambda: True, notified.put_nowait
    )
    store.claims["team", "orders"] = {NamespaceName("acme", "orders")}
    requests: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
        lambda: store.write((), (put,)),
        lambda: store.read(KEY),
        lambda: store.cordon("main-broker-0", "a test"),
    )
    try:
        await store.record(KEY)
        assert await store.write((), (put,)) is True
        async with asyncio.timeout(120):
            before = -1
            while before != backend.gets:  # until the copy is warm
                before = backend.gets
                await store.record(KEY)
                await asyncio.sleep(0)
        for request in requests[:2]:
            backend.unavailable, backend.waited = True, 0
            for _ in range(100):
                with pytest.raises(StoreUnavailable, match="nobody answers"):
                    await request()
            assert backend.waited == 1
            assert await store.record(KEY) is not None, "a warm copy is read as ever"
            for pause_s in (2.0, 2.0, 2.0, 3.0, 4.5):
                clock.now_s += pause_s
                for _ in range(100):
                    with pytest.raises(StoreUnavailable):
                        await request()
            assert backend.waited == 6
            backend.unavailable = False
            with pytest.raises(StoreOutage):
                await request()
            clock.now_s += 10.0
            assert notified.empty()
            await request()
            assert notified.get_nowait() == "team/orders"
        backend.unavailable, backend.waited = True, 0
        for _ in range(100):
            with pytest.raises(StoreUnavailable):
                await requests[2]()
        assert backend.waited == 1
    finally:
        await store.close()


async def test_what_is_wrong_with_one_write_holds_up_no_other() -> None:
    """The store answers: it refuses that one."""

    backend = UnavailableStore()
    backend.unavailable = False
    store = ClusterStore(backend, Hands(), OperatorMetrics(), "operator", lambda: True)
    for _ in range(2):
        with pytest.raises(StoreError, match="written twice"):
            await store.write((), (Put(KEY, b"1"), Put(KEY, b"2")))
    assert await store.write((), (Put(KEY, b"{}"),)) is True
    await store.close()


class LateAnswers(MemoryStore):
    """Answers no write of `KEY` until the test says so, while its watches show it."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.viewed, self.answers = asyncio.Event(), asyncio.Event()

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        if prefix == keys.NAMESPACES:
            self.viewed.set()
        return super().watch(prefix, from_revision)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        result = await super().transact(compares, operations)
        if any(operation.key == KEY for operation in operations):
            await self.answers.wait()
        return result


@pytest.mark.parametrize("watch_first", [False, True])
async def test_an_owner_that_loses_a_record_by_our_write_is_notified(watch_first: bool) -> None:
    """And the one that it is written for is not: a resource that takes over need not look twice."""
    notified, backend = asyncio.Queue[str](), LateAnswers()
    store = ClusterStore(
        backend, SystemClock(), OperatorMetrics(), "operator", lambda: True, notified.put_nowait
    )
    younger, older = (NamespaceRecord((0, 1 << 32), {}, owner) for owner in ("t/young", "t/old"))
    async with asyncio.timeout(120):
        backend.answers.set()
        await backend.put(KEY, younger.encode())
        known = await store.record(KEY)
        assert known is not None
        await backend.viewed.wait()
        if watch_first:
            backend.answers.clear()
        written = asyncio.ensure_future(
            store.write(
                (Compare(KEY, "mod", "=", known.mod_revision),), (Put(KEY, older.encode()),)
            )
        )
        assert await notified.get() == "t/young"
        assert not (watch_first and written.done())
        backend.answers.set()
        assert await written
    await store.close()
    assert notified.empty()


async def test_who_decided_by_a_record_of_another_resource_is_notified_once_of_its_change() -> None:
    """As its owner is; one that has looked again says so itself."""
    notified, backend = asyncio.Queue[str](), LateAnswers()
    backend.answers.set()
    store = ClusterStore(
        backend, SystemClock(), OperatorMetrics(), "operator", lambda: True, notified.put_nowait
    )

    async def change(bundles: int) -> None:
        await backend.put(KEY, NamespaceRecord((0, bundles), {}, "t/owner").encode())

    async with asyncio.timeout(120):
        await change(1)
        await store.record(KEY)
        store.follow(KEY, "t/follower")
        await backend.viewed.wait()
        await change(2)
        assert {await notified.get(), await notified.get()} == {"t/owner", "t/follower"}
        await change(3)
        assert await notified.get() == "t/owner"
        await change(4)
        assert await notified.get() == "t/owner"
    await store.close()


async def test_who_decided_by_one_store_looks_again_when_its_cluster_has_another() -> None:
    """Other members, or the same by TLS: no view has shown what is otherwise there. Not when
    another cluster comes, and not again and again."""
    notified: list[str] = []
    stores = Stores(SystemClock(), OperatorMetrics(), "operator", lambda: True, notified.append)
    tls = TlsBytes(b"authority", b"certificate", b"key")
    try:
        stores.of(ONE, HERE).claims["team", "orders"] = {NamespaceName("acme", "orders")}
        stores.of(TWO, HERE)
        assert notified == []
        stores.of(ONE, THERE).claims["team", "orders"] = {NamespaceName("acme", "orders")}
        assert notified == ["team/orders"]
        for _ in range(2):
            stores.of(ONE, THERE, tls)
            assert notified == 2 * ["team/orders"]
    finally:
        await stores.close()


def test_the_longer_a_store_is_unavailable_the_more_seldom_its_resources_look() -> None:
    """Beginning where an error of a single request does, up to a minute."""
    outage = Outage(100.0, "nobody answers")
    retries = [
        Blocked.by_store(outage.error(100.0 + age_s)).retry_s
        for age_s in (0.0, 4.0, 10.0, 40.0, 3600.0)
    ]
    assert retries == [2.0, 2.0, 5.0, 20.0, 60.0]
    assert Blocked.by_store(StoreUnavailable("no leader")).retry_s == 2.0
    assert isinstance(outage.error(100.0), StoreOutage)

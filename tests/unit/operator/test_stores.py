"""Which clusters' stores the operator keeps open."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StoreUnavailable
from magnetar.metadata import keys
from magnetar.names import NamespaceName
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.stores import Stores

HERE, THERE = ("127.0.0.1:1",), ("127.0.0.1:2",)
"""Nobody listens: a connection that is not used needs nobody."""
ONE, TWO = ("team", "one"), ("team", "two")
KEY = keys.namespace(NamespaceName("acme", "orders"))


def with_stores(script: Any) -> None:
    async def main() -> None:
        stores = Stores(SystemClock(), OperatorMetrics(), "operator", lambda: True)
        try:
            await script(stores)
        finally:
            await stores.close()

    asyncio.run(main())


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def refused(asked: Coroutine[Any, Any, Any]) -> None:
    await asyncio.sleep(0)  # closing has begun
    with pytest.raises(StoreUnavailable, match="no cluster uses this store"):
        await asked


def test_a_store_is_open_as_long_as_one_cluster_uses_it() -> None:
    """Two clusters share one; it is closed with its views when the second one has gone, and opens nothing any more for who still holds it."""

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

    with_stores(script)


def test_a_cluster_that_is_given_another_store_leaves_its_former_one() -> None:
    """At once; a store that another cluster uses stays."""

    async def script(stores: Stores) -> None:
        former, other = stores.of(ONE, HERE), stores.of(TWO, THERE)
        assert stores.of(ONE, THERE) is other
        assert stores.opened() == [other]
        await refused(former.record(KEY))
        assert stores.of(TWO, HERE) is not former
        assert len(stores.opened()) == 2

    with_stores(script)

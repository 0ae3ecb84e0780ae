"""What the operator takes for a sign that a watch shows its writes, and which namespaces it may
read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar_operator.builders.object import Manifest
from magnetar_operator.kube.api import Page
from magnetar_operator.kube.cache import ObjectCache, shown
from magnetar_operator.kube.errors import ApiRefused
from magnetar_operator.kube.informers import Informers
from magnetar_operator.kube.kinds import Resource
from magnetar_operator.kube.watching import Seen
from magnetar_operator.metrics import OperatorMetrics


def written(version: int) -> dict[str, Any]:
    metadata = {
        "namespace": "team",
        "name": f"n-{version}",
        "uid": f"u-{version}",
        "resourceVersion": str(version),
    }
    return {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "TopicNamespace",
        "metadata": metadata,
        "spec": {},
    }


def overdue(informers: Informers) -> list[int]:
    """Versions that the watch of TopicNamespaces has still to show."""
    return [version for version, _ in informers._kinds["TopicNamespace"].awaited]


def test_a_write_is_shown_by_the_watch_or_by_the_list_that_the_watch_begins_with() -> None:
    """A watch that opens late shows earlier writes in its list only. An operator that waited for
    more would think it dead, and list everything again."""
    cache, metrics = ObjectCache(lambda _object, _gone: None), OperatorMetrics()
    informers = Informers(None, cache, SystemClock(), metrics, (), "system", lambda: None)  # type: ignore[arg-type]  # nothing is asked
    for version in (5, 6, 9):
        informers.written(written(version))
    assert overdue(informers) == [5, 6, 9]
    informers.seen([Seen(shown(written(6)), gone=False, sentinel=False, by_watch=False)])
    assert overdue(informers) == [9]
    assert (
        metrics.registry.get_sample_value(
            "magnetar_operator_watch_events_total", {"kind": "TopicNamespace"}
        )
        is None
    )
    informers.seen([Seen(shown(written(9)), gone=False, sentinel=False, by_watch=True)])
    assert overdue(informers) == []
    informers.written(written(8))
    assert overdue(informers) == [], "the watch is past it"


class Lists:
    """Answers lists as an API server does: one object of each kind in each namespace, 403 for
    namespaces that are closed."""

    def __init__(self, *closed: str) -> None:
        self.closed = set(closed)
        self.asked: list[str] = []

    async def pages(
        self, resource: Resource, namespace: str, _selector: str, _objects: int
    ) -> AsyncIterator[Page]:
        await asyncio.sleep(0)
        self.asked.append(namespace)
        if namespace in self.closed:
            raise ApiRefused(f"GET {resource.path(namespace)}: 403 Forbidden", 403)
        metadata = {
            "namespace": namespace,
            "name": "one",
            "uid": f"u-{namespace}",
            "resourceVersion": "7",
        }
        item: Manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
        }
        yield Page("7", [item])


def reading(lists: Lists, *namespaces: str) -> tuple[Informers, ObjectCache, OperatorMetrics]:
    cache, metrics = ObjectCache(lambda _object, _gone: None), OperatorMetrics()
    return (
        Informers(lists, cache, SystemClock(), metrics, namespaces, "system", lambda: None),
        cache,
        metrics,
    )  # type: ignore[arg-type]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_namespace_that_may_not_be_read_costs_the_others_nothing_and_is_read_when_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deleting a namespace takes the operator's role in it along. The kinds count as listed, and
    it alone is asked again and again."""
    monkeypatch.setattr("magnetar_operator.kube.informers.RETRY_MIN_S", 0.005)
    lists = Lists("b", "c")
    informers, cache, metrics = reading(lists, "a", "b", "c")

    kinds = list(informers._kinds.values())
    tasks = [asyncio.create_task(informers._list_again_and_again(state, 3600.0)) for state in kinds]
    try:
        async with asyncio.timeout(120):
            await informers.synced()
        assert informers.problem() == ""
        assert [name for name in "abc" if informers.refused(name)] == ["b", "c"]
        assert informers._watched_namespaces() == ["a", "system"]
        assert metrics.registry.get_sample_value("magnetar_operator_refused_namespaces") == 2
        assert cache.get("BrokerCluster", "a", "one") is not None
        await until(lambda: lists.asked.count("b") >= 2 * len(kinds))
        lists.closed.remove("b")
        await until(lambda: not informers.refused("b"))
        assert informers.refused("c")
        assert informers._watched_namespaces() == ["a", "b", "system"]
        assert cache.get("BrokerCluster", "b", "one") is not None
        assert lists.asked.count("a") == len(kinds), "what was read is read again at the resync"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_operator_that_may_read_no_namespace_is_not_ready_and_says_why() -> None:
    """As one that may not read the cluster as a whole; what it has watched so far it would watch
    again."""

    for namespaces in (("a", "b"), ()):
        informers, _, _ = reading(Lists("a", "b", ""), *namespaces)
        state = informers._kinds["Pod"]
        with pytest.raises(ApiRefused, match="403 Forbidden"):
            await informers._list(state, namespaces or ("",))
        assert not state.refused
        assert informers.problem()
        assert informers._watched_namespaces() == (["a", "b", "system"] if namespaces else [])


async def test_the_namespace_of_the_lease_is_watched_even_if_it_may_not_be_read() -> None:
    """The sentinel lives there, and without a namespace kopf would watch all."""

    informers, _, _ = reading(Lists("system"), "a", "system")
    assert await informers._list(informers._kinds["Pod"], ("a", "system"))
    assert informers.refused("system")
    assert informers._watched_namespaces() == ["a", "system"]

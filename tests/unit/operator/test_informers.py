"""What the operator takes for a sign that a watch shows its writes."""

from __future__ import annotations

from typing import Any

from magnetar.clock import SystemClock
from magnetar_operator.informers import Informers
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.object_cache import ObjectCache, shown
from magnetar_operator.watching import Seen


def written(version: int) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": f"n-{version}", "uid": f"u-{version}", "resourceVersion": str(version)}
    return {"apiVersion": "magnetar.io/v1alpha1", "kind": "TopicNamespace", "metadata": metadata, "spec": {}}


def overdue(informers: Informers) -> list[int]:
    """Versions that the watch of TopicNamespaces has still to show."""
    return [version for version, _ in informers._kinds["TopicNamespace"].awaited]


def test_a_write_is_shown_by_the_watch_or_by_the_list_that_the_watch_begins_with() -> None:
    """A watch that opens late tells of earlier writes in its list only; whoever waited for more would think it dead, and list everything again."""
    cache, metrics = ObjectCache(lambda _object, _gone: None), OperatorMetrics()
    informers = Informers(None, cache, SystemClock(), metrics, (), "system", lambda: None)  # type: ignore[arg-type]  # nothing is asked
    for version in (5, 6, 9):
        informers.written(written(version))
    assert overdue(informers) == [5, 6, 9]
    informers.seen([Seen(shown(written(6)), gone=False, sentinel=False, by_watch=False)])
    assert overdue(informers) == [9]
    assert metrics.registry.get_sample_value("magnetar_operator_watch_events_total", {"kind": "TopicNamespace"}) is None
    informers.seen([Seen(shown(written(9)), gone=False, sentinel=False, by_watch=True)])
    assert overdue(informers) == []
    informers.written(written(8))
    assert overdue(informers) == [], "the watch is past it"

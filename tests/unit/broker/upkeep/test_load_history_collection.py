"""Old samples of load go, and nothing else does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from magnetar.balance.settings import Settings
from magnetar.broker.context import BrokerContext
from magnetar.broker.upkeep.load_history_collection import LoadHistoryCollector, place_of
from magnetar.storage.dated import surplus
from magnetar.storage.names import (
    LoadHistoryPlace,
    LoadReportPlace,
    load_history,
    load_report,
    load_report_place,
)
from tests.support.shelf import Shelf

MINUTE_MS = 60_000


def history(at: int, broker: str = "b", size: int = 100) -> str:
    return load_history(LoadHistoryPlace(at * MINUTE_MS, (at + 5) * MINUTE_MS, size, broker))


def test_the_oldest_go_by_age_and_by_size() -> None:
    listed = [history(at, broker) for at in range(10) for broker in ("a", "b")]
    listed.append("load-history/not-ours")
    places = {name: place for name in listed if (place := place_of(name)) is not None}
    assert surplus(places, 0, 10**9) == []
    assert surplus(places, 7 * MINUTE_MS, 10**9) == listed[:4]
    assert surplus(places, 0, 500) == listed[:15]
    assert surplus(places, 10**12, 10**9) == listed[:20]


async def test_the_collector_deletes_reports_and_samples_once_an_interval() -> None:
    shelf, now = Shelf(), {"s": 1000.0}
    settings = Settings(history_days=600 / 86400)
    report = LoadReportPlace(10 * MINUTE_MS, 5, "team/nightly")
    old = LoadReportPlace(MINUTE_MS, 5, "team/nightly")
    for name in (history(0), history(16), load_report(report), load_report(old), "load-reports/x"):
        shelf.stored[name] = b"."
    context = SimpleNamespace(
        volume=shelf,
        clock=SimpleNamespace(
            monotonic=lambda: now["s"], wall_ms=lambda: cast(Any, 20 * MINUTE_MS)
        ),
    )
    collector = LoadHistoryCollector(cast(BrokerContext, context), lambda: settings)
    await collector.collect()
    assert len(shelf.stored) == 5, "not before an interval has passed"
    now["s"] += settings.history_write_s
    await collector.collect()
    assert set(shelf.stored) == {history(16), load_report(report), "load-reports/x"}


def test_a_report_is_known_by_its_job() -> None:
    place = LoadReportPlace(5, 7, "team/nightly run")
    assert load_report_place(load_report(place)) == place
    assert load_report_place("load-reports/x.html") is None

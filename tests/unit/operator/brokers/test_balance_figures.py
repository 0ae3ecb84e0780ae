"""`status.balance`: the figures, and when newer ones are worth a write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnetar.balance.load import BundleLoad, History, LoadReport, Rates, Resource
from magnetar.balance.settings import BALANCE, Settings
from magnetar.resources.load_balancing import BalanceStatus
from magnetar_operator.brokers.balance_figures import KEPT_MS, SETTLED_MS, figures, is_uneven
from magnetar_operator.brokers.scaling import Cordon
from magnetar_operator.brokers.state import ClusterState

NOW_MS = 1_790_000_000_000


def state(*rates: float, **fields: Any) -> ClusterState:
    """Brokers with one bundle each of so many messages/s."""
    brokers = [f"main-broker-{at}" for at in range(len(rates))]
    owners = {f"public/default/0x{at}0000000_0x{at + 1}0000000": at for at in range(len(rates))}
    loads = {
        broker: LoadReport(
            broker,
            NOW_MS,
            Resource(10, 100),
            rates=Rates(rate),
            bundles=1,
            top=(BundleLoad(bundle, History.steady(Rates(rate))),),
        )
        for broker, rate, bundle in zip(brokers, rates, owners, strict=True)
    }
    given: dict[str, Any] = {"loads": loads} | fields
    return ClusterState(
        "",
        {broker: f"{broker}.1" for broker in brokers},
        dict.fromkeys(brokers, 1),
        given.pop("cordons", {}),
        owners={name: brokers[at] for name, at in owners.items()},
        **given,
    )


def shown(found: ClusterState, previous: BalanceStatus | None = None, at_ms: int = 0) -> Any:
    return figures(previous or BalanceStatus(), found, BALANCE, NOW_MS + at_ms)


def test_the_imbalance_is_the_fullest_broker_over_the_mean() -> None:
    found = shown(state(2990, 990, 1990))
    assert (found.strategy, found.imbalance) == ("Planner", "1.50")
    assert is_uneven(found)
    assert not is_uneven(shown(state(1000, 1000)))


def test_without_reports_there_is_no_figure_but_the_strategy() -> None:
    found = shown(state(10, 10, loads={}))
    assert (found.strategy, found.imbalance) == ("Planner", "")


def test_brokers_that_take_no_bundles_do_not_count() -> None:
    found = shown(state(1000, 1000, 10, cordons={"main-broker-2": Cordon(True, "")}))
    assert found.imbalance == "1.00"


def test_moves_are_those_under_way_and_those_that_leaders_report() -> None:
    begun = LoadReport("main-broker-0", NOW_MS, moves=4, moved_ms=NOW_MS - 61_000)
    before = LoadReport("main-broker-1", NOW_MS, moves=2, moved_ms=NOW_MS - 900_000)
    loads = {report.broker: report for report in (begun, before)}
    found = shown(state(10, 10, loads=loads, moved=frozenset({"public/default/0x0_0x1"})))
    assert (found.moves_under_way, found.moves_last_hour) == (1, 6)
    assert found.last_move_time == "2026-09-21T14:12:19Z"


def test_nothing_is_moved_is_off() -> None:
    for settings in (Settings(enabled=False), Settings(shedding=False)):
        assert figures(BalanceStatus(), state(1, 1), settings, NOW_MS).strategy == "Off"


def test_load_that_changes_all_the_time_is_rarely_a_write() -> None:
    first = shown(state(1000, 1000))
    noisy = state(1030, 1000)
    assert shown(noisy, first, 60_000) is first
    later = shown(noisy, first, KEPT_MS)
    assert later.imbalance == "1.01"
    uneven = state(3000, 1000)
    assert shown(uneven, first, SETTLED_MS - 1) is first
    assert shown(uneven, first, SETTLED_MS).imbalance == "1.50"
    assert shown(state(1000, 1000), first, 5 * KEPT_MS) is first, "equal figures are no news"


def test_the_first_move_is_no_little_thing_and_the_next_ones_are() -> None:
    first = shown(state(1000, 1000))
    loads = state(1000, 1000).loads
    moved = {**loads, "main-broker-0": replace(loads["main-broker-0"], moves=1, moved_ms=NOW_MS)}
    later = shown(state(1000, 1000, loads=moved), first, SETTLED_MS)
    assert later.moves_last_hour == 1
    more = {**loads, "main-broker-0": replace(loads["main-broker-0"], moves=2, moved_ms=NOW_MS)}
    assert shown(state(1000, 1000, loads=more), later, 2 * SETTLED_MS) is later


def test_another_strategy_is_shown_at_once_and_an_outage_changes_nothing() -> None:
    first = shown(state(1000, 1000))
    other = figures(first, state(1000, 1000), Settings(), NOW_MS + 1)
    assert other.strategy == "ThresholdShedder"
    assert figures(first, None, Settings(), NOW_MS + KEPT_MS) is first

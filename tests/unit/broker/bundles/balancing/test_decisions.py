"""Decisions are kept, bounded, readable by every broker, and continue in the next term."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.balance.cluster import Move, Outcome
from magnetar.balance.decision import Decision, Request, recorded, replay
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates
from magnetar.broker.administration.balance import Balance
from magnetar.broker.administration.site import Site
from magnetar.broker.bundles.balancing import balancer, decisions
from magnetar.broker.bundles.balancing.decisions import KEPT_MS, DecisionLog
from magnetar.broker.context import BrokerContext
from magnetar.hosting.computing import ComputeThread, inline
from magnetar.names import BundleName
from tests.support.balanced_pair import Stage, play
from tests.support.rest import Process
from tests.support.shelf import Shelf


def _log(shelf: Shelf, now_ms: int) -> DecisionLog:
    context = SimpleNamespace(
        volume=shelf,
        compute=inline,
        clock=SimpleNamespace(wall_ms=lambda: now_ms),
        log=SimpleNamespace(space=SimpleNamespace(short=None)),
    )
    return DecisionLog(cast(BrokerContext, context))


def _decision(at_ms: int) -> bytes:
    return Decision(at_ms, "shed", Outcome(_MEMORY, f"at {at_ms}")).encode()


_MEMORY = Request("shed", cast(Any, None)).memory


async def test_records_are_kept_for_a_day_and_bounded(monkeypatch: Any) -> None:
    shelf, now_ms = Shelf(), 10 * KEPT_MS
    shelf.stored["decisions/strange"] = b"not ours"
    log = _log(shelf, now_ms)
    for at_ms in (now_ms - KEPT_MS - 1, now_ms - 3, now_ms - 2, now_ms - 1):
        log.add(at_ms, _decision(at_ms))
    await log.save(7)
    assert [found.at_ms for _, found in await log.newest(9)] == [
        now_ms - 1,
        now_ms - 2,
        now_ms - 3,
    ]
    assert len(shelf.stored) == 4
    monkeypatch.setattr(decisions, "KEPT_MAX", 2)
    log.add(now_ms, _decision(now_ms))
    await log.save(7)
    (newest, _), (second, _) = await log.newest(9)
    assert [found.at_ms for _, found in await log.newest(9, before=newest)] == [now_ms - 1]
    shelf.stored[second] = b"damaged"
    assert [name for name, _ in await log.newest(9)] == [newest]


async def test_a_broken_volume_costs_no_decision() -> None:
    """What could not be written is written later."""

    shelf = Shelf()
    shelf.broken = True
    log = _log(shelf, 1000)
    log.add(1000, _decision(1000))
    await log.save(1)
    shelf.broken = False
    assert await log.newest(1) == []
    await log.save(1)
    assert len(await log.newest(1)) == 1


def test_a_leader_keeps_what_it_decided_and_others_read_it(tmp_path: Path) -> None:
    """With inputs: it replays; the next leader continues with its memory, whatever owners have
    decided since; plan and explanation change nothing."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(4, first)
        await stage.report(first, [1000] * 4)
        other = Balance(Site(Process(tmp_path, second)))
        plan = await other.plan()
        assert (len(plan["moves"]), plan["strategy"]) == (2, "Planner")
        assert plan["imbalance"] == 2.0
        before = await other.explain(BundleName.parse(stage.names[0]))
        assert (before["broker"], before["load"]) == ("first", 1002.0)
        assert before["allowed"] == ["first", "second"]
        assert stage.on(second) == []
        await stage.patrol(first)
        shown, *idle = await other.history()
        assert len(shown["moves"]) == 2
        assert not any(found["moves"] for found in idle)
        assert shown["replayable"]
        decision = await other.decision(shown["name"])
        assert replay(decision) == decision.outcome
        split = Decision(decision.at_ms + 1, "split", Outcome(_MEMORY, "an owner's"))
        owners = DecisionLog(second.context)
        owners.add(split.at_ms, split.encode())
        await owners.save(7)
        assert [found["kind"] for found in await other.history()][:2] == ["split", "shed"]
        await second.leader._balancer.recall()
        assert second.leader._balancer._memory.usage == decision.outcome.memory.usage
        exposed = first.metrics.exposition().decode()
        assert "magnetar_balance_moves_total 2.0" in exposed
        assert first.metrics.balance.imbalance._value.get() == pytest.approx(2.0)

    play(tmp_path, script)


def test_of_decisions_that_change_nothing_one_is_kept_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its reason and inputs, so that one can see why nothing was done."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(2, first)
        balance = Balance(Site(Process(tmp_path, second)))
        for _ in range(5):  # the first moves a bundle
            await stage.patrol(first)
        idle, moved, *_ = found = await balance.history()
        assert (idle["moves"], idle["replayable"]) == ([], True)
        assert idle["reason"] == "brokers at 66.7 to 133.3 % of the mean: no move helps"
        assert moved["moves"]
        monkeypatch.setattr(balancer, "IDLE_KEPT_S", 0.0)
        for _ in range(3):
            await stage.patrol(first)
        assert len(await balance.history()) == len(found) + 3

    play(tmp_path, script)


async def test_computations_run_beside_the_event_loop() -> None:
    thread = ComputeThread()
    try:
        assert await thread(lambda: 6 * 7) == 42
    finally:
        thread.close()


def test_recorded_decisions_are_of_bounded_size() -> None:
    request = Request("shed", _cluster())
    outcome = Outcome(request.memory, "because", (Move("b", "a", "c", "r"),))
    assert len(recorded(request, outcome).encode()) < 2000


def _cluster() -> Any:
    from magnetar.balance.cluster import Broker, Bundle, Cluster

    load = BundleLoad("b", History.steady(Rates(1)))
    return Cluster(1, (Broker("a", LoadReport("a", 1, top=(load,))),), (Bundle("b", "a"),))

"""An owner splits what is too hot for too long."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from magnetar.balance.cluster import Split
from magnetar.balance.decision import replay
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates, TopicLoad
from magnetar.balance.settings import Settings
from magnetar.broker.bundles.balancing.decisions import DecisionLog
from magnetar.broker.bundles.balancing.picture import Sight
from magnetar.broker.bundles.balancing.splitting import LoadSplitter, _boundaries
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import BrokerMetrics
from magnetar.clock import SystemClock
from magnetar.errors import ServiceNotReady
from magnetar.hosting.computing import inline
from magnetar.hosting.views import Viewed
from magnetar.metadata.records import BundleRecord, BundleState, IncarnationRecord
from magnetar.names import BundleName
from tests.support.balance import KeptDecisions

OURS, THEIRS = "public/default/0x00000000_0x40000000", "public/default/0x40000000_0xffffffff"


def _sight(load: float) -> Sight:
    hot = (TopicLoad("persistent://public/default/hot", 0x10000000, Rates(0.9 * load)),)
    top = tuple(
        BundleLoad(name, History.steady(Rates(load)), 2, hot=hot) for name in (OURS, THEIRS)
    )
    owned = Viewed(BundleRecord(BundleState.OWNED, 2, "a.1"), 1)
    return Sight(
        1000,
        frozenset({"a.1"}),
        {"a.1": Viewed(IncarnationRecord("a", "", "", 1, "1"), 1)},
        {OURS: owned, THEIRS: owned},
        {},
        {},
        {},
        (LoadReport("a", 1000, top=top),),
    )


async def test_only_our_own_bundles_are_split_after_enough_looks() -> None:
    """The hot topic gets a bundle of its own; a refusal is no failure. What was decided is kept,
    and replays."""
    calls: list[tuple[str, tuple[int, ...]]] = []

    async def split(bundle: BundleName, edges: tuple[int, ...], _reason: str) -> list[BundleName]:
        calls.append((str(bundle), edges))
        if len(calls) == 1:
            raise ServiceNotReady("changes hands")
        return [bundle, bundle]

    metrics, kept = BrokerMetrics(), KeptDecisions()
    settings = replace(Settings(), split_hits=1)
    splitter = LoadSplitter(
        cast(
            BrokerContext,
            SimpleNamespace(compute=inline, metrics=metrics, clock=SystemClock()),
        ),
        lambda: _sight(40_000),
        cast(
            Any,
            SimpleNamespace(
                sampled=[OURS], topics_of=lambda _name: [], latest=_sight(40_000).reports[0]
            ),
        ),
        cast(Any, SimpleNamespace(current=settings)),
        split,
        cast(Any, None),
        cast(DecisionLog, kept),
    )

    for looks, expected in ((1, 0), (1, 1), (1, 1), (1, 2)):
        for _ in range(looks):
            await splitter.look()
        assert len(calls) == expected
    assert set(calls) == {(OURS, (0x10000000, 0x10000001))}
    assert metrics.balance.splits._value.get() == 1
    assert [found.outcome.splits[0].bundle for found in kept.saved] == [OURS, OURS]
    for decision in kept.saved:
        assert replay(decision) == decision.outcome


def test_a_bundle_that_its_algorithm_cannot_split_is_halved() -> None:
    split = Split(OURS, "specified_positions_divide", "hot")
    assert _boundaries(split, [], Settings()) == (0x20000000,)
    topics = [TopicLoad(f"t{at}", at, Rates(20_000)) for at in (0x100, 0x200, 0x300)]
    flow = Split(OURS, "flow_or_qps_equally_divide", "hot")
    assert len(_boundaries(flow, topics, Settings())) == 2


def test_a_share_of_the_load_is_split_into_parts_of_a_share() -> None:
    """Several boundaries at once, by the load of topics."""
    split = Split(OURS, "flow_or_qps_equally_divide", "large", part_max=100)
    topics = [TopicLoad(f"t{at}", at, Rates(60)) for at in (0x100, 0x200, 0x300, 0x400)]
    assert _boundaries(split, topics, Settings()) == (0x181, 0x281, 0x381)
    wide = [TopicLoad(f"t{at}", at, Rates(0, 0, 60 * 4096)) for at in (0x100, 0x200)]
    assert _boundaries(split, wide, Settings()) == (0x181,)

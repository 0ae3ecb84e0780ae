"""What a broker measures and reports of its load."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.balance.load import (
    REPORT_BYTES_MAX,
    BundleLoad,
    History,
    LoadReport,
    Rates,
    TopicLoad,
)
from magnetar.balance.settings import Settings
from magnetar.broker.bundles.balancing.reports import FORMER_MAX
from magnetar.broker.bundles.balancing.sampling import WORK_PER_TURN_MAX
from magnetar.broker.bundles.load import LoadReporter, _encoded
from magnetar.broker.context import BrokerContext
from magnetar.errors import StoreUnavailable
from magnetar.metadata import keys
from magnetar.names import BundleName, TopicName
from magnetar.ownership.splits import children_of_split
from tests.support.broker_pair import pair
from tests.support.brokers import open_peer, running_broker
from tests.support.polling import until
from tests.support.sampled_load import NAME, OTHER, TOPICS, Stage


def test_rates_are_differences_of_counters() -> None:
    stage = Stage()
    busy = stage.serve(NAME, *TOPICS)
    stage.serve(OTHER)
    stage.sample()
    busy.publish(TOPICS[0], 500)
    busy.publish(TOPICS[1], 100)
    stage.machine.seconds += 5.0
    report = stage.sample(nic_gbps=8)
    assert report.rates == Rates(60.0, 0.0, 6000.0, 0.0)
    assert (report.cpu.percent, report.memory.percent) == (25.0, 25.0)
    assert report.bandwidth_in.limit == 1e9
    assert (report.bundles, report.topics, report.producers, report.consumers) == (2, 3, 6, 3)
    (load,) = report.top  # an idle bundle is not named
    assert load.name == NAME
    assert load.history.level.mean.rates == Rates(60.0, 0.0, 6000.0, 0.0)


def test_topics_are_measured_inside_hot_bundles_only() -> None:
    stage = Stage()
    hot, cold = stage.serve(NAME, *TOPICS), stage.serve(OTHER, *TOPICS)
    for _ in range(3):
        hot.publish(TOPICS[0], 900)
        hot.publish(TOPICS[1], 100)
        cold.publish(TOPICS[2], 10)
        report = stage.sample(top_max=1)
    (load,) = report.top
    assert [(topic.name, topic.rates.messages_in) for topic in load.hot] == [
        (TOPICS[0], 90.0),
        (TOPICS[1], 10.0),
    ]
    assert load.hot[0].position == TopicName.parse(TOPICS[0]).hash


def test_history_survives_a_move_and_a_crash() -> None:
    """The new owner continues where the last report of the former one ended, also if that owner
    is gone by now."""
    stage = Stage()
    history = History.steady(Rates(100.0, 0.0, 0.0, 0.0), 50)
    stage.view.put("gone.1", LoadReport("gone", 99_000, top=(BundleLoad(NAME, history),)))
    stage.view.put("gone.1", None)
    busy = stage.serve(NAME, *TOPICS)
    stage.sample()
    busy.publish(TOPICS[0], 900)
    (load,) = stage.sample().top
    assert load.history.long.samples == 51
    assert 95 < load.history.level.mean.rates.messages_in < 100


def test_parts_of_a_split_are_named_from_the_first_report_on() -> None:
    """With their share of what their parent had: no decision takes them for idle."""
    stage, name = Stage(), BundleName.parse(OTHER)
    for _ in range(4):
        stage.sample()
        if OTHER not in stage.served:
            stage.serve(OTHER, *TOPICS[:2])
        for topic in TOPICS[:2]:
            stage.served[OTHER].publish(topic, 1000)
    stage.sample()
    stage.metrics.end(stage.served.pop(OTHER).traffic)
    middle = TopicName.parse(TOPICS[0]).hash
    parts = children_of_split(name, (middle, middle + 1))
    for part in parts:
        stage.serve(str(part))
    report = stage.sample(seconds=0.01)
    rates = {load.name: load.history.level.mean.rates.messages_in for load in report.top}
    assert rates[str(parts[1])] == pytest.approx(100, rel=0.01)
    assert sum(rates.values()) == pytest.approx(200, rel=0.01)


def test_what_is_remembered_of_former_brokers_is_bounded() -> None:
    stage = Stage()
    for at in range(FORMER_MAX + 10):
        stage.view.put(f"b.{at}", LoadReport(f"b{at}", 99_000))
        stage.view.put(f"b.{at}", None)
    assert len(stage.reports.all()) == FORMER_MAX
    stage.clock.now += 7200
    assert stage.reports.all() == []


def test_a_bundle_that_comes_back_begins_again() -> None:
    """Counters of another term of the same bundle are other counters."""
    stage = Stage()
    stage.serve(NAME, *TOPICS).publish(TOPICS[0], 1000)
    stage.sample()
    stage.sample()
    stage.metrics.end(stage.served[NAME].traffic)
    assert stage.metrics.traffic().messages_in == 1000
    stage.serve(NAME, *TOPICS)
    stage.sample()
    assert stage.sample().rates == Rates()
    assert stage.metrics.traffic().messages_in == 1000


def test_a_report_counts_the_moves_that_its_broker_began() -> None:
    stage = Stage()
    assert (stage.sample().moves, stage.sample().moved_ms) == (0, 0)
    stage.moves.note(stage.clock.monotonic())
    began_ms = stage.clock.wall_ms()
    found = stage.sample(30.0)
    assert (found.moves, found.moved_ms) == (1, began_ms)
    assert LoadReport.read(found.encode()) == found


def test_reports_are_written_when_they_are_due() -> None:
    """The first one, then only what has changed; again once ours went with a lease."""
    stage, written = Stage(), list[LoadReport]()

    class Store:
        unavailable = False

        async def put(self, key: str, value: bytes, _lease: int) -> int:
            if self.unavailable:
                raise StoreUnavailable("away")
            assert key == keys.load("here.1")
            written.append(LoadReport.read(value))
            stage.view.put("here.1", written[-1])
            return 1

    store = Store()
    context = SimpleNamespace(store=store, incarnation="here.1")
    settings = SimpleNamespace(current=Settings())
    reporter = LoadReporter(
        cast(BrokerContext, context),
        cast(Any, SimpleNamespace(load=stage.view)),
        stage.sampler,
        cast(Any, settings),
        lambda: 7,
        cast(Any, None),
    )

    def publish(messages: float, at_ms: int) -> int:
        report = LoadReport("here", at_ms, rates=Rates(messages))
        asyncio.run(reporter._publish(report))
        return len(written)

    assert publish(100, 1000) == 1
    assert publish(105, 6000) == 1
    assert publish(150, 11_000) == 2
    store.unavailable = True
    assert publish(300, 16_000) == 2
    store.unavailable = False
    assert publish(300, 21_000) == 3
    stage.view.put("here.1", None)
    assert publish(300, 26_000) == 4


def test_a_report_that_is_too_large_names_fewer_bundles() -> None:
    """Names of topics are long, and the store takes no larger record."""
    hot = tuple(TopicLoad("x" * 4000, at, Rates()) for at in range(8))
    top = tuple(BundleLoad(f"t/n/{at}", History.steady(Rates(1)), hot=hot) for at in range(100))
    encoded = _encoded(LoadReport("b", 1, top=top))
    assert len(encoded) <= REPORT_BYTES_MAX
    assert [load.name for load in LoadReport.read(encoded).top[:2]] == ["t/n/0", "t/n/1"]


async def test_a_broker_reports_what_it_serves(tmp_path: Path) -> None:
    """Of real traffic: one record, by the names that the balancer reads."""

    async with running_broker(tmp_path, load_report_s=0.1) as broker, open_peer(broker) as peer:
        await peer.lookup()
        assert (await peer.produce()).producer_name is not None
        await until(lambda: broker.views.load.get(broker.incarnation) is not None)
        viewed = broker.views.load.get(broker.incarnation)
        assert viewed is not None
        assert viewed.record.broker == broker.context.broker
        assert viewed.record.memory.limit > viewed.record.memory.usage > 0


async def test_two_brokers_read_each_others_reports(tmp_path: Path) -> None:
    async with pair(tmp_path, load_report_s=0.1) as cluster:
        await until(
            lambda: (
                {report.broker for report in cluster.first.ownership.reports.all()}
                == {"first", "second"}
            )
        )


async def test_a_bundle_of_many_topics_is_sampled_in_turns() -> None:
    """Nobody waits for all of them. Naive: the loop pauses between bundles alone."""
    stage, turns = Stage(), 0
    stage.serve(NAME, *(f"persistent://public/default/many-{number}" for number in range(2000)))

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await stage.sampler.sample(Settings())
    beside.cancel()
    assert turns >= 2000 // WORK_PER_TURN_MAX

"""What a scrape says of single topics, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from magnetar.balance.load import LoadReport
from magnetar.broker.exposition.reading import WORK_PER_TURN_MAX, Scraped
from magnetar.broker.exposition.scrapes import SHEETS_MAX, Scrapes
from magnetar.broker.exposition.sheet import ABSENT, PIECE_LINES_MAX, Family, Sheet, labels_of
from magnetar.hosting import rates
from magnetar.names import TopicName
from magnetar.wire import requests
from tests.support.asserting import enable, holds, settles
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.deliveries import SHARED
from tests.support.rest import Rest, broker_with_rest

LAG = "magnetar_subscription_watermark_lag_seconds"
Samples = dict[tuple[str, ...], float]
NAME = str(TopicName.parse(TOPIC))
OTHER = "persistent://public/default/other"


@pytest.fixture(autouse=True)
def _rates_since_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, what was done in it is part of its rates."""
    monkeypatch.setattr(rates, "RATE_INTERVAL_S", 3600.0)


async def families(rest: Rest) -> list[Metric]:
    """The whole answer, which is valid, with one group of lines for each metric."""
    answer = await rest.ask("GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in found]
    assert len(names) == len(set(names))
    return found


async def scraped(rest: Rest, metric: str, *labels: str) -> Samples:
    """Values of a metric by some of its labels."""
    return {
        tuple(sample.labels.get(label, "") for label in labels): sample.value
        for family in await families(rest)
        for sample in family.samples
        if sample.name == metric
    }


def test_the_lag_of_each_subscription_with_a_watermark(tmp_path: Path) -> None:
    """By the clock; nothing where no watermark has been delivered."""

    async def main() -> None:
        async with broker_with_rest(tmp_path) as (broker, rest, peer):
            await enable(broker)
            await peer.produce(1, producer_name="p")
            await peer.subscribe(watermarks=True)
            await peer.subscribe(2, subscription="other")
            assert await scraped(rest, LAG) == {}
            event_ms = broker.context.clock.wall_ms() - 60_000
            await holds(peer, event_ms)
            await settles(peer, event_ms)
            found = await scraped(rest, LAG, "cluster", "namespace", "topic", "subscription")
            assert list(found) == [("standalone", "public/default", NAME, "s")]
            assert 60 <= next(iter(found.values())) < 120

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "unnamed"),
    [
        ({}, 0),
        ({"metrics_objects_max": 2}, 0),
        ({"metrics_objects_max": 1}, 1),
        ({"exposeTopicLevelMetricsInPrometheus": 0}, 1),
    ],
)
def test_topics_beyond_a_setting_are_not_named(
    tmp_path: Path, settings: Mapping[str, int], unnamed: int
) -> None:
    """A topic counts with its subscriptions: it is named with all of them, or not at all."""

    async def main() -> None:
        async with broker_with_rest(tmp_path, **settings) as (broker, rest, peer):
            await enable(broker)
            await peer.produce(1, producer_name="p")
            await peer.subscribe(watermarks=True)
            await holds(peer, 10)
            await settles(peer, 10)
            assert len(await scraped(rest, LAG, "topic")) == 1 - unnamed
            assert await scraped(rest, "magnetar_metrics_topics_unnamed") == {(): unnamed}

    asyncio.run(main())


def test_a_sheet_comes_in_pieces_and_escapes_names() -> None:
    """A subscription may be named anything; what has no value has no line."""
    sheet: Sheet[float] = Sheet((Family("a", "text", lambda value: value),))
    names = [f'{number}"\\\n' for number in range(3 * PIECE_LINES_MAX)]
    for number, name in enumerate(names):
        sheet.add(labels_of(subscription=name), ABSENT if number == 1 else number)
    pieces = list(sheet.pieces())
    assert len(pieces) == 3
    assert all(piece.count(b"\na") <= PIECE_LINES_MAX for piece in pieces)
    (family,) = text_string_to_metric_families(b"".join(pieces).decode())
    found = [(sample.labels["subscription"], sample.value) for sample in family.samples]
    assert found == [(name, number) for number, name in enumerate(names) if number != 1]


async def publish_and_take(peer: Peer) -> None:
    """Three messages of 100 bytes and more, of which the subscription was given two and
    acknowledged one; another topic has one message and no subscription."""
    await peer.produce(1, producer_name="p")
    await peer.subscribe(subType=SHARED)
    for number in range(3):
        await peer.send(bytes(100), number)
    peer.write(requests.flow(1, 2))
    taken = [(await peer.message())[0].message_id for _ in range(2)]
    peer.write(requests.ack(1, taken[:1], request_id=77))
    await peer.answer(Type.ACK_RESPONSE)
    await peer.lookup(OTHER)
    await peer.produce(2, topic=OTHER, producer_name="q")
    await peer.send(bytes(100), 0, producer_id=2)


async def settled(rest: Rest, metric: str, wanted: float) -> None:
    """Wait until the sum over all series of a metric is that."""
    async with asyncio.timeout(120):
        while sum((await scraped(rest, metric, "namespace", "topic")).values()) != wanted:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("named", [0, 1])
def test_what_pulsars_names_say_of_topics(tmp_path: Path, named: int) -> None:
    """With or without names of topics every sum is the same."""
    sums = {
        "pulsar_topics_count": 2, "pulsar_subscriptions_count": 1, "pulsar_producers_count": 2,
        "pulsar_consumers_count": 1, "pulsar_msg_backlog": 2, "pulsar_in_messages_total": 4,
        "pulsar_publish_rate_limit_times": 0, "pulsar_out_messages_total": 2, "pulsar_txn_tb_active_total": 0,
    }  # fmt: skip

    async def main() -> None:
        async with broker_with_rest(tmp_path, exposeTopicLevelMetricsInPrometheus=named) as (
            broker,
            rest,
            peer,
        ):
            await publish_and_take(peer)
            await settled(rest, "pulsar_in_messages_total", 4)
            for metric, wanted in sums.items():
                found = await scraped(rest, metric, "namespace", "topic")
                assert sum(found.values()) == wanted, metric
            for metric in ("pulsar_rate_in", "pulsar_throughput_out", "pulsar_storage_size"):
                assert sum((await scraped(rest, metric, "namespace", "topic")).values()) > 0, metric
            topics = {
                topic for _, topic in await scraped(rest, "pulsar_rate_in", "namespace", "topic")
            }
            assert topics == ({"", NAME, OTHER} if named else {""})
            assert await scraped(rest, "pulsar_broker_msg_backlog", "cluster") == {
                ("standalone",): 2
            }
            assert await scraped(rest, "pulsar_broker_topics_count") == {(): 2}
            assert await scraped(rest, "pulsar_lb_cpu_usage", "broker", "metric") == {
                (broker.context.broker, "loadBalancing"): 0
            }
            assert await scraped(rest, "pulsar_storage_write_latency_count") == {}

    asyncio.run(main())


def test_what_pulsars_names_say_of_a_subscription(tmp_path: Path) -> None:
    wanted = {
        "pulsar_subscription_back_log": 2, "pulsar_subscription_back_log_no_delayed": 2,
        "pulsar_subscription_delayed": 0, "pulsar_subscription_unacked_messages": 1,
        "pulsar_subscription_blocked_on_unacked_messages": 0,
        "pulsar_subscription_consumers_count": 1, "pulsar_subscription_total_msg_expired": 0,
    }  # fmt: skip

    async def main() -> None:
        async with broker_with_rest(tmp_path) as (broker, rest, peer):
            await publish_and_take(peer)
            await asyncio.sleep(0.05)
            for metric, value in wanted.items():
                assert await scraped(rest, metric, "topic", "subscription") == {
                    (NAME, "s"): value
                }, metric
            for metric in ("msg_rate_out", "msg_throughput_out"):
                (value,) = (await scraped(rest, f"pulsar_subscription_{metric}")).values()
                assert value > 0, metric
            for moment in ("consumed_flow", "consumed", "acked", "mark_delete_advanced"):
                metric = f"pulsar_subscription_last_{moment}_timestamp"
                (value,) = (await scraped(rest, metric)).values()
                assert abs(value - broker.context.clock.wall_ms()) < 60_000, metric
            (age_s,) = (await scraped(rest, "magnetar_subscription_backlog_age_seconds")).values()
            assert 0 < age_s < 60
            assert await scraped(rest, "pulsar_consumer_available_permits") == {}
            assert await scraped(rest, "pulsar_producer_msg_rate_in") == {}

    asyncio.run(main())


def test_consumers_producers_and_histograms_by_setting(tmp_path: Path) -> None:
    """They are named, or counted, only if the settings say so."""
    settings = dict.fromkeys(
        (
            "exposeConsumerLevelMetricsInPrometheus",
            "exposeProducerLevelMetricsInPrometheus",
            "metrics_publish_histograms",
        ),
        1,
    )

    async def main() -> None:
        async with broker_with_rest(tmp_path, **settings) as (_, rest, peer):
            await publish_and_take(peer)
            await settled(rest, "pulsar_in_messages_total", 4)
            found = await scraped(rest, "pulsar_consumer_unacked_messages", "topic", "consumer_id")
            assert found == {(NAME, "1"): 1}
            found = await scraped(
                rest, "pulsar_producer_msg_average_Size", "topic", "producer_name"
            )
            assert set(found) == {(NAME, "p"), (OTHER, "q")}
            assert all(100 < size < 200 for size in found.values())
            counts = await scraped(rest, "pulsar_storage_write_latency_count", "topic")
            assert counts == {(NAME,): 3, (OTHER,): 1}
            sizes = {
                family.name: {sample.labels["topic"]: sample.value for sample in family.samples}
                for family in await families(rest)
                if family.name.startswith("pulsar_entry_size_")
            }
            assert sizes["pulsar_entry_size_count"] == {NAME: 3, OTHER: 1}
            buckets = [
                sizes["pulsar_entry_size_le_128"][NAME],
                sizes["pulsar_entry_size_le_512"][NAME],
            ]
            assert sum(buckets) == 3
            assert sizes["pulsar_entry_size_sum"][NAME] > 300

    asyncio.run(main())


def test_a_reading_pauses_for_others(tmp_path: Path) -> None:
    """Between two turns of the loop no more than a few topics are read, however many there are."""

    async def main() -> None:
        async with broker_with_rest(tmp_path) as (broker, rest, peer):
            await peer.produce(1, producer_name="p")
            (owned,) = broker.ownership.owned.values()
            names = [name for name in map(named, range(4000)) if owned.name.contains(name)][:400]
            await asyncio.gather(*(broker.service.open_topic(name, create=True) for name in names))
            turns, reading = 0, asyncio.create_task(rest.ask("GET", "/metrics"))
            while not reading.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns > len(names) / WORK_PER_TURN_MAX
            assert (await reading).text.count("\npulsar_rate_in{") == len(names) + 2

    asyncio.run(main())


def named(number: int) -> TopicName:
    return TopicName.parse(f"persistent://public/default/topic-{number}")


def test_peers_that_do_not_read_hold_few_readings(tmp_path: Path) -> None:
    """What they were given is given to others as well, until they have gone."""

    async def main() -> None:
        async with broker_with_rest(tmp_path) as (broker, _, _peer):
            schemas = broker.service.schemas.statistics
            load = LoadReport("b", 0)
            scraped = Scraped(broker.context, broker.ownership.owned, load, schemas)
            scrapes = Scrapes()
            idle = []
            for _ in range(SHEETS_MAX + 3):
                pieces = scrapes.pieces(scraped)
                await anext(pieces)
                idle.append(pieces)
            assert scrapes.held == SHEETS_MAX
            for pieces in idle:
                await pieces.aclose()
            del pieces, idle
            assert scrapes.held == 0

    asyncio.run(main())

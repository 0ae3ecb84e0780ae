"""What a scrape says of single topics, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from magnetar.broker.exposition.sheet import ABSENT, PIECE_LINES_MAX, Family, Sheet, labels_of
from magnetar.names import TopicName
from tests.support.asserting import enable, holds, settles
from tests.support.brokers import TOPIC
from tests.support.rest import Rest, broker_with_rest

LAG = "magnetar_subscription_watermark_lag_seconds"
Samples = dict[tuple[str, ...], float]


async def scraped(rest: Rest, metric: str, *labels: str) -> Samples:
    """Values of a metric by some of its labels. The whole answer is valid, with one group of
    lines for each metric."""
    answer = await rest.ask("GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    return {
        tuple(sample.labels.get(label, "") for label in labels): sample.value
        for family in families
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
            topic = str(TopicName.parse(TOPIC))
            assert list(found) == [("standalone", "public/default", topic, "s")]
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
    sheet: Sheet[float] = Sheet((Family("a", "gauge", "text", lambda value: value),))
    names = [f'{number}"\\\n' for number in range(3 * PIECE_LINES_MAX)]
    for number, name in enumerate(names):
        sheet.add(labels_of(subscription=name), ABSENT if number == 1 else number)
    pieces = list(sheet.pieces())
    assert len(pieces) == 3
    assert all(piece.count(b"\na") <= PIECE_LINES_MAX for piece in pieces)
    (family,) = text_string_to_metric_families(b"".join(pieces).decode())
    found = [(sample.labels["subscription"], sample.value) for sample in family.samples]
    assert found == [(name, number) for number, name in enumerate(names) if number != 1]

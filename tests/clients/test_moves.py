"""Many topics on their way between three brokers while everybody publishes.

Bundles of one namespace are unloaded in waves of at most 50 topics; the asyncio client publishes to
all topics all the while, and quickly to those of the wave. Proved: each of their bundles is served
in a new term by the broker that was named; no message is lost, stored twice or out of order; and no
client that was sent its new broker looked anything up. Printed: how long the topics of a wave were
without a receipt.

Topics: MAGNETAR_MOVED_TOPICS (default 200; the campaign has 1000), in MAGNETAR_MOVED_BUNDLES
bundles (64).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from dev.testbed.cluster import PATIENCE_S, POLL_S, STILL, Cluster, request
from magnetar.client import EARLIEST, Client, Consumer, MessageId, Producer
from magnetar.names import TopicName, bundle_of, initial_boundaries
from tests.clients.load import check_order

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(900)]

TOPICS = int(os.environ.get("MAGNETAR_MOVED_TOPICS", "200"))
BUNDLES = int(os.environ.get("MAGNETAR_MOVED_BUNDLES", "64"))
WAVES_MAX = int(os.environ.get("MAGNETAR_MOVED_WAVES", "1000"))
WAVE_TOPICS_MAX = 50
NAMESPACE = "public/moves"
SETTLED_INTERVAL_S, WAVE_INTERVAL_S = 0.5, 0.02
BEFORE_S, AFTER_S = 0.2, 0.2
CONSUMED_EVERY = 10
"""One topic in so many has a consumer as well."""
LOOKUPS = re.compile(r"^magnetar_lookups_total (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers; nobody but the test moves anything."""
    with Cluster(tmp_path_factory.mktemp("moves"), environment=STILL) as running:
        yield running


class Term(NamedTuple):
    """Who serves a bundle, and since when."""

    owner: str
    epoch: int


@dataclass
class Traffic:
    """One topic, its producer, and what came of every message."""

    topic: str
    bundle: str
    producer: Producer
    consumer: Consumer | None
    interval_s: float = SETTLED_INTERVAL_S
    sent: int = 0
    receipts: list[tuple[float, MessageId]] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)

    async def publish(self, stopping: asyncio.Event) -> None:
        """Numbered messages at `interval_s`, each confirmed before the next; a shorter
        `interval_s` also cuts the current wait short."""
        while not stopping.is_set():
            identifier = await self.producer.send(f"{self.sent}".encode())
            self.sent += 1
            self.receipts.append((time.monotonic(), identifier))
            confirmed = time.monotonic()
            while (
                left := confirmed + self.interval_s - time.monotonic()
            ) > 0 and not stopping.is_set():
                await asyncio.sleep(min(left, BEFORE_S / 2))

    async def consume(self) -> None:
        assert self.consumer is not None
        while True:
            message = await self.consumer.receive()
            self.consumed.append(int(message.value or b""))
            self.consumer.acknowledge_nowait(message)

    def gap(self, since: float, until: float) -> float:
        """The longest time between two receipts that touches [since, until], in seconds."""
        times = [at for at, _ in self.receipts if at >= since - SETTLED_INTERVAL_S]
        return max(
            (
                after - before
                for before, after in itertools.pairwise(times)
                if after >= since and before <= until
            ),
            default=0.0,
        )

    def behind(self) -> bool:
        """Whether its consumer, if it has one, still misses messages."""
        return self.consumer is not None and len(set(self.consumed)) < self.sent

    def back(self, since: float) -> bool:
        return bool(self.receipts) and self.receipts[-1][0] > since


def _lookups(cluster: Cluster) -> float:
    """LOOKUP commands that the brokers have answered so far."""
    total = 0.0
    for broker in cluster.brokers.values():
        with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=60) as answer:
            found = LOOKUPS.search(answer.read().decode())
        assert found is not None, "the broker counts look-ups"
        total += float(found[1])
    return total


def _create_namespace(cluster: Cluster) -> None:
    url = cluster.brokers[cluster.entry].http_url
    for method, path, value in (
        ("PUT", f"/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}}),
        ("POST", f"/admin/v2/namespaces/{NAMESPACE}/deduplication", True),
        (
            "POST",
            f"/admin/v2/namespaces/{NAMESPACE}/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        ),
    ):
        asked = urllib.request.Request(
            f"{url}{path}",
            json.dumps(value).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.status == 204, path


async def _traffic(client: Client) -> list[Traffic]:
    """A producer per topic, a consumer on some."""
    names = [TopicName.parse(f"persistent://{NAMESPACE}/t-{number}") for number in range(TOPICS)]
    boundaries = initial_boundaries(BUNDLES)
    permits = asyncio.Semaphore(100)

    async def one(number: int, name: TopicName) -> Traffic:
        async with permits:
            producer = await client.create_producer(
                str(name), name=f"producer-{number}", send_timeout_s=None
            )
            consumer = (
                await client.subscribe(str(name), "s", initial_position="Earliest")
                if number % CONSUMED_EVERY == 0
                else None
            )
            return Traffic(
                str(name),
                str(bundle_of(name.namespace_name, boundaries, name.hash)),
                producer,
                consumer,
            )

    return list(await asyncio.gather(*(one(number, name) for number, name in enumerate(names))))


def _waves(traffic: list[Traffic]) -> list[dict[str, list[Traffic]]]:
    """Bundles, put together until they have `WAVE_TOPICS_MAX` topics."""
    by_bundle: dict[str, list[Traffic]] = {}
    for found in traffic:
        by_bundle.setdefault(found.bundle, []).append(found)
    waves: list[dict[str, list[Traffic]]] = [{}]
    for bundle, topics in by_bundle.items():
        if waves[-1] and sum(map(len, waves[-1].values())) + len(topics) > WAVE_TOPICS_MAX:
            waves.append({})
        waves[-1][bundle] = topics
    return waves


async def _move(cluster: Cluster, bundle: str, owner: str, destination: str) -> None:
    """Have one bundle transferred; nobody else moves anything (`STILL`), so nothing but success
    will do."""
    path = f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={destination}"
    answered = await asyncio.to_thread(
        request, "PUT", f"{cluster.brokers[owner].http_url}{path}", PATIENCE_S
    )
    assert answered == (204, None), (bundle, owner, destination, answered)


async def _terms(cluster: Cluster, bundles: Iterable[str]) -> dict[str, Term]:
    """Who serves each bundle in which term, as `entry` knows, once all of them are owned."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = await asyncio.to_thread(cluster.status, cluster.entry)
            assert status is not None, f"{cluster.entry} does not answer"
            rows = {row["bundle"]: row for row in status["bundles"]}
            if all(rows[bundle]["state"] == "Owned" for bundle in bundles):
                return {
                    bundle: Term(rows[bundle]["owner"].rpartition(".")[0], rows[bundle]["epoch"])
                    for bundle in bundles
                }
            await asyncio.sleep(POLL_S)


async def _wave(cluster: Cluster, bundles: dict[str, list[Traffic]]) -> list[float]:
    """Move these bundles at once, each to the next broker in turn, so that everybody keeps as
    many as before; the gap of each of their topics."""
    topics = [found for group in bundles.values() for found in group]
    names = list(cluster.brokers)
    before = await _terms(cluster, bundles)
    destinations = {
        bundle: names[(names.index(term.owner) + 1) % len(names)] for bundle, term in before.items()
    }
    for found in topics:
        found.interval_s = WAVE_INTERVAL_S
    await asyncio.sleep(BEFORE_S)
    started = time.monotonic()
    await asyncio.gather(
        *(_move(cluster, bundle, before[bundle].owner, destinations[bundle]) for bundle in bundles)
    )
    moved = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while not all(found.back(moved) for found in topics):
            await asyncio.sleep(0.01)
    await asyncio.sleep(AFTER_S)
    ended = time.monotonic()
    for found in topics:
        found.interval_s = SETTLED_INTERVAL_S
    after = await _terms(cluster, bundles)
    # not reported to `entry` yet
    while any(after[bundle].epoch == before[bundle].epoch for bundle in bundles):
        assert time.monotonic() < ended + PATIENCE_S, (before, after)
        await asyncio.sleep(POLL_S)
        after = await _terms(cluster, bundles)
    assert all(after[bundle].epoch > before[bundle].epoch for bundle in bundles), (before, after)
    assert {bundle: term.owner for bundle, term in after.items()} == destinations, (before, after)
    return [found.gap(started, ended) for found in topics]


async def _read(client: Client, found: Traffic) -> None:
    """Everything is there once, in order, under the id its receipt named."""
    reader = await client.create_reader(found.topic, EARLIEST, inclusive=True)
    stored = []
    while await reader.has_message_available():
        message = await reader.receive(PATIENCE_S)
        stored.append((message.id.position, int(message.value or b"")))
    await reader.close()
    positions = [position for position, _ in stored]
    assert positions == sorted(set(positions)), f"{found.topic}: ids do not increase"
    check_order(found.topic, [number for _, number in stored], duplicates_max=0)
    assert [identifier.position for _, identifier in found.receipts] == positions, (
        f"{found.topic}: not where the receipts say"
    )
    if found.consumer is not None:
        assert sorted(set(found.consumed)) == list(range(found.sent)), (
            f"{found.topic}: the consumer missed something"
        )


def _print(gaps: list[float], quiet: list[float], moved: int) -> None:
    gaps, quiet = sorted(gaps), sorted(quiet)
    for what, found in (
        (f"publish gap of {moved} moved topics", gaps),
        ("the same while nothing moves", quiet),
    ):
        p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
        print(
            f"  {what}: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, longest "
            f"{found[-1] * 1000:.0f} ms",
            flush=True,
        )


async def test_topics_are_moved_under_load_without_a_lookup(cluster: Cluster) -> None:
    """Every topic is moved once, in waves: nothing lost or doubled, order kept, no client that
    was transferred looks anything up."""
    _create_namespace(cluster)

    async with Client(cluster.service_url) as client:
        traffic = await _traffic(client)
        stopping = asyncio.Event()
        publishing = [asyncio.create_task(found.publish(stopping)) for found in traffic]
        consuming = [
            asyncio.create_task(found.consume()) for found in traffic if found.consumer is not None
        ]
        await asyncio.to_thread(cluster.wait_healthy)
        waves, gaps, quiet = _waves(traffic)[:WAVES_MAX], [], []
        before = await asyncio.to_thread(_lookups, cluster)
        for wave in waves:
            quiet += await _calm(wave)
            gaps += await _wave(cluster, wave)
        lookups = await asyncio.to_thread(_lookups, cluster) - before
        stopping.set()
        await asyncio.gather(*publishing)
        _print(gaps, quiet, len(gaps))
        async with asyncio.timeout(PATIENCE_S):
            while any(found.behind() for found in traffic):
                await asyncio.sleep(0.05)
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
        permits = asyncio.Semaphore(20)

        async def check(found: Traffic) -> None:
            async with permits:
                await _read(client, found)

        await asyncio.gather(*map(check, traffic))
        assert len(gaps) == len(
            {found.topic for wave in waves for group in wave.values() for found in group}
        )
        assert lookups == 0, f"{lookups:.0f} look-ups by clients whose broker was named to them"


async def _calm(bundles: dict[str, list[Traffic]]) -> list[float]:
    """The gaps of a wave's topics, published to as in a wave, while nothing moves: what this
    machine does by itself."""
    topics = [found for group in bundles.values() for found in group]
    for found in topics:
        found.interval_s = WAVE_INTERVAL_S
    await asyncio.sleep(BEFORE_S)
    started = time.monotonic()
    await asyncio.sleep(2 * AFTER_S)
    return [found.gap(started, time.monotonic()) for found in topics]

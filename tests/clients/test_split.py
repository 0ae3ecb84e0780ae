"""The official Python client while its bundles are split: twice under load, a child is unloaded,
and the owner of others is killed.

Three broker processes, a real etcd, one volume.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.testbed.cluster import Cluster, request, wait_for
from tests.clients.load import PENDING_MAX, Load
from tests.clients.splits import PATH, boundaries, bundle_with, split

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

TOPICS = 12
CLOSED = "Broker notification of Closed"
"""What the client logs when the broker sends it away."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for this file."""
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def wait_for_traffic(load: Load) -> None:
    """Until every topic has a receipt from now on."""
    now = time.monotonic()
    wait_for("a receipt on every topic", lambda: not load.silent(now))


def test_splits_under_load_lose_nothing(cluster: Cluster) -> None:
    """No send fails and no order breaks; a split sends nobody away; children move and are taken
    over like any bundle."""
    client_log = cluster.directory / "client.log"
    load = Load(cluster.service_url, [f"split-{number}" for number in range(TOPICS)], client_log)
    with load:
        wait_for_traffic(load)
        wait_for("bundles evenly spread", lambda: sorted(cluster.counts().values()) == [1, 1, 2])
        # At a broker of one bundle, so that the leader has no reason to even them out again.
        topic = next(
            found for found in load.topics if cluster.counts().get(cluster.owner(found)) == 1
        )
        before, closed = len(boundaries(cluster)), _closed(client_log)
        started = time.monotonic()
        whole = split(cluster, topic, "?splitAlgorithmName=range_equally_divide&unload=false")
        wait_for_traffic(load)
        assert _closed(client_log) == closed, "clients stay attached through a split"
        half = split(cluster, topic)
        wait_for_traffic(load)
        gap = load.gap(load.topics, started, time.monotonic())
        print(f"  publish gap around two splits: {gap * 1000:.0f} ms", flush=True)
        assert whole.includes(half)
        assert half != whole
        child = bundle_with(cluster, topic)
        assert half.includes(child)
        assert child != half
        assert len(boundaries(cluster)) == before + 2
        cluster.unload(topic)
        wait_for_traffic(load)
        split(cluster, topic, "?unload=true")
        wait_for_traffic(load)
        cluster.wait_healthy()
        victims = {cluster.owner(found) for found in load.topics} - {cluster.entry}
        victim = cluster.owner(topic) if cluster.owner(topic) in victims else sorted(victims)[0]
        killed = time.monotonic()
        cluster.brokers[victim].kill()
        wait_for("every topic writable after the kill", lambda: not load.silent(killed + 0.2))
        wait_for_traffic(load)
        cluster.brokers[victim].start()
        cluster.wait_healthy()
        url, names = (
            f"{cluster.brokers[victim].http_url}{PATH}/topics",
            {f"persistent://public/default/{t}" for t in load.topics},
        )
        wait_for(f"{victim} knows all topics", lambda: names <= set(request("GET", url)[1]))
    load.verify(duplicates_max=PENDING_MAX)


def _closed(client_log: Path) -> int:
    """How often a client was sent away so far."""
    return client_log.read_text(errors="replace").count(CLOSED)

"""The official Python client while its bundles are split: twice under load, a child is unloaded,
and the owner of others is killed.

Three broker processes, a real etcd, one volume.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.testbed.cluster import MOVED, UNAVAILABLE, Cluster, request, wait_for
from magnetar.names import BundleName, NamespaceName, TopicName, bundle_of
from tests.clients.load import PENDING_MAX, Load

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

NAMESPACE = NamespaceName("public", "default")
PATH = "/admin/v2/namespaces/public/default"
TOPICS = 12
GONE = 404
"""How a range is answered that is not a bundle."""
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


def boundaries(cluster: Cluster) -> list[int]:
    """As a broker tells them that has split nothing itself, perhaps."""
    status, body = request("GET", f"{cluster.brokers[cluster.entry].http_url}{PATH}/bundles")
    assert status == 200, (status, body)
    assert body["numBundles"] == len(body["boundaries"]) - 1
    return [int(boundary, 16) for boundary in body["boundaries"]]


def bundle_with(cluster: Cluster, topic: str) -> BundleName:
    return bundle_of(NAMESPACE, boundaries(cluster), TopicName.parse(topic).hash)


def split(cluster: Cluster, topic: str, query: str = "") -> BundleName:
    """Split the bundle of a topic at its owner; the bundle that was split."""
    bundle, count = bundle_with(cluster, topic), len(boundaries(cluster))
    accepted = {204, MOVED, UNAVAILABLE}

    def done() -> bool:
        owner = cluster.brokers[cluster.owner(topic)]
        status, body = request("PUT", f"{owner.http_url}{PATH}/{bundle.range}/split{query}")
        assert status in accepted, (status, body)
        if status == UNAVAILABLE:
            # it may have been carried out all the same: then there is no such bundle any more
            accepted.add(GONE)
        return status in (204, GONE)

    wait_for(f"{bundle} is split", done)
    wait_for(
        f"{cluster.entry} knows that {bundle} is split",
        lambda: len(boundaries(cluster)) == count + 1,
    )
    return bundle


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

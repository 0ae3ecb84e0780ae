"""Load balancing with real processes: three brokers and a skewed load from an official client."""

from __future__ import annotations

import time

import pytest

from dev.testbed.cluster import Cluster, request
from dev.testbed.skewed_load import SkewedLoad, messages_in

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(900)]

TOPICS, BUNDLES = 24, 16
MESSAGES_PER_S = 600
WINDOW_S = 5.0
EVEN = 1.2
"""Of the largest message rate to the mean."""
STEADY, STEADY_WITHIN_S = 4, 480.0
"""Even windows, one after the other, and when they must have been seen: a minute is promised; a
loaded machine may need longer."""


def _imbalance(cluster: Cluster) -> float:
    """The largest message rate over the mean, in one window."""
    before = messages_in(cluster)
    time.sleep(WINDOW_S)
    rates = [now - then for now, then in zip(messages_in(cluster), before, strict=True)]
    return max(rates) / (sum(rates) / len(rates)) if sum(rates) else float("inf")


def test_brokers_that_join_fill_up_and_the_load_becomes_even(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """All load is on one broker; the other two start, each gets its share and keeps it, although
    two topics have half of the load: their bundle is split. No message fails, is lost or comes out
    of order on the way."""
    with Cluster(tmp_path_factory.mktemp("balanced")) as cluster:
        entry = cluster.entry
        url = f"{cluster.brokers[entry].http_url}/admin/v2/namespaces/public/skewed"
        status, answer = request("PUT", url, body={"bundles": {"numBundles": BUNDLES}})
        assert status == 204, answer
        others = [name for name in cluster.brokers if name != entry]
        for name in others:
            cluster.brokers[name].stop()
        topics = [f"persistent://public/skewed/topic-{number}" for number in range(TOPICS)]
        load = SkewedLoad(cluster.brokers[entry].service_url, topics, MESSAGES_PER_S)
        with load.flowing():
            for name in others:
                cluster.brokers[name].start()
            even, windows = 0, list[float]()
            deadline = time.monotonic() + STEADY_WITHIN_S
            while even < STEADY and time.monotonic() < deadline:
                windows.append(_imbalance(cluster))
                even = even + 1 if windows[-1] <= EVEN else 0
        assert even == STEADY, [round(found, 2) for found in windows]
        assert (dict(load.failures), load.lost, load.reordered) == ({}, 0, 0)
        assert load.sent > 0

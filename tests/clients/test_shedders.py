"""Pulsar's shedders with real processes: each is selected by its name while brokers run, and takes
load from the broker that has all of it, for the reason that its text gives."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dev.testbed.cluster import Cluster, request, wait_for
from dev.testbed.skewed_load import SkewedLoad

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(600)]

NAMESPACE, TOPICS, BUNDLES, MESSAGES_PER_S = "public/shed", 16, 16, 400
QUICK = {
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerReportUpdateMinIntervalMillis": "1000",
    "loadBalancerSheddingIntervalMinutes": "0.02",
    "loadBalancerSheddingGracePeriodMinutes": "0",
    "loadBalancerHistoryResourcePercentage": "0.1",
    # A network interface that one broker fills: usage is what the shedders compare.
    "loadBalancerOverrideBrokerNicSpeedGbps": "0.0004",
    "loadBalancerBundleUnloadMinThroughputThreshold": "0",
    "minUnloadMessage": "1",
    "minUnloadMessageThroughput": "1",
    "loadBalancerAvgShedderHitCountHighThreshold": "1",
    "loadBalancerAvgShedderHitCountLowThreshold": "2",
    "loadBalancerSheddingConditionHitCountThreshold": "1",
    "loadBalanceSheddingDelayInSeconds": "0",
    "loadBalancerAutoBundleSplitEnabled": "false",
}
REASONS = {
    "OverloadShedder": r"usage \d+\.\d\d is at least 0\.85",
    "ThresholdShedder": r"usage \d+\.\d\d is above the mean \d+\.\d\d by 0\.10 or more",
    "UniformLoadShedder": r"(message rate|throughput) \d+ against \d+",
    "AvgShedder": r"\d+ points apart",
    "TransferShedder": r"standard deviation .* is above|is underloaded|is overloaded",
}


class Stage:
    """A cluster with a steady load."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._url = cluster.brokers[cluster.entry].http_url

    def ask(self, method: str, path: str, body: object = None) -> Any:
        status, answer = request(method, self._url + path, body=body)
        assert status < 300, answer
        return answer

    def set(self, name: str, value: str) -> None:
        self.ask("POST", f"/admin/v2/brokers/configuration/{name}/{value}")

    def gather(self) -> None:
        """All bundles to one broker."""
        others = [name for name in self.cluster.brokers if name != self.cluster.entry]
        for name in others:
            self.cluster.cordon(name, drain=True)
        wait_for(
            f"{self.cluster.entry} has all bundles",
            lambda: (
                (counts := self.cluster.counts()) != {} and not any(counts[name] for name in others)
            ),
        )
        for name in others:
            self.cluster.uncordon(name)

    def moves(self, since_ms: float) -> list[dict[str, Any]]:
        """What was decided since then."""
        decisions = self.ask("GET", "/magnetar/v1/balance/history?count=20")
        return [
            move
            for decision in decisions
            if decision["at_ms"] >= since_ms
            for move in decision["moves"]
        ]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three brokers; every message that was acknowledged arrives once and in order."""
    environment = {f"MAGNETAR_{name.upper()}": value for name, value in QUICK.items()}
    with Cluster(tmp_path_factory.mktemp("shed"), environment=environment) as cluster:
        stage = Stage(cluster)
        stage.ask("PUT", f"/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
        topics = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(TOPICS)]
        load = SkewedLoad(cluster.brokers[cluster.entry].service_url, topics, MESSAGES_PER_S)
        with load.flowing():
            yield stage
        assert (dict(load.failures), load.lost, load.reordered) == ({}, 0, 0)


@pytest.mark.parametrize("strategy", REASONS)
def test_a_shedder_takes_load_from_the_broker_that_has_all(stage: Stage, strategy: str) -> None:
    stage.set("loadBalancerSheddingEnabled", "false")
    stage.gather()
    # AvgShedder is both or neither: what places is named first
    if strategy != "AvgShedder":
        stage.set("loadBalancerLoadPlacementStrategy", "LeastLongTermMessageRate")
    stage.set("loadBalancerLoadSheddingStrategy", strategy)
    since_ms = 1000 * time.time()
    stage.set("loadBalancerSheddingEnabled", "true")
    wait_for(f"{strategy} has shed", lambda: stage.moves(since_ms) != [])
    moves = stage.moves(since_ms)
    given = [move for move in moves if move["source"] == stage.cluster.entry]
    assert given, moves
    assert re.search(REASONS[strategy], given[-1]["reason"]), given[-1]
    wait_for(
        f"{stage.cluster.entry} has given bundles",
        lambda: 0 < stage.cluster.counts().get(stage.cluster.entry, 0) < BUNDLES,
    )

"""Load balancing on a real node: a cluster of its own under skewed load becomes even, follows
another strategy without a restart, and fills brokers that join."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.conftest import Node, Traffic

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1800)]

TOPICS, BUNDLES = 20, 64
EVEN = 1.3
MANIFEST: dict[str, Any] = {
    "apiVersion": "magnetar.io/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "even"},
    "spec": {
        "replicas": 1,
        # Five fit on a node of two processors, beside the quickstart.
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "storage": {"volumeClaim": {"accessModes": ["ReadWriteMany"], "size": "1Gi"}},
        "loadBalancing": {"strategy": "Planner"},
    },
}


class Skewed(Traffic):
    """The first topics have several times the messages of the last ones; the hottest has about
    an eighth of all."""

    def pause_s(self, topic: str, /) -> float:
        return 0.05 * (4 + int(topic.rpartition("-")[2]))


class Even:
    """The cluster `even`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._node.get("brokercluster", "even").get("status", {})
        return found

    @property
    def balance(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status.get("balance", {})
        return found

    def is_even(self) -> bool:
        """By the status, and no broker is without bundles."""
        imbalance = float(self.balance.get("imbalance", "inf"))
        return imbalance <= EVEN and all(
            broker.get("bundles", 0) > 0 for broker in self.status.get("brokers", [{}])
        )

    def patch(self, **spec: Any) -> None:
        body = json.dumps({"spec": spec})
        self._node.run("patch", "brokercluster", "even", "--type=merge", "-p", body)

    def uids(self) -> dict[str, str]:
        labels = "magnetar.io/cluster=even,app.kubernetes.io/component=broker"
        pods = self._node.get("pods", "", "-l", labels)["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def scale(self, replicas: int) -> None:
        self.patch(replicas=replicas)
        self._node.wait(f"{replicas} brokers", lambda: self.status.get("readyReplicas") == replicas)


@pytest.fixture
def even(node: Node) -> Iterator[Even]:
    """Ready with one broker, and a namespace of many bundles."""
    node.run("apply", "-f", "-", given=json.dumps(MANIFEST))
    node.wait("Ready", lambda: node.condition("brokercluster", "even", "Ready") == "True")
    host = node.get("service", "even")["spec"]["clusterIP"]
    request = urllib.request.Request(
        f"http://{host}:8080/admin/v2/namespaces/public/skewed",
        data=json.dumps({"bundles": {"numBundles": BUNDLES}}).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=120).close()
    yield Even(node)
    node.run("delete", "brokercluster", "even", "--wait=true")
    node.run("delete", "pvc", "-l", "magnetar.io/cluster=even", "--wait=false")


def test_skewed_load_becomes_even_and_no_setting_restarts_a_broker(node: Node, even: Even) -> None:
    """One broker has all the load. Two join, and the status says that the load is even (a minute is
    promised; a loaded machine may need longer); another strategy changes no pod; two more join and
    fill. No send fails."""
    topics = [f"persistent://public/skewed/load-{number}" for number in range(TOPICS)]
    with Skewed(node.service_url("even"), topics) as traffic:
        node.wait("traffic flows", lambda: traffic.total() > 100)
        even.scale(3)
        took = {3: node.wait("even over three brokers", even.is_even)}
        shown = node.run("get", "brokerclusters", "even").splitlines()
        assert "BALANCE" in shown[0].split()

        before = even.uids()
        even.patch(loadBalancing={"strategy": "ThresholdShedder"})
        changed = time.monotonic()
        node.wait(
            "the strategy is in force",
            lambda: even.balance.get("strategy") == "ThresholdShedder",
        )
        even.patch(loadBalancing={"strategy": "Planner"})
        node.wait("and the former one again", lambda: even.balance.get("strategy") == "Planner")
        took_settings_s = time.monotonic() - changed

        even.scale(5)
        took[5] = node.wait("even over five brokers", even.is_even)
        after = even.uids()
        assert {name: after[name] for name in before} == before
        node.wait("moves are counted", lambda: even.balance.get("movesLastHour", 0) > 0)
        print(
            f"\neven after {took} s by brokers; two changes of the strategy took "
            f"{took_settings_s:.0f} s; longest pause of one topic "
            f"{traffic.longest_gap_s * 1000:.0f} ms"
        )
        assert traffic.failed == []
        traffic.verify()

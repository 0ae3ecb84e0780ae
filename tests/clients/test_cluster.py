"""The official Python client against a cluster that is hurt while it works: three broker processes,
a real etcd, one volume.

Every test publishes and consumes all the while; afterwards everything that was acknowledged is read
back and compared.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from dev.testbed.cluster import Cluster, wait_for
from tests.clients.load import PENDING_MAX, Load

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

TOPICS = 6
SETTLE_S = 0.5
MOVES = 20
ETCD_OUTAGE_S = 8.0


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for this file; starting one takes seconds."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """The cluster with all brokers running and healthy, whatever the test before did to it."""
    running_cluster.repair()
    return running_cluster


@pytest.fixture
def load(cluster: Cluster, request: pytest.FixtureRequest) -> Load:
    """Traffic on topics of this test alone, over all bundles."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    return Load(
        cluster.service_url,
        [f"{name}-{number}" for number in range(TOPICS)],
        cluster.directory / f"client-{name}.log",
    )


def _wait_for_traffic(load: Load) -> None:
    """Until every topic has a receipt from now on."""
    now = time.monotonic()
    wait_for("a receipt on every topic", lambda: not load.silent(now))


def _begin(cluster: Cluster, load: Load) -> None:
    """Until every topic has receipts, and no bundle of theirs is about to move."""
    _wait_for_traffic(load)
    cluster.wait_at_rest()


def _victim(cluster: Cluster, load: Load) -> str:
    """A broker that serves some of the traffic and is not the one in the service URL of clients."""
    owners = [owner for topic in load.topics if (owner := cluster.owner(topic)) != cluster.entry]
    return owners[0] if owners else cluster.unload(load.topics[0])


def _report(what: str, seconds: float) -> None:
    print(f"  {what}: {seconds:.2f} s", flush=True)


def test_a_killed_broker_loses_nothing_and_comes_back(cluster: Cluster, load: Load) -> None:
    """SIGKILL: every topic can be written again, nothing acknowledged is lost, the broker joins
    again."""
    with load:
        _begin(cluster, load)
        victim = _victim(cluster, load)
        killed = time.monotonic()
        cluster.brokers[victim].kill()
        wait_for("every topic writable after the kill", lambda: not load.silent(killed + 0.2))
        _wait_for_traffic(load)
        healed = time.monotonic()
        _report("publish gap around SIGKILL", load.gap(load.topics, killed, healed))
        cluster.brokers[victim].start()
        _report("healthy again after the restart", cluster.wait_healthy())
        wait_for("the broker takes bundles again", lambda: bool(cluster.owned_by(victim)))
        _wait_for_traffic(load)
    load.verify(duplicates_max=PENDING_MAX)


def test_planned_moves_under_load(cluster: Cluster, load: Load) -> None:
    """Unloads, half of them to a named broker: no send fails, nothing is stored twice. Printed:
    how long the pauses were."""
    gaps, arrived = [], 0
    with load:
        _begin(cluster, load)
        for number in range(MOVES):
            topic = load.topics[number % TOPICS]
            before = cluster.owner(topic)
            destination = (
                sorted(name for name in cluster.brokers if name != before)[number // 2 % 2]
                if number % 2
                else ""
            )
            started = time.monotonic()
            arrived += cluster.unload(topic, destination) == destination
            wait_for(
                f"{topic} writable after its move",
                lambda t=topic: t not in load.silent(time.monotonic() - 0.05),
            )  # type: ignore[misc]
            gaps.append(load.gap([topic], started, time.monotonic()))
    load.verify()
    assert arrived, "the leader balances bundles concurrently, but not all that were sent somewhere"
    gaps.sort()
    _report(f"publish gap around {MOVES} planned moves: median", gaps[len(gaps) // 2])
    _report("                                     longest", gaps[-1])


def test_a_cordon_with_drain_empties_a_broker_until_it_is_lifted(
    cluster: Cluster, load: Load
) -> None:
    """Scale-down's first half: bundles leave, sends do not fail; without the cordon the broker
    takes bundles again."""
    with load:
        _begin(cluster, load)
        victim = _victim(cluster, load)
        cordoned = time.monotonic()
        cluster.cordon(victim, drain=True)
        _report(
            "drained after",
            wait_for("the cordoned broker is empty", lambda: not cluster.owned_by(victim)),
        )
        _wait_for_traffic(load)
        _report("publish gap around the drain", load.gap(load.topics, cordoned, time.monotonic()))
        cluster.uncordon(victim)
        wait_for("the broker takes bundles again", lambda: bool(cluster.owned_by(victim)))
        _wait_for_traffic(load)
    load.verify()


def test_sigterm_drains_and_exits_cleanly(cluster: Cluster, load: Load) -> None:
    """A planned stop: exit 0, no failed send, nothing stored twice, and no claim is left behind
    for others to fence."""
    with load:
        _begin(cluster, load)
        victim = _victim(cluster, load)
        assert cluster.incarnation(victim)
        started = time.monotonic()
        assert cluster.brokers[victim].stop() == 0
        _report("SIGTERM to exit", time.monotonic() - started)
        _wait_for_traffic(load)
        _report("publish gap around SIGTERM", load.gap(load.topics, started, time.monotonic()))
        assert cluster.claims(victim) == []
    load.verify()


def test_brokers_serve_through_an_outage_of_etcd(cluster: Cluster, load: Load) -> None:
    """With the store gone for longer than the lease brokers go on under their claims; afterwards
    everything heals and moves work."""
    with load:
        _begin(cluster, load)
        incarnations = {name: cluster.incarnation(name) for name in cluster.brokers}
        stopped = time.monotonic()
        cluster.etcd.kill()
        now = stopped
        while now < stopped + ETCD_OUTAGE_S:
            now = time.monotonic()
            wait_for(
                "a receipt on every topic while etcd is unavailable",
                lambda at=now: not load.silent(at),
            )  # type: ignore[misc]
            time.sleep(SETTLE_S)
        _report(
            "publish gap while etcd is unavailable",
            load.gap(load.topics, stopped, time.monotonic()),
        )
        cluster.etcd.start()
        _report("healthy again after etcd's return", cluster.wait_healthy())
        _report("publish gap around the outage", load.gap(load.topics, stopped, time.monotonic()))
        assert {name: cluster.incarnation(name) for name in cluster.brokers} == incarnations, (
            "nobody had a reason to end"
        )
        cluster.unload(load.topics[0])
        _wait_for_traffic(load)
    load.verify()


def test_a_paused_broker_ends_its_incarnation(cluster: Cluster, load: Load) -> None:
    """SIGSTOP beyond the lease: its bundles are taken over; after SIGCONT the same process
    serves as a new incarnation, nothing is lost."""
    with load:
        _begin(cluster, load)
        victim = _victim(cluster, load)
        pid, before = cluster.brokers[victim].pid, cluster.incarnation(victim)
        paused = time.monotonic()
        cluster.brokers[victim].signal(signal.SIGSTOP)
        try:
            wait_for(
                "the bundles of the paused broker taken over", lambda: not cluster.owned_by(victim)
            )
        finally:
            cluster.brokers[victim].signal(signal.SIGCONT)
        resumed = time.monotonic()
        wait_for(
            "a new incarnation of the paused broker",
            lambda: bool(set(cluster.claims(victim)) - {before}),
        )
        _report("new incarnation after SIGCONT", time.monotonic() - resumed)
        cluster.wait_healthy()
        assert cluster.brokers[victim].running
        assert cluster.brokers[victim].pid == pid
        wait_for("every topic writable after the pause", lambda: not load.silent(resumed + 0.2))
        _report("publish gap around the pause", load.gap(load.topics, paused, time.monotonic()))
    load.verify(duplicates_max=PENDING_MAX)

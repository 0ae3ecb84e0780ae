"""The official Python client on a listener of its own.

The cluster's brokers are at one address of the loopback. A client that names the listener
`external` gets another one, where proxies pass everything on. So a proxy that is cut shows which
clients go through it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from dev.testbed.cluster import STILL, Cluster, request, wait_for
from tests.clients.conftest import QUIET

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

LISTENER = "external"
TOPIC = "listened"
SENDS = 20
RECEIVE_MS = 120_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with a way in from outside."""
    found = Cluster(tmp_path_factory.mktemp("cluster"), brokers=2, external=True, environment=STILL)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def client_of(url: str, listener: str | None, timeout_s: int = 120) -> pulsar.Client:
    return pulsar.Client(
        url, operation_timeout_seconds=timeout_s, listener_name=listener, logger=QUIET
    )


def test_a_client_outside_stays_outside_through_moves(cluster: Cluster) -> None:
    """Producer and consumer reach every owner through its front, also after it has changed, and
    nothing is lost on the way."""
    entry = cluster.brokers[cluster.entry]
    outside = client_of(entry.external_url, LISTENER)
    try:
        consumer = outside.subscribe(TOPIC, "s")
        producer = outside.create_producer(TOPIC)
        for round_number in range(3):
            for number in range(SENDS):
                producer.send(f"{round_number}-{number}".encode())
            wait_for(
                "its data goes through the owner's front",
                lambda: cluster.fronts[cluster.owner(TOPIC)][0].connections() >= 1,
            )
            cluster.unload(TOPIC)
        # Nothing is acknowledged: what the client had fetched before a move comes again behind it.
        received: dict[str, None] = {}
        while len(received) < 3 * SENDS:
            received.setdefault(consumer.receive(RECEIVE_MS).data().decode())
        assert list(received) == [
            f"{round_number}-{number}" for round_number in range(3) for number in range(SENDS)
        ]
    finally:
        outside.close()


def test_a_client_inside_never_comes_by_the_way_of_those_outside(cluster: Cluster) -> None:
    """Without a name it gets the brokers' own addresses, although both kinds come in by one
    port."""
    entry = cluster.brokers[cluster.entry]
    fronts = [front for pair in cluster.fronts.values() for front in pair]
    wait_for("nobody is outside any more", lambda: not any(front.connections() for front in fronts))
    inside = client_of(entry.service_url, None)
    try:
        producer = inside.create_producer(TOPIC)
        producer.send(b"inside")
        cluster.unload(TOPIC)
        producer.send(b"inside, elsewhere")
        assert not any(front.connections() for front in fronts)
    finally:
        inside.close()


def test_lookups_by_rest_and_an_unknown_listener(cluster: Cluster) -> None:
    """A client with an http:// service URL gets addresses of its listener, too; a name that
    nobody has is an error, not another's address."""
    name = cluster.owner(TOPIC)
    url = f"{cluster.brokers[cluster.entry].http_url}/lookup/v2/topic/persistent/public/default/{TOPIC}"
    status, body = request("GET", f"{url}?listenerName={LISTENER}")
    assert (status, body["brokerUrl"]) == (200, cluster.brokers[name].external_url)
    lost = client_of(cluster.brokers[cluster.entry].service_url, "nobodys", 2)
    try:
        with pytest.raises(pulsar.PulsarException):
            lost.create_producer(TOPIC)
    finally:
        lost.close()

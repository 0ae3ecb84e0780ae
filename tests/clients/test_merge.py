"""The official Python client while bundles are split and merged again, and after the server was
killed: nothing is lost, duplicated or reordered, and subscriptions keep their positions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import request, wait_for
from magnetar.names import BundleName, NamespaceName, TopicName, bundle_of
from tests.clients.load import PENDING_MAX, Load
from tests.clients.restarts import await_receivers, restart

pytestmark = pytest.mark.slow

NAMESPACE = NamespaceName("public", "default")
CLOSED = "Broker notification of Closed"
"""What the client logs when the broker sends it away."""
TOPICS, MESSAGES = 8, 20
RECEIVE_MS = 120_000


def rest(server: ServerProcess, method: str, path: str) -> Any:
    status, answer = request(method, server.http_url + path)
    assert status < 300, answer
    return answer


def bundle_with(server: ServerProcess, topic: str) -> BundleName:
    found = rest(server, "GET", f"/admin/v2/namespaces/{NAMESPACE}/bundles")
    boundaries = [int(boundary, 16) for boundary in found["boundaries"]]
    return bundle_of(NAMESPACE, boundaries, TopicName.parse(topic).hash)


def split(server: ServerProcess, bundle: BundleName) -> BundleName:
    """The left half."""
    rest(server, "PUT", f"/admin/v2/namespaces/{NAMESPACE}/{bundle.range}/split")
    return BundleName(NAMESPACE, bundle.low, bundle.low + (bundle.high - bundle.low) // 2)


def merge(server: ServerProcess, left: BundleName) -> str:
    path = f"/magnetar/v1/namespaces/{NAMESPACE}/{left.range}/merge"
    merged: str = rest(server, "PUT", path)["bundle"]
    return merged


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A standalone server whose log has an acknowledgement before what is published after it."""
    environment = {"MAGNETAR_ACK_WRITE_DELAY_S": "0"}
    with ServerProcess(tmp_path, environment=environment) as process:
        yield process


def settle(server: ServerProcess, client: pulsar.Client, topics: list[str], backlog: int) -> None:
    """Until acknowledgements, which the client sends in groups and has nobody confirm, have
    arrived and are durable: as is what was published after them."""

    def arrived(topic: str) -> bool:
        path = topic.replace("://", "/")
        found = rest(server, "GET", f"/admin/v2/{path}/stats")["subscriptions"]["kept"]
        return bool(found["msgBacklog"] == backlog)

    wait_for("acknowledgements have arrived", lambda: all(map(arrived, topics)))
    producer = client.create_producer("behind")
    for _ in range(2):  # the first one may be in the turn of the broker's loop that writes them
        producer.send(b"behind")
    producer.close()


def wait_for_traffic(load: Load) -> None:
    """Until every topic has a receipt from now on."""
    now = time.monotonic()
    while load.silent(now):
        assert time.monotonic() < now + 120, f"no receipt on {load.silent(now)}"
        time.sleep(0.02)


def test_merges_under_load_lose_nothing(server: ServerProcess, tmp_path: Path) -> None:
    """No client is sent away by a split or a merge; a merged bundle is recovered after a kill."""
    log = tmp_path / "client.log"
    load = Load(server.service_url, [f"merge-{number}" for number in range(TOPICS)], log)
    with load:
        wait_for_traffic(load)
        whole, started = bundle_with(server, load.topics[0]), time.monotonic()
        for _ in range(3):
            left = split(server, whole)
            wait_for_traffic(load)
            assert merge(server, left) == str(whole)
            wait_for_traffic(load)
        # Neighbours that were never one bundle, in terms of different age.
        pair = BundleName(NAMESPACE, 0, 0x40000000), BundleName(NAMESPACE, 0, 0x80000000)
        assert merge(server, pair[0]) == str(pair[1])
        wait_for_traffic(load)
        gap = load.gap(load.topics, started, time.monotonic())
        print(f"  publish gap around three splits and four merges: {gap * 1000:.0f} ms", flush=True)
        assert CLOSED not in log.read_text(errors="replace"), "clients stay attached"
        restart(server)
        wait_for_traffic(load)
        assert bundle_with(server, load.topics[0]) in (whole, pair[1])
    load.verify(duplicates_max=PENDING_MAX)


def test_subscriptions_keep_their_positions_through_a_merge(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """What was acknowledged before, between and behind a split and a merge is not delivered again,
    and the rest is, in order; also after a kill."""
    topics = [f"persistent://public/default/kept-{number}" for number in range(TOPICS)]
    producers = [client.create_producer(topic, batching_enabled=False) for topic in topics]
    consumers = [client.subscribe(topic, "kept") for topic in topics]
    published = taken = 0
    whole = bundle_with(server, topics[0])
    left = whole
    for step in ("before", "split", "merge", "kill"):
        if step == "split":
            left = split(server, whole)
        elif step == "merge":
            assert merge(server, left) == str(whole)
        elif step == "kill":
            restart(server)
        for number in range(published, published + MESSAGES):
            for producer in producers:
                producer.send(str(number).encode())
        published += MESSAGES
        if step == "kill":
            break
        for number in range(taken, taken + MESSAGES // 2):
            for consumer in consumers:
                message = consumer.receive(RECEIVE_MS)
                assert message.data() == str(number).encode()
                consumer.acknowledge(message)
        taken += MESSAGES // 2
        settle(server, client, topics, published - taken)
    for topic, consumer in zip(topics, consumers, strict=True):
        # it is back: else what it has asked for keeps the next one out
        await_receivers(server, topic.rpartition("/")[2], "kept", 1)
        consumer.close()
    for topic in topics:
        consumer = client.subscribe(topic, "kept")
        found = [int(consumer.receive(RECEIVE_MS).data()) for _ in range(taken, published)]
        assert found == list(range(taken, published))
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)

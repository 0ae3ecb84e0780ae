"""The official Python client and topics: patterns, partitions that grow, non-persistent ones,
lists; with restarts of the server in between."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess

pytestmark = pytest.mark.slow
RECEIVE_MS = 120_000
WAIT_S = 120.0
ADMIN = "/admin/v2"


def rest(server: ServerProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One request to the admin REST: status, and the JSON it answered."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(
        server.http_url + ADMIN + path,
        data=data,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            content = response.read()
            return int(response.status), json.loads(content) if content else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def topics(server: ServerProcess, query: str = "") -> list[str]:
    status, found = rest(server, "GET", f"/namespaces/public/default/topics{query}")
    assert status == 200, found
    assert isinstance(found, list)
    return found


def until(holds: Callable[[], bool]) -> None:
    """Look until it holds: for what a client notices by polling."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def pattern_consumer(client: pulsar.Client) -> pulsar.Consumer:
    """This client looks for new topics once a minute, whatever its settings; a fresh consumer
    looks at once."""
    return client.subscribe(
        re.compile("persistent://public/default/reg-.*"),
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )


def received(consumer: pulsar.Consumer, expected: set[bytes]) -> None:
    """Receive and acknowledge until everything expected has come."""
    missing = set(expected)
    while missing:
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        assert message.data() != b"never", "its topic does not match"
        missing.discard(message.data())


def test_a_pattern_consumer_finds_topics_before_and_after_a_restart(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Topics that match get consumed, plain and partitioned, those of before a restart and those
    made after it; others do not."""
    first = client.create_producer("reg-1")
    client.create_producer("other").send(b"never")
    client.create_producer("reg-2").send(b"two")
    assert rest(server, "PUT", "/persistent/public/default/reg-p/partitions", 2)[0] == 204
    client.create_producer("reg-p").send(b"three")
    consumer = pattern_consumer(client)
    first.send(b"one")
    received(consumer, {b"one", b"two", b"three"})
    server.kill()
    server.start()
    first.send(b"four")
    received(consumer, {b"four"})
    consumer.close()
    client.create_producer("reg-3").send(b"five")
    received(pattern_consumer(client), {b"five"})


def test_lists_over_rest_survive_restarts(server: ServerProcess, client: pulsar.Client) -> None:
    """Plain topics, partitions nobody has used, non-persistent ones by mode, and no system
    topics."""
    client.create_producer("plain")
    client.create_producer("non-persistent://public/default/volatile")
    assert rest(server, "PUT", "/persistent/public/default/parts/partitions", 3)[0] == 204
    persistent = [
        f"persistent://public/default/{name}"
        for name in ("parts-partition-0", "parts-partition-1", "parts-partition-2", "plain")
    ]
    volatile = "non-persistent://public/default/volatile"
    assert topics(server) == topics(server, "?mode=PERSISTENT") == persistent
    assert topics(server, "?mode=NON_PERSISTENT") == [volatile]
    assert topics(server, "?mode=ALL") == [volatile, *persistent]
    assert rest(server, "GET", "/persistent/public/default") == (200, persistent)
    assert rest(server, "GET", "/persistent/public/default/partitioned") == (
        200,
        ["persistent://public/default/parts"],
    )
    server.kill()
    server.start()
    assert topics(server) == persistent


def test_partitions_are_created_grow_and_go(server: ServerProcess, client: pulsar.Client) -> None:
    """N partitions as asked, more of them without losing what reaches a new one early, and their
    end; statuses as admin clients expect."""
    path = "/persistent/public/default/many/partitions"
    assert rest(server, "PUT", path, 0)[0] == 406
    assert rest(server, "PUT", path, 2)[0] == 204
    assert rest(server, "PUT", path, 2)[0] == 409
    assert client.get_topic_partitions("many") == [
        f"persistent://public/default/many-partition-{index}" for index in range(2)
    ]
    consumer = client.subscribe("many", "s")
    consumer.close()
    assert rest(server, "POST", path, 4)[0] == 204
    assert rest(server, "POST", path, 3)[0] >= 400
    assert rest(server, "GET", path)[1]["partitions"] == 4
    assert len(client.get_topic_partitions("many")) == 4
    producer = client.create_producer(
        "many", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for number in range(40):
        producer.send(str(number).encode())
    server.kill()
    server.start()
    assert len(client.get_topic_partitions("many")) == 4
    consumer = client.subscribe("many", "s")
    received, used = set(), set()
    for _ in range(40):
        message = consumer.receive(RECEIVE_MS)
        received.add(int(message.data()))
        used.add(message.message_id().partition())
    assert (received, used) == (set(range(40)), {0, 1, 2, 3}), (
        "a grown partition keeps what came before its consumer"
    )
    assert rest(server, "DELETE", path)[0] == 412, "a consumer is attached"
    consumer.close()
    producer.close()
    assert rest(server, "DELETE", path + "?force=true")[0] == 204
    assert rest(server, "DELETE", path)[0] == 404
    assert topics(server) == []


def test_topics_are_created_as_the_namespaces_policy_says(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Partitioned with the default number, or not at all; a restart changes nothing."""
    policy = "/namespaces/public/default/autoTopicCreation"
    made = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    assert rest(server, "POST", policy, made)[0] == 204
    client.create_producer("auto").send(b"x")
    assert len(client.get_topic_partitions("auto")) == 3
    assert rest(server, "POST", policy, {"allowAutoTopicCreation": False})[0] == 204
    server.kill()
    server.start()
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("forbidden")
    assert "persistent://public/default/forbidden" not in topics(server)
    client.create_producer("auto").send(b"what exists can be used")


def test_non_persistent_topics(server: ServerProcess, client: pulsar.Client) -> None:
    """Messages reach who listens, plain and partitioned, each consumer of a Shared subscription
    some; after a restart both sides are back."""
    topic = "non-persistent://public/default/volatile"
    producer = client.create_producer(topic)
    producer.send(b"nobody listens")
    consumers = [
        client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared)
        for _ in range(2)
    ]
    exclusive = client.subscribe(topic, "exclusive")
    for number in range(20):
        producer.send(str(number).encode())
    assert [int(exclusive.receive(RECEIVE_MS).data()) for _ in range(20)] == list(range(20))
    shares = []
    for consumer in consumers:
        share = [int(consumer.receive(RECEIVE_MS).data()) for _ in range(10)]
        shares.append(share)
    assert sorted(shares[0] + shares[1]) == list(range(20))
    server.kill()
    server.start()

    def delivered() -> bool:
        producer.send(b"again")
        try:
            return bool(exclusive.receive(500).data() == b"again")
        except pulsar.Timeout:
            return False

    until(delivered)
    assert rest(server, "PUT", "/non-persistent/public/default/vp/partitions", 2)[0] == 204
    partitioned = client.subscribe("non-persistent://public/default/vp", "s")
    publisher = client.create_producer(
        "non-persistent://public/default/vp",
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    for number in range(10):
        publisher.send(str(number).encode())
    assert {int(partitioned.receive(RECEIVE_MS).data()) for _ in range(10)} == set(range(10))

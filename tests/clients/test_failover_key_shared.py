"""Failover and Key_Shared with the official Python client against a standalone server, with restarts in between."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence

import pulsar
import pytest

from dev.server_process import ServerProcess

pytestmark = pytest.mark.slow
RECEIVE_MS = 15_000
SHORT_MS = 300
FAILOVER = pulsar.ConsumerType.Failover


def receive_any(consumers: Sequence[pulsar.Consumer], deadline_ms: int = RECEIVE_MS) -> tuple[int, pulsar.Message]:
    """The next message of any of the consumers, with the index of the one that got it."""
    for _ in range(max(1, deadline_ms // 50 // len(consumers))):
        for index, consumer in enumerate(consumers):
            try:
                return index, consumer.receive(50)
            except pulsar.Timeout:
                continue
    raise AssertionError(f"no message within {deadline_ms} ms")


def nothing_comes(consumers: Sequence[pulsar.Consumer]) -> bool:
    """Whether none of the consumers gets anything for a moment."""
    try:
        receive_any(consumers, SHORT_MS)
    except AssertionError:
        return True
    return False


def test_failover_goes_to_one_and_then_to_the_next(server: ServerProcess, client: pulsar.Client) -> None:
    """One of three gets everything in order; when it leaves another begins at what was not acknowledged; a restart changes nothing."""
    topic = "failover"
    names = ("a", "b", "c")
    consumers = {name: client.subscribe(topic, "s", consumer_type=FAILOVER, consumer_name=name) for name in names}
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(str(number).encode())
    order = list(consumers)
    first, message = receive_any([consumers[name] for name in order])
    served = consumers.pop(order[first])
    received = [message, *(served.receive(RECEIVE_MS) for _ in range(19))]
    assert [message.data() for message in received] == [str(number).encode() for number in range(20)]
    assert nothing_comes(list(consumers.values()))
    served.acknowledge_cumulative(received[9])
    served.close()
    order = list(consumers)
    second, message = receive_any([consumers[name] for name in order])
    served = consumers.pop(order[second])
    received = [message, *(served.receive(RECEIVE_MS) for _ in range(9))]
    assert [message.data() for message in received] == [str(number).encode() for number in range(10, 20)]
    served.acknowledge_cumulative(received[4])
    served.close()
    server.stop()
    server.start()
    (last,) = consumers.values()
    assert [last.receive(RECEIVE_MS).data() for _ in range(5)] == [str(number).encode() for number in range(15, 20)]


def test_failover_spreads_partitions_over_consumers(server: ServerProcess, client: pulsar.Client) -> None:
    """Each of two consumers is active for two of four partitions; every message arrives once."""
    url = f"{server.http_url}/admin/v2/persistent/public/default/spread/partitions"
    request = urllib.request.Request(url, data=b"4", method="PUT", headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        assert response.status == 204
    consumers = [
        client.subscribe("spread", "s", consumer_type=FAILOVER, consumer_name=name, receiver_queue_size=1000) for name in ("a", "b")
    ]
    # Only now are both there: an earlier start would move partitions from one to the other, with repetitions.
    producer = client.create_producer("spread", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    partitions: dict[int, set[int]] = {0: set(), 1: set()}
    numbers: set[bytes] = set()
    for number in range(40):
        producer.send(str(number).encode(), partition_key=str(number))
    while len(numbers) < 40:
        index, message = receive_any(consumers)
        consumers[index].acknowledge(message)
        partitions[index].add(message.message_id().partition())
        numbers.add(message.data())
    assert partitions == {0: {0, 2}, 1: {1, 3}}

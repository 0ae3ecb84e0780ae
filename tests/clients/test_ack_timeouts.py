"""The official clients with several topics and an acknowledgement timeout: everything
unacknowledged comes again.

The clients (C++, and so Python, and Java) keep track of what they have delivered by ledger and
entry alone, in one table for all topics of a consumer: it is right because no two topics share an
id. (The Go client has no acknowledgement timeout.)
"""

from __future__ import annotations

import re
import time
from zlib import crc32

import pulsar
import pytest

from dev.testbed.foreign import Client
from dev.testbed.foreign_messages import Received

pytestmark = pytest.mark.slow
TOPICS, PER_TOPIC = 8, 3
"""Topics of a namespace with four bundles: some are of one bundle."""
TIMEOUT_MS = 10_000
"""The shortest that the Python client takes."""
AGAIN_S = 120.0
HOW = ["topics", "pattern"]


def names_of(topic: str) -> list[str]:
    return [f"persistent://public/default/{topic}-{number}" for number in range(TOPICS)]


@pytest.fixture
def topic(topic: str) -> str:
    """As everywhere, but shorter: patterns have at most 50 characters."""
    return f"t{crc32(topic.encode()):08x}"


def payloads(number: int) -> set[bytes]:
    return {f"{number}-{sequence}".encode() for sequence in range(PER_TOPIC)}


ALL = {value for number in range(TOPICS) for value in payloads(number)}
LEFT = {value for number in range(0, TOPICS, 2) for value in payloads(number)}
"""What is not acknowledged at first: that of every second topic."""


@pytest.mark.parametrize("how", HOW)
def test_what_the_python_client_leaves_unacknowledged_comes_again(
    client: pulsar.Client, topic: str, how: str
) -> None:
    """With named topics and with a pattern: acknowledging the messages of one topic takes none
    of another off the client's table."""
    topics = names_of(topic)
    for number, name in enumerate(topics):
        producer = client.create_producer(name)
        for value in sorted(payloads(number)):
            producer.send(value)
    consumer = client.subscribe(
        topics if how == "topics" else re.compile(f"persistent://public/default/{topic}-.*"),
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        unacked_messages_timeout_ms=TIMEOUT_MS,
    )
    got = [consumer.receive(60_000) for _ in ALL]
    assert {message.data() for message in got} == ALL
    for message in got:
        if message.data() not in LEFT:
            consumer.acknowledge(message)
    missing, deadline = set(LEFT), time.monotonic() + AGAIN_S
    while missing and time.monotonic() < deadline:
        try:
            message = consumer.receive(1000)
        except pulsar.Timeout:
            continue
        assert message.data() in LEFT, "it was acknowledged"
        consumer.acknowledge(message)
        missing.discard(message.data())
    assert not missing, f"never delivered again: {sorted(missing)}"


@pytest.mark.java
@pytest.mark.parametrize("driver", ["java"], indirect=True)
@pytest.mark.parametrize("how", HOW)
def test_what_the_java_client_leaves_unacknowledged_comes_again(
    foreign: Client, topic: str, how: str
) -> None:
    """As above."""
    topics = names_of(topic)
    for number, name in enumerate(topics):
        foreign.producer(name).send_all(sorted(payloads(number)))
    where = (
        {"topics": topics}
        if how == "topics"
        else {"pattern": f"persistent://public/default/{topic}-.*"}
    )
    consumer = foreign.consumer(
        None, "s", type="Shared", position="Earliest", ack_timeout_ms=TIMEOUT_MS, **where
    )
    got = consumer.receive(len(ALL))
    assert {message.value for message in got} == ALL
    consumer.ack(*(message for message in got if message.value not in LEFT))
    again: list[Received] = []
    deadline = time.monotonic() + AGAIN_S
    while {message.value for message in again} != LEFT and time.monotonic() < deadline:
        again += consumer.receive_up_to(len(LEFT), ack=True, timeout_s=1.0)
        assert {message.value for message in again} <= LEFT, "it was acknowledged"
    assert {message.value for message in again} == LEFT

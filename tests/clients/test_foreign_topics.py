"""The official Java and Go clients: kinds of topics and their life, each with a restart of the
server in between."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from dev.testbed.foreign import Client, Driver, ForeignError, schema_of_tables
from dev.testbed.rest import Admin
from tests.clients.restarts import before_and_after, restart

pytestmark = [pytest.mark.slow, pytest.mark.java]
NUMBERS = [str(number).encode() for number in range(20)]


def test_partitioned_topic(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Keys stay together and in order over the partitions, by producers before and after a
    restart."""
    admin.topic("PUT", topic, "partitions", 3)
    assert len(foreign.partitions(topic)) == 3
    for round_, _ in enumerate(before_and_after(shared_server)):
        producer = foreign.producer(topic)
        for number in range(30):
            producer.send(f"{round_}{number:02}".encode(), key=f"key-{number % 5}")
        producer.close()
    partitions: dict[str | None, set[int]] = defaultdict(set)
    order: dict[str | None, list[int]] = defaultdict(list)
    for message in foreign.consumer(topic, "s", position="Earliest").receive(60, ack=True):
        partitions[message.key].add(message.id.partition)
        order[message.key].append(int(message.value))
    assert {len(found) for found in partitions.values()} == {1}
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_partitions_grow_under_clients(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Producer and consumer find new partitions by themselves, before and after a restart, and
    miss nothing in them."""
    admin.topic("PUT", topic, "partitions", 1)
    consumer = foreign.consumer(topic, "s", partitions_poll_s=1)
    producer = foreign.producer(topic, partitions_poll_s=1)
    producer.send(b"one")
    assert consumer.values(1) == [b"one"]
    for count in (2, 4):
        admin.topic("POST", topic, "partitions", count)
        deadline, seen, sent, got = time.monotonic() + 120, set[int](), set[bytes](), set[bytes]()
        while seen != set(range(count)):
            assert time.monotonic() < deadline, f"only partitions {seen} of {count}"
            value = f"{count}-{len(sent)}".encode()
            producer.send(value)
            sent.add(value)
            for message in consumer.receive_up_to(1, ack=True, timeout_s=0.2):
                seen.add(message.id.partition)
                got.add(message.value)
        while got < sent:
            got |= set(consumer.values(1))
        assert got == sent
        restart(shared_server)
    assert len(foreign.partitions(topic)) == 4


def test_non_persistent_topics(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """Messages reach who is there and nobody else, whatever the subscription's type; after a
    restart the same clients go on."""
    names = {
        kind: f"non-persistent://public/default/{topic}-{kind}"
        for kind in ("Exclusive", "Shared", "Failover", "Key_Shared")
    }
    consumers = {kind: foreign.consumer(name, "s", type=kind) for kind, name in names.items()}
    producers = {kind: foreign.producer(name) for kind, name in names.items()}
    for kind, producer in producers.items():
        producer.send_all(NUMBERS)
        assert sorted(consumers[kind].values(20)) == sorted(NUMBERS)
    restart(shared_server)
    deadline = time.monotonic() + 120
    for kind, producer in producers.items():
        got: list[bytes] = []
        while b"again" not in got:
            assert time.monotonic() < deadline
            producer.send(b"again")  # lost while nobody has subscribed
            got += [
                message.value
                for message in consumers[kind].receive_up_to(1, ack=True, timeout_s=0.2)
            ]
        consumers[kind].close()
        producer.send(b"lost")
        foreign.consumer(names[kind], "s", type=kind, position="Earliest").expect_nothing()


def test_pattern_finds_topics(
    shared_server: ServerProcess, foreign: Client, admin: Admin, driver: Driver
) -> None:
    """Topics that exist, that come later and that come after a restart are found; others are
    not."""
    namespace = admin.create_namespace(f"p-{driver.language}")
    base = f"persistent://{namespace}"
    foreign.producer(f"{base}/yes-1").send(b"early")
    foreign.producer(f"{base}/no-1").send(b"never")
    # the Java client is notified by its watcher; the Go client looks
    poll = 3600 if driver.language == "java" else 1
    consumer = foreign.consumer(
        None, "s", pattern=f"{base}/yes-.*", pattern_poll_s=poll, position="Earliest"
    )
    assert consumer.values(1) == [b"early"]
    foreign.producer(f"{base}/yes-2").send(b"later")
    assert consumer.values(1) == [b"later"]
    restart(shared_server)
    foreign.producer(f"{base}/no-2").send(b"never")
    foreign.producer(f"{base}/yes-3").send(b"after the restart")
    assert consumer.values(1) == [b"after the restart"]
    consumer.expect_nothing()


def test_terminated_topic(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str, driver: Driver
) -> None:
    """After termination nothing can be published, for old and new producers, also after a
    restart; what is there is read to its end."""
    consumer = foreign.consumer(topic, "s")
    producer = foreign.producer(topic)
    sent = producer.send_all(NUMBERS)
    last = admin.topic("POST", topic, "terminate")
    assert (last["ledgerId"], last["entryId"]) == (sent[-1].ledger, sent[-1].entry)
    with pytest.raises(ForeignError):
        producer.send(b"too late")
    restart(shared_server)
    with pytest.raises(ForeignError, match=r"(?i)terminated"):
        foreign.producer(topic)
    assert consumer.distinct_values(20) == NUMBERS
    consumer.expect_nothing()
    if driver.language == "java":
        consumer.await_end()


def test_table_view(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A table view has the latest value of every key, follows new ones, and does so after a
    restart."""
    producer = foreign.producer(topic, schema=schema_of_tables(foreign))
    for number in range(10):
        producer.send(str(number).encode(), key=f"key-{number % 3}")
    # the Java client reads what is there only for a full name
    name = f"persistent://public/default/{topic}"
    table = foreign.table(name)
    assert table.entries() == {"key-0": b"9", "key-1": b"7", "key-2": b"8"}
    restart(shared_server)
    producer.send(b"new", key="key-1")
    assert table.await_entry("key-1", b"new") == {"key-0": b"9", "key-1": b"new", "key-2": b"8"}
    assert foreign.table(name).entries() == table.entries()


def test_topics_are_not_made_where_that_is_forbidden(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Without automatic creation an unknown topic is refused as not found; a partitioned one
    made over REST is there."""
    policy = {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}
    namespace = admin.create_namespace(topic, autoTopicCreationOverride=policy)
    for _ in before_and_after(shared_server):
        with pytest.raises(ForeignError, match=r"TopicNotFound|TopicDoesNotExist|NotFound"):
            foreign.producer(f"persistent://{namespace}/unknown")
    admin.topic("PUT", f"persistent://{namespace}/known", "partitions", 2)
    foreign.producer(f"persistent://{namespace}/known").send(b"one")


def test_expired_messages_are_gone(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Messages older than the namespace's time to live are taken from the subscription; younger
    ones stay, over a restart."""
    namespace = admin.create_namespace(topic, message_ttl_in_seconds=1)
    name = f"persistent://{namespace}/short"
    foreign.consumer(name, "s").close()
    producer = foreign.producer(name)
    producer.send_all(NUMBERS)
    deadline = time.monotonic() + 120
    while admin.topic("GET", name, "stats")["subscriptions"]["s"]["msgBacklog"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    admin.call("POST", f"namespaces/{namespace}/messageTTL", 600)
    shared_server.stop()
    shared_server.start()
    producer.send(b"young")
    assert foreign.consumer(name, "s").values(1) == [b"young"]


def _refusal(client: Client, topic: str) -> str:
    """Why a new producer is refused; empty if it is not."""
    try:
        client.producer(topic).close()
    except ForeignError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("policy", ["producer_exception", "producer_request_hold"])
def test_backlog_quota_stops_producers(
    shared_server: ServerProcess,
    driver: Driver,
    foreign: Client,
    admin: Admin,
    topic: str,
    policy: str,
) -> None:
    """A producer of a topic beyond its quota is refused, also after a restart, and welcome again
    when the backlog is consumed."""
    quota = {"limitSize": 10_000, "limitTime": -1, "policy": policy}
    namespace = admin.create_namespace(topic)
    name = f"persistent://{namespace}/full"
    foreign.consumer(name, "s").close()
    foreign.producer(name).send_all([b"x" * 2000] * 10)
    admin.call("POST", f"namespaces/{namespace}/backlogQuota", quota)
    # the Java client tries again and again
    impatient = driver.client(shared_server.service_url, operation_timeout_ms=1000)
    for _ in before_and_after(shared_server):
        wait_for("a producer is refused", lambda: "Quota" in _refusal(impatient, name))
    impatient.close()
    consumer = foreign.consumer(name, "s")
    assert len(consumer.values(10)) == 10
    wait_for("producers are welcome again", lambda: not _refusal(foreign, name))
    foreign.producer(name).send(b"fits")
    assert consumer.values(1) == [b"fits"]

"""The official Java and Go clients: what subscriptions can do, each with a restart of the server
in between."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict

import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from dev.testbed.foreign import QUIET_S, Client, Consumer, ForeignError, Producer, ids
from dev.testbed.foreign_messages import Id, Received
from dev.testbed.rest import Admin
from magnetar.hashes import murmur3
from tests.clients.restarts import await_consumers, before_and_after, restart

pytestmark = [pytest.mark.slow, pytest.mark.java]
NUMBERS = [str(number).encode() for number in range(20)]
TICK_MS = 1000
"""How much too early a delayed message may come."""


def _gather(consumers: list[Consumer], count: int) -> list[list[Received]]:
    """`count` messages over all consumers, acknowledged, by consumer."""
    got: list[list[Received]] = [[] for _ in consumers]
    deadline = time.monotonic() + 120
    while sum(map(len, got)) < count:
        assert time.monotonic() < deadline, f"only {[len(some) for some in got]} of {count}"
        for consumer, some in zip(consumers, got, strict=True):
            some += consumer.receive_up_to(count, ack=True, timeout_s=0.1)
    return got


def _await_back(producer: Producer, consumers: list[Consumer]) -> None:
    """Until every consumer has subscribed again after a restart: each gets one of many small
    messages, which leave nothing behind."""
    missing, sent, got = set(consumers), 0, 0
    deadline = time.monotonic() + 120
    while missing or got < sent:
        assert time.monotonic() < deadline, (
            f"{len(missing)} consumers are not back, {got} of {sent} messages came"
        )
        if missing:
            producer.send(b"ping", key=f"ping-{sent}")
            sent += 1
        for consumer in consumers:
            if pings := consumer.receive_up_to(sent, ack=True, timeout_s=0.1):
                missing.discard(consumer)
                got += len(pings)


def _active_of(consumers: list[Consumer], producer: Producer, mark: str) -> int:
    """The consumer that gets all messages, in order; while a newcomer takes over there may be
    two, and we look again."""
    deadline = time.monotonic() + 120
    for attempt in itertools.count():
        assert time.monotonic() < deadline, "the messages went to several consumers again and again"
        values = [f"{mark}-{attempt}-{number}".encode() for number in range(20)]
        producer.send_all(values)
        missing = set(values)
        got: list[list[bytes]] = [[] for _ in consumers]
        while missing:
            assert time.monotonic() < deadline, f"{missing} did not come"
            for consumer, some in zip(consumers, got, strict=True):
                some += [
                    message.value for message in consumer.receive_up_to(20, ack=True, timeout_s=0.1)
                ]
                missing -= set(some)
        for index, some in enumerate(got):
            if some == values:
                return index
    raise AssertionError


def test_failover_has_one_active_consumer(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """All messages go to the active consumer, in order; when it leaves another takes over; a
    restart loses nothing."""
    consumers = [
        foreign.consumer(topic, "s", type="Failover", name=name)
        for name in ("first", "second", "third")
    ]
    producer = foreign.producer(topic)
    consumers.pop(_active_of(consumers, producer, "all")).close()
    restart(shared_server)
    consumers.pop(_active_of(consumers, producer, "two")).close()
    assert _active_of(consumers, producer, "one") == 0


def _partitions_of(consumers: list[Consumer], producer: Producer, mark: str) -> list[set[int]]:
    """The partitions from which each consumer gets the messages published now."""
    missing = {f"{mark}-{number}".encode() for number in range(20)}
    producer.send_all(sorted(missing))
    found: list[set[int]] = [set() for _ in consumers]
    deadline = time.monotonic() + 120
    while missing:
        assert time.monotonic() < deadline, f"{missing} did not come"
        for consumer, partitions in zip(consumers, found, strict=True):
            for message in consumer.receive_up_to(20, ack=True, timeout_s=0.1):
                missing.discard(message.value)
                partitions.add(message.id.partition)
    return found


def _await_division(consumers: list[Consumer], producer: Producer, mark: str) -> None:
    """Until each of two consumers has one partition."""
    deadline = time.monotonic() + 120
    for attempt in itertools.count():
        if _partitions_of(consumers, producer, f"{mark}-{attempt}") == [{0}, {1}]:
            return
        assert time.monotonic() < deadline, "the partitions are not divided"


def test_failover_divides_partitions(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Partitions are divided by the consumers' names, also after a restart; one that leaves is
    replaced, and its successor is notified."""
    admin.topic("PUT", topic, "partitions", 2)
    first = foreign.consumer(topic, "s", type="Failover", name="a")
    second = foreign.consumer(topic, "s", type="Failover", name="b")
    producer = foreign.producer(topic)
    _await_division([first, second], producer, "before")
    restart(shared_server)
    _await_division([first, second], producer, "after")  # they come back in any order
    first.close()
    second.await_active(partition=0)
    assert _partitions_of([second], producer, "last") == [{0, 1}]


# the Go client may lose what it receives right after SUCCESS
@pytest.mark.parametrize("driver", ["java"], indirect=True)
def test_failover_notifies_all_consumers(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Every consumer is notified of every partition whether it is its own, when they join, when
    one leaves and after a restart."""
    admin.topic("PUT", topic, "partitions", 2)
    first = foreign.consumer(topic, "s", type="Failover", name="a")
    first.await_active(partition=0)
    first.await_active(partition=1)
    second = foreign.consumer(topic, "s", type="Failover", name="b")
    for _ in before_and_after(shared_server):
        for partition, owner, other in ((0, first, second), (1, second, first)):
            owner.await_active(partition=partition)
            other.await_active(False, partition=partition)
        first.forget_active()
        second.forget_active()


def _send_keyed(producer: Producer, rounds: int = 5) -> None:
    """`rounds` messages of each of twenty keys, in turns."""
    messages = [
        {"value": f"{key}:{number}".encode(), "key": f"key-{key}"}
        for number in range(rounds)
        for key in range(20)
    ]
    ids(producer.begin_send(messages))


def _assert_keys_stay_together(got: list[list[Received]], rounds: int = 5) -> None:
    owners: dict[str, set[int]] = defaultdict(set)
    order: dict[str, list[int]] = defaultdict(list)
    for index, some in enumerate(got):
        for message in some:
            key, number = message.value.decode().split(":")
            owners[key].add(index)
            order[key].append(int(number))
    assert {len(found) for found in owners.values()} == {1}
    assert all(numbers == list(range(rounds)) for numbers in order.values()), order


def test_key_shared_keeps_keys_together(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Each key has one consumer and its order, both consumers get keys; after a restart still."""
    consumers = [
        foreign.consumer(topic, "s", type="Key_Shared", name=name) for name in ("first", "second")
    ]
    producer = foreign.producer(topic)
    for _ in before_and_after(shared_server):
        _await_back(producer, consumers)
        _send_keyed(producer)
        got = _gather(consumers, 100)
        assert all(got)
        _assert_keys_stay_together(got)


def test_key_shared_transfers_keys_in_order(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Keys of a consumer that leaves go to the other with what it had not acknowledged first; a
    newcomer gets none of what is still held."""
    first = foreign.consumer(topic, "s", type="Key_Shared", name="first")
    producer = foreign.producer(topic)
    _send_keyed(producer, 2)
    held = first.receive(40)
    second = foreign.consumer(topic, "s", type="Key_Shared", name="second")
    producer.send_all([b"0:2"], key="key-0")
    second.expect_nothing()
    first.close()
    got = second.receive(41, ack=True)
    _assert_keys_stay_together(
        [[message for message in got if not message.value.startswith(b"0:")]], 2
    )
    assert [message.value for message in got if message.value.startswith(b"0:")] == [
        b"0:0",
        b"0:1",
        b"0:2",
    ]
    assert {message.value for message in held} <= {message.value for message in got}
    restart(shared_server)
    _send_keyed(producer, 1)
    assert len(second.distinct_values(20)) == 20


def test_key_shared_sticky_ranges(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Consumers with ranges of their own get just these; an overlapping range is refused, after
    a restart too; what nobody covers waits."""
    low = foreign.consumer(topic, "s", type="Key_Shared", sticky_ranges=[0, 30000])
    high = foreign.consumer(topic, "s", type="Key_Shared", sticky_ranges=[30001, 65535])
    producer = foreign.producer(topic)
    for _ in before_and_after(shared_server):
        _await_back(producer, [low, high])
        with pytest.raises(ForeignError, match=r"ConsumerAssign"):
            foreign.consumer(topic, "s", type="Key_Shared", sticky_ranges=[20000, 40000])
        with pytest.raises(ForeignError, match=r"ConsumerBusy"):
            foreign.consumer(topic, "s", type="Key_Shared")
        _send_keyed(producer)
        got = _gather([low, high], 100)
        assert all(got)
        _assert_keys_stay_together(got)
    high.close()
    _send_keyed(producer)
    served = sum(murmur3(f"key-{key}".encode()) % 65536 <= 30000 for key in range(20))
    assert 0 < served < 20
    few = low.receive(5 * served, ack=True)
    low.expect_nothing()
    high = foreign.consumer(topic, "s", type="Key_Shared", sticky_ranges=[30001, 65535])
    _assert_keys_stay_together([few, high.receive(100 - len(few), ack=True)])


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_delayed_messages_come_late(
    shared_server: ServerProcess, foreign: Client, topic: str, kind: str
) -> None:
    """A delayed message comes when it is due, also after a restart; messages behind it do not
    wait; an Exclusive consumer gets it at once."""
    consumer = foreign.consumer(topic, "s", type=kind)
    exclusive = foreign.consumer(topic, "exclusive")
    producer = foreign.producer(topic)
    producer.send(b"in an hour", deliver_after_ms=3_600_000, key="late")
    producer.send(b"now", key="now")
    assert consumer.values(1) == [b"now"]
    assert exclusive.values(2) == [b"in an hour", b"now"]
    due_ms = time.time_ns() // 1_000_000 + 4000
    producer.send(b"late", deliver_at_ms=due_ms, key="late")
    restart(shared_server)
    assert consumer.values(1) == [b"late"]
    assert time.time_ns() // 1_000_000 >= due_ms - TICK_MS
    producer.send(b"later", deliver_after_ms=1500, key="later")
    assert consumer.values(1) == [b"later"]


def _await_consumed(admin: Admin, topic: str, subscription: str) -> None:
    """Until nothing of the topic is left for the subscription."""
    deadline = time.monotonic() + 120
    while admin.topic("GET", topic, "stats")["subscriptions"][subscription]["msgBacklog"]:
        assert time.monotonic() < deadline, f"{subscription} still has a backlog"
        time.sleep(0.05)


def test_dead_letters(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """What is refused too often goes to the dead-letter topic, whose first subscription was
    there before the message."""
    dead = f"{topic}-s-DLQ"
    policy = {"max_redeliver": 2, "initial_subscription": "keep", "topic": dead}
    consumer = foreign.consumer(
        topic, "s", type="Shared", nack_delay_ms=100, dead_letter=policy, ack_receipt=False
    )
    foreign.producer(topic).send(b"poison", properties={"from": "test"})
    counts = []
    for _ in range(3):
        (message,) = consumer.receive(1)
        counts.append(message.redelivery_count)
        consumer.nack(message)
    assert counts == [0, 1, 2]
    consumer.expect_nothing()
    _await_consumed(admin, topic, "s")
    shared_server.stop()
    shared_server.start()
    (message,) = foreign.consumer(dead, "keep").receive(1, ack=True)
    assert (message.value, message.properties["from"]) == (b"poison", "test")
    consumer.expect_nothing()


def test_retry_later(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """A message put off comes again over the retry topic, after a restart too, and in the end to
    the dead letters."""
    policy = {
        "max_redeliver": 1,
        "initial_subscription": "keep",
        "topic": f"{topic}-s-DLQ",
        "retry_topic": f"{topic}-s-RETRY",
    }
    # With receipts the Go client would wait for one where it should read it.
    consumer = foreign.consumer(
        topic, "s", type="Shared", retry=True, dead_letter=policy, ack_receipt=False
    )
    foreign.producer(topic).send(b"again")
    (message,) = consumer.receive(1)
    consumer.reconsume(message, 1500)
    _await_consumed(admin, topic, "s")
    shared_server.stop()
    shared_server.start()
    (message,) = consumer.receive(1)
    assert (message.value, message.properties["RECONSUMETIMES"]) == (b"again", "1")
    consumer.reconsume(message, 100)
    dead = foreign.consumer(f"{topic}-s-DLQ", "keep")
    # the clients count differently
    while not (given_up := dead.receive_up_to(1, ack=True, timeout_s=QUIET_S)):
        for message in consumer.receive_up_to(1, timeout_s=QUIET_S):
            assert int(message.properties["RECONSUMETIMES"]) <= 2
            consumer.reconsume(message, 100)
    assert given_up[0].value == b"again"


# the Go client has no acknowledgement time-out
@pytest.mark.parametrize("driver", ["java"], indirect=True)
def test_acknowledgement_timeout(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A message that is not acknowledged in time comes again, counted; so after a restart."""
    consumer = foreign.consumer(topic, "s", type="Shared", ack_timeout_ms=1000)
    foreign.producer(topic).send(b"slow")
    assert [consumer.receive(1)[0].redelivery_count for _ in range(2)] == [0, 1]
    restart(shared_server)
    # it may have come again before, to a client that has not come back yet
    assert consumer.values(1) == [b"slow"]


def _send_apart(producer: Producer, values: list[bytes]) -> list[Id]:
    """Publish so that each message has a publish time of its own."""
    sent = []
    for value in values:
        sent.append(producer.send(value))
        latest = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= latest:
            pass
    return sent


def test_seek_by_time(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """Consumer and reader go to the first message that is not older than the time, before and
    after a restart; far past and future are the ends."""
    consumer = foreign.consumer(topic, "s")
    _send_apart(foreign.producer(topic), NUMBERS)
    times = [message.publish_time_ms for message in consumer.receive(20, ack=True)]
    assert len(set(times)) == 20
    for _ in before_and_after(shared_server):
        consumer.seek_time(times[12])
        assert consumer.values(8) == NUMBERS[12:]
        consumer.seek_time(times[0] - 1000)
        assert consumer.values(20) == NUMBERS
        consumer.seek_time(times[-1] + 1000)
        consumer.expect_nothing()
        reader = foreign.reader(topic, "latest")
        reader.seek_time(times[15])
        assert reader.values(5) == NUMBERS[15:]
        reader.close()


def test_seek_with_shared_consumers(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """A seek by one Shared consumer moves all of them; none keeps an old message; durable over
    SIGKILL."""
    consumers = [
        foreign.consumer(topic, "s", type="Shared", queue=5, name=name)
        for name in ("first", "second")
    ]
    sent = foreign.producer(topic).send_all(NUMBERS)
    _gather(consumers, 20)
    consumers[0].seek(sent[9])
    restart(shared_server)
    found: set[bytes] = set()
    while not found >= set(NUMBERS[10:]):
        found |= {message.value for some in _gather(consumers, 1) for message in some}
    # leaving out the message itself is up to the client that sought; the other one may get it
    assert found <= set(NUMBERS[9:])


# the Go client's priority is not among its options
@pytest.mark.parametrize("driver", ["java"], indirect=True)
def test_priorities(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """A Shared consumer of lower priority gets messages only when the others have no permits
    left."""
    producer = foreign.producer(topic)
    foreign.consumer(topic, "s", type="Shared").close()
    restart(shared_server)
    low = foreign.consumer(topic, "s", type="Shared", priority=1)
    high = foreign.consumer(topic, "s", type="Shared", priority=0, queue=4)

    def permits() -> list[int]:
        consumers = admin.topic("GET", topic, "stats")["subscriptions"]["s"]["consumers"]
        return sorted(consumer["availablePermits"] for consumer in consumers)

    wait_for(
        "both have asked for messages", lambda: len(permits()) == 2 and permits()[0] == 4
    )  # after they received their SUCCESS
    for value in NUMBERS[:10]:
        producer.send(value)
    assert low.values(6) == NUMBERS[4:10]
    assert high.values(4) == NUMBERS[:4]


def test_unsubscribe_with_others_attached(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Unsubscribing is refused while others are attached; gone after a restart."""
    first = foreign.consumer(topic, "s", type="Shared")
    second = foreign.consumer(topic, "s", type="Shared")
    foreign.producer(topic).send(b"one")
    with pytest.raises(ForeignError):
        first.unsubscribe()
    second.close()
    first.unsubscribe()
    restart(shared_server)
    foreign.consumer(topic, "s").expect_nothing()


def test_unsubscribe_by_force(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """It throws the others out, whose clients come back to a subscription that begins again; it
    is that one which a restart keeps."""
    first = foreign.consumer(topic, "s", type="Shared")
    second = foreign.consumer(topic, "s", type="Shared")
    foreign.consumer(topic, "other").close()
    producer = foreign.producer(topic)
    producer.send_all(NUMBERS)
    held: list[Received] = []
    while len(held) < 20:
        held += [
            message
            for consumer in (first, second)
            for message in consumer.receive_up_to(20, timeout_s=0.1)
        ]
    assert admin.topic("GET", topic, "stats")["subscriptions"]["s"]["msgBacklog"] == 20
    first.unsubscribe(force=True)
    await_consumers(shared_server, topic, "s", 1)
    restart(shared_server)
    await_consumers(shared_server, topic, "s", 1)
    assert admin.topic("GET", topic, "stats")["subscriptions"]["s"]["msgBacklog"] == 0
    assert admin.topic("GET", topic, "stats")["subscriptions"]["other"]["msgBacklog"] == 20
    producer.send(b"new")
    assert second.values(1) == [b"new"]


def test_subscription_type_may_change_when_idle(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """A type that differs from the attached consumers' is refused; with nobody attached it
    changes, and the place is kept over a restart."""
    shared = foreign.consumer(topic, "s", type="Shared")
    producer = foreign.producer(topic)
    producer.send_all(NUMBERS)
    with pytest.raises(ForeignError, match=r"ConsumerBusy"):
        foreign.consumer(topic, "s", type="Failover")
    got = shared.receive(20)
    shared.ack(*got[:10])
    shared.close()
    restart(shared_server)
    for kind in ("Failover", "Key_Shared", "Exclusive"):
        consumer = foreign.consumer(topic, "s", type=kind)
        assert sorted(message.value for message in consumer.receive(10)) == sorted(NUMBERS[10:])
        consumer.close()


def test_non_durable_subscription_is_forgotten(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """A non-durable subscription starts at the end and leaves nothing behind; one name is not
    both."""
    producer = foreign.producer(topic)
    producer.send(b"before")
    passing = foreign.consumer(topic, "s", mode="NonDurable")
    producer.send(b"while")
    assert passing.values(1) == [b"while"]
    with pytest.raises(ForeignError, match=r"(?i)durable|NotAllowed"):
        foreign.consumer(topic, "s", type="Shared")
    passing.close()
    restart(shared_server)
    producer.send(b"after")
    foreign.consumer(topic, "s").expect_nothing()

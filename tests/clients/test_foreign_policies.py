"""The official Java and Go clients under policies and settings other than the delivered ones,
each with a restart of the server in between."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from dev.testbed.foreign import QUIET_S, Client, Consumer, ForeignError, Producer
from dev.testbed.foreign_messages import Received
from dev.testbed.rest import Admin, RestError
from magnetar.hashes import murmur3
from tests.clients.conftest import QUICK_SETTINGS
from tests.clients.restarts import await_consumers, before_and_after, restart

pytestmark = [pytest.mark.slow, pytest.mark.java]
SETTINGS = {
    **QUICK_SETTINGS,
    "MAGNETAR_KEY_SHARED_CONSISTENT_HASHING": "0",
    "MAGNETAR_RETENTION_CHECK_S": "0.1",
    "MAGNETAR_INACTIVE_CHECK_S": "0.1",
    "MAGNETAR_TRIM_GRACE_S": "0",
}
NUMBERS = [str(number).encode() for number in range(20)]
KEYS = [f"key-{number}" for number in range(40)]
HASHES = 65536
UNLIMITED = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that divides keys by halving, and looks all the time for what may go."""
    process = ServerProcess(tmp_path_factory.mktemp("server"), environment=SETTINGS)
    yield process
    process.stop()


def _keys_of(consumers: list[Consumer], producer: Producer, mark: str) -> list[set[str]]:
    """The keys of which each consumer gets the messages published now."""
    missing = {f"{mark} {key}".encode() for key in KEYS}
    for key in KEYS:
        producer.send(f"{mark} {key}".encode(), key=key)
    found: list[set[str]] = [set() for _ in consumers]
    deadline = time.monotonic() + 120
    while missing:
        assert time.monotonic() < deadline, f"{missing} did not come"
        for consumer, keys in zip(consumers, found, strict=True):
            for message in consumer.receive_up_to(len(KEYS), ack=True, timeout_s=0.1):
                if message.value in missing:
                    missing.discard(message.value)
                    keys.add(message.key or "")
    return found


def test_key_shared_by_halving(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A newcomer gets the lower half of the largest range, as the clients' own suites expect;
    after a restart there are halves again."""
    upper = {key for key in KEYS if murmur3(key.encode()) % HASHES > HASHES // 2}
    lower = set(KEYS) - upper
    assert upper
    assert lower
    first = foreign.consumer(topic, "s", type="Key_Shared", name="first")
    producer = foreign.producer(topic)
    assert _keys_of([first], producer, "alone") == [set(KEYS)]
    second = foreign.consumer(topic, "s", type="Key_Shared", name="second")
    assert _keys_of([first, second], producer, "divided") == [upper, lower]
    restart(shared_server)
    await_consumers(shared_server, topic, "s", 2)
    assert sorted(_keys_of([first, second], producer, "again"), key=len) == sorted(
        [upper, lower], key=len
    )  # they come back in any order
    first.close()
    assert _keys_of([second], producer, "left") == [set(KEYS)]


def test_key_shared_out_of_order(shared_server: ServerProcess, foreign: Client, topic: str) -> None:
    """A newcomer gets messages of keys that another holds unacknowledged, where that is allowed;
    who does not allow it is refused."""
    options = {"type": "Key_Shared", "out_of_order": True}
    first = foreign.consumer(topic, "s", name="first", **options)
    producer = foreign.producer(topic)
    for key in KEYS:
        producer.send(b"held", key=key)
    assert len(first.receive(len(KEYS))) == len(KEYS)  # and none of them is acknowledged
    second = foreign.consumer(topic, "s", name="second", **options)
    divided = _keys_of([first, second], producer, "overtaking")
    assert all(divided)
    assert set.union(*divided) == set(KEYS)
    with pytest.raises(ForeignError, match=r"ConsumerBusy"):
        foreign.consumer(topic, "s", type="Key_Shared")
    restart(shared_server)
    await_consumers(shared_server, topic, "s", 2)
    with pytest.raises(ForeignError, match=r"ConsumerBusy"):
        foreign.consumer(topic, "s", type="Key_Shared")
    assert all(_keys_of([first, second], producer, "afterwards"))


# the Go client's readers know nothing of that kind
@pytest.mark.parametrize("driver", ["java"], indirect=True)
def test_a_reader_that_starts_some_time_ago(
    shared_server: ServerProcess, foreign: Client, topic: str
) -> None:
    """Everything of the last hour, or nothing of what is older than two seconds; before and
    after a restart."""
    foreign.consumer(topic, "keeps").close()
    producer = foreign.producer(topic)
    values: list[bytes] = []
    for round_, _ in enumerate(before_and_after(shared_server)):
        values.append(b"old %d" % round_)
        producer.send(values[-1])
        assert foreign.reader(topic, rollback_s=3600).values(len(values)) == values
        time.sleep(3)  # nothing shows that a message has become old
        late = foreign.reader(topic, rollback_s=2)
        values.append(b"new %d" % round_)
        producer.send(values[-1])
        assert late.values(1) == values[-1:]
        late.close()


def test_subscriptions_are_not_made_where_that_is_forbidden(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Without automatic creation an unknown subscription is refused, after a restart too; one
    made over REST is there, and readers need none."""
    policy = {"allowAutoSubscriptionCreation": False}
    namespace = admin.create_namespace(
        topic, autoSubscriptionCreationOverride=policy, retention_policies=UNLIMITED
    )
    name = f"persistent://{namespace}/t"
    producer = foreign.producer(name)
    producer.send(b"one")
    for _ in before_and_after(shared_server):
        with pytest.raises(ForeignError, match=r"(?i)subscription"):
            foreign.consumer(name, "unknown")
        with pytest.raises(RestError):
            admin.topic("GET", name, "subscription/unknown")
        assert "unknown" not in admin.topic("GET", name, "subscriptions")
        assert foreign.reader(name).values(1) == [b"one"]
    admin.topic("PUT", name, "subscription/known", {"ledgerId": -1, "entryId": -1})
    assert foreign.consumer(name, "known").values(1) == [b"one"]


def test_a_backlog_beyond_its_quota_is_evicted(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """The oldest messages go from the slow subscription until nine tenths of the quota are left;
    producers go on, a fast subscription misses nothing; after a restart the same."""
    namespace = admin.create_namespace(topic)
    name = f"persistent://{namespace}/full"
    foreign.consumer(name, "slow").close()
    fast = foreign.consumer(name, "fast")
    producer = foreign.producer(name)
    admin.call(
        "POST",
        f"namespaces/{namespace}/backlogQuota",
        {"limitSize": 10_000, "policy": "consumer_backlog_eviction"},
    )

    def backlog() -> int:
        return int(admin.topic("GET", name, "stats")["subscriptions"]["slow"]["msgBacklog"])

    newest = -1
    for _ in before_and_after(shared_server):
        for _ in range(20):
            newest += 1
            producer.send(b"%04d" % newest * 250)
            assert fast.distinct_values(1) == [b"%04d" % newest * 250]
        wait_for("the backlog is within its quota", lambda: backlog() < 10)
        assert backlog() >= 7, "nine of them fit"
    left = foreign.consumer(name, "slow").values(backlog())
    assert left == [b"%04d" % number * 250 for number in range(newest + 1 - len(left), newest + 1)]


def test_a_subscription_holds_so_many_unacknowledged_messages(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Its consumers together get no more until some are acknowledged, and then all; after a
    restart the same."""
    namespace = admin.create_namespace(topic)
    admin.call("POST", f"namespaces/{namespace}/maxUnackedMessagesPerSubscription", 10)
    name = f"persistent://{namespace}/held"
    for round_, _ in enumerate(before_and_after(shared_server)):
        consumers = [
            foreign.consumer(name, f"s-{round_}", type="Shared", queue=5) for _ in range(2)
        ]
        producer = foreign.producer(name)
        for value in NUMBERS:
            producer.send(value)
        held: list[list[Received]] = [[] for _ in consumers]

        def take(some: list[list[Received]] = held, of: list[Consumer] = consumers) -> int:
            for consumer, got in zip(of, some, strict=True):
                got += consumer.receive_up_to(20, timeout_s=QUIET_S)
            return sum(map(len, some))

        wait_for("as many as may be unacknowledged", lambda take=take: take() >= 10)
        assert take() < 20
        stats = admin.topic("GET", name, "stats")["subscriptions"][f"s-{round_}"]
        assert stats["blockedSubscriptionOnUnackedMsgs"] is True
        got = {message.value for some in held for message in some}
        for consumer, some in zip(consumers, held, strict=True):
            consumer.ack(*some)
        deadline = time.monotonic() + 120
        while got != set(NUMBERS):
            assert time.monotonic() < deadline, sorted(got)
            got |= {
                message.value
                for consumer in consumers
                for message in consumer.receive_up_to(20, ack=True, timeout_s=0.1)
            }
        for consumer in consumers:
            consumer.close()


def test_retention_keeps_what_was_acknowledged(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """A late subscription of a namespace with retention gets everything, after a restart too;
    without it what was acknowledged is gone."""
    kept = admin.create_namespace(f"{topic}-kept", retention_policies=UNLIMITED)
    plain = admin.create_namespace(f"{topic}-plain")
    names = [f"persistent://{namespace}/t" for namespace in (kept, plain)]
    for name in names:
        consumer = foreign.consumer(name, "s")
        foreign.producer(name).send_all(NUMBERS)
        assert consumer.values(20) == NUMBERS

    def entries(name: str) -> int:
        return int(admin.topic("GET", name, "internalStats")["numberOfEntries"])

    wait_for("what nobody needs is dropped", lambda: entries(names[1]) == 0)
    assert entries(names[0]) == 20
    restart(shared_server)
    late = [foreign.consumer(name, "late", position="Earliest") for name in names]
    assert late[0].values(20) == NUMBERS
    late[1].expect_nothing()


def test_an_unused_topic_is_deleted(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str
) -> None:
    """Nobody uses it for a second: it goes, with its messages; one with a subscription or a
    producer stays, also over a restart."""
    inactive = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    namespace = admin.create_namespace(topic, inactive_topic_policies=inactive)
    name = {
        which: f"persistent://{namespace}/{which}" for which in ("unused", "subscribed", "written")
    }
    foreign.consumer(name["subscribed"], "s").close()
    written = foreign.producer(name["written"])
    for _ in before_and_after(shared_server):
        written.send(b"here")
        unused = foreign.producer(name["unused"])
        unused.send(b"lost")
        unused.close()
        wait_for(
            "what nobody uses is gone",
            lambda: name["unused"] not in admin.call("GET", f"persistent/{namespace}"),
        )
        assert sorted(admin.call("GET", f"persistent/{namespace}")) == sorted(
            [name["subscribed"], name["written"]]
        )
    reader = foreign.reader(name["unused"])
    assert not reader.has_next()

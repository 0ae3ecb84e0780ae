"""The official Python client and REST against a standalone server: how topics and messages end,
with a restart of the server in between."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess
from tests.clients.conftest import QUIET
from tests.clients.restarts import await_receivers

pytestmark = pytest.mark.slow
RECEIVE_MS = 120_000
NAMESPACE = "/admin/v2/namespaces/public/default"
QUICK = {
    "MAGNETAR_TOPIC_CHECK_S": "0.1",
    "MAGNETAR_RETENTION_CHECK_S": "0.1",
    "MAGNETAR_EXPIRY_CHECK_S": "0.1",
    "MAGNETAR_BACKLOG_QUOTA_CHECK_S": "0.1",
    "MAGNETAR_INACTIVE_CHECK_S": "0.1",
    "MAGNETAR_TRIM_GRACE_S": "0",
    "MAGNETAR_INACTIVE_TOPIC_S": "0",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A standalone server that looks at its topics all the time, and keeps unused topics unless
    a test says otherwise."""
    with ServerProcess(tmp_path, environment=QUICK) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[pulsar.Client]:
    connected = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    yield connected
    connected.close()


def rest(server: ServerProcess, method: str, path: str, body: Any = None) -> Any:
    """The JSON of the answer, None without one. Raises HTTPError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        server.http_url + path,
        data=data,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def topic_path(topic: str) -> str:
    return f"/admin/v2/persistent/public/default/{topic}"


def until(reached: Callable[[], bool]) -> None:
    """Poll what has no event."""
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.05)


def entries_of(server: ServerProcess, topic: str) -> int:
    return int(rest(server, "GET", f"{topic_path(topic)}/internalStats")["numberOfEntries"])


def position(identifier: pulsar.MessageId) -> tuple[int, int]:
    return identifier.ledger_id(), identifier.entry_id()


def test_what_was_acknowledged_is_dropped_and_readers_go_on_behind_it(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Also a reader whose start has been dropped, and after a kill; ids go on."""
    topic = "dropped"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [producer.send(str(number).encode()) for number in range(10)]
    for _ in range(6):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    until(lambda: entries_of(server, topic) == 4)
    server.kill()
    server.start()
    await_receivers(server, topic, "s", 1)  # else it shows first what it fetched before the kill
    for start in (pulsar.MessageId.earliest, sent[2]):
        reader = client.create_reader(topic, start)
        assert reader.read_next(RECEIVE_MS).data() == b"6"
        reader.close()
    assert position(producer.send(b"more")) > position(sent[-1])
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(5)] == [
        b"6",
        b"7",
        b"8",
        b"9",
        b"more",
    ]


def test_retention_keeps_what_was_acknowledged(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """A late subscription still gets everything, before and after a restart; lifting the policy
    lets it go."""
    rest(
        server,
        "POST",
        f"{NAMESPACE}/retention",
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    )
    topic = "retained"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(str(number).encode())
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    server.stop()
    server.start()
    late = client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(5):
        message = late.receive(RECEIVE_MS)
        assert message.data() == str(number).encode()
        late.acknowledge(message)
    assert entries_of(server, topic) == 5
    rest(server, "DELETE", f"{NAMESPACE}/retention")
    # an acknowledgement on its way at the stop comes again
    rest(server, "POST", f"{topic_path(topic)}/subscription/s/skip_all")
    until(lambda: entries_of(server, topic) == 0)


def test_messages_beyond_their_time_to_live_are_not_delivered(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """Expired while nobody was there; what came later is delivered; the server was killed in
    between."""
    topic = "expiring"
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    producer.send(b"old")
    rest(server, "POST", f"{topic_path(topic)}/messageTTL?messageTTL=1")
    until(
        lambda: (
            rest(server, "GET", f"{topic_path(topic)}/stats")["subscriptions"]["s"]["msgBacklog"]
            == 0
        )
    )
    rest(server, "DELETE", f"{topic_path(topic)}/messageTTL")
    server.stop()
    server.start()
    producer.send(b"new")
    consumer = client.subscribe(topic, "s")
    assert consumer.receive(RECEIVE_MS).data() == b"new"


def test_nothing_can_be_published_to_a_terminated_topic(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """The client learns it on send and on create, also after a kill; what is there can be read."""
    topic = "ended"
    rest(
        server,
        "POST",
        f"{NAMESPACE}/retention",
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    )
    producer = client.create_producer(topic)
    last = [producer.send(str(number).encode()) for number in range(3)][-1]
    found = rest(server, "POST", f"{topic_path(topic)}/terminate")
    assert (found["ledgerId"], found["entryId"]) == position(last)
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    server.kill()
    server.start()
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(RECEIVE_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]
    assert not reader.has_message_available()


def test_an_unused_topic_is_deleted_and_its_ids_stay_single(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """By the policy, then by force under a producer's feet; every new incarnation of the name has
    greater ids, whatever happens in between."""
    topic = "fleeting"
    inactive = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    producer = client.create_producer(topic)
    seen = [position(producer.send(b"first"))]
    producer.close()
    rest(server, "POST", f"{NAMESPACE}/inactiveTopicPolicies", inactive)
    until(lambda: rest(server, "GET", f"{NAMESPACE}/topics") == [])
    rest(server, "DELETE", f"{NAMESPACE}/inactiveTopicPolicies")
    producer = client.create_producer(topic)
    seen.append(position(producer.send(b"second")))
    rest(server, "DELETE", f"{topic_path(topic)}?force=true")
    seen.append(position(producer.send(b"third")))
    server.kill()
    server.start()
    seen.append(position(producer.send(b"fourth")))
    assert seen == sorted(set(seen))
    assert rest(server, "GET", f"{NAMESPACE}/topics") == [f"persistent://public/default/{topic}"]


def test_a_full_backlog_keeps_producers_away_until_it_is_consumed(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """producer_exception, over a restart."""
    topic = "full"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for _ in range(10):
        producer.send(bytes(1000))
    rest(
        server,
        "POST",
        f"{topic_path(topic)}/backlogQuota",
        {"limitSize": 5000, "policy": "producer_exception"},
    )
    until(lambda: rest(server, "GET", f"{topic_path(topic)}/stats")["publishers"] == [])
    producer.close()
    server.stop()
    server.start()
    # else it acknowledges what it fetched before, and the connection is gone
    await_receivers(server, topic, "s", 1)

    def refused() -> bool:
        try:
            client.create_producer(topic).close()
        except pulsar.PulsarException:
            return True
        return False

    until(refused)
    for _ in range(10):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    until(lambda: not refused())


def test_partitions_go_together_and_a_namespace_by_force(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """A topic in use is not deleted unless by force."""
    rest(server, "PUT", f"{topic_path('many')}/partitions", 3)
    consumer = client.subscribe("many", "s")
    with pytest.raises(urllib.error.HTTPError) as refused:
        rest(server, "DELETE", f"{topic_path('many')}/partitions")
    with refused.value as answer:
        assert answer.code == 412
    consumer.close()
    rest(server, "DELETE", f"{topic_path('many')}/partitions?force=true")
    assert rest(server, "GET", f"{NAMESPACE}/topics") == []
    server.stop()
    server.start()
    assert rest(server, "GET", f"{NAMESPACE}/topics") == []

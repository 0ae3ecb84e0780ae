"""The official Python client (the C++ client below it) and REST against a standalone server that
compacts a topic and drops its originals."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess
from tests.clients.conftest import QUIET

pytestmark = pytest.mark.slow
RECEIVE_MS = 120_000
QUICK = {
    "MAGNETAR_TOPIC_CHECK_S": "0.1",
    "MAGNETAR_RETENTION_CHECK_S": "0.1",
    "MAGNETAR_TRIM_GRACE_S": "0",
}
NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "persistent://public/default/prices"
PATH = "/admin/v2/persistent/public/default/prices"
DEADLINE_S = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A standalone server that drops what it may all the time."""
    with ServerProcess(tmp_path, environment=QUICK) as process:
        yield process


def connected(server: ServerProcess) -> pulsar.Client:
    return pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)


def rest(server: ServerProcess, method: str, path: str, body: Any = None) -> Any:
    """The JSON of the answer, None without one. Raises HTTPError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        server.http_url + path, data=data, method=method, headers=headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def until_rest(server: ServerProcess, suffix: str, condition: Any) -> Any:
    """What REST says once it fulfils the condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition(found := rest(server, "GET", f"{PATH}{suffix}")):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def compacted(client: pulsar.Client) -> list[tuple[str, bytes]]:
    """What a reader of the view gets."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def publish(client: pulsar.Client, *messages: tuple[str, bytes], batching: bool) -> None:
    producer = client.create_producer(
        TOPIC, batching_enabled=batching, batching_max_publish_delay_ms=50
    )
    for key, value in messages:
        producer.send_async(value, lambda *_outcome: None, partition_key=key)
    producer.flush()
    producer.close()


@pytest.mark.parametrize("batching", [False, True])
def test_a_table_survives_its_log(server: ServerProcess, *, batching: bool) -> None:
    """#25817: a tombstone of this client deletes its key; #11211, #25998: the originals go, the
    view stays, also over a restart; readers and table views of it see every key."""
    client = connected(server)
    # until the first compaction nothing may be dropped
    rest(server, "PUT", f"{NAMESPACE}/compactionThreshold", 1 << 40)
    publish(client, ("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2"), batching=batching)
    publish(client, ("b", b""), batching=batching)
    rest(server, "PUT", f"{PATH}/compaction")
    until_rest(server, "/compaction", lambda found: found["status"] == "SUCCESS")
    until_rest(server, "/internalStats", lambda found: found["numberOfEntries"] == 0)
    assert compacted(client) == [("c", b"1"), ("a", b"2")]
    publish(client, ("d", b"1"), ("c", b"2"), batching=batching)
    client.close()
    server.kill()
    server.start()
    client = connected(server)
    rest(server, "PUT", f"{PATH}/compaction")
    until_rest(server, "/compaction", lambda found: found["status"] == "SUCCESS")
    until_rest(server, "/internalStats", lambda found: found["numberOfEntries"] == 0)
    assert sorted(compacted(client)) == [("a", b"2"), ("c", b"2"), ("d", b"1")]
    table = client.create_table_view(TOPIC)
    assert {key: table.get(key) for key in ("a", "b", "c", "d")} == {
        "a": b"2",
        "b": None,
        "c": b"2",
        "d": b"1",
    }
    table.close()
    client.close()

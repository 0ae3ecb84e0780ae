"""Producers of the official Python client: deduplication, access modes, chunks, encryption, each
with a restart of the server in between."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess
from tests.clients.conftest import QUIET
from tests.clients.restarts import before_and_after

pytestmark = pytest.mark.slow
RECEIVE_MS = 120_000
SHORT_MS = 500
ANSWER_S = 120
Modes = pulsar.ProducerAccessMode


def _order(server: ServerProcess, method: str, path: str, body: Any) -> None:
    """What an administrator does over REST."""
    request = urllib.request.Request(
        f"{server.http_url}/admin/v2/{path}",
        data=json.dumps(body).encode(),
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status in (200, 204)


def _namespace(server: ServerProcess, **policies: Any) -> str:
    """A namespace with these policies; the prefix of its topics."""
    _order(server, "PUT", "namespaces/public/strict", policies)
    return "persistent://public/strict/"


def _read_all(client: pulsar.Client, topic: str) -> list[bytes]:
    """Everything in the topic, from the first message on."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS).data())
    reader.close()
    return found


@pytest.fixture
def second(server: ServerProcess) -> Iterator[pulsar.Client]:
    """Another application."""
    connected = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    yield connected
    connected.close()


# --- deduplication --------------------------------------------------------------------------------


def test_repetitions_are_dropped_over_a_restart(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """The name's last sequence id survives SIGKILL; what is sent again is acknowledged and not
    stored."""
    topic = _namespace(server, deduplicationEnabled=True) + "once"

    def send(numbers: range) -> None:
        for number in numbers:
            producer.send_async(str(number).encode(), None, sequence_id=number)
        producer.flush()

    producer = client.create_producer(topic, producer_name="teller")
    assert producer.last_sequence_id() == -1
    send(range(1, 21))
    send(range(5, 10))
    producer.close()
    for stop in (server.kill, server.stop):
        stop()
        server.start()
        producer = client.create_producer(topic, producer_name="teller")
        assert producer.last_sequence_id() == 20
        send(range(1, 21))
        producer.close()
    producer = client.create_producer(topic, producer_name="teller")
    send(range(15, 26))
    assert _read_all(client, topic) == [str(number).encode() for number in range(1, 26)]


def test_a_repeated_batch_is_dropped_over_a_restart(
    server: ServerProcess, client: pulsar.Client
) -> None:
    """This client names a batch by its first sequence id only: that is what a broker can
    remember of it."""
    topic = _namespace(server, deduplicationEnabled=True) + "batches"
    for expected in (-1, 1, 1):
        producer = client.create_producer(
            topic,
            producer_name="teller",
            batching_enabled=True,
            batching_max_messages=20,
            batching_max_publish_delay_ms=60_000,
        )
        assert producer.last_sequence_id() == expected
        for number in range(1, 21):
            producer.send_async(str(number).encode(), None, sequence_id=number)
        producer.flush()
        producer.close()
        server.kill()
        server.start()
    assert _read_all(client, topic) == [str(number).encode() for number in range(1, 21)]


def test_a_chunked_message_is_stored_once(
    server: ServerProcess, client: pulsar.Client, second: pulsar.Client
) -> None:
    """Two chunks, sent again as a whole after a restart: who reads it all sees one message."""
    topic = _namespace(server, deduplicationEnabled=True) + "chunks"
    large = bytes(range(256)) * (28 << 10)
    for expected in (-1, 7):
        producer = client.create_producer(topic, producer_name="teller", chunking_enabled=True)
        assert producer.last_sequence_id() == expected
        producer.send(large, sequence_id=7)
        producer.close()
        server.kill()
        server.start()
    client.create_producer(topic, producer_name="teller").send(b"after", sequence_id=8)
    consumer = second.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(2)] == [large, b"after"]


# --- access modes ---------------------------------------------------------------------------------


def test_exclusive_access_is_kept_over_a_restart(
    server: ServerProcess, client: pulsar.Client, second: pulsar.Client
) -> None:
    """Others are refused by name of the reason, before and after; its holder goes on."""
    holder = client.create_producer("mine", producer_name="holder", access_mode=Modes.Exclusive)
    holder.send(b"1")

    def others_are_refused() -> None:
        with pytest.raises(pulsar.ProducerFenced):
            second.create_producer("mine", access_mode=Modes.Exclusive)
        with pytest.raises(pulsar.ProducerBusy):
            second.create_producer("mine")

    others_are_refused()
    server.kill()
    server.start()
    holder.send(b"2")
    others_are_refused()
    holder.close()
    second.create_producer("mine").send(b"3")
    assert _read_all(client, "mine") == [b"1", b"2", b"3"]


def test_one_that_was_fenced_out_stays_out(
    server: ServerProcess, client: pulsar.Client, second: pulsar.Client
) -> None:
    """ExclusiveWithFencing takes the topic; the former holder's next send fails, after a restart
    too."""
    former = client.create_producer(
        "taken", access_mode=Modes.Exclusive, send_timeout_millis=60_000
    )
    former.send(b"1")
    fencing = second.create_producer("taken", access_mode=Modes.ExclusiveWithFencing)
    fencing.send(b"2")
    with pytest.raises(pulsar.PulsarException):
        former.send(b"lost")
    server.kill()
    server.start()
    fencing.send(b"3")
    with pytest.raises(pulsar.PulsarException):
        former.send(b"lost")
    assert _read_all(client, "taken") == [b"1", b"2", b"3"]


def test_one_that_waits_gets_its_turn(
    server: ServerProcess, client: pulsar.Client, second: pulsar.Client
) -> None:
    """WaitForExclusive waits, over a restart, for the holder to leave."""
    holder = client.create_producer("turns", access_mode=Modes.WaitForExclusive)
    holder.send(b"1")
    created: list[pulsar.Producer] = []
    waiting = threading.Thread(
        target=lambda: created.append(
            second.create_producer("turns", access_mode=Modes.WaitForExclusive)
        )
    )
    waiting.start()
    waiting.join(1.0)
    assert not created
    holder.send(b"2")
    holder.close()
    waiting.join(ANSWER_S)
    assert not waiting.is_alive()
    created[0].send(b"3")
    server.kill()
    server.start()
    created[0].send(b"4")
    assert _read_all(client, "turns") == [b"1", b"2", b"3", b"4"]


# --- names, encryption, termination ---------------------------------------------------------------


def test_a_name_belongs_to_one_producer(
    server: ServerProcess, client: pulsar.Client, second: pulsar.Client
) -> None:
    """The second is refused, also once the first has come back after a restart; when it has
    left, the name is free. Names given by the broker differ."""
    first = client.create_producer("names", producer_name="me")
    for _ in before_and_after(server):
        first.send(b"here")
        with pytest.raises(pulsar.ProducerBusy):
            second.create_producer("names", producer_name="me")
    first.close()
    second.create_producer("names", producer_name="me").send(b"x")
    assert (
        client.create_producer("names").producer_name()
        != second.create_producer("names").producer_name()
    )


def test_encrypted_messages_pass_unread(
    server: ServerProcess, client: pulsar.Client, tmp_path: Path
) -> None:
    """Where encryption is required a plain producer is refused; an encrypted message comes back
    as it was, after a restart."""
    topic = _namespace(server, encryption_required=True) + "secrets"
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(
        ["openssl", "genrsa", "-out", str(private), "2048"], check=True, capture_output=True
    )
    subprocess.run(
        ["openssl", "rsa", "-in", str(private), "-pubout", "-out", str(public)],
        check=True,
        capture_output=True,
    )
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    impatient = pulsar.Client(server.service_url, operation_timeout_seconds=2, logger=QUIET)
    with pytest.raises(pulsar.PulsarException):
        impatient.create_producer(topic)
    impatient.close()
    producer = client.create_producer(
        topic, encryption_key="key", crypto_key_reader=keys, batching_enabled=True
    )
    for number in range(5):
        producer.send_async(f"secret {number}".encode(), None)
    producer.flush()
    server.kill()
    server.start()
    data = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"secret 3" not in data
    consumer = client.subscribe(
        topic, "s", initial_position=pulsar.InitialPosition.Earliest, crypto_key_reader=keys
    )
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(5)] == [
        f"secret {number}".encode() for number in range(5)
    ]


def test_a_terminated_topic_takes_nothing(server: ServerProcess, client: pulsar.Client) -> None:
    """The producer that is in and the one that comes learn of it, after a restart too; what was
    sent before stays."""
    producer = client.create_producer("over")
    producer.send(b"last words")
    _order(server, "POST", "persistent/public/default/over/terminate", None)
    for _ in range(2):
        with pytest.raises(pulsar.TopicTerminated):
            producer.send(b"too late")
        with pytest.raises(pulsar.TopicTerminated):
            client.create_producer("over")
        server.kill()
        server.start()
    assert _read_all(client, "over") == [b"last words"]

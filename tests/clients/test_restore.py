"""Real brokers whose etcd is destroyed, with the official Python client before and after:
nothing acknowledged is lost, ids still increase."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import LEASE_S, Cluster, wait_for
from dev.testbed.rest import Admin
from magnetar.client import Client, Watermark
from tests.clients.conftest import QUIET
from tests.clients.load import Load
from tests.clients.lost_metadata import (
    EXIT_S,
    copied,
    destroy_etcd,
    empty_etcd,
    metadata,
    places_of,
)

pytestmark = pytest.mark.slow

TOPICS = 3
MESSAGES = 40
PAYLOAD = b"x" * (48 << 10)
"""As many of these as fill a log file and a half, so that files roll, chains are shortened and
manifests change."""
RECEIVE_MS = 120_000
PAUSE_S_MAX = 15.0
"""What docs/restore.md promises; about one second on a quiet machine."""
Id = tuple[int, int]


def number_of(message: pulsar.Message) -> int:
    """Which one of its topic it is."""
    return int(message.data().split(maxsplit=2)[1])


class Record:
    """What clients were promised: ids by topic in order of receipts, with their payloads; what
    is acknowledged."""

    def __init__(self, prefix: str) -> None:
        self.topics = [f"{prefix}-{number}" for number in range(TOPICS)]
        self.receipts: dict[str, list[tuple[Id, bytes]]] = {topic: [] for topic in self.topics}
        self.acknowledged: dict[str, int] = dict.fromkeys(self.topics, 0)

    def publish(self, service_url: str, count: int) -> None:
        client = pulsar.Client(service_url, operation_timeout_seconds=60, logger=QUIET)
        try:
            for topic in self.topics:
                producer = client.create_producer(topic, batching_enabled=False)
                for _ in range(count):
                    payload = f"{topic} {len(self.receipts[topic])} ".encode() + PAYLOAD
                    message = producer.send(payload)
                    self.receipts[topic].append(
                        ((message.ledger_id(), message.entry_id()), payload)
                    )
        finally:
            client.close()

    def acknowledge(self, service_url: str, count: int) -> None:
        """Acknowledge the next `count` messages of every topic, again those of which the broker
        knows nothing: a move may have come in between.

        What is published later confirms it.
        """
        client = pulsar.Client(service_url, operation_timeout_seconds=60, logger=QUIET)
        try:
            for topic in self.topics:
                end = self.acknowledged[topic] = self.acknowledged[topic] + count
                while True:
                    consumer = self._subscribe(client, topic)
                    message = consumer.receive(RECEIVE_MS)
                    if (number := number_of(message)) >= end:
                        break
                    for _ in range(end - number):
                        consumer.acknowledge(message)
                        message = consumer.receive(RECEIVE_MS)
                    consumer.close()
        finally:
            client.close()

    def _subscribe(self, client: pulsar.Client, topic: str) -> pulsar.Consumer:
        return client.subscribe(
            topic, "s", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=4
        )

    def check(self, service_url: str) -> None:
        """Everything is there, in order, ids rising; the subscription goes on where its
        confirmed acknowledgements end."""
        client = pulsar.Client(service_url, operation_timeout_seconds=60, logger=QUIET)
        try:
            for topic in self.topics:
                expected = self.receipts[topic]
                ids = [found for found, _ in expected]
                assert ids == sorted(set(ids)), f"{topic}: an id is not above the one before it"
                consumer = self._subscribe(client, topic)
                first = consumer.receive(RECEIVE_MS)
                assert bytes(first.data()) == expected[self.acknowledged[topic]][1], (
                    f"{topic}: the subscription goes on elsewhere"
                )
                consumer.close()
                reader = client.create_reader(topic, pulsar.MessageId.earliest)
                for (ledger, entry), payload in expected:
                    message = reader.read_next(RECEIVE_MS)
                    found = message.message_id()
                    assert (found.ledger_id(), found.entry_id()) == (ledger, entry), (
                        f"{topic}: {(ledger, entry)} is lost"
                    )
                    assert bytes(message.data()) == payload
                assert not reader.has_message_available(), (
                    f"{topic}: more than what was acknowledged"
                )
                reader.close()
        finally:
            client.close()


SETTINGS = {
    # Acknowledgements are in the log before what is published after them: the client does not ask
    # for their confirmation.
    "MAGNETAR_ACK_WRITE_DELAY_S": "0",
    "MAGNETAR_MAINTENANCE_S": "0.5",
    "MAGNETAR_METADATA_BACKUP_INTERVAL_S": "2",
}


@pytest.fixture(scope="module", autouse=True)
def quick_settings() -> Iterator[None]:
    """For every server that the tests of this file start."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), brokers=2)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.etcd
@pytest.mark.parametrize("way", ["backup", "kept copy", "storage alone"])
def test_a_destroyed_etcd_loses_nothing(running_cluster: Cluster, way: str) -> None:
    """From a backup that is older than the last messages, moves and rolls; from the brokers' own
    copy; from storage alone."""
    cluster = running_cluster
    cluster.repair()
    where, copy = places_of(cluster), cluster.directory / "backup"
    record = Record(way.replace(" ", "-"))
    record.publish(cluster.service_url, 5)
    record.acknowledge(cluster.service_url, 2)
    metadata("backup", str(copy), *where[:2])
    for topic in record.topics[:2]:
        cluster.unload(topic)
    wait_for(
        "a copy that the brokers keep",
        lambda: any((cluster.directory / "volume" / "backups").glob("*")),
        EXIT_S,
    )
    record.publish(cluster.service_url, MESSAGES)
    record.acknowledge(cluster.service_url, 3)
    cluster.unload(record.topics[0])
    record.publish(cluster.service_url, 3)

    destroy_etcd(cluster)
    refused = cluster.brokers["broker-0"]
    refused.start(wait=False)
    wait_for("a broker refuses the empty store", lambda: not refused.running, EXIT_S)
    assert "magnetar metadata rebuild" in refused.log_tail()

    match way:
        case "backup":
            printed = metadata("restore", str(copy), *where)
        case "kept copy":
            printed = metadata("rebuild", *where)
            assert "backups/" in printed
        case _:
            printed = metadata("rebuild", "--without-copy", *where)
            assert "WARNING namespace public/default" in printed
    assert "PROBLEM" not in printed
    assert "not empty" in metadata("rebuild", *where, succeeds=False)

    cluster.repair()
    record.check(cluster.service_url)
    record.publish(cluster.service_url, 2)
    record.check(cluster.service_url)


@pytest.mark.etcd
def test_watermarks_survive_a_destroyed_etcd(running_cluster: Cluster) -> None:
    """Control records are in storage: from it alone a subscription has its watermark again, which
    nobody asserts a second time, and a new one has the same behind what it acknowledges."""
    cluster, topic = running_cluster, "persistent://public/default/asserted"
    cluster.repair()
    url = cluster.service_url

    async def assert_one() -> None:
        async with asyncio.timeout(EXIT_S), Client(url) as client:
            consumer = await client.subscribe(
                topic, "s", initial_position="Earliest", watermarks=True
            )
            producer = await client.create_producer(topic)
            await producer.send(b"x", event_time=4000)
            await producer.watermark(5000)
            await consumer.acknowledge(await consumer.receive())
            assert await consumer.receive_or_watermark() == Watermark(5000)

    async def see_it() -> None:
        async with asyncio.timeout(EXIT_S), Client(url) as client:
            known = await client.subscribe(topic, "s", watermarks=True)
            assert await known.receive_or_watermark() == Watermark(5000)
            new = await client.subscribe(topic, "new", initial_position="Earliest", watermarks=True)
            await new.acknowledge(await new.receive())
            assert await new.receive_or_watermark() == Watermark(5000)

    asyncio.run(assert_one())
    destroy_etcd(cluster)
    where = places_of(cluster)
    metadata("rebuild", "--without-copy", *where)
    cluster.repair()
    asyncio.run(see_it())


@pytest.mark.etcd
def test_brokers_serve_until_the_restore_and_pause_for_seconds(running_cluster: Cluster) -> None:
    """No process is stopped or started for it: under traffic an empty etcd takes the lost one's
    place, and is filled under the brokers."""
    cluster = running_cluster
    cluster.repair()
    Admin(cluster.brokers[cluster.entry]).call(
        "POST", "namespaces/public/default/deduplication", True
    )
    set_ms = time.time_ns() // 1_000_000
    wait_for("a copy with that policy", lambda: copied(cluster, set_ms))
    load = Load(
        cluster.service_url,
        [f"served-{number}" for number in range(TOPICS)],
        cluster.directory / "client-served.log",
    )

    def goes_on(since: float) -> bool:
        return not load.silent(since)

    with load:
        wait_for("a receipt on every topic", lambda: goes_on(0.0))
        processes = {name: broker.pid for name, broker in cluster.brokers.items()}
        former = {name: cluster.incarnation(name) for name in cluster.brokers}
        empty_etcd(cluster)
        lost = time.monotonic()
        wait_for(
            "receipts for longer than leases last",
            lambda: time.monotonic() > lost + 2 * LEASE_S and goes_on(lost + 2 * LEASE_S),
        )
        assert load.gap(load.topics, lost, time.monotonic()) < 2 * LEASE_S, (
            "nobody waits for the store"
        )
        assert {name: cluster.incarnation(name) for name in cluster.brokers} == former, (
            "none has ended for the empty store"
        )
        since = time.monotonic()
        assert "Restored from backups/" in metadata("rebuild", *places_of(cluster))
        now = time.monotonic()
        wait_for("receipts again", lambda: goes_on(now))
        pause_s = load.gap(load.topics, since, time.monotonic())
        print(f"  pause of senders: {pause_s:.2f} s", flush=True)
        assert pause_s < PAUSE_S_MAX
        cluster.wait_healthy()
        assert {
            name: broker.pid for name, broker in cluster.brokers.items() if broker.running
        } == processes
    load.verify()


def test_a_standalone_server_does_not_start_over_its_own_log(tmp_path: Path) -> None:
    """Its metadata is deleted: it refuses, naming the command; the command brings everything
    back."""
    server = ServerProcess(tmp_path)
    server.start()
    record = Record("standalone")
    try:
        record.publish(server.service_url, 4)
        record.acknowledge(server.service_url, 1)
        record.publish(server.service_url, 1)
        server.kill()
        copy = tmp_path / "copy"
        metadata("backup", str(copy), "--data-dir", str(tmp_path / "data"))
        server.start()
        record.publish(server.service_url, 4)
        server.stop()
        shutil.rmtree(tmp_path / "data" / "metadata")
        with pytest.raises(RuntimeError, match="magnetar metadata rebuild"):
            server.start()
        metadata("restore", str(copy), "--data-dir", str(tmp_path / "data"))
        server.start()
        record.check(server.service_url)
        record.publish(server.service_url, 1)
        record.check(server.service_url)
    finally:
        if server.running:
            server.kill()

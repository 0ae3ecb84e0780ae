"""The official Python client against brokers without files to append to: on S3, a real HTTP
server that loses answers and refuses, and on links."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from dev.s3.server import BUCKET, CREDENTIALS, REGION, S3Server
from dev.server_process import ServerProcess
from dev.testbed.cluster import Cluster, wait_for
from magnetar.storage import names
from magnetar.storage.volumes.objects import RetryingObjects
from magnetar_operator.builders.message_storage import location, storage_environment
from tests.clients.conftest import QUIET
from tests.clients.load import PENDING_MAX, Load
from tests.contract.storage.volumes import s3_objects, s3_server
from tests.support.samples import cluster as cluster_resource

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TROUBLE = {"lost_answer": 0.05, "conflict": 0.05, "late": 0.02, "late_ms": 200}
MESSAGES = 200
OUTAGE_S = 6.0
RECEIVE_MS = 120_000


@pytest.fixture
def storage() -> Iterator[S3Server]:
    """The S3 server, in good weather before and after."""
    server = s3_server()
    server.weather()
    yield server
    server.weather()


@pytest.fixture
def server(tmp_path: Path, storage: S3Server) -> Iterator[ServerProcess]:
    """A standalone server whose messages are on S3."""
    with ServerProcess(
        tmp_path, volume=storage.url(f"standalone/{uuid4()}"), environment=CREDENTIALS
    ) as process:
        yield process


def test_what_was_acknowledged_survives_sigkill(server: ServerProcess, storage: S3Server) -> None:
    """Killed in the middle of traffic and after it, on a store that loses answers, answers 409
    and carries out late: nothing is missing."""
    storage.weather(**TROUBLE)
    client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    producer = client.create_producer("survivors", send_timeout_millis=120_000)
    for number in range(MESSAGES):
        producer.send(b"%d" % number)
        if number == MESSAGES // 2:
            server.kill()
            server.start()
    server.kill()
    server.start()
    consumer = client.subscribe("survivors", "s", initial_position=pulsar.InitialPosition.Earliest)
    received: list[int] = []
    while len(set(received)) < MESSAGES:
        message = consumer.receive(RECEIVE_MS)
        received.append(int(message.data()))
        consumer.acknowledge(message)
    # A send that was cut off by a kill is sent again by the client: its message may be there twice,
    # one behind the other.
    assert sorted(received) == received
    assert len(received) <= MESSAGES + 2
    client.close()


def test_an_outage_of_the_store_is_waited_for(server: ServerProcess, storage: S3Server) -> None:
    """No request succeeds for longer than a client's patience: the broker goes on where it was,
    and reads nothing of its log again."""
    client = pulsar.Client(server.service_url, operation_timeout_seconds=120, logger=QUIET)
    producer = client.create_producer("waiting", send_timeout_millis=120_000)
    for number in range(MESSAGES):
        producer.send(b"%d" % number)
    for kind in ("throttled", "broken"):
        storage.counts()
        storage.weather(**{kind: 1.0})
        receipt = threading.Thread(target=producer.send, args=(kind.encode(),))
        receipt.start()
        receipt.join(OUTAGE_S)
        assert receipt.is_alive()
        storage.weather()
        receipt.join(RECEIVE_MS / 1000)
        assert not receipt.is_alive()
        counts = storage.counts()
        assert counts.get("GET", 0) < MESSAGES / 4
        assert sum(counts.values()) < MESSAGES
    with urllib.request.urlopen(f"{server.http_url}/metrics") as answer:
        assert "magnetar_log_files_abandoned 0" in answer.read().decode()
    client.close()


class TestMissingSlot:
    """A commit in the middle of a dead server's log is deleted from outside."""

    GONE = 20

    @pytest.fixture
    def scene(
        self, tmp_path: Path, storage: S3Server
    ) -> Iterator[tuple[ServerProcess, RetryingObjects, str]]:
        """A server that has started again on a log without one of its slots, the objects, and
        the log file's name."""
        prefix = f"standalone/{uuid4()}"
        with ServerProcess(tmp_path, volume=storage.url(prefix), environment=CREDENTIALS) as server:
            client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
            producer = client.create_producer("damaged")
            for number in range(MESSAGES // 4):
                producer.send(b"%d" % number)
            server.kill()
            client.shutdown()
            objects = s3_objects(prefix)
            logs = {
                slot[0]
                for key, _ in asyncio.run(objects.list(names.LOGS))
                if (slot := names.slot_of(key)) is not None
            }
            yield server, objects, max(logs)

    def test_it_is_named_and_what_is_brought_back_brings_everything_back(
        self, scene: tuple[ServerProcess, RetryingObjects, str]
    ) -> None:
        server, objects, log = scene
        key = names.slot(log, self.GONE)
        content = asyncio.run(objects.get(key))
        asyncio.run(objects.delete(key))
        server.start()
        client = pulsar.Client(server.service_url, operation_timeout_seconds=120, logger=QUIET)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self.read, client)
            wait_for(
                "the damage is named",
                lambda: any(key in found["error"] for found in self.damage(server)),
            )
            assert not asyncio.run(objects.exists(key))
            assert asyncio.run(objects.put_if_absent(key, [content]))
            assert reading.result() == list(range(MESSAGES // 4))
        wait_for("no damage is named", lambda: not self.damage(server))
        client.close()

    async def test_its_loss_can_be_accepted(
        self, scene: tuple[ServerProcess, RetryingObjects, str]
    ) -> None:
        server, objects, log = scene
        await objects.delete(names.slot(log, self.GONE))
        server.start()
        client = pulsar.Client(server.service_url, operation_timeout_seconds=120, logger=QUIET)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self.read, client)
            wait_for("the damage is named", lambda: bool(self.damage(server)))
            [file] = {found["file"] for found in self.damage(server)}
            command = [
                sys.executable,
                "-m",
                "magnetar",
                "storage",
                "accept-loss",
                file,
                "--volume",
                server.volume,
            ]
            said = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, **CREDENTIALS},
            ).stdout
            assert "Nothing was changed" in said
            subprocess.run([*command, "--yes"], check=True, env={**os.environ, **CREDENTIALS})
            kept = reading.result()
        assert 0 < len(kept) < self.GONE
        assert kept == list(range(len(kept)))
        client.create_producer("damaged").send(b"on")
        client.close()

    def damage(self, server: ServerProcess) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{server.http_url}/magnetar/v1/damage") as answer:
            return list(json.load(answer)["damage"])

    def read(self, client: pulsar.Client) -> list[int]:
        """All that is there, as soon as anything is."""
        reader = client.create_reader("damaged", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(RECEIVE_MS).data()))
        return found


def test_a_store_without_atomic_conditions_is_refused_at_start(
    tmp_path: Path, storage: S3Server
) -> None:
    """It looks for the key, and writes afterwards: one put after another would never show that."""
    storage.weather(split_ms=20)
    process = ServerProcess(
        tmp_path, volume=storage.url(f"split/{uuid4()}"), environment=CREDENTIALS
    )
    with pytest.raises(
        RuntimeError,
        match=r"s3://(.|\n)*win instead of one(.|\n)*Use a store with atomic conditional writes",
    ):
        process.start()


def test_what_the_operator_renders_is_what_a_broker_needs(
    tmp_path: Path, storage: S3Server
) -> None:
    """The location and the variables of a BrokerCluster's pods, filled in from its secret as a
    kubelet does; nothing else is known of S3."""
    s3 = {
        "bucket": BUCKET,
        "endpoint": storage.endpoint,
        "region": REGION,
        "prefix": f"rendered/{uuid4()}",
    }
    resource = cluster_resource(
        storage={"s3": {**s3, "credentials": {"secretRef": {"name": "keys"}, "accessKeyId": "id"}}}
    )
    secret = {
        "id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    variables = {
        item["name"]: secret[item["valueFrom"]["secretKeyRef"]["key"]]
        for item in storage_environment(resource)
    }
    process = ServerProcess(
        tmp_path,
        volume=location(resource),
        environment={**variables, "AWS_EC2_METADATA_DISABLED": "true"},
    )
    process.start()
    try:
        client = pulsar.Client(process.service_url, operation_timeout_seconds=60, logger=QUIET)
        client.create_producer("rendered").send(b"kept")
        process.kill()
        process.start()
        assert (
            client.create_reader("rendered", pulsar.MessageId.earliest).read_next(RECEIVE_MS).data()
            == b"kept"
        )
        client.close()
    finally:
        process.stop()


def test_a_wrong_bucket_is_named_at_start(tmp_path: Path, storage: S3Server) -> None:
    location = storage.url("x").replace("s3://", "s3://not-")
    process = ServerProcess(tmp_path, volume=location, environment=CREDENTIALS)
    with pytest.raises(RuntimeError, match=r"exited with 1(.|\n)*no bucket not-magnetar"):
        process.start()


@pytest.mark.etcd
@pytest.mark.parametrize("kind", ["s3", "link"])
def test_a_broker_takes_over_from_another(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """One of two is killed: the other serves on, and nothing acknowledged is lost; on S3, and on
    links as on NFS, where a slot is the fence."""
    if kind == "s3":
        volume, environment = (
            request.getfixturevalue("storage").url(f"cluster/{uuid4()}"),
            CREDENTIALS,
        )
    else:
        volume, environment = f"link://{tmp_path}/linked", {}
    cluster = Cluster(tmp_path, brokers=2, volume=volume, environment=environment)
    try:
        cluster.start()
        load = Load(
            cluster.service_url, [f"topic-{number}" for number in range(3)], tmp_path / "client.log"
        )
        with load:
            wait_for("a receipt on every topic", lambda: not load.silent(0.0))
            victim = next(name for name in cluster.brokers if name != cluster.entry)
            wait_for("the victim owns bundles", lambda: bool(cluster.owned_by(victim)))
            cluster.brokers[victim].kill()
            killed = time.monotonic()
            wait_for("every topic writable again", lambda: not load.silent(killed + 0.2))
            wait_for("the victim owns nothing", lambda: not cluster.owned_by(victim))
        load.verify(duplicates_max=PENDING_MAX)
    finally:
        cluster.stop()

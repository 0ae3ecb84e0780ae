"""A standalone server on a real small file system that is full or hangs: the runbook
MagnetarStorageShort, step by step, with the official client."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from dev.testbed.rest import Admin
from tests.clients.conftest import QUIET
from tests.clients.small_disk import KINDS, fill, frozen, small_disk

pytestmark = pytest.mark.slow
DISK_BYTES = 200 << 20
STRETCH_BYTES = 26 << 20
"""Of one topic: three log files and a little, so that what is freed of it frees whole files."""
CHUNK = b"x" * (256 << 10)
SELDOM = {"MAGNETAR_MAINTENANCE_S": "60", "MAGNETAR_CHECKPOINT_AGE_S": "600"}
"""The embedded metadata store is on the same disk: what it writes at that moment would keep
look-ups waiting."""
SETTINGS = {
    "MAGNETAR_MAX_MESSAGE_BYTES": str(1 << 20),
    "MAGNETAR_LOG_FILE_BYTES": str(8 << 20),
    "MAGNETAR_MAINTENANCE_S": "0.2",
    "MAGNETAR_CHECKPOINT_AGE_S": "0.2",
    "MAGNETAR_REPLACED_KEPT_S": "0",
    "MAGNETAR_TRIM_GRACE_S": "0",
    "MAGNETAR_TOPIC_CHECK_S": "0.1",
    "MAGNETAR_EXPIRY_CHECK_S": "0.2",
    "MAGNETAR_RETENTION_CHECK_S": "0.2",
}
RECEIVE_MS = 120_000
FREED_S = 120.0
ANSWER_S = 60.0
"""A disk that hangs does so for as long as the test looks at it: what waited for it would not
answer at all."""


class Stage:
    """The server, its disk and a client; `acknowledged` are the messages of the topic `kept`
    that were confirmed, by number."""

    def __init__(self, server: ServerProcess, disk: Path) -> None:
        self.server, self.disk, self.admin = server, disk, Admin(server)
        self.acknowledged: list[int] = []
        self.connect()

    def connect(self) -> None:
        self.client = pulsar.Client(
            self.server.service_url, operation_timeout_seconds=60, logger=QUIET
        )

    @property
    def short(self) -> bool:
        """Whether the server publishes nothing for want of space."""
        with urllib.request.urlopen(f"{self.server.http_url}/metrics", timeout=60) as answer:
            return "\nmagnetar_storage_short 1.0" in answer.read().decode()

    def stretch(self, topic: str) -> None:
        """Log files full of one topic, with a subscription that has read none of it."""
        self.client.subscribe(topic, "s").close()
        producer = self.client.create_producer(topic, batching_enabled=False)
        for _ in range(STRETCH_BYTES // len(CHUNK)):
            producer.send(CHUNK)
        producer.close()

    def fill(self) -> None:
        """Publish until that is refused, and let another file take what is left."""
        producer = self.client.create_producer(
            "kept", send_timeout_millis=4000, batching_enabled=False
        )
        number = self.acknowledged[-1] + 1 if self.acknowledged else 0
        with contextlib.suppress(pulsar.PulsarException):
            while True:
                producer.send(b"%d " % number + CHUNK)
                self.acknowledged.append(number)
                number += 1
        wait_for("it says that space is short", lambda: self.short)
        with contextlib.suppress(pulsar.PulsarException):
            producer.close()
        fill(self.disk / "ballast")

    def goes_on(self) -> None:
        """Space came back, and what is published is taken again."""
        wait_for("there is space again", lambda: not self.short, FREED_S)
        producer = self.client.create_producer(
            "kept", send_timeout_millis=240_000, batching_enabled=False
        )
        number = self.acknowledged[-1] + 1000  # what was refused last may be there all the same
        producer.send(b"%d " % number + CHUNK)
        self.acknowledged.append(number)
        producer.close()

    def kept(self) -> list[int]:
        """What a reader finds of the topic `kept`, up to what was confirmed last."""
        found: list[int] = []
        reader = self.client.create_reader("kept", pulsar.MessageId.earliest)
        while not found or found[-1] != self.acknowledged[-1]:
            found.append(int(reader.read_next(RECEIVE_MS).data().split()[0]))
        reader.close()
        return found

    def claims(self) -> int:
        return len(list((self.disk / "storage" / "claims").iterdir()))

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET. Raises OSError without an answer within `ANSWER_S`."""
        try:
            with urllib.request.urlopen(self.server.http_url + path, timeout=ANSWER_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def health(self, status: int) -> str:
        """What health says with this status; "" while it has another one."""
        found, text = self.get("/admin/v2/brokers/health")
        return text if found == status else ""


def staged(kind: str, tmp_path: Path, **settings: str) -> contextlib.AbstractContextManager[Stage]:
    @contextlib.contextmanager
    def stage() -> Iterator[Stage]:
        with small_disk(kind, tmp_path, DISK_BYTES) as disk:
            server = ServerProcess(tmp_path, environment={**SETTINGS, **settings})
            (tmp_path / "data").symlink_to(disk)
            server.start()
            stage = Stage(server, disk)
            try:
                yield stage
            finally:
                with contextlib.suppress(pulsar.PulsarException):
                    stage.client.close()
                server.kill()

    return stage()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_the_runbook_frees_a_full_disk(kind: str, tmp_path: Path) -> None:
    """Shows: a broker on a 200 MB filesystem is filled by a publisher, then freed by TTL, by
    skip and by delete, killed while full, started, read, freed: nothing acknowledged is missing."""
    with staged(kind, tmp_path) as stage:
        admin = stage.admin
        admin.create_namespace("expiring")
        stage.client.subscribe("kept", "s").close()
        for topic in ("persistent://public/expiring/t", "skipped", "deleted", "left"):
            stage.stretch(topic)
        stage.fill()
        status, health = stage.get("/admin/v2/brokers/health")
        assert (status, "nothing is published" in health) == (503, True), health
        damage: dict[str, Any] = json.loads(stage.get("/magnetar/v1/damage?cluster=true")[1])
        assert "standalone" in damage["short_of_space"]

        admin.call("POST", "namespaces/public/expiring/messageTTL", 1)
        stage.goes_on()
        stage.fill()
        admin.topic("POST", "skipped", "subscription/s/skip_all")
        stage.goes_on()
        stage.fill()
        admin.call("DELETE", "persistent/public/default/deleted?force=true")
        stage.goes_on()
        stage.fill()

        with contextlib.suppress(pulsar.PulsarException):
            stage.client.close()  # its server takes nothing
        stage.server.kill()
        stage.server.start()
        stage.connect()
        assert stage.claims() == 1
        found = stage.kept()
        assert [
            number for number in dict.fromkeys(found) if number in set(stage.acknowledged)
        ] == stage.acknowledged
        admin.topic("DELETE", "left", "subscription/s?force=true")
        stage.goes_on()
        stage.fill()
        consumer = stage.client.subscribe("kept", "s")
        while (
            int((message := consumer.receive(RECEIVE_MS)).data().split()[0])
            != stage.acknowledged[-1]
        ):
            consumer.acknowledge(message)
        consumer.acknowledge(message)
        stage.goes_on()
        assert stage.server.running


def test_a_disk_that_hangs_holds_up_no_reader_and_health_says_so(tmp_path: Path) -> None:
    """What is in memory is read by readers and consumers that come while the disk hangs, health
    answers what is wrong, and what was sent concurrently is confirmed, once, when the disk goes
    on."""
    with staged("ext4", tmp_path, **SELDOM) as stage:
        client = stage.client
        client.subscribe("kept", "s").close()
        producer = client.create_producer(
            "kept", send_timeout_millis=240_000, batching_enabled=False
        )
        for number in range(5):
            producer.send(b"%d before" % number)
        confirmed: list[Any] = []
        with frozen(stage.disk):
            producer.send_async(b"5 during", lambda result, _identifier: confirmed.append(result))
            # once the flush under way is older than any that a sound disk does
            wait_for("health says so", lambda: "has waited for the disk" in stage.health(503))
            assert stage.get("/live") == (200, "ok")
            reader = client.create_reader("kept", pulsar.MessageId.earliest)
            assert [reader.read_next(RECEIVE_MS).data() for _ in range(5)] == [
                b"%d before" % number for number in range(5)
            ]
            consumer = client.subscribe("kept", "s")
            assert [consumer.receive(RECEIVE_MS).data() for _ in range(5)] == [
                b"%d before" % number for number in range(5)
            ]
            assert not confirmed
        wait_for("what was sent concurrently is confirmed", lambda: bool(confirmed))
        assert confirmed == [pulsar.Result.Ok]
        assert reader.read_next(RECEIVE_MS).data() == b"5 during"
        wait_for(
            "health says that it is over", lambda: stage.get("/admin/v2/brokers/ready")[0] == 200
        )

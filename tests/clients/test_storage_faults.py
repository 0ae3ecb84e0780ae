"""A standalone server on a small real file system that fills up, and on files that are damaged:
the official client loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from tests.clients.conftest import QUIET

pytestmark = pytest.mark.slow
DISK_BYTES = 96 << 20
MEMORY_DISK = "tmpfs"
QUICK = {
    "MAGNETAR_MAX_MESSAGE_BYTES": str(1 << 20),
    "MAGNETAR_LOG_FILE_BYTES": str(8 << 20),
    "MAGNETAR_MAINTENANCE_S": "0.2",
    "MAGNETAR_CHECKPOINT_AGE_S": "0.2",
    "MAGNETAR_REPLACED_KEPT_S": "0",
    "MAGNETAR_RECOVERY_RETRY_MAX_S": "0.5",
}
RECEIVE_MS = 120_000
CHUNK = b"x" * (256 << 10)


def mounted(*command: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(
            "mounting a small file system needs root: ENOSPC end to end was NOT tested on this "
            "machine"
        )
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(
            f"{' '.join(command)}: {found.stderr.strip()}: ENOSPC end to end was NOT tested on "
            "this machine"
        )


@pytest.fixture(params=[MEMORY_DISK, "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of DISK_BYTES: in memory, or ext4 on a loop device."""
    root = tmp_path / "disk"
    root.mkdir()
    if request.param == MEMORY_DISK:
        mounted("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(root))
    else:
        image = tmp_path / "image"
        image.write_bytes(b"")
        os.truncate(image, DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
        mounted("mount", "-o", "loop", str(image), str(root))
    yield root
    subprocess.run(["umount", str(root)], check=True)


@pytest.fixture
def server(disk: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path, environment=QUICK)
    (tmp_path / "data").symlink_to(disk)
    process.start()
    yield process
    process.stop()


def fill(path: Path) -> None:
    """Write until there is no space left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            os.write(file.fileno(), bytes(1 << 16))


def metrics(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(server.http_url + "/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return {
        line.split()[0]: float(line.split()[-1])
        for line in lines
        if line and not line.startswith("#") and "{" not in line
    }


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change some bytes of a file that others read."""
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), data, offset)


def unreadable(server: ServerProcess) -> list[dict[str, Any]]:
    """What could not be read when a client wanted it."""
    return [entry for entry in damage(server) if entry["what"] == "read"]


def damage(server: ServerProcess) -> list[dict[str, Any]]:
    with urllib.request.urlopen(server.http_url + "/magnetar/v1/damage", timeout=60) as response:
        found: list[dict[str, Any]] = json.load(response)["damage"]
        return found


def test_a_full_disk_holds_publishers_up_loses_nothing_and_is_over_when_there_is_space(
    server: ServerProcess, disk: Path
) -> None:
    """Sends time out instead of failing for good; what is there can be read by new consumers;
    the process continues; then it goes on."""
    client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    ballast = disk / "ballast"
    try:
        patient = client.create_producer(
            "full", send_timeout_millis=120_000, batching_enabled=False
        )
        acknowledged = list(range(4))
        for number in acknowledged:
            patient.send(b"%d " % number + CHUNK)
        patient.close()
        producer = client.create_producer("full", send_timeout_millis=3000, batching_enabled=False)
        pid = server.pid
        fill(ballast)
        for number in range(4, 200):
            try:
                producer.send(b"%d " % number + CHUNK)
            except pulsar.PulsarException:
                if metrics(server)["magnetar_storage_short"] == 1:
                    break  # else the machine is slow: it may be stored, and was not acknowledged
            else:
                acknowledged.append(number)
        else:
            pytest.fail("the disk is not full")
        assert (server.running, server.pid) == (True, pid)
        reader = client.create_reader("full", pulsar.MessageId.earliest)
        readable: list[int] = []
        while readable[-1:] != acknowledged[-1:]:
            readable.append(int(reader.read_next(RECEIVE_MS).data().split()[0]))
        assert [number for number in readable if number in acknowledged] == acknowledged
        ballast.unlink()
        producer.close()
        again = client.create_producer("full", send_timeout_millis=120_000, batching_enabled=False)
        again.send(b"1000 after")
        assert metrics(server)["magnetar_storage_short"] == 0
        seen = []
        while not seen or seen[-1] != 1000:
            seen.append(int(reader.read_next(RECEIVE_MS).data().split()[0]))
        assert server.pid == pid
    finally:
        client.close()
    server.kill()
    server.start()
    client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    try:
        reader = client.create_reader("full", pulsar.MessageId.earliest)
        found: list[int] = []
        while not found or found[-1] != 1000:
            found.append(int(reader.read_next(RECEIVE_MS).data().split()[0]))
        assert [number for number in dict.fromkeys(found) if number in acknowledged] == acknowledged
    finally:
        client.close()


@pytest.fixture
def quick_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A standalone server on the machine's own disk that rolls early and does not rewrite by
    age."""
    with ServerProcess(tmp_path, environment=QUICK) as process:
        yield process


def roll(server: ServerProcess, topic: str) -> None:
    request = urllib.request.Request(
        f"{server.http_url}/admin/v2/persistent/public/default/{topic}/roll", b"", method="POST"
    )
    with urllib.request.urlopen(request, timeout=60):
        return


def only_log_with(server: ServerProcess, needle: bytes) -> Path:
    """The log file that holds `needle`."""
    logs = (server.directory / "data" / "storage" / "logs").rglob("*.log")
    return next(path for path in logs if needle in path.read_bytes())


def test_damage_is_named_and_everything_else_is_served(quick_server: ServerProcess) -> None:
    """One byte of a sealed file is wrong, the index of another is gone: the entries before come,
    the damaged one is named by REST and metrics and never skipped, another topic is served by
    the same process; the file restored, the consumer goes on."""
    server = quick_server
    client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    try:
        for topic in ("sound", "hurt"):
            producer = client.create_producer(topic, batching_enabled=False)
            for number in range(6):
                producer.send(b"%s-%d" % (topic.encode(), number))
            roll(server, topic)
        client.close()
        server.kill()
        path = only_log_with(server, b"hurt-3")
        intact = path.read_bytes()
        server.start()  # from the chain: nothing is damaged yet
        client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
        for topic in ("hurt", "sound"):
            client.create_producer(topic).close()  # both are recovered before anything is wrong
        overwrite(path, intact.index(b"hurt-3"), b"hurt-X")
        only_log_with(server, b"sound-3").with_suffix(".index").unlink(missing_ok=True)
        reader = client.create_reader("hurt", pulsar.MessageId.earliest)
        assert [reader.read_next(RECEIVE_MS).data() for _ in range(3)] == [
            b"hurt-0",
            b"hurt-1",
            b"hurt-2",
        ]
        with pytest.raises(pulsar.Timeout):
            reader.read_next(2000)
        wait_for("the damage is known", lambda: bool(unreadable(server)))
        (found,) = unreadable(server)
        assert found["topic"] == "persistent://public/default/hurt"
        assert found["first"][1] == 3
        assert path.name in found["file"]
        assert found["offset"] < intact.index(b"hurt-3") < found["offset"] + 200
        assert metrics(server)["magnetar_storage_damage"] >= 1
        sound = client.create_reader("sound", pulsar.MessageId.earliest)
        assert [sound.read_next(RECEIVE_MS).data() for _ in range(6)] == [
            b"sound-%d" % number for number in range(6)
        ]
        overwrite(path, intact.index(b"hurt-3"), b"hurt-3")
        assert [reader.read_next(RECEIVE_MS).data() for _ in range(3)] == [
            b"hurt-3",
            b"hurt-4",
            b"hurt-5",
        ]
        wait_for("the damage is over", lambda: not unreadable(server))
    finally:
        client.close()

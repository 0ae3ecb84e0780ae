"""`magnetar job run` on this machine, against a standalone server."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.client import Client
from tests.spark.commands import TIMEOUT_S, magnetar

pytestmark = [pytest.mark.slow, pytest.mark.java]

TOPIC = "persistent://public/default/by-hand"


async def publish(server: ServerProcess, generations: int, keys: int) -> None:
    async with Client(server.service_url) as client:
        consumer = await client.subscribe(TOPIC, "keeps", initial_position="Earliest")
        producer = await client.create_producer(TOPIC)
        for generation in range(generations):
            for key in range(keys):
                await producer.send(b"%d" % generation, key=f"k{key}")
        await consumer.close()


async def compacted(server: ServerProcess, count: int) -> dict[str, bytes]:
    async with Client(server.service_url) as client:
        consumer = await client.subscribe(
            TOPIC, "view", type="Exclusive", initial_position="Earliest", read_compacted=True
        )
        found: list[tuple[str, bytes]] = []
        for _ in range(count):
            message = await asyncio.wait_for(consumer.receive(), TIMEOUT_S)
            assert message.key is not None
            found.append((message.key, bytes(message.value)))
        await consumer.close()
    assert len(dict(found)) == count, "a key came twice"
    return dict(found)


def test_a_topic_is_compacted_by_one_command(server: ServerProcess) -> None:
    """It says its phases while it works and its counts at the end; readers see the latest message
    of each key. A second run finds nothing new."""
    asyncio.run(publish(server, generations=3, keys=10))
    done = magnetar(server, "job", "run", "compaction", TOPIC, "--master", "local[2]", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["topics"], result["messages_in"], result["keys"]) == (1, 30, 10)
    phases = [line.split(",")[0] for line in done.stderr.splitlines() if line.endswith("% done")]
    assert phases[0] in ("Sealing", "Starting")
    assert len(phases) > 1
    assert asyncio.run(compacted(server, 10)) == {f"k{key}": b"2" for key in range(10)}
    again = magnetar(server, "job", "run", "compaction", TOPIC)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing new" in again.stdout


def test_a_namespace_is_compacted_by_one_command(server: ServerProcess) -> None:
    """All its topics in one application; a partition that nobody has used is passed over, and a
    namespace without topics has nothing to do."""
    admin = Admin(server)
    admin.call("PUT", "namespaces/public/many")
    command = ("job", "run", "compaction", "--namespace", "public/many", "-o", "json")
    nothing = magnetar(server, *command)
    assert nothing.returncode == 0, nothing.stdout + nothing.stderr
    assert json.loads(nothing.stdout)["topics"] == 0
    admin.call("PUT", "persistent/public/many/parted/partitions", 3)

    async def work() -> None:
        async with Client(server.service_url) as client:
            for local in ("a", "b", "parted"):
                topic = f"persistent://public/many/{local}"
                await client.subscribe(topic, "keeps", initial_position="Earliest")
                producer = await client.create_producer(topic)
                for number in range(10):
                    await producer.send(b"%d" % number, key="the same")

    asyncio.run(work())
    done = magnetar(server, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["topics"], result["messages_in"], result["keys"]) == (3, 30, 3)
    for wrong in ((), (TOPIC, "--namespace", "public/many")):
        refused = magnetar(server, "job", "run", "compaction", *wrong)
        assert refused.returncode == 2
        assert "one of the two" in refused.stderr


def test_what_cannot_be_compacted_is_said_in_one_line(server: ServerProcess) -> None:
    missing = magnetar(server, "job", "run", "compaction", "persistent://public/default/missing")
    assert missing.returncode == 2
    assert "missing" in missing.stderr
    assert "Traceback" not in missing.stderr + missing.stdout


def test_apply_runs_a_job_at_once(server: ServerProcess, tmp_path: Path) -> None:
    """With all that its manifest says; a run that succeeded is not repeated."""
    asyncio.run(publish(server, generations=1, keys=1))
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "DataJob",
        "metadata": {"name": "at-once"},
        "spec": {
            "clusterRef": {"name": "main"},
            "compaction": {"topic": TOPIC, "retainKeyless": True},
        },
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(manifest))
    for _ in range(2):
        done = magnetar(server, "apply", "-f", str(path), "-o", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        [row] = json.loads(done.stdout)
        assert row["resource"] == "datajob/at-once"
        assert re.fullmatch(r"completed \(run once: \d+ keys of \d+ messages\)", row["outcome"])

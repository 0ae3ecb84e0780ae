"""Topics on storage that is no directory, read and compacted by processes of their own; and what
such a process shows of its credentials: nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from dev.s3.server import CREDENTIALS, S3Server
from dev.server_process import ServerProcess
from tests.contract.storage.volumes import s3_server
from tests.spark.reading import SETTINGS, publish

pytestmark = [pytest.mark.slow, pytest.mark.java]

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "persistent://public/default/elsewhere"
TIMEOUT_S = 540
SECRET = "a-secret-of-this-test"
READING = """
import sys
from magnetar_jobs.session import SessionSettings, spark_session, spark_settings
from magnetar_jobs.topic_source import MagnetarDataSource
from pyspark import SparkConf
from pyspark.sql import SparkSession

volume, url, topic, events = sys.argv[1:]
conf = SparkConf()
for key, value in spark_settings(SessionSettings("elsewhere", master="local[2]"), {}).items():
    conf.set(key, value)
conf.set("spark.eventLog.compress", "false").set("spark.eventLog.enabled", "true").set("spark.eventLog.dir", events)
spark = SparkSession.builder.config(conf=conf).getOrCreate()
spark.dataSource.register(MagnetarDataSource)
frame = spark.read.format("magnetar").options(volume=volume, brokerUrl=url, topic=topic).load()
frame.explain("extended")
print("values", sorted(int(row["value"]) for row in frame.select("value").collect()))
spark.stop()
"""


@pytest.fixture(params=["link", "s3"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    environment = {**SETTINGS}
    if request.param == "s3":
        storage: S3Server = s3_server()
        storage.weather()
        volume, environment = storage.url(f"spark/{uuid4()}"), environment | CREDENTIALS
    else:
        volume = f"link://{tmp_path}/linked"
    with ServerProcess(tmp_path, volume=volume, environment=environment) as process:
        yield process


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process with credentials, the secret one of its own."""
    environment = {
        **os.environ,
        **CREDENTIALS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "PYTHONPATH": ":".join(
            str(ROOT / part) for part in ("broker_image", "operator", "spark_jobs", ".")
        ),
        "PYSPARK_PYTHON": sys.executable,
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_topics_are_read_and_compacted_where_they_are(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Neither output nor plan nor event log, from which Spark's pages are made, has a
    credential."""
    numbers = list(range(100))
    asyncio.run(publish(server, TOPIC, [b"%d" % number for number in numbers]))
    events = tmp_path / "events"
    events.mkdir()
    read = run("-c", READING, server.volume, server.http_url, TOPIC, str(events))
    assert read.returncode == 0, read.stdout + read.stderr
    assert f"values {numbers}" in read.stdout
    shown = [read.stdout, read.stderr]
    shown += [path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()]
    assert any("SparkListenerSQLExecutionStart" in text for text in shown)
    assert not any(SECRET in text for text in shown)
    compacted = run(
        "-m", "magnetar_jobs.compact", "--topic", TOPIC, "--broker-url", server.http_url,
        "--volume", server.volume, "--job", "elsewhere", "--run", "1", "--retain-keyless",
    )  # fmt: skip
    assert compacted.returncode == 0, compacted.stdout + compacted.stderr
    assert "entries_out=100" in compacted.stdout + compacted.stderr

"""A user's script as an operator's driver pod runs it, over an embedded store or beside a server.

It makes and stops sessions of its own; this file runs before those that share one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import yaml

from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.embedded import EmbeddedStore
from magnetar.metadata.records import JobRunRecord
from magnetar_jobs.driver import FAILED, SUCCEEDED, UNUSABLE
from magnetar_jobs.script import main
from tests.spark.reading import given, publish

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """A driver sets variables and arguments for its script; it has a process of its own."""
    arguments = sys.argv
    with mock.patch.dict(os.environ):
        yield
    sys.argv = arguments


def run(directory: Path, script: str, name: str, *arguments: str) -> int:
    path = directory / "main.py"
    path.write_text(script)
    (directory / "volume").mkdir(exist_ok=True)
    place = (
        "--store",
        f"embedded://{directory / 'metadata'}",
        "--volume",
        str(directory / "volume"),
    )
    return main(["--script", str(path), *place, *options_of(name), "--", *arguments])


def options_of(run: str) -> tuple[str, ...]:
    return ("--job", "demo", "--run", run, "--master", "local[1]", "--executor-memory-mib", "512")


def stored(directory: Path, name: str) -> tuple[JobRunRecord, bool]:
    """The run's record, and whether its progress was left behind."""

    async def read() -> tuple[JobRunRecord, bool]:
        store = await EmbeddedStore.open(directory / "metadata", SystemClock())
        item = await store.get(keys.job_run("demo", name))
        left = await store.get(keys.job_progress("demo", name))
        await store.close()
        assert item is not None
        return JobRunRecord.decode(item.value), left is not None

    return asyncio.run(read())


def test_the_example_counts_the_messages_of_a_namespace(
    server: ServerProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its data source knows the cluster of the job."""
    configured, job = yaml.safe_load_all((ROOT / "examples/pyspark-job.yaml").read_text())
    script = tmp_path / "main.py"
    script.write_text(configured["data"][job["spec"]["pySpark"]["key"]])
    (namespace,) = job["spec"]["pySpark"]["arguments"]
    Admin(server).call("PUT", f"namespaces/{namespace}")
    values = [b"%d" % number for number in range(12)]
    asyncio.run(publish(server, f"persistent://{namespace}/counted", values))
    cluster = given(server, "")
    place = ("--broker-url", cluster["brokerUrl"], "--volume", cluster["volume"])
    assert main(["--script", str(script), *place, *options_of("1"), "--", namespace]) == SUCCEEDED
    assert f"|persistent://{namespace}/counted|12      |0   |14   |" in capfd.readouterr().out


def test_a_script_that_succeeded_is_not_repeated(tmp_path: Path) -> None:
    assert run(tmp_path, "", "1") == SUCCEEDED
    record, left = stored(tmp_path, "1")
    assert (record.kind, record.state, left) == ("pyspark", "succeeded", False)
    assert run(tmp_path, "raise AssertionError('done before')", "1") == SUCCEEDED


def test_a_script_that_fails_says_why_in_the_record(tmp_path: Path) -> None:
    script = "import sys\nsys.exit(int(sys.argv[1]))"
    assert run(tmp_path, script, "1", "7") == FAILED
    assert "the script ended with exit code 7" in stored(tmp_path, "1")[0].message
    assert run(tmp_path, script, "1", "0") == SUCCEEDED, "another attempt"
    assert run(tmp_path, "{}['price']", "2") == FAILED
    record, left = stored(tmp_path, "2")
    assert (record.state, record.message, left) == ("failed", "KeyError: 'price'", False)


def test_a_script_that_is_not_there_is_final(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    arguments = ["--store", f"embedded://{tmp_path / 'm'}", "--volume", str(tmp_path / "volume")]
    given = ["--script", "/nowhere.py", *arguments, "--job", "demo", "--run", "1"]
    assert main(given) == UNUSABLE

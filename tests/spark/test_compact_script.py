"""A user's script as an operator's driver pod runs it, over an embedded store.

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

from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.embedded import EmbeddedStore
from magnetar.metadata.records import JobRunRecord
from magnetar_jobs.driver import FAILED, SUCCEEDED, UNUSABLE
from magnetar_jobs.script import main

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
    (directory / "volume" / "log").mkdir(parents=True, exist_ok=True)
    (directory / "volume" / "log" / "1").write_bytes(b"12345")
    store, volume = f"embedded://{directory / 'metadata'}", str(directory / "volume")
    return main(
        [
            *("--script", str(path), "--store", store, "--volume", volume, "--job", "demo"),
            *("--run", name, "--master", "local[1]", "--executor-memory-mib", "512"),
            *("--", *arguments),
        ]
    )


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


def test_the_example_runs_with_a_session_and_is_not_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    documents = yaml.safe_load_all((ROOT / "examples/pyspark-job.yaml").read_text())
    script = next(iter(documents))["data"]["main.py"]
    assert run(tmp_path, script, "1") == SUCCEEDED
    shown = capfd.readouterr().out
    assert "|log |1    |5    |" in shown
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

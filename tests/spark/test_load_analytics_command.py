"""From a standalone server that writes its history to advice that it uses, by three commands."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.server_process import ServerProcess
from magnetar.client import Client
from tests.spark.commands import magnetar

pytestmark = [pytest.mark.slow, pytest.mark.java]

TOPIC = "persistent://public/default/loaded"
HISTORY = {
    "MAGNETAR_LOADHISTORYSAMPLESECONDS": "0.5",
    "MAGNETAR_LOADHISTORYWRITESECONDS": "1",
    "MAGNETAR_LOAD_REPORT_S": "0.2",
}
WAIT_S = 240.0
SAMPLES_MIN = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that takes a sample twice a second."""
    with ServerProcess(tmp_path_factory.mktemp("server"), environment=HISTORY) as process:
        yield process


async def load(server: ServerProcess, seconds: float) -> int:
    """Publish for a while; how much."""
    async with Client(server.service_url) as client:
        producer = await client.create_producer(TOPIC)
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.gather(*(producer.send(b"x" * 100) for _ in range(20)))
            count += 20
            await asyncio.sleep(0.02)
    return count


def until(what: str, reached: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def test_a_server_takes_the_advice_of_a_job_over_its_own_history(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Samples say what was published; the report is downloaded; explain names what is known."""
    sent = asyncio.run(load(server, 4.0))
    history = server.directory / "data" / "storage" / "load-history"
    # A busy server may have taken but one sample when it writes.
    until("the history is written", lambda: len(list(history.glob("*.jsonl.gz"))) >= SAMPLES_MIN)
    narrow = ("--days", "1", "--window-seconds", "60")
    done = magnetar(server, "job", "run", "load-analytics", *narrow, "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["samples"] >= SAMPLES_MIN
    assert (result["damaged"], result["brokers"], result["bundles"] > 0) == (0, 1, True)

    advice: dict[str, Any] = {}

    def is_used() -> bool:
        """Whether the server has seen what the job has written."""
        url = f"{server.http_url}/magnetar/v1/load-analytics"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            advice.update(json.load(answer))
        return bool(advice["used"])

    until("the server uses the advice", is_used)
    busiest = max(advice["advice"]["bundles"], key=lambda found: found["usual"]["messages_in"])
    assert 0 < busiest["usual"]["messages_in"] <= sent
    assert busiest["usual"]["bytes_in"] > 100 * busiest["usual"]["messages_in"]

    page = tmp_path / "report.html"
    done = magnetar(server, "job", "report", "command-line", "--save", str(page), "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = json.loads(done.stdout)
    assert row["id"] == result["report"]
    assert len(page.read_bytes()) == row["bytes"]
    assert busiest["name"] in page.read_text()

    done = magnetar(server, "explain", TOPIC)
    assert "it usually has" in done.stdout.replace("\n", " "), done.stdout
    done = magnetar(server, "job", "report", "other")
    assert done.returncode != 0
    assert "no report of a job other" in done.stderr


def test_a_manifest_is_run_beside_a_standalone_server(server: ServerProcess) -> None:
    done = magnetar(server, "apply", "-f", "examples/load-analytics.yaml", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = json.loads(done.stdout)
    assert row["resource"] == "datajob/load-analytics"
    assert row["outcome"].startswith("completed (run once: advice from ")

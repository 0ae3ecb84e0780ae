"""The data source `magnetar` over a stored topic or beside a server, and what it must show.

Owns: `released`, a store that is left to the source; options and batch queries; `messages_in`, the
reference, which works on the description of a history; `publish`, the messages of a server's topic;
`run_example` and `start_python`, processes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dev.server_process import ServerProcess
from magnetar.client import Client
from magnetar_jobs.topic_source import MagnetarDataSource
from tests.spark.histories import Described
from tests.spark.topics import TOPIC
from tests.support.durable_topics import DurableTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
EXAMPLE_S = 540
SETTINGS = {
    "MAGNETAR_MAINTENANCE_S": "0.5",
    # A commit that was answered has taken effect, however busy the machine is.
    "MAGNETAR_TRANSACTION_END_PATIENCE_S": "60",
}
"""Of a server whose transactions jobs wait for."""

Found = tuple[int, int, int, str | None, bytes]
"""(ledger, entry, index in the batch or -1, key, value)."""


@contextmanager
def released(topic: DurableTopic) -> Iterator[None]:
    """Within, the store is closed here, so that the source can open it."""
    topic.run(topic.store.close())
    try:
        yield
    finally:
        topic.run(topic.reopen())


def options_of(topic: DurableTopic, **options: object) -> dict[str, str]:
    given = {
        "topic": str(TOPIC),
        "volume": str(topic.directory),
        "store": f"embedded://{topic.directory.parent / 'metadata'}",
    }
    return given | {name: str(value) for name, value in options.items()}


def load(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    spark.dataSource.register(MagnetarDataSource)
    return spark.read.format("magnetar").options(**given).load()


def rows_of(frame: DataFrame) -> list[Found]:
    """The messages of a query, in order."""
    rows = frame.select("ledger", "entry", "batch_index", "key", "value").collect()
    return sorted(
        (
            row["ledger"],
            row["entry"],
            -1 if row["batch_index"] is None else row["batch_index"],
            None if row["key"] is None else bytes(row["key"]).decode(),
            bytes(row["value"]),
        )
        for row in rows
    )


def messages_in(entries: Sequence[Described]) -> list[Found]:
    """Every message, chunks put together at the last one's place."""
    found: list[Found] = []
    seen: dict[str, set[int]] = {}
    for described in entries:
        if described.marker:
            continue
        if described.chunk is not None:
            uuid, number, count = described.chunk
            seen.setdefault(uuid, set()).add(number)
            if number + 1 < count or len(seen[uuid]) < count:
                continue
        for index, sent in enumerate(described.messages):
            place = index if described.batched else -1
            found.append((described.ledger, described.entry, place, sent.key, sent.payload))
    return found


# --- a server -------------------------------------------------------------------------------------


def given(server: ServerProcess, topic: str, **options: object) -> dict[str, str]:
    found = {
        "topic": topic,
        "volume": str(server.directory / "data" / "storage"),
        "brokerUrl": server.http_url,
    }
    return found | {name: str(value) for name, value in options.items()}


def values_of(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row["value"]) for row in frame.select("value").collect())


async def publish(server: ServerProcess, topic: str, values: list[bytes]) -> None:
    async with Client(server.service_url) as client:
        await client.subscribe(topic, "keeps", initial_position="Earliest")
        producer = await client.create_producer(topic)
        await asyncio.gather(*(producer.send(value) for value in values))


def run_example(name: str, server: ServerProcess) -> subprocess.CompletedProcess[str]:
    """An example beside the server, in a process of its own."""
    command = [
        sys.executable,
        f"examples/{name}",
        "--service-url",
        server.service_url,
        "--broker-url",
        server.http_url,
        "--volume",
        str(server.directory / "data" / "storage"),
    ]
    path = ":".join(("broker_image", "operator", "spark_jobs", "."))
    return subprocess.run(
        command,
        cwd=DOCUMENT.parents[1],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_S,
        check=False,
    )


def start_python(*arguments: object) -> subprocess.Popen[bytes]:
    """A process of its own, the first of a group with everything that it starts."""
    root = DOCUMENT.parents[1]
    path = ":".join(str(root / part) for part in ("broker_image", "operator", "spark_jobs", "."))
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
    )


def into_files(frame: DataFrame, directory: Path) -> int:
    """Run the stream until it has all there is now; how many micro-batches had rows."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "sink"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
        return sum(1 for progress in query.recentProgress if progress["numInputRows"])
    finally:
        query.stop()

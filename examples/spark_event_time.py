"""Windows of event time in Structured Streaming that close by what producers assert.

Two producers publish readings whose event times are out of order; one is far ahead of the other.
Each asserts how far it is. Spark closes a window once *both* have passed it: nothing is guessed
from the times of the readings, and nothing punctual is dropped. The same windows are computed from
all readings at once, and compared.

    .venv/bin/magnetar standalone &
    .venv/bin/python examples/spark_event_time.py
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import uuid
from collections import Counter

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from magnetar.client import Client, Producer
from magnetar_jobs.topic_source import MagnetarDataSource

WINDOW_S, STEP_MS, JITTER_MS = 1, 20, 180
READINGS, PORTIONS = 300, 3
AHEAD_MS = 60_000


def readings(seed: int, first: int, count: int, ahead_ms: int = 0) -> list[int]:
    """Event times, out of order by up to JITTER_MS."""
    chance = random.Random(seed * 1_000_003 + first)
    return [
        ahead_ms + index * STEP_MS + chance.randrange(JITTER_MS)
        for index in range(first, first + count)
    ]


async def publish(producer: Producer, events: list[int], promise_ms: int) -> None:
    """Readings, then what holds for the rest."""
    await asyncio.gather(*(producer.send(b"", event_time=event_ms) for event_ms in events))
    await producer.watermark(promise_ms)


def session() -> SparkSession:
    """One in which the watermark of the topic decides alone: it is the highest of the two that
    the query below defines."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("event time")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.multipleWatermarkPolicy", "max")
        .config("spark.sql.streaming.statefulOperator.allowMultiple", "false")
        .getOrCreate()
    )


def windows(frame: DataFrame) -> DataFrame:
    """Counts by window, once each is closed."""
    return (
        frame.withWatermark("watermark", "1 millisecond")  # what producers have asserted
        .withWatermark("event_time", "100000 days")  # never what the readings say
        .groupBy(F.window("event_time", f"{WINDOW_S} seconds"))
        .count()
        .selectExpr("unix_millis(window.start) AS start", "count")
    )


async def main(place: argparse.Namespace) -> bool:
    """Publish in portions, and let the stream catch up after each; whether all is right."""
    spark, directory = session(), tempfile.mkdtemp()
    spark.dataSource.register(MagnetarDataSource)
    topic = f"persistent://public/default/readings-{uuid.uuid4().hex[:8]}"
    expected, closings = Counter[int](), list[int]()

    def catch_up() -> dict[int, int]:
        query = (
            windows(
                spark.readStream.format("magnetar")
                .options(volume=place.volume, brokerUrl=place.broker_url, topic=topic)
                .options(watermarks="true", rollInterval="0")
                .load()
            )
            .writeStream.format("parquet")
            .option("path", f"{directory}/windows")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = spark.read.parquet(f"{directory}/windows").collect()
        closed = {row["start"]: row["count"] for row in rows}
        assert len(closed) == len(rows), "a window is closed once"
        return closed

    async with Client(place.service_url) as client:
        await client.subscribe(topic, "keeps", initial_position="Earliest")
        slow, fast = [await client.create_producer(topic) for _ in range(2)]
        await asyncio.gather(slow.watermark(0), fast.watermark(0))
        for portion in range(PORTIONS):
            first = portion * READINGS
            until_ms = (first + READINGS) * STEP_MS
            early = readings(1, first, READINGS)
            late = readings(2, first, READINGS, AHEAD_MS)
            expected.update(event_ms // 1000 // WINDOW_S * WINDOW_S * 1000 for event_ms in early)
            expected.update(event_ms // 1000 // WINDOW_S * WINDOW_S * 1000 for event_ms in late)
            await publish(fast, late, until_ms + AHEAD_MS)
            await publish(slow, early, until_ms)
            closed = await asyncio.to_thread(catch_up)
            closings.append(len(closed))
            print(f"{len(closed):>3} windows closed; the slow producer is at {until_ms} ms")
        end_ms = until_ms + 2 * AHEAD_MS
        for producer in (fast, slow):
            await producer.watermark(end_ms)
        await slow.send(b"", event_time=end_ms)  # a row has to carry the last watermark
        closed = await asyncio.to_thread(catch_up)
    spark.stop()
    print(f"{len(closed)} windows closed; the same as offline: {closed == dict(expected)}")
    # Each portion is 6 s: no window beyond may have closed before, nor one below stay open.
    step = READINGS * STEP_MS // 1000 // WINDOW_S
    right = closings == [step * number - 1 for number in range(1, PORTIONS + 1)]
    return right and closed == dict(expected)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--service-url", default="pulsar://127.0.0.1:6650")
    arguments.add_argument("--broker-url", default="http://127.0.0.1:8080")
    arguments.add_argument("--volume", default="data/storage", help="the server's storage")
    raise SystemExit(0 if asyncio.run(main(arguments.parse_args())) else 1)

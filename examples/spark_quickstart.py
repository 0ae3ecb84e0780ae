"""Topics as DataFrames, step by step: publish, read, query, stream, write back.

Each step is a cell of a notebook. It needs Java 17, `pip install magnetar[spark]` and a server:

    .venv/bin/magnetar standalone &
    .venv/bin/python examples/spark_quickstart.py
"""

# %% Where the server is: its address for clients, its REST address, and its storage
import argparse
import asyncio
import os
import sys
import tempfile
import uuid

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from magnetar.client import Client
from magnetar_jobs.topic_source import MagnetarDataSource

arguments = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
arguments.add_argument("--service-url", default="pulsar://127.0.0.1:6650")
arguments.add_argument("--broker-url", default="http://127.0.0.1:8080")
arguments.add_argument("--volume", default="data/storage", help="the server's storage")
place = arguments.parse_args()
orders = f"persistent://public/default/orders-{uuid.uuid4().hex[:8]}"
totals = f"{orders}-totals"


# %% Some orders. The subscription keeps them: without one, retention may drop what nobody waits for
async def publish(first: int, count: int) -> None:
    async with Client(place.service_url) as client:
        await client.subscribe(orders, "keeps", initial_position="Earliest")
        producer = await client.create_producer(orders)
        for number in range(first, first + count):
            await producer.send(
                b"%d" % (number % 50),
                key=f"customer-{number % 5}",
                event_time=1_700_000_000_000 + 1_000 * number,
                properties={"currency": "EUR"},
            )


asyncio.run(publish(0, 200))

# %% A Spark session that knows the source
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = (
    SparkSession.builder.master("local[2]")
    .appName("quickstart")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.python.filterPushdown.enabled", "true")
    .getOrCreate()
)
spark.dataSource.register(MagnetarDataSource)
cluster = {"volume": place.volume, "brokerUrl": place.broker_url}

# %% A topic is a table: everything that was acknowledged before the query
frame = spark.read.format("magnetar").options(**cluster, topic=orders).load()
frame.printSchema()
frame.createOrReplaceTempView("orders")
by_customer = spark.sql(
    """SELECT CAST(key AS STRING) AS customer, COUNT(*) AS orders,
              SUM(CAST(CAST(value AS STRING) AS INT)) AS total
       FROM orders GROUP BY key ORDER BY customer"""
)
by_customer.show()

# %% A part of it. Filters that are pushed down skip files and blocks
one = (
    spark.read.format("magnetar")
    .options(**cluster, topic=orders, columns="key,entry,event_time", pushdown="true")
    .load()
    .where((F.col("key") == F.lit(b"customer-3")) & (F.col("entry") < 100))
)
print(f"{one.count()} of the first 100 orders are of customer-3")

# %% The same topic as a stream, into files. It goes on where it was
directory = tempfile.mkdtemp()


def catch_up() -> int:
    query = (
        spark.readStream.format("magnetar")
        .options(**cluster, topic=orders, rollInterval="0")
        .load()
        .writeStream.format("parquet")
        .option("path", f"{directory}/orders")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{directory}/orders").count()


print(f"{catch_up()} orders in files")
asyncio.run(publish(200, 50))
print(f"{catch_up()} orders in files after 50 more")

# %% Totals into a topic: all of them, or none
totals_frame = by_customer.selectExpr("customer AS key", "CAST(total AS STRING) AS value")
(
    totals_frame.write.format("magnetar")
    .mode("append")
    .option("topic", totals)
    .option("serviceUrl", place.service_url)
    .save()
)
written = spark.read.format("magnetar").options(**cluster, topic=totals).load()
written.selectExpr("CAST(key AS STRING) AS customer", "CAST(value AS STRING) AS total").orderBy(
    "customer"
).show()
spark.stop()

"""Typed messages: orders as JSON, sent in compressed batches over partitions, read back by a
subscription and by a reader.

python examples/client/orders.py [pulsar://127.0.0.1:6650]
"""

import asyncio
import sys
from dataclasses import dataclass

from magnetar.client import EARLIEST, Batching, Client, Compression, JsonSchema

TOPIC = "persistent://public/default/example-orders"


@dataclass(frozen=True)
class Order:
    number: int
    customer: str
    amount: float
    note: str | None = None


async def main(service_url: str) -> None:
    async with Client(service_url) as client:
        consumer = await client.subscribe(
            TOPIC, "billing", schema=JsonSchema(Order), initial_position="Earliest"
        )
        producer = await client.create_producer(
            TOPIC,
            schema=JsonSchema(Order),
            batching=Batching(linger_s=0.005),
            compression=Compression.ZLIB,
        )
        orders = [Order(number, f"customer-{number % 7}", 9.5 * number) for number in range(100)]
        # Each send returns when its message is on disk; together they travel in a few batches. One
        # customer's orders keep their order.
        await asyncio.gather(*(producer.send(order, key=order.customer) for order in orders))
        total = 0.0
        for _ in orders:
            message = await consumer.receive(timeout_s=30)
            total += message.value.amount
            await consumer.acknowledge(message)
        reader = await client.create_reader(TOPIC, EARLIEST, schema=JsonSchema(Order))
        count = 0
        while await reader.has_message_available():
            await reader.receive(timeout_s=30)
            count += 1
        await consumer.unsubscribe()
        print(f"billed {total:.2f}; the topic holds {count} orders or more of earlier runs")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "pulsar://127.0.0.1:6650"))

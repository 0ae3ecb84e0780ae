"""Consume, transform, produce: exactly once, whatever fails in between.

Fills a topic with numbered messages, moves them to another one in transactions, with aborts on purpose, and proves that each is there once. Kill
brokers and coordinators meanwhile if you like. Needs a server with transaction coordinators: a Magnetar cluster with a TransactionCoordinator, or
Apache Pulsar with transactionCoordinatorEnabled=true.

    python examples/exactly_once.py [--service-url pulsar://127.0.0.1:6650] [--messages 100000]
"""

import argparse
import asyncio
import uuid
from collections.abc import Sequence

from magnetar.client import EARLIEST, Batching, Client, Message, Transaction, exactly_once

ABORT_EVERY = 10
PENDING_MAX = 1000


async def main(service_url: str, count: int) -> None:
    run = uuid.uuid4().hex[:8]
    source, target = (f"persistent://public/default/exactly-once-{run}-{name}" for name in ("source", "target"))
    async with Client(service_url, operation_timeout_s=120) as client:
        consumer = await client.subscribe(source, "mover", type="Shared", initial_position="Earliest", receiver_queue=10_000)
        inputs = await client.create_producer(source, batching=Batching(), send_timeout_s=None)
        for first in range(0, count, PENDING_MAX):
            await asyncio.gather(*(inputs.send(b"%d" % number) for number in range(first, min(first + PENDING_MAX, count))))
        output = await client.create_producer(target, batching=Batching(), send_timeout_s=None)
        batches = 0

        async def double(messages: Sequence[Message], txn: Transaction) -> None:
            nonlocal batches
            batches += 1
            await asyncio.gather(*(output.send(b"%d" % (2 * int(message.value)), txn=txn) for message in messages))
            if batches % ABORT_EVERY == 0:
                await txn.abort()  # as if it had gone wrong here

        moved = await exactly_once(client, consumer, double, messages_max=500, idle_s=5)
        reader = await client.create_reader(target, EARLIEST)
        found = []
        while await reader.has_message_available():
            found.append(int((await reader.receive(timeout_s=60)).value))
        missing = {2 * number for number in range(count)} - set(found)
        print(
            f"{count} in, {moved} committed for certain, {len(found)} out, {len(missing)} missing, {len(found) - len(set(found))} double"
        )
        if missing or len(found) != count:
            raise SystemExit(1)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--service-url", default="pulsar://127.0.0.1:6650")
    arguments.add_argument("--messages", type=int, default=100_000)
    chosen = arguments.parse_args()
    asyncio.run(main(chosen.service_url, chosen.messages))

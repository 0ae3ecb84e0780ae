"""Consume, transform, produce: exactly once, while brokers and transaction coordinators are killed.

Fills a topic with numbered messages, moves them to another one in transactions, with aborts on
purpose, and proves that each is there once. Starts a cluster of its own (three brokers, two
coordinators, etcd) from this checkout, and kills one process after another with SIGKILL while it
works:

    .venv/bin/python examples/exactly_once.py [--messages 100000] [--kills 10]

With --service-url it uses your server, and kills nothing: a Magnetar with transactions, or Apache
Pulsar with transactionCoordinatorEnabled=true. If you kill something of yours concurrently, name a
namespace with deduplication: else what fills the topic may send a message twice.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from magnetar.client import EARLIEST, Batching, Client, Consumer, Message, Transaction, exactly_once

ABORT_EVERY = 10
PENDING_MAX = 1000
MESSAGES_MAX = 500
IDLE_S = 2
IDLE_ROUNDS_MAX = 10
OPERATION_TIMEOUT_S = 120


async def fill(
    client: Client, source: str, count: int, portions: int, disturb: Callable[[], str]
) -> None:
    """Send the numbers from 0 on, in portions, and have something killed after each but the
    last, while the work goes on."""
    inputs = await client.create_producer(source, batching=Batching(), send_timeout_s=None)
    sent = 0
    for portion in range(1, portions + 1):
        until = count * portion // portions
        for first in range(sent, until, PENDING_MAX):
            await asyncio.gather(
                *(
                    inputs.send(b"%d" % number)
                    for number in range(first, min(first + PENDING_MAX, until))
                )
            )
        sent = until
        if portion < portions:
            print(f"{sent} sent; killed {await asyncio.to_thread(disturb)}", flush=True)


async def move(client: Client, consumer: Consumer, target: str, count: int) -> int:
    """Double every number into `target`, in transactions; how many messages are known to be
    committed."""
    output = await client.create_producer(target, batching=Batching(), send_timeout_s=None)
    batches = moved = idle = 0

    async def double(messages: Sequence[Message], txn: Transaction) -> None:
        nonlocal batches
        batches += 1
        await asyncio.gather(
            *(output.send(b"%d" % (2 * int(message.value)), txn=txn) for message in messages)
        )
        if batches % ABORT_EVERY == 0:
            await txn.abort()  # as if it had gone wrong here

    # a broker that recovers has nothing for a while
    while moved < count and idle < IDLE_ROUNDS_MAX:
        step = await exactly_once(
            client, consumer, double, messages_max=MESSAGES_MAX, idle_s=IDLE_S
        )
        moved, idle = moved + step, 0 if step else idle + 1
    return moved


async def main(
    service_url: str, namespace: str, count: int, portions: int, disturb: Callable[[], str]
) -> bool:
    """Whether every number arrived once."""
    run = uuid.uuid4().hex[:8]
    source, target = (
        f"persistent://{namespace}/exactly-once-{run}-{name}" for name in ("source", "target")
    )
    begun = time.monotonic()
    async with Client(service_url, operation_timeout_s=OPERATION_TIMEOUT_S) as client:
        consumer = await client.subscribe(
            source, "mover", type="Shared", initial_position="Earliest", receiver_queue=10_000
        )
        filling = asyncio.create_task(fill(client, source, count, portions, disturb))
        moved = await move(client, consumer, target, count)
        await filling
        seconds = time.monotonic() - begun
        reader = await client.create_reader(target, EARLIEST)
        found = []
        while await reader.has_message_available():
            found.append(int((await reader.receive(timeout_s=60)).value))
    missing = {2 * number for number in range(count)} - set(found)
    print(
        f"{count} in, {moved} committed for certain in {seconds:.0f} s, {len(found)} out, "
        f"{len(missing)} missing,"
        f" {len(found) - len(set(found))} double"
    )
    return not missing and len(found) == count


def with_kills(count: int, kills: int) -> bool:
    """On a cluster of our own."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from dev.soak.killing import temporary_cluster

    directory, killed = temporary_cluster("public/exactly-once")
    with directory, killed:
        print(f"a cluster at {killed.service_url}", flush=True)
        right = asyncio.run(
            main(killed.service_url, killed.namespace, count, kills + 1, killed.kill)
        )
        print(f"{killed.kills} processes were killed")
        return right


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--service-url", help="a server that runs, instead of a cluster of our own"
    )
    arguments.add_argument(
        "--namespace", default="public/default", help="where topics are made, with --service-url"
    )
    arguments.add_argument("--messages", type=int, default=100_000)
    arguments.add_argument(
        "--kills",
        type=int,
        default=10,
        help="processes of our own cluster that are killed concurrently",
    )
    chosen = arguments.parse_args()
    if chosen.service_url:
        right = asyncio.run(
            main(chosen.service_url, chosen.namespace, chosen.messages, 1, lambda: "nothing")
        )
    else:
        right = with_kills(chosen.messages, chosen.kills)
    raise SystemExit(0 if right else 1)

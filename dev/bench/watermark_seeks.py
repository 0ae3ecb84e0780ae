"""`python -m dev.bench.watermark_seeks`: what watermarks add to an attach and a seek on a topic with
much data.

Owns: a standalone server, a topic of so many megabytes with an assertion behind each four messages,
and consumers that attach and seek anywhere in it, with watermarks and without. Imports: magnetar.client,
server_process, dev.bench.report. Figures are milliseconds until the client has what it waits for:
its watermark, or without watermarks its first message. The server is restarted before the last
case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from dev.bench.report import table
from dev.server_process import ServerProcess
from magnetar.client import Client, Consumer, Message, MessageId, Watermark

TOPIC = "persistent://public/default/watermark-seeks"
SUBSCRIPTION = "measured"
MESSAGE_BYTES, INTERVAL, ROUNDS = 64 << 10, 100, 40
IN_FLIGHT = 4
WAIT_S = 120.0


async def fill(client: Client, megabytes: int) -> list[MessageId]:
    """Publish; behind each few messages the number of the last one is asserted."""
    producer = await client.create_producer(TOPIC, send_timeout_s=None)
    payload, ids = bytes(MESSAGE_BYTES), list[MessageId]()
    count = max(IN_FLIGHT, (megabytes << 20) // MESSAGE_BYTES)
    for first in range(0, count, IN_FLIGHT):
        sent = [
            producer.send_nowait(payload, event_time=number)
            for number in range(first, first + IN_FLIGHT)
        ]
        await producer.watermark(first + IN_FLIGHT - 1)
        ids += [await receipt for receipt in sent]
    return ids


async def subscribe(client: Client, *, watermarks: bool, name: str = SUBSCRIPTION) -> Consumer:
    return await client.subscribe(
        TOPIC, name, initial_position="Earliest", receiver_queue=1, watermarks=watermarks
    )


async def first_of(consumer: Consumer, *, watermarks: bool) -> None:
    """Until the consumer has a watermark, or its first message."""
    if not watermarks:
        await consumer.receive(timeout_s=WAIT_S)
        return
    while not isinstance(await consumer.receive_or_watermark(timeout_s=WAIT_S), Watermark):
        pass


async def attach_ms(client: Client, *, watermarks: bool) -> float:
    """An existing subscription gets a consumer."""
    begun = time.perf_counter()
    consumer = await subscribe(client, watermarks=watermarks)
    await first_of(consumer, watermarks=watermarks)
    taken = (time.perf_counter() - begun) * 1e3
    await consumer.close()
    return taken


async def seek_ms(consumer: Consumer, to: MessageId, *, watermarks: bool) -> float:
    """Until the first message from there, whose watermark came before it."""
    begun = time.perf_counter()
    await consumer.seek(to)
    while True:
        received = (
            await consumer.receive_or_watermark(timeout_s=WAIT_S)
            if watermarks
            else await consumer.receive(timeout_s=WAIT_S)
        )
        if isinstance(received, Message) and received.id == to:
            return (time.perf_counter() - begun) * 1e3


async def place(client: Client, to: MessageId) -> None:
    """Put the subscription there, with something acknowledged."""
    consumer = await subscribe(client, watermarks=True)
    await consumer.seek(to)
    while not isinstance(received := await consumer.receive_or_watermark(WAIT_S), Message):
        pass
    await consumer.acknowledge(received)
    await consumer.close()


async def measure(server: ServerProcess, megabytes: int, rounds: int) -> dict[str, Sequence[float]]:
    """Each case's figures."""
    found: dict[str, Sequence[float]] = {}
    chance = random.Random(megabytes)
    async with Client(server.service_url, operation_timeout_s=WAIT_S) as client:
        ids = await fill(client, megabytes)
        middle = ids[len(ids) // 2]
        for marked in (False, True):
            name = "with watermarks" if marked else "without"
            await place(client, middle)
            found[f"attach, {name}"] = [
                await attach_ms(client, watermarks=marked) for _ in range(rounds)
            ]
            consumer = await subscribe(client, watermarks=marked)
            found[f"seek, {name}"] = [
                await seek_ms(consumer, chance.choice(ids), watermarks=marked)
                for _ in range(rounds)
            ]
            await consumer.close()
        await place(client, middle)
    server.kill()
    server.start()
    async with Client(server.service_url, operation_timeout_s=WAIT_S) as client:
        found["first attach after a restart"] = [await attach_ms(client, watermarks=True)]
    return found


def prepare(server: ServerProcess) -> None:
    """A topic that keeps everything and writes a snapshot each INTERVAL records."""
    path = f"{server.http_url}/admin/v2/{TOPIC.replace('://', '/')}"
    policies = (
        ("PUT", path, None),
        ("POST", f"{path}/watermarks", {"enabled": True, "snapshotInterval": INTERVAL}),
        (
            "POST",
            f"{path}/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        ),
    )
    for method, url, body in policies:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            url, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(asked, timeout=WAIT_S):
            pass


def run(directory: Path, megabytes: int, rounds: int) -> dict[str, Sequence[float]]:
    """Start a server, measure, stop it."""
    with ServerProcess(directory) as server:
        prepare(server)
        return asyncio.run(measure(server, megabytes, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.watermark_seeks", description=__doc__
    )
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watermark-seeks-") as directory:
        found = run(Path(directory), options.megabytes, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    rows = [
        (case, f"{statistics.median(figures):.1f}", f"{max(figures):.1f}")
        for case, figures in found.items()
    ]
    print(table(("case", "median ms", "most ms"), rows))


if __name__ == "__main__":
    main()

"""Event-time windows that close by what producers assert, not by a guess.

Three producers publish readings whose event times are out of order. Each asserts how far it is; one
of them sends in transactions, and one joins late, so that some of its readings are late. A consumer
counts readings in windows of event time, and closes a window when the watermark has passed it. The
same windows are computed from all readings at once, and compared.

    .venv/bin/magnetar standalone &
    .venv/bin/python examples/event_time_windows.py --service-url pulsar://localhost:6650 [--json]
"""

import argparse
import asyncio
import json
import random
import uuid
from collections import Counter

from magnetar.client import Client, Consumer, Message, Producer, Reset, TransactionAborted

WINDOW_MS = 1_000
STEP_MS, JITTER_MS = 20, 180
ASSERT_EVERY = 10
OPERATION_TIMEOUT_S = 120


def readings(seed: int, count: int) -> list[int]:
    """Event times, out of order by up to JITTER_MS."""
    chance = random.Random(seed)
    return [index * STEP_MS + chance.randrange(JITTER_MS) for index in range(count)]


async def publish(producer: Producer, events: list[int]) -> None:
    """Send readings; each ten are followed by what holds for the rest."""
    for index, event_ms in enumerate(events):
        await producer.send(b"plain", event_time=event_ms)
        if index % ASSERT_EVERY == ASSERT_EVERY - 1:
            await producer.watermark((index + 1) * STEP_MS)


async def publish_in_transactions(client: Client, producer: Producer, events: list[int]) -> None:
    """As `publish`, ten readings in each transaction, and the assertion too; one that was aborted
    is done again."""
    first = 0
    while first < len(events):
        try:
            async with client.transaction() as txn:
                for event_ms in events[first : first + ASSERT_EVERY]:
                    await producer.send(b"transactional", event_time=event_ms, txn=txn)
                await producer.watermark((first + ASSERT_EVERY) * STEP_MS, txn=txn)
        except TransactionAborted:
            continue
        first += ASSERT_EVERY


class Windows:
    """Counts by window; what comes for a closed one is late."""

    def __init__(self) -> None:
        self.open: Counter[int] = Counter()
        self.closed: dict[int, int] = {}
        self.late = self.closed_below = 0

    def add(self, event_ms: int) -> None:
        window = event_ms // WINDOW_MS * WINDOW_MS
        if window < self.closed_below:
            self.late += 1
        else:
            self.open[window] += 1

    def advance(self, watermark_ms: int) -> None:
        """Close every window that ends before the watermark."""
        self.closed_below = max(self.closed_below, watermark_ms // WINDOW_MS * WINDOW_MS)
        for window in sorted(found for found in self.open if found < self.closed_below):
            self.closed[window] = self.open.pop(window)


async def count(consumer: Consumer, windows: Windows, end_ms: int) -> None:
    """Receive until the watermark is at the end. A message may come again, or be there twice: its
    producer sends it again if the owner of the topic dies before it has sent the receipt."""
    known = set()
    while windows.closed_below < end_ms:
        received = await consumer.receive_or_watermark()
        if isinstance(received, Message):
            reading = received.producer_name, received.sequence_id
            if reading not in known:
                known.add(reading)
                windows.add(received.event_time_ms or 0)
            consumer.acknowledge_nowait(received)
        elif not isinstance(received, Reset):
            windows.advance(received.event_ms)


async def main(service_url: str, namespace: str, messages: int) -> Windows:
    """Publish and count; the windows by their beginnings."""
    topic = f"persistent://{namespace}/windows-{uuid.uuid4().hex[:8]}"
    windows, end_ms = Windows(), (messages * STEP_MS // WINDOW_MS + 2) * WINDOW_MS
    async with Client(service_url, operation_timeout_s=OPERATION_TIMEOUT_S) as client:
        consumer = await client.subscribe(
            topic, "windows", initial_position="Earliest", watermarks=True
        )
        plain, transactional, tardy = [
            await client.create_producer(topic, send_timeout_s=OPERATION_TIMEOUT_S)
            for _ in range(3)
        ]
        await asyncio.gather(plain.watermark(0), transactional.watermark(0))
        counting = asyncio.create_task(count(consumer, windows, end_ms))
        await asyncio.gather(
            publish(plain, readings(1, messages)),
            publish_in_transactions(client, transactional, readings(2, messages)),
        )
        await asyncio.gather(plain.watermark(end_ms - 1), transactional.watermark(end_ms - 1))
        while windows.closed_below < end_ms - WINDOW_MS:
            await asyncio.sleep(0.05)
        for event_ms in readings(3, 3):  # it has asserted nothing before: its readings are late
            await tardy.send(b"late", event_time=event_ms)
        await asyncio.gather(plain.watermark(end_ms), transactional.watermark(end_ms))
        await counting
    return windows


def offline(messages: int) -> dict[int, int]:
    """The same windows from what the two punctual producers publish, all at once."""
    events = [*readings(1, messages), *readings(2, messages)]
    return dict(sorted(Counter(found // WINDOW_MS * WINDOW_MS for found in events).items()))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--service-url", required=True)
    arguments.add_argument("--namespace", default="public/default", help="where a topic is made")
    arguments.add_argument("--messages", type=int, default=200, help="of each producer")
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = arguments.parse_args()
    found = asyncio.run(main(chosen.service_url, chosen.namespace, chosen.messages))
    expected = offline(chosen.messages)
    if chosen.json:
        print(json.dumps({"windows": found.closed, "offline": expected, "late": found.late}))
    else:
        for window, readings_found in found.closed.items():
            print(f"{window:>6} to {window + WINDOW_MS:>6} ms: {readings_found} readings")
        print(f"{found.late} late; the same as offline: {found.closed == expected}")
    raise SystemExit(0 if found.closed == expected else 1)

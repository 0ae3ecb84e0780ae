"""A skewed load from the official Python client, and what became of each message.

Owns: `SkewedLoad`: producers whose rates fall by Zipf's law, a consumer for each topic, latencies
of receipts, and the account of what was lost, duplicated or reordered; `messages_in`, what brokers
have received. Imports: pulsar, the cluster. Invariants:
a message counts as acknowledged only by its own receipt; everything started here ends with
`flowing`.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pulsar

from dev.testbed.cluster import Cluster

TICK_S = 0.02
DRAINED_S = 240.0
PAYLOAD = 100
SEND_TIMEOUT_MS, PENDING_MAX = 120_000, 100_000
"""A pause of a busy machine fails no send."""
RECEIVED = re.compile(r"^magnetar_messages_in_total (\S+)$", re.MULTILINE)


def messages_in(cluster: Cluster) -> list[float]:
    """Messages that each broker has received since it started."""
    found = []
    for broker in cluster.brokers.values():
        with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
            match = RECEIVED.search(answer.read().decode())
        assert match is not None, f"{broker.http_url} has no count of messages"
        found.append(float(match[1]))
    return found


def zipf_shares(count: int, exponent: float = 1.0) -> list[float]:
    """The share of each topic, largest first."""
    weights = [1 / (1 + number) ** exponent for number in range(count)]
    return [weight / sum(weights) for weight in weights]


@dataclass(slots=True)
class Seen:
    """One topic. Sends and receipts by number; `latencies` are (wall-clock time of the send,
    seconds)."""

    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    received: set[int] = field(default_factory=set)
    duplicated: int = 0
    reordered: int = 0
    last: int = -1


class SkewedLoad:
    """`rate` messages/s over all topics, which exist or come by themselves."""

    def __init__(self, service_url: str, topics: Sequence[str], rate: float) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(service_url, operation_timeout_seconds=120, logger=quiet)
        self.topics = {topic: Seen() for topic in topics}
        self._rates = [rate * share for share in zipf_shares(len(topics))]
        self.failures: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._consumers = [
            self._client.subscribe(
                topic,
                "load",
                initial_position=pulsar.InitialPosition.Earliest,
                message_listener=partial(self._take, seen),
            )
            for topic, seen in self.topics.items()
        ]
        self._producers = [
            self._client.create_producer(
                topic,
                batching_enabled=False,
                send_timeout_millis=SEND_TIMEOUT_MS,
                max_pending_messages=PENDING_MAX,
            )
            for topic in topics
        ]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="skewed load")

    @property
    def sent(self) -> int:
        return sum(seen.sent for seen in self.topics.values())

    @property
    def lost(self) -> int:
        """Acknowledged and not received: complete after `flowing`."""
        return sum(len(seen.acknowledged - seen.received) for seen in self.topics.values())

    @property
    def duplicated(self) -> int:
        return sum(seen.duplicated for seen in self.topics.values())

    @property
    def reordered(self) -> int:
        return sum(seen.reordered for seen in self.topics.values())

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send while the block runs; then wait until all that was acknowledged is received."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()
            for producer in self._producers:
                producer.flush()
            deadline = time.monotonic() + DRAINED_S
            while self.lost and time.monotonic() < deadline:
                time.sleep(TICK_S)
            self._client.close()

    def _produce(self) -> None:
        owed, last = [0.0] * len(self._rates), time.monotonic()
        while not self._stopping.wait(TICK_S):
            now = time.monotonic()
            for at, (seen, producer) in enumerate(
                zip(self.topics.values(), self._producers, strict=True)
            ):
                owed[at] += self._rates[at] * (now - last)
                while owed[at] >= 1:
                    owed[at] -= 1
                    number, seen.sent = seen.sent, seen.sent + 1
                    body = str(number).encode().ljust(PAYLOAD)
                    answered = partial(self._answered, seen, number, time.time())
                    producer.send_async(body, answered)
            last = now

    def _answered(
        self, seen: Seen, number: int, sent: float, result: pulsar.Result, _identifier: object
    ) -> None:
        with self._lock:
            if result == pulsar.Result.Ok:
                seen.acknowledged.add(number)
                seen.latencies.append((sent, time.time() - sent))
            else:
                self.failures[str(result)] += 1

    def _take(self, seen: Seen, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        number = int(message.data())
        with self._lock:
            if number in seen.received:
                seen.duplicated += 1
            elif number < seen.last:
                seen.reordered += 1
            seen.received.add(number)
            seen.last = max(seen.last, number)
        consumer.acknowledge(message)

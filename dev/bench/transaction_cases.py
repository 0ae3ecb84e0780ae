"""What transactions cost, on any server that has them.

Owns: the cases: latency of a consume-transform-produce transaction, transactions per second with
and without company, ordinary traffic beside an open transaction. Imports: magnetar.client,
load_client, cases (percentiles). Invariants: every figure of transactions stands beside the same
work of the same client without them, in the same seconds; topics are a case's own; a refused or
lost message is an error, a slow one is not.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from dev.bench.cases import latency
from dev.bench.load_client import Consumer, LoadConnection, LoadFailed, Publisher, send_frames
from dev.bench.perf_output import Latency
from magnetar.client import Batching, Client, Producer
from magnetar.client import Consumer as ClientConsumer

KIB = 1024
PAYLOAD = bytes(KIB)
IN_FLIGHT = (1, 50)
MESSAGES = (1, 10, 100)
PENDING_MAX = 20_000
WARM_TRANSACTIONS = 30
BESIDE_RATE = 500
BESIDE_WINDOW_S = 1.5
BESIDE_PATIENCE_S = 15.0
OPEN_MESSAGES = 100
RECEIVE_S = 30.0


@dataclass(frozen=True, slots=True)
class TransactionLatency:
    """One input, one output, one at a time: the commit alone, the whole transaction, and the
    same without one (send, then acknowledge)."""

    commit: Latency
    whole: Latency
    without: Latency


@dataclass(frozen=True, slots=True)
class Rate:
    """`in_flight` transactions of so many messages at a time; per second, and what the same
    client sends without them."""

    in_flight: int
    messages: int
    transactions_per_s: float
    without_per_s: float
    """Rounds of so many messages, each awaited."""


@dataclass(slots=True)
class Beside:
    """Publish-to-receive of ordinary messages at a steady pace: on a topic with an open
    transaction, and on one without, in turn."""

    with_open: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    windows: list[tuple[float, float]] = field(default_factory=list)
    """p99 of each pair of windows, seconds."""
    blocked: bool = False
    """Nothing comes on the first topic before its transaction ends (Apache Pulsar: what lies
    behind an open transaction is not read)."""

    def change(self) -> float:
        """The median over pairs of windows of how the p99 changes; 0.1 is 10 % worse."""
        return statistics.median(ours / theirs for ours, theirs in self.windows) - 1

    @property
    def latencies(self) -> tuple[Latency, Latency]:
        return latency(self.with_open), latency(self.without)


def measure_latency(service_url: str, transactions: int) -> TransactionLatency:
    """So many transactions, each with one input and one output; between them as many rounds
    without."""
    return asyncio.run(_measure_latency(service_url, transactions))


async def _measure_latency(service_url: str, transactions: int) -> TransactionLatency:
    commits, wholes, withouts = list[float](), list[float](), list[float]()
    async with Client(service_url) as client:
        consumer = await client.subscribe(
            _topic("latency-in"), "bench", type="Shared", initial_position="Earliest"
        )
        inputs = await client.create_producer(_topic("latency-in"), batching=Batching())
        output = await client.create_producer(_topic("latency-out"))
        await asyncio.gather(
            *(inputs.send(PAYLOAD) for _ in range(2 * (transactions + WARM_TRANSACTIONS)))
        )
        for number in range(transactions + WARM_TRANSACTIONS):
            whole, commit = await _one_transaction(client, consumer, output)
            without = await _one_without(consumer, output)
            if number >= WARM_TRANSACTIONS:
                wholes.append(whole)
                commits.append(commit)
                withouts.append(without)
    return TransactionLatency(latency(commits), latency(wholes), latency(withouts))


async def _one_transaction(
    client: Client, consumer: ClientConsumer, output: Producer
) -> tuple[float, float]:
    message = await consumer.receive(RECEIVE_S)
    begun = time.perf_counter()
    txn = client.transaction()
    await txn.begin()
    await asyncio.gather(
        output.send(message.value, txn=txn), consumer.acknowledge(message, txn=txn)
    )
    filled = time.perf_counter()
    await txn.commit()
    ended = time.perf_counter()
    return ended - begun, ended - filled


async def _one_without(consumer: ClientConsumer, output: Producer) -> float:
    message = await consumer.receive(RECEIVE_S)
    begun = time.perf_counter()
    await output.send(message.value)
    await consumer.acknowledge(message)
    return time.perf_counter() - begun


def measure_rates(service_url: str, seconds: float) -> list[Rate]:
    """Each number in flight with each number of messages, `seconds` with transactions and as
    long without."""
    return asyncio.run(_measure_rates(service_url, seconds))


async def _measure_rates(service_url: str, seconds: float) -> list[Rate]:
    found = []
    async with Client(service_url) as client:
        for in_flight, messages in itertools.product(IN_FLIGHT, MESSAGES):
            output = await client.create_producer(
                _topic(f"rate-{in_flight}-{messages}"),
                batching=Batching() if messages > 1 else None,
                pending_max=PENDING_MAX,
            )

            async def transaction(output: Producer = output, messages: int = messages) -> None:
                async with client.transaction() as txn:
                    await asyncio.gather(*(output.send(PAYLOAD, txn=txn) for _ in range(messages)))

            async def plain(output: Producer = output, messages: int = messages) -> None:
                await asyncio.gather(*(output.send(PAYLOAD) for _ in range(messages)))

            await _per_second(transaction, in_flight, seconds / 4)
            found.append(
                Rate(
                    in_flight,
                    messages,
                    await _per_second(transaction, in_flight, seconds),
                    await _per_second(plain, in_flight, seconds),
                )
            )
            await output.close()
    return found


async def _per_second(work: Callable[[], Awaitable[None]], in_flight: int, seconds: float) -> float:
    begun, done = time.perf_counter(), 0

    async def again() -> None:
        nonlocal done
        while time.perf_counter() - begun < seconds:
            await work()
            done += 1

    await asyncio.gather(*(again() for _ in range(in_flight)))
    return done / (time.perf_counter() - begun)


class _OpenTransaction(threading.Thread):
    """Holds a transaction open on a topic until `end`."""

    def __init__(self, service_url: str, topic: str) -> None:
        super().__init__(name="open transaction", daemon=True)
        self._service_url, self._topic = service_url, topic
        self._open: Future[None] = Future()
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            asyncio.run(self._hold())
        except Exception as error:
            if self._open.done():
                raise
            self._open.set_exception(error)

    async def _hold(self) -> None:
        async with Client(self._service_url) as client:
            output = await client.create_producer(self._topic)
            txn = client.transaction(timeout_s=3600)
            await txn.begin()
            await asyncio.gather(*(output.send(PAYLOAD, txn=txn) for _ in range(OPEN_MESSAGES)))
            self._open.set_result(None)
            await asyncio.to_thread(self._ended.wait)
            await txn.abort()

    def begin(self) -> None:
        self.start()
        self._open.result(60)

    def end(self) -> None:
        self._ended.set()
        self.join(60)


class _Paced:
    """Ordinary messages at a steady pace to one topic, and their consumer."""

    def __init__(self, port: int, topic: str) -> None:
        self._arrivals: list[float] = []
        receiving, sending = LoadConnection(port), LoadConnection(port)
        receiving.subscribe(topic)
        self._consumer = Consumer(receiving, 1, lambda _index, now: self._arrivals.append(now))
        sending.producer(topic)
        self._publisher = Publisher(sending, send_frames(KIB, 1), 1, 1, 0)

    def window(self) -> list[float]:
        """Publish-to-receive of one window, in seconds."""
        self._arrivals.clear()
        self._publisher.writes.clear()
        self._publisher.run_paced(BESIDE_RATE, BESIDE_WINDOW_S)
        self._publisher.settle()
        self._consumer.wait(self._publisher.published, BESIDE_PATIENCE_S)
        return [
            arrived - at for arrived, at in zip(self._arrivals, self._publisher.writes, strict=True)
        ]


def measure_beside(service_url: str, port: int, pairs: int) -> Beside:
    """`pairs` of windows, the two topics in turn, the first one changing."""
    opened = _OpenTransaction(service_url, _topic("beside-open"))
    opened.begin()
    loads = _Paced(port, _topic("beside-open")), _Paced(port, _topic("beside-none"))
    found = Beside()
    try:
        loads[1].window()
        try:
            loads[0].window()
        except LoadFailed:
            found.blocked = True
            return found
        for number in range(pairs):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            windows = {which: loads[which].window() for which in order}
            found.with_open += windows[0]
            found.without += windows[1]
            found.windows.append((_p99(windows[0]), _p99(windows[1])))
    finally:
        opened.end()
    return found


def _p99(seconds: Sequence[float]) -> float:
    return latency(seconds).p99_ms / 1000


def _topic(name: str) -> str:
    return f"persistent://public/default/transactions-{name}"

"""Transaction coordinators on a real node: `kubectl scale` up and down under clients that commit.

Runs first, on the quickstart as it is made; what comes after uses no transactions.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

from magnetar.client import EARLIEST, Client
from magnetar.errors import MagnetarError
from tests.kubernetes.conftest import Node

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1800)]

WORKERS = 3
WAIT_S = 120.0
PROGRESS = 30
"""Commits after a change that show that it is over for clients."""


class Committing:
    """A client that commits all the while: each transaction takes a message from one topic and
    puts it on two others."""

    def __init__(self, service_url: str, name: str) -> None:
        self._service_url, self._name = (
            service_url,
            f"persistent://public/default/{name}-{time.monotonic_ns()}",
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.by_coordinator: Counter[int] = Counter()
        self.committed = [0] * WORKERS
        self.failed: list[str] = []
        self.wrong: list[str] = ["it was not looked at"]
        self.longest_s = 0.0

    def __enter__(self) -> Committing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * WAIT_S)

    def total(self) -> int:
        return sum(self.committed)

    async def _run(self) -> None:
        async with Client(self._service_url, operation_timeout_s=WAIT_S) as client:
            await asyncio.gather(*(self._work(client, worker) for worker in range(WORKERS)))
            self.wrong = [
                what for worker in range(WORKERS) for what in await self._look(client, worker)
            ]

    async def _work(self, client: Client, worker: int) -> None:
        try:
            source, *targets = [
                await client.create_producer(topic) for topic in self._topics(worker)
            ]
            consumer = await client.subscribe(
                self._topics(worker)[0], "mover", type="Shared", initial_position="Earliest"
            )
            while not self._stop.is_set():
                await source.send(b"%d" % self.committed[worker])
                message = await consumer.receive(timeout_s=WAIT_S)
                began = time.monotonic()
                async with client.transaction(timeout_s=WAIT_S) as txn:
                    await asyncio.gather(
                        *(target.send(message.value, txn=txn) for target in targets),
                        consumer.acknowledge(message, txn=txn),
                    )
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.committed[worker] += 1
                self.by_coordinator[txn.id.most] += 1
        except (MagnetarError, TimeoutError) as error:
            self.failed.append(
                f"worker {worker} after {self.committed[worker]} commits: {type(error).__name__}: "
                f"{error}"
            )

    def _topics(self, worker: int) -> list[str]:
        return [f"{self._name}-{worker}-{part}" for part in ("source", "left", "right")]

    async def _look(self, client: Client, worker: int) -> list[str]:
        """What is wrong with what a worker has left: everything must be there once, in order, on
        both sides. A commit is answered once it is decided: the last ones may be seen later."""
        found = []
        for topic in self._topics(worker)[1:]:
            reader = await client.create_reader(topic, EARLIEST)
            seen = list[int]()
            with suppress(TimeoutError):
                while len(seen) < self.committed[worker] or await reader.has_message_available():
                    seen.append(int((await reader.receive(timeout_s=WAIT_S)).value))
            if seen != list(range(self.committed[worker])):
                found.append(
                    f"{topic}: {len(seen)} messages for {self.committed[worker]} commits, the last "
                    f"{seen[-3:]}"
                )
        return found


def _settled(node: Node, replicas: int) -> bool:
    resource = node.get("transactioncoordinator", "main")
    status = resource.get("status", {})
    return (
        status.get("observedGeneration") == resource["metadata"]["generation"]
        and status.get("replicas")
        == status.get("readyReplicas")
        == status.get("announced")
        == replicas
        and not status.get("pendingRestarts")
        and node.condition("transactioncoordinator", "main", "Ready") == "True"
    )


def _scale(node: Node, replicas: int) -> float:
    node.run("scale", "transactioncoordinator/main", f"--replicas={replicas}")
    return node.wait(f"{replicas} coordinators", lambda: _settled(node, replicas))


def _progress(node: Node, *clients: Committing) -> None:
    before = [client.total() for client in clients]

    def goes_on() -> bool:
        assert [client.failed for client in clients] == [[]] * len(clients)
        return all(
            client.total() >= was + PROGRESS for client, was in zip(clients, before, strict=True)
        )

    node.wait("transactions go on", goes_on)


def test_coordinators_come_and_go_and_no_transaction_fails(node: Node) -> None:
    """1 -> 3 -> 1: a client that knows one and a client that knows three commit all the while,
    also those of the numbers that retire."""
    node.wait("the coordinator serves", lambda: _settled(node, 1))
    with Committing(node.service_url(), "early") as early:
        _progress(node, early)
        up_s = _scale(node, 3)
        with Committing(node.service_url(), "late") as late:
            _progress(node, early, late)
            node.wait(
                "transactions of every coordinator", lambda: set(late.by_coordinator) == {0, 1, 2}
            )
            down_s = _scale(node, 1)
            _progress(node, early, late)
    for client in (early, late):
        assert (client.failed, client.wrong) == ([], [])
    print(
        f"\ncoordinators 1 to 3 in {up_s:.1f} s, to 1 in {down_s:.1f} s; commits of each "
        f"{dict(early.by_coordinator)} and"
        f" {dict(late.by_coordinator)}; the longest transaction "
        f"{max(early.longest_s, late.longest_s):.2f} s"
    )

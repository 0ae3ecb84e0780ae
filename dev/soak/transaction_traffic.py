"""Applications that consume, transform and produce in transactions, and the history of what they
did and which answers they got.

Owns: `TransactionTraffic`: feeders, movers and watchers of our own client on an event loop in a
thread, and the last look at everything. Imports: magnetar.client, histories, transaction_mover.
Invariants: a transaction whose commit failed without an answer is asked
about again in the end; the last look is taken when every transaction has ended, and again for a
while if it shows an anomaly: participants may learn of an end late.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from dev.histories.anomalies import Anomaly, anomalies
from dev.histories.transactions import Fate, History, Place, TransactionHistory
from dev.soak.foreign_transactions import ForeignMover
from dev.soak.transaction_mover import (
    ASK_AGAIN_S,
    QUIET_S,
    RECEIVE_S,
    RETRY_S,
    Mover,
    SharedByMovers,
    subscribe,
)
from dev.soak.transaction_plans import MOVER, Counts, fate_of, place_of, routes
from magnetar.client import (
    EARLIEST,
    Batching,
    Client,
    Transaction,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from magnetar.client.transactions import OUTCOME_WAIT_S
from magnetar.errors import MagnetarError
from magnetar.transactions.ids import TxnId

OPERATION_TIMEOUT_S = 60.0
FEED_PENDING_MAX = 500
LOOKS_S = 300.0
"""For reading everything once more when all has ended."""
KEYS = 16


class TransactionTraffic:
    """Runs from `start` until `settle`. `feed_rate`: messages a second of each source;
    `directory`: where logs of foreign clients go."""

    def __init__(
        self,
        service_url: str,
        namespace: str,
        seed: int,
        feed_rate: float = 40.0,
        languages: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        self._service_url, self._feed_rate, self._directory = (
            service_url,
            feed_rate,
            directory or Path(),
        )
        self._routes = routes(namespace, languages)
        self._targets = [f"persistent://{namespace}/target-{number}" for number in range(3)]
        self.history, self.counts = History(), Counts()
        self._shared = SharedByMovers(
            self.history,
            self.counts,
            random.Random(f"{seed}/transactions"),
            self._targets,
            {route.source: 0 for route in self._routes if route.ordered},
        )
        self._feeding = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="transactions", daemon=True
        )
        self._foreign = [
            ForeignMover(route.language, self.history, route.source, MOVER, self._targets, seed)
            for route in self._routes
            if route.language
        ]
        self._clients: list[Client] = []
        self._feeders: list[asyncio.Task[None]] = []
        self._movers: list[asyncio.Task[None]] = []
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def topics(self) -> list[str]:
        return [*(route.source for route in self._routes), *self._targets]

    def committed(self) -> int:
        """Transactions whose commit was confirmed."""
        return self.counts.ended.get("committed", 0)

    def _call(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def start(self) -> None:
        """Begin; raises what the first consumers and producers raise."""
        self._thread.start()
        for mover in self._foreign:
            mover.connect(self._service_url, self._directory)
        self._call(self._start(), 120)
        for mover in self._foreign:
            mover.start()

    async def _start(self) -> None:
        self._clients = [
            Client(self._service_url, operation_timeout_s=OPERATION_TIMEOUT_S) for _ in range(2)
        ]
        for target in self._targets:
            self._watchers.append(self._loop.create_task(self._watch(target)))
        outputs = [
            [
                await client.create_producer(
                    target,
                    send_timeout_s=None,
                    batching=Batching(linger_s=0.002) if (number + at) % 2 else None,
                )
                for at, target in enumerate(self._targets)
            ]
            for number, client in enumerate(self._clients)
        ]
        for route in self._routes:
            # the subscription is there before the first message
            first, _ = await subscribe(self.history, self._clients[0], route)
            await first.close()
            for number in range(route.movers):
                at = (number + len(route.kind)) % len(self._clients)
                mover = Mover(self._shared, route, number, self._clients[at], outputs[at])
                self._movers.append(self._loop.create_task(mover.run()))
            self._feeders.append(self._loop.create_task(self._feed(route.source)))

    # --- feeding ----------------------------------------------------------------------------------

    async def _feed(self, source: str) -> None:
        """Numbered messages, once each: the namespace deduplicates."""
        producer = await self._clients[0].create_producer(
            source, f"feeder-of-{source.rpartition('/')[2]}", send_timeout_s=None
        )
        pending: set[asyncio.Task[None]] = set()

        async def send(number: int) -> None:
            value = f"in-{number}-of-{source.rpartition('/')[2]}"
            sent = self.history.publish(source, value)
            await producer.send(value.encode(), key=str(number % KEYS))
            sent.confirm()

        numbers = itertools.count()

        while not self._feeding.is_set():
            await asyncio.sleep(1 / self._feed_rate)
            if len(pending) < FEED_PENDING_MAX:
                task = self._loop.create_task(send(next(numbers)))
                pending.add(task)
                task.add_done_callback(pending.discard)
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(outcome, BaseException):
                self.counts.trouble.append(f"feeder of {source}: {outcome!r}")

    # --- watching ---------------------------------------------------------------------------------

    async def _watch(self, target: str) -> None:
        """A reader from the beginning, for as long as the run lasts; another one after one that
        has failed."""
        while True:
            session = self.history.subscribe(target, "watcher", whole=True)
            try:
                reader = await self._clients[-1].create_reader(target, EARLIEST)
                async for message in reader:
                    session.receive(place_of(message.id), message.value.decode())
            except (MagnetarError, TimeoutError) as error:
                self.counts.trouble.append(f"watcher of {target}: {error!r}")
            await asyncio.sleep(RETRY_S)

    # --- the end ----------------------------------------------------------------------------------

    def settle(self, patience_s: float) -> list[Anomaly]:
        """Feed nothing more, let everything end, look at everything; what is wrong and stays so
        for `patience_s`."""
        # commits under way, and those that are asked for again, together
        ends_s = 2 * OUTCOME_WAIT_S + ASK_AGAIN_S
        foreign_s = len(self._foreign) * 4 * OPERATION_TIMEOUT_S
        return list(
            self._call(self._settle(patience_s), ends_s + foreign_s + 3 * patience_s + LOOKS_S)
        )

    def all_counts(self) -> Counts:
        """Of all clients."""
        counts = self.counts
        ended, trouble = dict(counts.ended), list(counts.trouble)
        for mover in self._foreign:
            ended |= mover.ends
            trouble += mover.trouble
        begun = counts.begun + sum(sum(mover.ends.values()) for mover in self._foreign)
        return Counts(
            begun, ended, counts.moved + sum(mover.moved for mover in self._foreign), trouble
        )

    async def _settle(self, patience_s: float) -> list[Anomaly]:
        self._feeding.set()
        await asyncio.gather(*self._feeders)
        self._shared.draining = True
        for mover in self._foreign:
            mover.draining.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self._sources_are_empty():
                    await asyncio.sleep(RECEIVE_S)
        self._shared.over.set()
        for ended in await asyncio.gather(*self._movers, return_exceptions=True):
            if isinstance(ended, BaseException):
                self.counts.trouble.append(f"mover ended: {ended!r}")
                raise ended
        for mover in self._foreign:
            mover.ending.set()
            await asyncio.to_thread(mover.join, 4 * OPERATION_TIMEOUT_S)
            if mover.is_alive():
                raise RuntimeError(
                    f"the {mover.language} mover has not ended: the history would be judged while "
                    "it changes"
                )
            await asyncio.to_thread(mover.leave)
        foreign = [
            self._ask_for(number, record)
            for mover in self._foreign
            for number, record in mover.unknown
        ]
        await asyncio.gather(
            *foreign, *(self._ask(txn, record) for txn, record in self._shared.unknown)
        )
        await asyncio.sleep(max(0.0, self._shared.open_until - time.monotonic()))
        for watcher in self._watchers:
            if watcher.done():
                watcher.result()  # a watcher that has ended proves nothing
        deadline = time.monotonic() + patience_s
        while True:
            await self._look()
            found = anomalies(self.history)
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(QUIET_S)

    def _sources_are_empty(self) -> bool:
        """Whether as many inputs were moved, or may have been, as were fed; a bound of patience,
        not a check."""
        taken = {
            ack.input
            for txn in self.history.transactions
            if txn.fate is not Fate.ABORTED
            for ack in txn.acknowledgements
        }
        return len(taken) >= len(self.history.published)

    async def _ask(self, txn: Transaction, record: TransactionHistory) -> None:
        try:
            await txn.commit()
            record.answer(Fate.COMMITTED)
        except TransactionAborted:
            record.answer(Fate.ABORTED)
        except (TransactionOutcomeUnknown, MagnetarError) as error:
            self.counts.trouble.append(f"{record}: {error}")

    async def _ask_for(self, txn: TxnId, record: TransactionHistory) -> None:
        """The commit that a foreign client gave up, again: what it asked for may still happen."""
        try:
            record.answer(
                fate_of(
                    (await self._clients[0]._coordinators.commit(txn, ASK_AGAIN_S)).refusal,
                    Fate.COMMITTED,
                )
            )
        except MagnetarError as error:
            self.counts.trouble.append(f"{record}: {error}")

    async def _look(self) -> None:
        for topic in self.topics:
            reader = await self._clients[0].create_reader(topic, EARLIEST)
            entries: list[tuple[Place, str]] = []
            try:
                while await reader.has_message_available():
                    message = await reader.receive(OPERATION_TIMEOUT_S)
                    entries.append((place_of(message.id), message.value.decode()))
            except TimeoutError:
                last = await reader.last_message_id()
                self.counts.trouble.append(
                    f"reader: {topic} has {last}, and gives nothing after {entries[-1:]} "
                    f"({len(entries)})"
                )
            await reader.close()
            self.history.final_read(topic, entries)
        for route in self._routes:
            consumer, session = await subscribe(self.history, self._clients[0], route)
            left: dict[str, None] = {}
            while received := await consumer.batch_receive(100, QUIET_S):
                for found in received:
                    session.receive(place_of(found.id), found.value.decode())
                    left[found.value.decode()] = None
            await consumer.close()
            self.history.final_cursor(route.source, MOVER, left)

    def close(self) -> None:
        """Close the clients and the loop."""

        async def end() -> None:
            tasks = (*self._feeders, *self._movers, *self._watchers)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(client.close() for client in self._clients))

        for mover in self._foreign:
            mover.close()
        if not self._thread.is_alive():
            return
        self._call(end(), 120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

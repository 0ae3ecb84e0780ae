"""Keyed messages all the while, and what a reader of the compacted view must find of them.

Owns: `KeyedTraffic`: one producer of our client, what it was promised, and looks at the view.
Imports: magnetar.client. Invariants: the messages of a key have rising numbers in the order in
which they are sent; a key is deleted now and then by an empty message; a look judges only what was
acknowledged before it began.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from dev.soak.client_thread import ClientThread
from magnetar.client import EARLIEST, Batching, Client, MessageId, Producer

KEYS = 500
DELETED = 0.05
"""Share of messages that delete their key."""
PENDING_MAX = 500
READ_S = 60.0
SHOWN_MAX = 20
NUMBER = "number"
PADDING = b" " * 200


@dataclass(slots=True)
class Promised:
    """Of one key: the newest number acknowledged, the newest that was sent to delete it."""

    newest: int = -1
    deleted: int = -1


@dataclass(slots=True)
class Look:
    """What one reader of the compacted view got: numbers by key, and the keys up to a horizon."""

    numbers: dict[str, list[int]] = field(default_factory=dict)
    compacted: Counter[str] = field(default_factory=Counter)


class KeyedTraffic(ClientThread):
    """Publishes to one topic from `start` to `close`."""

    def __init__(self, service_url: str, topic: str, seed: int, rate: float) -> None:
        super().__init__("keyed-traffic")
        self._url, self.topic, self._rate = service_url, topic, rate
        self._chance = random.Random(f"{seed}/keys")
        self._promised = {f"key-{number}": Promised() for number in range(KEYS)}
        self.reached = (-1, -1)
        self.sent = self.failed = 0

    def start(self) -> None:
        """Connect and publish from now on."""

        async def begin() -> None:
            self._client = Client(self._url)
            await self._client.__aenter__()
            producer = await self._client.create_producer(
                self.topic, batching=Batching(messages_max=20), send_timeout_s=None
            )
            self._publishing.append(asyncio.create_task(self._publish(producer)))

        self.call(begin())

    async def _publish(self, producer: Producer[bytes]) -> None:
        room = asyncio.Semaphore(PENDING_MAX)
        while not self._publish_until.is_set():
            await room.acquire()
            key = self._chance.choice(list(self._promised))
            promised, number = self._promised[key], self.sent
            self.sent += 1
            deletes = self._chance.random() < DELETED
            if deletes:
                promised.deleted = number
            receipt = producer.send_nowait(
                None if deletes else PADDING, key=key, properties={NUMBER: str(number)}
            )
            receipt.add_done_callback(self._noted(promised, number, room.release))
            await asyncio.sleep(1 / self._rate)

    def _noted(
        self, promised: Promised, number: int, done: Callable[[], None]
    ) -> Callable[[asyncio.Future[MessageId]], None]:
        def note(receipt: asyncio.Future[MessageId]) -> None:
            done()
            if receipt.cancelled():
                return
            if receipt.exception() is not None:
                self.failed += 1
                return
            found = receipt.result()
            promised.newest = max(promised.newest, number)
            self.reached = max(self.reached, (found.ledger, found.entry))

        return note

    def problems_of(
        self, run: str, horizon: tuple[int, int], promised: tuple[int, int]
    ) -> list[str]:
        """What is wrong after a run that succeeded with that horizon: it must have reached
        `promised`, what had been acknowledged before it began. Raises TimeoutError."""
        short = [
            f"run {run} succeeded with horizon {horizon}, and {promised} had been acknowledged "
            "before it began"
        ]
        found = self.problems(horizon)[:SHOWN_MAX]
        return [
            *(short if horizon < promised else ()),
            *(f"after run {run}: {problem}" for problem in found),
        ]

    def problems(self, horizon: tuple[int, int]) -> list[str]:
        """Read the compacted view; what is not as promised, of all that was acknowledged before.
        Up to `horizon` no key may come twice. Raises TimeoutError."""
        before = {key: found.newest for key, found in self._promised.items()}
        look: Look = self.call(self._look(horizon), READ_S * 2)
        found = [
            f"{key}: number {newest} was acknowledged, and the view has {look.numbers.get(key)}"
            for key, newest in before.items()
            if newest >= 0
            and max(look.numbers.get(key, [-1])) < newest
            and self._promised[key].deleted < newest
        ]
        found += [
            f"{key}: out of order or twice: {numbers}"
            for key, numbers in look.numbers.items()
            if any(one >= other for one, other in itertools.pairwise(numbers))
        ]
        found += [
            f"{key}: {count} times up to horizon {horizon}"
            for key, count in look.compacted.items()
            if count > 1
        ]
        return found

    async def _look(self, horizon: tuple[int, int]) -> Look:
        look = Look()
        reader = await self.client.create_reader(
            self.topic, EARLIEST, inclusive=True, read_compacted=True
        )
        try:
            end = self.sent
            while await asyncio.wait_for(reader.has_message_available(), READ_S):
                message = await asyncio.wait_for(reader.receive(), READ_S)
                key, number = message.key or "", int(message.properties[NUMBER])
                look.numbers.setdefault(key, []).append(number)
                if message.id.position <= horizon:
                    look.compacted[key] += 1
                if number > end:  # what came later is another look's
                    break
        finally:
            await reader.close()
        return look

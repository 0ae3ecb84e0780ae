"""The latest value of each key of a topic.

Owns: `TableView`, a mapping that follows a topic. Imports: consumer (its reader), failures, asyncio.
Source: Pulsar's TableView: a message without a key is passed over, one without a value removes its
key. Invariants: keys change in the order of their partition; what `refresh` returns after was in the
topic when it was called; a value that does not decode changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Generic

from magnetar.client.consumer import Reader
from magnetar.client.failures import Undecodable
from magnetar.client.messages import Message
from magnetar.client.schemas import T
from magnetar.errors import MagnetarError

_log = logging.getLogger(__name__)
Listener = Callable[[str, T | None], None]


class TableView(Mapping[str, T], Generic[T]):
    """Reads like a dictionary. Made by `Client.create_table_view`, which has read the topic to its
    end. `failure`: why it follows no more."""

    def __init__(self, reader: Reader[T]) -> None:
        self.topic, self.failure = reader.topic, None
        self._reader = reader
        self._values: dict[str, T] = {}
        self._listeners: list[Listener[T]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._following = asyncio.create_task(self._follow(), name=f"table view {self.topic}")

    failure: MagnetarError | None

    def __getitem__(self, key: str) -> T:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        """Keys; a loop with an `await` in it goes over `list(view)`, since the view may change."""
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def listen(self, listener: Listener[T], *, existing: bool = False) -> None:
        """Call `listener` with key and value of each change, None for a key that is removed, and
        with `existing` first for each key that is there."""
        if existing:
            for key, value in list(self._values.items()):
                listener(key, value)
        self._listeners.append(listener)

    async def refresh(self) -> None:
        """Wait until what is in the topic now was read. Raises the reader's final failure."""
        while True:
            applied = asyncio.get_running_loop().create_future()
            self._waiting.append(applied)
            try:
                if self.failure is not None:
                    raise self.failure
                if not await self._reader.has_message_available():
                    return
                await applied
            finally:
                if applied in self._waiting:
                    self._waiting.remove(applied)

    async def close(self) -> None:
        """Follow no more; idempotent. What is there stays."""
        await self._reader.close()
        await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                message = await self._reader.receive()
            except MagnetarError as failure:
                self.failure = failure
                self._wake()
                return
            self._apply(message)
            self._wake()

    def _apply(self, message: Message[T]) -> None:
        key = message.key
        if key is None:
            return
        try:
            value = message.value if message.data else None
        except Undecodable as failure:
            _log.warning("%s: key %.100r keeps its value: %s", self.topic, key, failure)
            return
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        for listener in self._listeners:
            try:
                listener(key, value)
            except Exception:
                _log.exception("%s: a listener of the table view failed", self.topic)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for applied in waiting:
            if not applied.done():
                applied.set_result(None)

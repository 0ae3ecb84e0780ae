"""Messages received and not taken yet.

Owns: `Inbox`, which the partitions of a consumer share. Imports: messages, watermarks, asyncio. Invariants: a
copy of a message that comes again anyway is never handed out; taking a message is the last step of
`take`, so a receiver that is cancelled loses none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from magnetar.client.messages import Message
from magnetar.client.watermarks import Watermarks, WatermarkView
from magnetar.errors import MagnetarError
from magnetar.watermarks.generator import Reset, Watermark


class Source(Protocol):
    """Where messages come from: one partition."""

    def on_taken(self, copy: int, message: Message[Any]) -> None: ...

    def leaves_out(self, copy: int, message: Message[Any]) -> bool:
        """Whether the message is, or was, redelivered: then this copy is dropped."""
        ...


class Inbox:
    """Messages received and not taken yet, of all partitions of a subscription, in the order
    they came."""

    def __init__(self, watermarks: Watermarks | None = None) -> None:
        """`watermarks` of the same partitions, if they are received as well."""
        self.watermarks = watermarks
        self._items: deque[tuple[Source, int, Message[Any]]] = deque()
        self._changed = asyncio.Event()
        self._failure: MagnetarError | None = None

    def put(self, source: Source, copy: int, message: Message[Any]) -> None:
        """`copy` is what the source knows its entry's arrival by. Bounded by the permits each
        consumer gave."""
        self._items.append((source, copy, message))
        self._changed.set()

    def fail(self, failure: MagnetarError) -> None:
        """No message will follow; receivers get what is here, then the failure."""
        self._failure = failure
        self._changed.set()
        if self.watermarks is not None:
            self.watermarks.close()

    def peek(self) -> Message[Any] | None:
        """The next message without taking it; copies of what comes again are dropped."""
        while self._items and self._items[0][0].leaves_out(*self._items[0][1:]):
            self._items.popleft()
        return self._items[0][2] if self._items else None

    async def take(self) -> Message[Any]:
        """The next message. Raises the failure when there will be none."""
        while self.peek() is None:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        return self._pop()

    async def take_with(self, view: WatermarkView) -> Message[Any] | Watermark | Reset:
        """The next change of the watermark that `view` has not seen, or else the next message.
        Raises the failure when there will be neither."""
        assert self.watermarks is not None
        while (effect := view.take()) is None and self.peek() is None:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            tasks = [
                asyncio.ensure_future(waiting)
                for waiting in (self._changed.wait(), self.watermarks.wait())
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        return self._pop() if effect is None else effect

    def take_nowait(self) -> Message[Any] | None:
        return None if self.peek() is None else self._pop()

    def _pop(self) -> Message[Any]:
        source, copy, message = self._items.popleft()
        source.on_taken(copy, message)
        if self.watermarks is not None:
            self.watermarks.taken(message.event_time_ms)
        return message

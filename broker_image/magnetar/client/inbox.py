"""Messages received and not taken yet, and the watermarks between them.

Owns: `Inbox`, which the partitions of a consumer share. Imports: messages, watermarks, asyncio.
Invariants: a copy of a message that comes again anyway is never handed out; taking a message is the
last step of `take`, so a receiver that is cancelled loses none; a watermark holds once every message
that came before it is taken: one of them may have been delivered to another consumer since, and
acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple, Protocol

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

    def readable(self, message: Message[Any]) -> Message[Any] | None:
        """The message under its writer's schema; None while that is asked for, after which it calls
        `look_again`."""
        ...


class _Received(NamedTuple):
    source: Source
    copy: int
    message: Message[Any]


_Marks = dict[str, tuple[int | None, tuple[int, int]]]
"""Watermarks with no message between them: the last one of each partition, and its generation."""


class Inbox:
    """Messages received and not taken yet, of all partitions of a subscription, in the order
    they came."""

    def __init__(self, watermarks: Watermarks | None = None) -> None:
        """`watermarks` of the same partitions, if they are received as well."""
        self.watermarks = watermarks
        self._items: deque[_Received | _Marks] = deque()
        self._changed = asyncio.Event()
        self._failure: MagnetarError | None = None

    def put(self, source: Source, copy: int, message: Message[Any]) -> None:
        """`copy` is what the source knows its entry's arrival by. Bounded by the permits each
        consumer gave."""
        self._items.append(_Received(source, copy, message))
        self._changed.set()

    def put_watermark(self, topic: str, event_ms: int | None, generation: tuple[int, int]) -> None:
        """A partition's watermark holds behind what came before it."""
        last = self._items[-1] if self._items else None
        if isinstance(last, dict):
            last[topic] = event_ms, generation
        else:
            self._items.append({topic: (event_ms, generation)})
        self.peek()

    def fail(self, failure: MagnetarError) -> None:
        """No message will follow; receivers get what is here, then the failure."""
        self._failure = failure
        self._changed.set()
        if self.watermarks is not None:
            self.watermarks.close()

    def peek(self) -> Message[Any] | None:
        """The next message without taking it, None while its writer's schema is not known; copies
        of what comes again are dropped, and watermarks before it hold."""
        while self._items:
            first = self._items[0]
            if isinstance(first, dict):
                self._items.popleft()
                self._hold(first)
            elif first.source.leaves_out(first.copy, first.message):
                self._items.popleft()
            else:
                found = first.source.readable(first.message)
                if found is not None and found is not first.message:
                    self._items[0] = first._replace(message=found)
                return found
        return None

    def look_again(self) -> None:
        """The first message may be readable now."""
        self._changed.set()

    def _hold(self, marks: _Marks) -> None:
        if self.watermarks is not None:
            for topic, (event_ms, generation) in marks.items():
                self.watermarks.receive(topic, event_ms, generation)

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
        while self.peek() is None and not view.news:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            message = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait(
                    (message, self.watermarks.changed), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                message.cancel()
        return view.take() or self._pop()

    def take_nowait(self) -> Message[Any] | None:
        return None if self.peek() is None else self._pop()

    def _pop(self) -> Message[Any]:
        received = self._items.popleft()
        assert not isinstance(received, dict), "a message is there: `peek` has returned it"
        received.source.on_taken(received.copy, received.message)
        if self.watermarks is not None:
            self.watermarks.taken(received.message.event_time_ms)
            if self._items and isinstance(self._items[0], dict):
                # once the caller has the message
                asyncio.get_running_loop().call_soon(self.peek)
        return received.message

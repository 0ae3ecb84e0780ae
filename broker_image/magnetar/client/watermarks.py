"""The event-time watermark of a consumer.

Owns: `Watermarks`, the minimum over its partitions and topics; `WatermarkView`, what one receiver
has seen of it. Imports: watermarks, asyncio. Invariants: it advances, and goes back by a Reset
only; a receiver that is slow sees the last value, and that there was a reset; a message older than
the watermark is counted as late when it is taken, and is handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

from magnetar.watermarks.combination import Combination
from magnetar.watermarks.generator import Effect, Reset, Watermark

OnWatermark: TypeAlias = Callable[[Watermark | Reset], None]


class PartitionWatermark:
    """What one partition has sent, by its generations: within one the watermark only advances."""

    __slots__ = ("_generation", "event_ms")

    def __init__(self) -> None:
        self._generation: tuple[int, int] | None = None
        self.event_ms: int | None = None

    def receive(self, event_ms: int | None, generation: tuple[int, int]) -> Effect | None:
        """A WATERMARK of the broker. The value of another generation may be lower: the subscription
        was moved back, or its owner has changed."""
        same, before = generation == self._generation, self.event_ms
        self._generation = generation
        if before is not None and (event_ms is None or event_ms < before):
            if same:
                return None
            self.event_ms = event_ms
            return Reset(event_ms)
        if event_ms is None:
            return None
        self.event_ms = event_ms
        return Watermark(event_ms)


class Watermarks:
    """Of all partitions of one consumer or reader. `late`: messages taken that were older."""

    def __init__(self, on_watermark: OnWatermark | None = None) -> None:
        self._combination = Combination()
        self._partitions: dict[str, PartitionWatermark] = {}
        self._on_watermark = on_watermark
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.resets = self.late = 0
        self.closed = False

    @property
    def last_ms(self) -> int | None:
        """The watermark; None before there is one of every partition."""
        return self._combination.watermark_ms

    def add(self, topic: str) -> None:
        """A partition is received from: the watermark waits for its first one."""
        if topic not in self._partitions:
            self._partitions[topic] = PartitionWatermark()
            self._combination.add(topic)

    def remove(self, topic: str) -> None:
        """A partition has ended, and was read to its end. The last one stays: its owner sends the
        last watermark once the last acknowledgement is durable."""
        if topic in self._partitions and len(self._partitions) > 1:
            del self._partitions[topic]
            self._apply(self._combination.remove(topic))

    def receive(self, topic: str, event_ms: int | None, generation: tuple[int, int]) -> None:
        """A WATERMARK of one partition."""
        partition = self._partitions.get(topic)
        effect = partition.receive(event_ms, generation) if partition is not None else None
        if effect is not None:
            self._apply(self._combination.apply(topic, effect))

    def taken(self, event_ms: int | None) -> None:
        """A message with this event time is handed out."""
        last_ms = self.last_ms
        self.late += last_ms is not None and event_ms is not None and event_ms < last_ms

    def close(self) -> None:
        """There will be no more."""
        self.closed = True
        self._wake()

    @property
    def changed(self) -> asyncio.Future[None]:
        """Done with the next change after this call; to be waited for, not to be cancelled."""
        return self._changed

    def _apply(self, effect: Effect | None) -> None:
        if effect is None:
            return
        self.resets += isinstance(effect, Reset)
        self._wake()
        if self._on_watermark is not None:
            self._on_watermark(effect)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)


class WatermarkView:
    """What one receiver has seen."""

    def __init__(self, watermarks: Watermarks) -> None:
        """It begins with the watermark that there is."""
        self._watermarks, self._resets = watermarks, watermarks.resets
        self._seen_ms: int | None = None

    @property
    def news(self) -> bool:
        """Whether `take` would return anything."""
        watermarks = self._watermarks
        advanced = watermarks.last_ms != self._seen_ms and watermarks.last_ms is not None
        return advanced or watermarks.resets != self._resets

    def take(self) -> Effect | None:
        """What has changed since the last call."""
        resets, last_ms = self._watermarks.resets, self._watermarks.last_ms
        reset, changed = resets != self._resets, last_ms != self._seen_ms
        self._resets, self._seen_ms = resets, last_ms
        if reset:
            return Reset(last_ms)
        return Watermark(last_ms) if changed and last_ms is not None else None

    async def __aiter__(self) -> AsyncIterator[Watermark | Reset]:
        """Changes until the consumer is closed."""
        while True:
            effect = self.take()
            if effect is not None:
                yield effect
            elif self._watermarks.closed:
                return
            else:
                await asyncio.wait((self._watermarks.changed,))

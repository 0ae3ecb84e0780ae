"""Frames queued to one connection.

Owns: `Outbound`: the frames queued to a peer, what of them the transport gets, and which are
messages of which consumer. Imports: asyncio, wire. Invariants: frames leave whole and in the order
in which they were queued; the transport holds little, so that messages queued for a slow peer can
be dropped; a message is dropped as a whole, and never after a byte of it went to the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.wire.checksum import Buffer

if TYPE_CHECKING:
    from magnetar.broker.ports import AttachedConsumer

LARGE_PIECE_BYTES = 4096
"""Mean size of what is queued from which on it is written without joining it."""
WRITE_BYTES_MAX = 256 << 10
"""Of one write while the transport holds something, and what it may hold before it is full."""
FIRST_WRITE_BYTES_MAX = 2 << 20
"""Of one write while it holds nothing: the socket takes most of it at once."""


class Outbound:
    """Buffers in order; those of messages are pairs of a header and an entry."""

    __slots__ = ("_buffers", "_limit", "_messages", "_queued", "_transport", "full")

    def __init__(self, limit: int) -> None:
        """`limit`: bytes above which it is `too_much`."""
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._buffers: list[Buffer] = []
        self._queued = 0
        self._messages: list[tuple[AttachedConsumer, int, int]] = []
        """Whose messages lie in which of the buffers [start, end)."""
        self.full = False
        """Whether the transport takes no more for now."""

    def begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=min(self._limit, WRITE_BYTES_MAX))

    @property
    def size(self) -> int:
        """Bytes queued here and in the transport."""
        return self._queued + (
            self._transport.get_write_buffer_size() if self._transport is not None else 0
        )

    @property
    def too_much(self) -> bool:
        """Whether the peer should get no more messages."""
        return self.full and self.size > self._limit

    @property
    def little(self) -> bool:
        """Whether the peer may get messages again."""
        return not self.full or self.size <= self._limit // 4

    def add(self, data: Buffer) -> None:
        self._buffers.append(data)
        self._queued += len(data)

    def add_messages(self, session: AttachedConsumer, frames: Sequence[Buffer]) -> None:
        """Queue messages of a consumer: header, entry, header, entry, ... They are dropped if it
        is closed before they are written."""
        start = len(self._buffers)
        self._buffers += frames
        self._queued += sum(map(len, frames))
        self._messages.append((session, start, len(self._buffers)))

    def write(self, transport: asyncio.Transport) -> None:
        """Write what the transport takes now; the rest waits for it."""
        if self.full or not self._buffers:
            return
        for session, _, _ in self._messages:
            if session.closed:
                self._drop_messages()
                break
        while self._buffers and not self.full:
            if self._queued <= FIRST_WRITE_BYTES_MAX and not transport.get_write_buffer_size():
                buffers, size = self._buffers, self._queued
                self._buffers, self._queued, self._messages = [], 0, []
            else:
                buffers, size = self._take()
            if len(buffers) == 1:
                transport.write(buffers[0])
            elif size < LARGE_PIECE_BYTES * len(buffers):
                # A copy costs less than a vector each. Large entries go out from where they are.
                transport.write(b"".join(buffers))
            else:
                transport.writelines(buffers)

    def write_all(self, transport: asyncio.Transport) -> None:
        """Write everything, however much that is: nothing follows."""
        self.full = False
        while self._buffers:
            self.write(transport)
            self.full = False

    def clear(self) -> None:
        self._buffers = []
        self._queued = 0
        self._messages.clear()

    def _drop_messages(self) -> None:
        """Drop the messages of closed consumers: their clients get them again after a reconnect."""
        buffers, messages, done = self._buffers, self._messages, 0
        self._buffers, self._messages = [], []
        for session, start, end in messages:
            self._buffers += buffers[done:start]
            done = end
            if not session.closed:
                self._messages.append(
                    (session, len(self._buffers), len(self._buffers) + end - start)
                )
                self._buffers += buffers[start:end]
        self._buffers += buffers[done:]
        self._queued = sum(map(len, self._buffers))

    def _take(self) -> tuple[list[Buffer], int]:
        """The first buffers, about as much as one write may have, and their size; at least one,
        and no header without its entry."""
        count = size = 0
        while size < WRITE_BYTES_MAX and count < len(self._buffers):
            size += len(self._buffers[count])
            count += 1
        rest = []
        for session, start, end in self._messages:
            if start < count < end and (count - start) % 2:
                size += len(self._buffers[count])
                count += 1
            if end > count:
                rest.append((session, max(0, start - count), end - count))
        taken = self._buffers[:count]
        del self._buffers[:count]
        self._queued -= size
        self._messages = rest
        return taken, size

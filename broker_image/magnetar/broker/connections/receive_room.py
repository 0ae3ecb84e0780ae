"""Memory for what peers send, over all connections of a process.

Owns: `Room`, the part of one connection, and `Rooms`, which holds them to `receive_bytes_max`.
Imports: asyncio, hosting.background, wire, siblings. Invariants: a frame larger than `SMALL_BYTES` and than its buffer is
read only while its whole size is reserved, so that it can end; buffers that are larger than
`SMALL_BYTES` without that take at most half as much again, and give way when they take more; while
others wait, frames that hardly grow are dropped at the addresses that hold the most.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import structlog

from magnetar.broker.connections.intake import ROOM
from magnetar.broker.connections.receive_budget import ReceiveBudget
from magnetar.wire.frames import READ_BUFFER_BYTES

if TYPE_CHECKING:
    from magnetar.broker.ports import ClientConnection
    from magnetar.hosting.background import Surprises
    from magnetar.wire.frames import InboundBuffer

log = structlog.get_logger(__name__)

SMALL_BYTES = 32 << 10
"""Every connection may have so much."""
LOOK_S = 1.0
GROWTH_BYTES_MIN = 64 << 10
"""Of a connection in the middle of a frame from one look to the next."""


class Room:
    """What one connection holds: `reserved` for an unfinished frame, and `spare`, what its buffer
    has beyond that; `wanted`: what it waits for."""

    __slots__ = (
        "_rooms", "_seen", "connection", "inbound", "received", "reserved", "spare", "wanted",
    )  # fmt: skip

    def __init__(self, rooms: Rooms, connection: ClientConnection, inbound: InboundBuffer) -> None:
        self._rooms, self.inbound = rooms, inbound
        self.connection = cast("ClientConnection", weakref.proxy(connection))  # as `SlowPeer`'s
        self.received = self.reserved = self.spare = self.wanted = 0
        self._seen: tuple[int, int] | None = None
        """Bytes received, and those handled of them, at the last look; None: not looked at since
        reading began."""

    def buffer(self) -> memoryview:
        """For the next read."""
        self.inbound.capacity = self._rooms.capacity
        return self.inbound.get_buffer()

    def settle(self, count: int) -> None:
        """After `count` more bytes were read and their whole frames handled; 0 if reading goes on
        after a pause."""
        self.received += count
        if not count:
            self._seen = None
        size, unfinished = len(self.inbound.data), self.inbound.unfinished
        if (
            unfinished > size
            or self.reserved
            or self.spare != (size if size > SMALL_BYTES else 0)
            or size > self._rooms.capacity
        ):
            self._rooms.settle(self, size, unfinished)

    def give_back(self) -> None:
        """Free what large reads needed, unless most of a frame lies in it."""
        self.inbound.give_back()
        if self.spare:
            self._rooms.settle(self, len(self.inbound.data), self.inbound.unfinished)

    def hardly_grows(self) -> bool:
        """Whether the frame that had begun at the last call goes on, by too few bytes."""
        before = self._seen
        handled = self.received - self.inbound.pending
        self._seen = (self.received, handled) if self.connection.listens else None
        return (
            before is not None
            and self._seen is not None
            and handled == before[1]
            and self.received - before[0] < GROWTH_BYTES_MIN
        )

    def end(self) -> None:
        """The connection is over."""
        self._rooms.forget(self)


class Rooms:
    """All of them. `capacity`: bytes that a buffer may grow to for the sake of larger reads."""

    def __init__(self, bytes_max: int, surprises: Surprises) -> None:
        self._surprises = surprises
        self._budget: ReceiveBudget[Room] = ReceiveBudget(bytes_max, bytes_max // 2)
        self._holders: dict[Room, None] = {}
        self._spare, self._spare_max = 0, bytes_max // 2
        self._look_at: asyncio.TimerHandle | None = None
        self.capacity = READ_BUFFER_BYTES
        self.dropped = 0
        """Connections whose frame hardly grew while others waited."""

    @property
    def held_bytes(self) -> int:
        """Reserved and spare."""
        return self._budget.reserved + self._spare

    def settle(self, room: Room, size: int, unfinished: int) -> None:
        """Adapt what a connection holds to its buffer of `size` bytes and the whole size of the
        frame that has begun in it; it is not read while there is no room for that."""
        needed = unfinished if unfinished > size or unfinished == room.reserved else 0
        needed = needed if needed > SMALL_BYTES else 0
        if needed != (room.reserved or room.wanted):
            self._budget.release(room)
            room.reserved = room.wanted = 0
            if needed and self._budget.reserve(room, room.connection.group, needed):
                room.reserved = needed
            elif needed:
                room.wanted = needed
                room.connection.hold_reading(ROOM)
            self._resume()
        if size > self.capacity and not room.reserved:
            room.inbound.shrink()
        self._count(room, len(room.inbound.data))

    def forget(self, room: Room) -> None:
        """Its connection is over."""
        self._budget.release(room)
        room.reserved = room.wanted = 0
        self._resume()
        self._count(room, 0)

    def _count(self, room: Room, size: int) -> None:
        spare = max(0, size - room.reserved) if size > SMALL_BYTES else 0
        self._spare += spare - room.spare
        room.spare = spare
        if not (spare or room.reserved):
            self._holders.pop(room, None)
        elif room not in self._holders:
            self._holders[room] = None
        if self._spare > self._spare_max:
            self.capacity = SMALL_BYTES
        elif self._spare <= self._spare_max // 2:
            self.capacity = READ_BUFFER_BYTES
        if self._look_at is None and self._scarce:
            self._look_at = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    @property
    def _scarce(self) -> bool:
        return self._budget.waiting > 0 or self.capacity == SMALL_BYTES

    def _resume(self) -> None:
        """Read those again that have room now, each in a turn of its own."""
        for room in self._budget.take_granted():
            room.reserved, room.wanted = room.wanted, 0
            self._count(room, len(room.inbound.data))
            asyncio.get_running_loop().call_soon(_read_again, room)

    def _look(self) -> None:
        """Take idle room back, and drop those who hold room without using it."""
        self._look_at = None
        if not self._scarce:
            return
        self._look_at = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        by_group: Counter[str] = Counter()
        for room in self._holders:
            by_group[room.connection.group] += room.reserved + room.spare
        judged_from = max(by_group.values(), default=0) // 2
        for room in list(self._holders):
            group = room.connection.group
            with self._surprises.contained("receive room", address=group):
                self._judge(room, droppable=by_group[group] >= judged_from)

    def _judge(self, room: Room, droppable: bool) -> None:
        hardly_grows = room.hardly_grows()
        if not room.reserved:
            room.give_back()
        if hardly_grows and droppable and room in self._holders:
            self.dropped += 1
            log.info(
                "connection.too_slow", peer=room.connection.peer, bytes_min=GROWTH_BYTES_MIN,
                seconds=LOOK_S, reason="others wait for room",
            )  # fmt: skip
            room.connection.abort()

    def close(self) -> None:
        if self._look_at is not None:
            self._look_at.cancel()

    def expose(self, gauge: Callable[[str, str, Callable[[], float]], None]) -> None:
        gauge(
            "magnetar_receive_bytes",
            "Memory for frames that connections are in the middle of, and for large reads",
            lambda: self.held_bytes,
        )
        gauge(
            "magnetar_receive_waiting",
            "Connections that are not read because receive_bytes_max is reserved for others",
            lambda: self._budget.waiting,
        )
        gauge(
            "magnetar_receive_dropped",
            "Connections that held room for a frame without sending it while others waited",
            lambda: self.dropped,
        )


def _read_again(room: Room) -> None:
    try:
        room.connection.resume_reading(ROOM)
    except ReferenceError:  # it has ended since
        return

"""One simulated TCP connection.

Owns: `Flow` (one direction: packets in flight, socket buffers, loss) and `SimTransport` (one end,
what a protocol writes to). Imports: asyncio, the loop; the fabric answers for latency and
partitions.

Model: a flow is FIFO; at most `SOCKET_BUFFER_BYTES` are in flight or unread, the rest waits in the
writer's transport and counts towards its water marks. Reads are cut and writes joined at random. A
hanging partition holds packets until it heals, as retransmission does; a dropping one loses them,
and since a stream with a hole cannot go on, both ends stay half-open until each gives up. FIN
follows the data; RST may overtake what has arrived unread. Excluded: changed, repeated or reordered
bytes (TCP hides them).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.node import Node

if TYPE_CHECKING:
    from tests.simulation.kernel.network import Fabric

SOCKET_BUFFER_BYTES = 256 << 10
SEGMENT_BYTES_MAX = 64 << 10
WRITE_HIGH_WATER_BYTES = 64 << 10
FIN: Final = "FIN"
RST: Final = "RST"
Packet = bytearray | str


class Flow:
    """One direction of a connection: from `source` to `target`."""

    def __init__(self, fabric: Fabric, source: SimTransport, target: SimTransport) -> None:
        self._fabric, self._loop, self._chance = fabric, fabric.loop, fabric.chance
        self.source, self.target = source, target
        self.unread_bytes = 0  # in flight, held, or arrived and not read
        self.held: deque[Packet] = deque()
        self._last_arrival = 0.0
        self._open: bytearray | None = None
        self._open_since = 0.0
        self._farewell: str | None = None  # nothing but RST follows a FIN, nothing follows RST

    def not_before(self, when: float) -> None:
        """Nothing arrives before `when`: the peer does not know the connection yet."""
        self._last_arrival = max(self._last_arrival, when)

    def room_bytes(self) -> int:
        return SOCKET_BUFFER_BYTES - self.unread_bytes

    def send(self, packet: Packet) -> None:
        """Put a packet into flight; FIN and RST end the flow."""
        if self._farewell is RST or (self._farewell is FIN and packet is not RST):
            return
        now = self._loop.time()
        if isinstance(packet, str):
            self._farewell = packet
        else:
            self.unread_bytes += len(packet)
            joinable = self._open is not None and self._open_since == now
            if joinable and self._chance.random() < self._fabric.faults.merge_probability:
                assert self._open is not None
                self._open += packet
                return
            self._open, self._open_since = packet, now
        self._fly(packet)

    def _fly(self, packet: Packet) -> None:
        latency = self._fabric.latency_s(self.source.node.name, self.target.node.name)
        self._last_arrival = max(self._last_arrival, self._loop.time() + latency)
        self._loop.post_at(self._loop.kernel, self._last_arrival, self._arrive, packet)

    def _arrive(self, packet: Packet) -> None:
        if packet is self._open:
            self._open = None
        blocked = self._fabric.blocked(self.source.node.name, self.target.node.name)
        if (blocked is not None and blocked.drops) or self.source.doomed:
            self._fabric.half_open(self.source, self.target)
        elif blocked is not None or self.held:
            self.held.append(packet)
        else:
            self.target.arrived(packet)

    def release(self) -> None:
        """The partition has healed: what was held arrives, in order, after one more latency."""
        packets, self.held = list(self.held), deque()
        for packet in packets:
            self._fly(packet)

    def was_read(self, count: int) -> None:
        """The target took `count` bytes out of its socket buffer: the window opens."""
        self.unread_bytes -= count
        assert self.unread_bytes >= 0
        if self.source.waiting_bytes:
            self._loop.post(self._loop.kernel, self.source.pump)


class SimTransport(asyncio.Transport):
    """One end of a connection, belonging to `node`."""

    def __init__(
        self, fabric: Fabric, node: Node, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self.node = node
        self.outgoing: Flow
        self.incoming: Flow
        self._fabric = fabric
        self._loop: SimLoop = fabric.loop
        self._chance: random.Random = fabric.chance
        self._protocol: asyncio.BufferedProtocol | None = None
        self._waiting = bytearray()
        self._inbox = bytearray()
        self._ended: str | None = None  # FIN or RST has arrived behind what is in the inbox
        self._reading_paused = self._read_posted = self._writing_paused = False
        self._closing = self._lost = self._fin_wanted = False
        self.doomed = False  # bytes were lost: both ends are half-open and will fail
        self._high, self._low = WRITE_HIGH_WATER_BYTES, WRITE_HIGH_WATER_BYTES // 4

    # --- started and ended by the fabric, in the node's own steps ---------------------------------

    def start(self, protocol: asyncio.BufferedProtocol) -> None:
        """Attach the protocol and call its connection_made; reading starts with it."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._wish_to_read()

    def fail(self, error: OSError | None) -> None:
        """Lose the connection now, in a step of the node; what was not sent or read is gone."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._waiting.clear()
        self._fabric.ended(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def abandoned(self, farewell: str) -> None:
        """The process died: its kernel sends FIN or RST; bytes that it had not transferred are
        gone."""
        self._lost = self._closing = True
        self._waiting.clear()
        self._inbox.clear()
        self.outgoing.send(farewell)

    # --- receiving --------------------------------------------------------------------------------

    def arrived(self, packet: Packet) -> None:
        """A packet reaches this end's socket (a step of the kernel)."""
        if self._lost or not self.node.alive:
            if not isinstance(packet, str):
                self.outgoing.send(RST)  # as a kernel answers data for a socket that is gone
            return
        if isinstance(packet, str):
            self._ended = packet
            if packet is RST and self._chance.random() < 0.5:
                self._inbox.clear()
        else:
            self._inbox += packet
        self._wish_to_read()

    def _wish_to_read(self) -> None:
        wanted = self._inbox or self._ended is not None
        # A paused reader still learns of a reset, as a poll reports errors whatever is asked for.
        possible = not self._reading_paused or (self._ended is RST and not self._inbox)
        if (
            wanted
            and possible
            and self._protocol is not None
            and not self._read_posted
            and not self._lost
        ):
            self._read_posted = True
            self._loop.post(self.node, self._read)

    def _read(self) -> None:
        self._read_posted = False
        if (
            self._lost
            or self._protocol is None
            or (self._reading_paused and self._ended is not RST)
        ):
            return
        try:
            if self._inbox:
                if not self._reading_paused:
                    self._deliver(self._protocol)
            elif self._ended is RST:
                self.fail(ConnectionResetError(f"reset by {self.get_extra_info('peername')}"))
            elif self._ended is FIN:
                self._ended = None
                if not self._protocol.eof_received():
                    self.close()
        except Exception as error:
            # As asyncio's transports do: report it, which ends the run, and drop the connection.
            self._loop.call_exception_handler(
                {"message": "exception in a protocol callback", "exception": error}
            )
            self.abort()
        self._wish_to_read()

    def _deliver(self, protocol: asyncio.BufferedProtocol) -> None:
        available = len(self._inbox)
        if available > 1 and self._chance.random() < self._fabric.faults.split_probability:
            available = self._chance.randint(1, available)
        buffer = memoryview(protocol.get_buffer(-1)).cast("B")
        assert len(buffer) > 0, "get_buffer() returned an empty buffer"
        count = min(available, len(buffer))
        buffer[:count] = self._inbox[:count]
        buffer.release()
        del self._inbox[:count]
        self.incoming.was_read(count)
        protocol.buffer_updated(count)

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._wish_to_read()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    # --- sending ----------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self._fin_wanted or self._closing, "write after write_eof"
        if self._closing or not self.node.alive or not data:
            return
        self._waiting += data
        self.pump()
        if len(self._waiting) > self._high and not self._writing_paused:
            self._writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def pump(self) -> None:
        """Hand to the network what fits into the window; below the low-water mark the writer is
        resumed, in a step of its own."""
        if self._lost or not self.node.alive:
            return
        while self._waiting and (room := self.outgoing.room_bytes()) > 0:
            count = min(room, SEGMENT_BYTES_MAX, len(self._waiting))
            self.outgoing.send(self._waiting[:count])
            del self._waiting[:count]
        if self._writing_paused and len(self._waiting) <= self._low:
            self._writing_paused = False
            self._loop.post(self.node, self._resume_writing)
        if not self._waiting and self._fin_wanted:
            self.outgoing.send(FIN)
            if self._closing:
                self._loop.post(self.node, self.fail, None)

    def _resume_writing(self) -> None:
        if not self._lost and self._protocol is not None:
            self._protocol.resume_writing()

    def write_eof(self) -> None:
        self._fin_wanted = True
        self.pump()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Flush, then end: connection_lost(None) comes when the last byte has left this
        transport."""
        if not self._closing and self.node.alive:
            self._closing = self._reading_paused = self._fin_wanted = True
            self.pump()

    def abort(self) -> None:
        """Drop everything unsent and reset the connection."""
        if not self._lost and self.node.alive:
            self._closing = self._reading_paused = True
            self._waiting.clear()
            self.outgoing.send(RST)
            self._loop.post(self.node, self.fail, None)

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        assert self._high >= self._low >= 0, (high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

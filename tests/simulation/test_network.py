"""The simulated network keeps TCP's promises and no more."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.network import Partition
from tests.simulation.kernel.stream import SOCKET_BUFFER_BYTES
from tests.simulation.kernel.world import Environment, World

PORT = 7000


class Recorder(asyncio.BufferedProtocol):
    """Keeps every read and every event."""

    def __init__(self, buffer_bytes: int = 1 << 16) -> None:
        self.reads: list[bytes] = []
        self.events: list[str] = []
        self.transport: asyncio.Transport
        self._buffer = bytearray(buffer_bytes)

    @property
    def data(self) -> bytes:
        return b"".join(self.reads)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.reads.append(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(f"lost {type(exc).__name__}")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Pair:
    """A world with node `a` connected to node `b`."""

    def __init__(
        self,
        seed: int = 1,
        faults: Faults | None = None,
        *,
        buffer_bytes: int = 1 << 16,
        near_on_volume: bool = True,
    ) -> None:
        self.world = World(seed, faults)
        self.near, self.far = Recorder(buffer_bytes), Recorder(buffer_bytes)
        self.world.node("b", self._listen)
        self.world.run(0.01)
        self.world.node("a", self._connect, on_volume=near_on_volume)
        self.world.run_until(
            lambda: self.near.events == ["made"] and self.far.events == ["made"], within_s=1.0
        )

    async def _listen(self, environment: Environment) -> None:
        listener = await environment.network.listen("0.0.0.0", PORT, lambda: self.far)
        assert listener.port == PORT
        await asyncio.sleep(10_000)

    async def _connect(self, environment: Environment) -> None:
        assert await environment.network.connect("b", PORT, lambda: self.near) is self.near
        await asyncio.sleep(10_000)

    def lost(self) -> list[str]:
        """The last event of each side."""
        return [self.near.events[-1], self.far.events[-1]]


def numbered(count: int) -> list[bytes]:
    return [b"<%d>" % number * (1 + number % 7) for number in range(count)]


def test_bytes_arrive_in_order_cut_and_joined_at_random_places() -> None:
    shapes: set[tuple[int, ...]] = set()
    for seed in range(10):
        pair = Pair(seed, buffer_bytes=64)
        for chunk in numbered(200):
            pair.near.transport.write(chunk)
        pair.world.run(1.0)
        assert pair.far.data == b"".join(numbered(200))
        assert {len(read) for read in pair.far.reads} - {len(chunk) for chunk in numbered(200)}, (
            "some reads are no write"
        )
        shapes.add(tuple(len(read) for read in pair.far.reads))
        pair.world.close()
    assert len(shapes) == 10


def test_close_flushes_and_ends_both_sides_without_an_error() -> None:
    pair = Pair()
    pair.near.transport.write(b"x" * 100_000)
    pair.near.transport.close()
    pair.near.transport.write(b"ignored")
    pair.world.run(1.0)
    assert len(pair.far.data) == 100_000
    assert pair.far.events == ["made", "eof", "lost NoneType"]
    assert pair.near.events == ["made", "lost NoneType"]
    assert pair.world.fabric.connections() == []


def test_abort_drops_and_resets_the_peer() -> None:
    pair = Pair()
    pair.near.transport.abort()
    pair.world.run(1.0)
    assert pair.lost() == ["lost NoneType", "lost ConnectionResetError"]


def test_a_reader_that_pauses_stops_the_writer() -> None:
    pair = Pair()
    pair.far.transport.pause_reading()
    total = 0
    while "pause" not in pair.near.events:
        pair.near.transport.write(b"y" * 10_000)
        total += 10_000
        pair.world.run(0.01)
    assert total > SOCKET_BUFFER_BYTES
    assert pair.near.transport.get_write_buffer_size() == total - SOCKET_BUFFER_BYTES
    assert pair.far.reads == []
    pair.far.transport.resume_reading()
    pair.world.run(1.0)
    assert len(pair.far.data) == total
    assert pair.near.events == ["made", "pause", "resume"]


def test_a_paused_process_buffers_and_accepts_but_answers_nothing() -> None:
    pair = Pair()
    pair.world.pause("b")
    pair.near.transport.write(b"hello")
    second = Recorder()
    connected = pair.world.complete(
        pair.world.outsider("c").network.connect("b", PORT, lambda: second), within_s=1.0
    )
    assert connected is second
    pair.world.run(5.0)
    assert pair.far.reads == []
    pair.world.resume("b")
    pair.world.run(0.1)
    assert pair.far.data == b"hello"


def test_a_hanging_partition_delays_and_a_one_way_one_delays_one_way() -> None:
    pair = Pair()
    pair.world.fabric.partition("a", "b", one_way=True)
    pair.near.transport.write(b"there")
    pair.far.transport.write(b"back")
    pair.world.run(30.0)
    assert (pair.far.data, pair.near.data) == (b"", b"back")
    pair.world.fabric.heal("a", "b")
    pair.near.transport.write(b" and more")
    pair.world.run(1.0)
    assert pair.far.data == b"there and more"


def test_a_dropping_partition_leaves_both_ends_half_open_until_they_give_up() -> None:
    pair = Pair(faults=Faults.none().but(half_open_s=(10.0, 40.0)))
    pair.world.fabric.partition("a", "b", Partition.DROP)
    pair.near.transport.write(b"lost")
    pair.world.run(1.0)
    pair.world.fabric.heal()
    pair.near.transport.write(b"a hole before this")
    pair.world.run(5.0)
    assert pair.lost() == ["made", "made"]
    pair.world.run(60.0)
    assert pair.far.data == b""
    assert pair.lost() == ["lost ConnectionResetError", "lost ConnectionResetError"]


def test_a_reset_ends_both_sides() -> None:
    pair = Pair()
    assert pair.world.fabric.reset("a", "b") == 1
    pair.world.run(1.0)
    assert pair.lost() == ["lost ConnectionResetError", "lost ConnectionResetError"]


def test_peers_of_a_crashed_process_learn_of_it_and_its_port_refuses() -> None:
    endings: set[str] = set()
    for seed in range(10):
        pair = Pair(seed)
        pair.world.crash("b")
        pair.world.run(1.0)
        endings.add(pair.near.events[-1])
        assert pair.far.events == ["made"], "the dead side is not notified"
        with pytest.raises(ConnectionRefusedError):
            pair.world.complete(
                pair.world.outsider("c").network.connect("b", PORT, Recorder), within_s=1.0
            )
        pair.world.close()
    assert endings == {"lost NoneType", "lost ConnectionResetError"}, "FIN or RST, by chance"


def test_peers_of_a_machine_without_power_learn_late() -> None:
    pair = Pair(faults=Faults.none().but(half_open_s=(5.0, 10.0)), near_on_volume=False)
    pair.world.power_loss()
    assert (pair.world.alive("a"), pair.world.alive("b")) == (True, False)
    pair.world.run(4.0)
    assert pair.near.events == ["made"]
    pair.world.run(7.0)
    assert pair.near.events == ["made", "lost ConnectionResetError"]


def test_connecting_through_a_partition_waits_for_its_end_or_times_out() -> None:
    pair = Pair()
    caller = pair.world.outsider("c")
    pair.world.fabric.partition("c", "b")
    pair.world.at(pair.world.now + 5.0, pair.world.fabric.heal)
    assert pair.world.complete(
        caller.network.connect("b", PORT, Recorder), within_s=10.0
    ).events == ["made"]
    pair.world.fabric.partition("b", "c", one_way=True)
    with pytest.raises(TimeoutError) as caught:
        pair.world.complete(caller.network.connect("b", PORT, Recorder), within_s=60.0)
    assert caught.value.errno == errno.ETIMEDOUT


def test_an_error_in_a_protocol_callback_ends_the_run() -> None:
    class Broken(Recorder):
        def buffer_updated(self, nbytes: int) -> None:
            raise ValueError(f"cannot take {nbytes} bytes")

    pair = Pair()
    pair.far.__class__ = Broken
    pair.near.transport.write(b"z")
    with pytest.raises(Exception, match="cannot take 1 bytes"):
        pair.world.run(1.0)

"""A toy cluster: two echo servers with leases and logs, and one client. Measures the kernel and
shows that traces repeat.

Owns: `play`, which returns the world after its run. Imports: the kernel.
"""

from __future__ import annotations

import asyncio

from magnetar.errors import Fenced, LeaseLost, StorageError, StoreUnavailable
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.world import Environment, World

PORT = 6650
SERVERS = ("server-0", "server-1")
MESSAGE = b"0123456789" * 10
RUN_S = 60.0


class Peer(asyncio.BufferedProtocol):
    """Counts what it receives; an echoing one sends it back."""

    def __init__(self, echoes: bool) -> None:
        self.received_bytes, self.lost = 0, asyncio.Event()
        self.grew = asyncio.Event()
        self.transport: asyncio.Transport
        self._echoes, self._buffer = echoes, bytearray(4096)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        self.grew.set()
        if self._echoes:
            self.transport.write(memoryview(self._buffer)[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.lost.set()
        self.grew.set()


async def serve(environment: Environment) -> None:
    """Echo, hold a lease, append to a log four times a second."""
    claim = f"claims/{environment.name}-{environment.life}"
    try:
        await environment.volume.put_if_absent(claim, b"")
        log = await environment.volume.create_log(
            f"logs/{environment.name}-{environment.life}", 1 << 20, b"header"
        )
        lease = await environment.store.grant_lease(4.0)
        await environment.network.listen("", PORT, lambda: Peer(echoes=True))
        for number in range(10_000):
            await log.append(512 + 128 * number, [MESSAGE], claim)
            await asyncio.sleep(0.25)
            if number % 4 == 0:
                await environment.store.renew_lease(lease)
    except (StoreUnavailable, LeaseLost, StorageError, Fenced):
        return


async def ask(environment: Environment) -> None:
    """Talk to the servers in turn, ten messages a second."""
    number = 0
    while True:
        number += 1
        try:
            async with asyncio.timeout(5.0):
                peer = await environment.network.connect(
                    SERVERS[number % 2], PORT, lambda: Peer(echoes=False)
                )
        except OSError:
            await asyncio.sleep(0.1)
            continue
        for _ in range(50):
            peer.grew.clear()
            peer.transport.write(MESSAGE)
            try:
                async with asyncio.timeout(1.0):
                    await peer.grew.wait()
            except TimeoutError:
                break
            if peer.lost.is_set():
                break
            await asyncio.sleep(0.1)
        peer.transport.abort()


def play(seed: int, faults: Faults | None = None) -> World:
    """Sixty virtual seconds; the world is closed but its numbers stay."""
    with World(seed, faults or Faults.all()) as world:
        for name in SERVERS:
            world.node(name, serve, restarts=True)
        world.node("client", ask, on_volume=False)
        Nemesis(world, SERVERS, bystanders=["client"]).start(until_s=RUN_S * 0.8)
        world.run(RUN_S)
    return world


def run(seed: int) -> None:
    """Runs without an unhandled error."""
    assert play(seed).loop.steps > 1_000

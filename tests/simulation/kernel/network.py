"""The simulated network.

Owns: listeners, open connections, latency, partitions and resets (`Fabric`, shared by all nodes),
and each node's `Network` port. Imports: asyncio, random (seeded), stream. A host is a node's name,
so it stays the same over restarts; "", "0.0.0.0", "localhost" and "127.0.0.1" mean the node itself.
Invariants: bytes arrive in order or the connection ends; a crashed or paused process answers
nothing, but the kernel of a paused one still accepts connections and buffers what arrives.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import random
from collections.abc import Callable
from typing import Any, TypeVar

from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.node import Node
from tests.simulation.kernel.stream import FIN, RST, Flow, SimTransport

P = TypeVar("P", bound=asyncio.BufferedProtocol)

CONNECT_TIMEOUT_S = 20.0
CONNECT_RETRY_S = 1.0
EPHEMERAL_PORTS_FROM = 40_000
OWN_NAMES = frozenset({"", "0.0.0.0", "::", "localhost", "127.0.0.1"})


class Partition(enum.Enum):
    """What happens to packets between two hosts."""

    HANG = "held until the partition heals, as retransmission would"
    DROP = "lost; connections that carried them are half-open until both ends give up"

    @property
    def drops(self) -> bool:
        return self is Partition.DROP


class SimListener:
    """An open port of one node."""

    def __init__(
        self, fabric: Fabric, node: Node, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> None:
        self._fabric, self.node, self._port, self.factory = fabric, node, port, factory

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        """Stop accepting; connections that are open stay open."""
        if self.node.alive:
            self._fabric.unlisten(self)


class Fabric:
    """What all nodes share. `faults` may be replaced while the world runs."""

    def __init__(self, loop: SimLoop, faults: Faults) -> None:
        self.loop, self.faults = loop, faults
        self.chance = random.Random(f"{loop.seed}/network")
        self._pair_latency: dict[tuple[str, str], float] = {}
        self._partitions: dict[tuple[str, str], Partition] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        # a dict, because its order is that of insertion
        self._transports: dict[SimTransport, None] = {}
        self._next_port = EPHEMERAL_PORTS_FROM

    # --- weather ----------------------------------------------------------------------------------

    def latency_s(self, source: str, target: str) -> float:
        """Seconds one packet takes: a base per pair plus jitter, now and then a spike."""
        low, high = self.faults.latency_s
        base = self._pair_latency.get((source, target))
        if base is None:
            base = self._pair_latency[source, target] = self.chance.random()
        latency = low + (high - low) * 0.5 * (base + self.chance.random())
        if (
            self.faults.latency_spike_probability
            and self.chance.random() < self.faults.latency_spike_probability
        ):
            latency += self.chance.uniform(*self.faults.latency_spike_s)
        return latency

    def blocked(self, source: str, target: str) -> Partition | None:
        return self._partitions.get((source, target)) if self._partitions else None

    def partition(
        self, first: str, second: str, kind: Partition = Partition.HANG, *, one_way: bool = False
    ) -> None:
        """Block packets between two hosts; `one_way`: only those from `first` to `second`."""
        self.loop.record("network", "partition", first, second, kind.name, one_way)
        self._partitions[first, second] = kind
        if not one_way:
            self._partitions[second, first] = kind

    def heal(self, first: str | None = None, second: str | None = None) -> None:
        """End the partition between two hosts, both ways, or all partitions."""
        self.loop.record("network", "heal", first, second)
        if first is None or second is None:
            self._partitions.clear()
        else:
            self._partitions.pop((first, second), None)
            self._partitions.pop((second, first), None)
        for transport in list(self._transports):
            # Both directions, because one end may be a dead process that is no longer listed but
            # whose farewell is still held.
            for flow in (transport.outgoing, transport.incoming):
                if flow.held and self.blocked(flow.source.node.name, flow.target.node.name) is None:
                    flow.release()

    def reset(self, first: str, second: str) -> int:
        """Reset all connections between two hosts, as a middle box does; returns how many."""
        pairs = [
            transport
            for transport in self._transports
            if (transport.node.name, transport.outgoing.target.node.name) == (first, second)
        ]
        for transport in pairs:
            self.half_open(transport, transport.outgoing.target, within=self.faults.crash_noticed_s)
        self.loop.record("network", "reset", first, second, len(pairs))
        return len(pairs)

    def half_open(
        self, first: SimTransport, second: SimTransport, within: tuple[float, float] | None = None
    ) -> None:
        """Both ends lose the connection, each at a moment of its own; nothing arrives on it any
        more."""
        for transport in (first, second):
            if transport.doomed:
                continue
            transport.doomed = True
            when = self.loop.time() + self.chance.uniform(*(within or self.faults.half_open_s))
            self.loop.post_at(
                transport.node, when, transport.fail, ConnectionResetError("connection reset")
            )

    def connections(self) -> list[tuple[str, str]]:
        """Host pairs of all open connection ends, oldest first."""
        return [
            (transport.node.name, transport.outgoing.target.node.name)
            for transport in self._transports
        ]

    # --- processes ends ---------------------------------------------------------------------------

    def crashed(self, node: Node, *, machine: bool = False) -> None:
        """The process is gone: ports close and peers learn of it after a delay; with `machine`
        nobody says goodbye to them."""
        self._listeners = {
            address: listener
            for address, listener in self._listeners.items()
            if listener.node is not node
        }
        for transport in [end for end in self._transports if end.node is node]:
            del self._transports[transport]
            if machine:
                self.half_open(transport, transport.outgoing.target)
            else:
                delay = self.chance.uniform(*self.faults.crash_noticed_s)
                farewell = FIN if self.chance.random() < 0.5 else RST
                self.loop.post_at(
                    self.loop.kernel, self.loop.time() + delay, transport.abandoned, farewell
                )

    def ended(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)

    # --- listening and connecting -----------------------------------------------------------------

    def listen(
        self, node: Node, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> SimListener:
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 1
        if (node.name, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{node.name}:{port} is in use")
        listener = self._listeners[node.name, port] = SimListener(self, node, port, factory)
        return listener

    def unlisten(self, listener: SimListener) -> None:
        if self._listeners.get((listener.node.name, listener.port)) is listener:
            del self._listeners[listener.node.name, listener.port]

    def dial(
        self, node: Node, host: str, port: int, factory: Callable[[], P], answer: asyncio.Future[P]
    ) -> None:
        """Start a connection attempt; `answer` gets the protocol or an OSError."""
        deadline = self.loop.time() + CONNECT_TIMEOUT_S
        target = node.name if host in OWN_NAMES else host
        self._after_latency(
            node.name, target, self._synchronise, node, (target, port), factory, answer, deadline
        )

    def _after_latency(
        self, source: str, target: str, callback: Callable[..., object], *args: Any
    ) -> None:
        self.loop.post_at(
            self.loop.kernel, self.loop.time() + self.latency_s(source, target), callback, *args
        )

    def _synchronise(
        self,
        node: Node,
        address: tuple[str, int],
        factory: Callable[[], P],
        answer: asyncio.Future[P],
        deadline: float,
    ) -> None:
        """The first packet arrives at the host, unless a partition (in either direction) eats it
        or its answer."""
        if answer.done() or not node.alive:
            return
        if self.blocked(node.name, address[0]) or self.blocked(address[0], node.name):
            if self.loop.time() + CONNECT_RETRY_S > deadline:
                answer.set_exception(
                    TimeoutError(errno.ETIMEDOUT, f"connect to {address[0]}:{address[1]} timed out")
                )
                return
            retry_at = self.loop.time() + CONNECT_RETRY_S
            self.loop.post_at(
                self.loop.kernel,
                retry_at,
                self._synchronise,
                node,
                address,
                factory,
                answer,
                deadline,
            )
            return
        listener = self._listeners.get(address)
        if listener is None:
            self._after_latency(address[0], node.name, self._refuse, address, answer)
            return
        local = (node.name, self._next_port)
        self._next_port += 1
        near = SimTransport(self, node, local, address)
        far = SimTransport(self, listener.node, address, local)
        near.outgoing = far.incoming = Flow(self, near, far)
        far.outgoing = near.incoming = Flow(self, far, near)
        self._transports[near] = self._transports[far] = None
        self.loop.record(node.name, "connect", *address)
        self.loop.post(listener.node, self._accept, listener, far)
        established = self.loop.time() + self.latency_s(address[0], node.name)
        far.outgoing.not_before(established)
        self.loop.post_at(node, established, self._establish, near, factory, answer)

    def _refuse(self, address: tuple[str, int], answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(
                ConnectionRefusedError(
                    errno.ECONNREFUSED, f"connect to {address[0]}:{address[1]} refused"
                )
            )

    def _accept(self, listener: SimListener, far: SimTransport) -> None:
        far.start(listener.factory())

    def _establish(
        self, near: SimTransport, factory: Callable[[], P], answer: asyncio.Future[P]
    ) -> None:
        if answer.done():  # the caller gave up concurrently
            near.abort()
            return
        protocol = factory()
        near.start(protocol)
        answer.set_result(protocol)


class SimNetwork:
    """The `Network` port of one node. For a dead node nothing ever completes."""

    def __init__(self, fabric: Fabric, node: Node) -> None:
        self._fabric, self._node = fabric, node

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> SimListener:
        if not self._node.alive:
            await self._fabric.loop.create_future()
        assert host in OWN_NAMES or host == self._node.name, (
            f"{self._node.name} cannot listen on {host}"
        )
        return self._fabric.listen(self._node, port, factory)

    async def connect(self, host: str, port: int, factory: Callable[[], P]) -> P:
        answer: asyncio.Future[P] = self._fabric.loop.create_future()
        if self._node.alive:
            self._fabric.dial(self._node, host, port, factory, answer)
        return await answer

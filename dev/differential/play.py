"""A scenario in progress on one server.

Owns: `Play`: the peers, producers and consumers of a scenario by number, what was published by
name, and what each step showed. Imports: peer, servers, naming. Invariants: a step's observation
has no id, time or address of a server: messages are called m0, m1, ... in the order of their
publication, on both servers; a step ends when nothing has come for `quiet_s`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dev.differential.naming import Names, shown_answer, shown_message
from dev.differential.peer import Gone, Peer
from dev.differential.servers import Server
from magnetar.wire import pulsar_api_pb2 as api

Type = api.BaseCommand
Step = list[Any]
"""The name of an operation and its arguments: JSON."""
Observation = dict[str, Any]
Operation = Callable[..., Awaitable[Any]]
SETTLED_MAX_S = 40.0
STRETCHES = 4
ANSWERED = {
    "lookup",
    "partitions",
    "schema",
    "consumer_stats",
    "last_id",
    "stats",
    "wait",
    "begin",
    "enlist",
}
"""Steps after which nothing comes: they wait for their answer only."""


@dataclass(frozen=True)
class Place:
    """The topic of a scenario. It has the same name on both servers: who is active on a Failover
    subscription depends on it."""

    namespace: str
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:12]}")


@dataclass
class Producer:
    """A producer of the scenario."""

    peer: Peer
    id: int
    name: str = ""
    sequence: int = 0
    open: bool = True


@dataclass
class Consumer:
    """A consumer of the scenario and the subscription it is on."""

    peer: Peer
    id: int
    sub: str
    kind: str
    durable: bool
    open: bool = True


@dataclass
class Txn:
    """A transaction of the scenario."""

    most: int
    least: int
    open: bool = True


@dataclass
class Play:
    """One scenario on one server."""

    server: Server
    place: Place
    quiet_s: float
    domain: str = "persistent"
    peers: dict[int, Peer] = field(default_factory=dict)
    producers: dict[int, Producer] = field(default_factory=dict)
    consumers: dict[int, Consumer] = field(default_factory=dict)
    txns: dict[int, Txn] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    """Subscriptions on which single messages were acknowledged."""
    past: list[Step] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    texts: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _published_ms: int = 0

    @property
    def full_topic(self) -> str:
        return f"{self.domain}://{self.place.namespace}/{self.place.topic}"

    @property
    def rest_topic(self) -> str:
        """Below /admin/v2."""
        return f"{self.domain}/{self.place.namespace}/{self.place.topic}"

    def publish_ms(self) -> int:
        """The time of the next message: now, and later than the one before. Apache Pulsar compares
        it with when ledgers were closed."""
        self._published_ms = max(int(time.time() * 1000), self._published_ms + 1)
        return self._published_ms

    async def peer(self, number: int) -> Peer:
        """The connection of that number, opened if it is not."""
        peer = self.peers.get(number)
        if peer is None or peer.closed:
            peer = self.peers[number] = await Peer.open(self.server.broker_port)
        return peer

    async def step(self, step: Step, operations: Mapping[str, Operation]) -> Observation:
        """Run one operation and wait until nothing comes any more."""
        kind, *arguments = step
        self.past.append(step)
        try:
            answer = await operations[kind](self, *arguments)
        except Gone as gone:
            answer = f"gone: {gone}"
        shown: Observation = {"step": step, "answer": self._shown(answer)}
        shown |= await self.settle(0.0 if kind in ANSWERED else self.quiet_s)
        return shown

    def _shown(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self._shown(part) for part in answer]
        if isinstance(answer, api.BaseCommand):
            return shown_answer(answer, self.names, self.texts)
        return answer

    async def settle(self, quiet_s: float) -> dict[str, Any]:
        """What was pushed until it was quiet: by consumer; by subscription where the server is free
        to choose among several consumers."""
        await self._until_quiet(quiet_s)
        pushed: dict[str, list[str]] = {}
        for number, peer in self.peers.items():
            taken, peer.pushed = peer.pushed, []
            for command, entry in taken:
                receiver, text = self._pushed(number, command, entry)
                pushed.setdefault(receiver, []).append(text)
            if peer.closed:
                pushed.setdefault(f"connection {number}", []).append("closed")
        for number in [number for number, peer in self.peers.items() if peer.closed]:
            self.lost(number)
        return {
            receiver: sorted(texts) if receiver.startswith("any of ") else texts
            for receiver, texts in sorted(pushed.items())
        }

    async def _until_quiet(self, quiet_s: float) -> None:
        """Until nothing has come for so long. It is listened for in stretches: a process that stood
        still for all of the time reads what has come before the next one."""
        started = time.monotonic()
        last, quiet = started, 0
        while quiet_s and quiet < STRETCHES and time.monotonic() < started + SETTLED_MAX_S:
            await asyncio.sleep(quiet_s / STRETCHES)
            newest = max([last, *(peer.last_frame_at for peer in self.peers.values())])
            last, quiet = newest, quiet + 1 if newest == last else 0

    def lost(self, number: int) -> Peer | None:
        """Forget a connection, and what was open on it."""
        peer = self.peers.pop(number, None)
        parts: list[Producer | Consumer] = [*self.producers.values(), *self.consumers.values()]
        for part in parts:
            if part.peer is peer:
                part.open = False
        return peer

    def _pushed(self, number: int, command: api.BaseCommand, entry: bytes) -> tuple[str, str]:
        if command.type == Type.MESSAGE:
            receiver = self._receiver(command.message.consumer_id)
            return receiver, shown_message(command.message, entry, self.names)
        kind = Type.Type.Name(command.type)
        if command.type == Type.CLOSE_CONSUMER:
            closed = self.consumers.get(command.close_consumer.consumer_id)
            if closed is not None:
                closed.open = False
            return f"consumer {command.close_consumer.consumer_id}", kind
        if command.type == Type.CLOSE_PRODUCER:
            self.producers[command.close_producer.producer_id].open = False
            return f"producer {command.close_producer.producer_id}", kind
        if command.type == Type.ACTIVE_CONSUMER_CHANGE:
            change = command.active_consumer_change
            return f"consumer {change.consumer_id}", f"active {change.is_active}"
        if command.type == Type.REACHED_END_OF_TOPIC:
            return f"consumer {command.reached_end_of_topic.consumer_id}", kind
        return f"connection {number}", str(shown_answer(command, self.names, self.texts))

    def _receiver(self, consumer_id: int) -> str:
        consumer = self.consumers[consumer_id]
        others = [
            other
            for other in self.consumers.values()
            if other.sub == consumer.sub and other.open and other is not consumer
        ]
        if consumer.kind == "Shared" and others:
            return f"any of {consumer.sub}"
        return f"consumer {consumer_id}"

    async def close(self) -> None:
        """Drop all connections."""
        for peer in self.peers.values():
            await peer.close()
        self.peers.clear()

"""The simulated object service.

Owns: `ObjectServer` (the one service of the world) and `SimObjects`, each node's `ObjectClient`.
Imports: asyncio, random (seeded), the ports of objects, the loop.

Fault model: requests take time and are carried out whatever happens concurrently to the process
that sent them; a request or its answer is lost, and the caller learns of it after
`object_timeout_s`; a request is slow, or carried out *after* its caller gave up; a put is refused
with a conflict that decides nothing; for as long as a scenario says everything is refused; an
object is deleted from outside, and perhaps brought back. Excluded: a service that shows old objects
or overwrites under a condition: the start-up probe is for those. Invariant: what the service
carries out, it carries out at one instant of the kernel.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from magnetar.storage.volumes.objects import Listed, ObjectTaken, ObjectThrottled, ObjectUnclear
from magnetar.storage.volumes.volume import Buffer
from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.node import Node
from tests.simulation.kernel.volume import DiskWeather


class ObjectServer:
    """The service; shared by all nodes."""

    def __init__(self, loop: SimLoop, weather: DiskWeather) -> None:
        self.loop, self.weather = loop, weather
        self.chance = random.Random(f"{loop.seed}/objects")
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.throttled_until = 0.0

    def strikes(self, probability: float) -> bool:
        return probability > 0 and self.chance.random() < probability

    def throttle(self, for_s: float) -> None:
        """Refuse every request from now on, for so long."""
        self.throttled_until = self.loop.time() + for_s

    def create(self, key: str, data: bytes, mark: str) -> None:
        """Raises ObjectTaken."""
        if key in self.objects:
            raise ObjectTaken(key)
        self.objects[key] = (data, mark)

    def found(self, key: str) -> tuple[bytes, str]:
        """Bytes and mark. Raises FileNotFoundError."""
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]

    def get(self, key: str, offset: int, length: int | None) -> bytes:
        data, _ = self.found(key)
        return data[offset:] if length is None else data[offset : offset + length]

    def list(self, prefix: str) -> Listed:
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        return sorted(
            (key, len(data)) for key, (data, _) in self.objects.items() if key.startswith(below)
        )


class SimObjects:
    """The `ObjectClient` of one node."""

    def __init__(self, server: ObjectServer, node: Node) -> None:
        self._server, self._node = server, node

    async def create(self, key: str, buffers: Sequence[Buffer], mark: str) -> None:
        server = self._server
        if server.strikes(server.weather.faults.object_conflict_probability):
            server.loop.record(self._node.name, "object conflict", key)
            await self._request(lambda: None)
            raise ObjectTaken(key)
        data = b"".join(buffers)
        try:
            await self._request(lambda: server.create(key, data, mark))
        except ObjectTaken:
            server.loop.record(self._node.name, "object taken", key)
            raise

    async def mark_of(self, key: str) -> str:
        return str(await self._request(lambda: self._server.found(key)[1]))

    async def get(self, key: str, offset: int, length: int | None) -> bytes:
        return bytes(await self._request(lambda: self._server.get(key, offset, length)))

    async def list(self, prefix: str) -> Listed:
        found: Listed = await self._request(lambda: self._server.list(prefix))
        return found

    async def delete(self, key: str) -> None:
        await self._request(lambda: self._server.objects.pop(key, None))

    async def close(self) -> None:
        """Nothing is held."""

    async def _request(self, operation: Callable[[], Any]) -> Any:
        """Send it; what the service does does not depend on whether this process goes on. Raises
        ObjectUnclear, or what `operation` raises."""
        server, loop = self._server, self._server.loop
        if not self._node.alive:
            await loop.create_future()
        faults = server.weather.faults
        if loop.time() < server.throttled_until:
            await asyncio.sleep(server.chance.uniform(*faults.object_latency_s))
            raise ObjectThrottled("slow down")
        lost = server.strikes(faults.object_lost_request_probability)
        unanswered = server.strikes(faults.object_lost_reply_probability)
        late = server.strikes(faults.object_late_probability)
        there, back = (server.chance.uniform(*faults.object_latency_s) / 2 for _ in range(2))
        if server.strikes(faults.object_slow_probability):
            there += server.chance.uniform(*faults.object_slow_s)
            loop.record(self._node.name, "object slow")
        answer: asyncio.Future[Any] = loop.create_future()
        if late:
            there += faults.object_timeout_s + server.chance.uniform(*faults.object_late_s)
        if not lost:
            loop.post_at(
                loop.kernel,
                loop.time() + there,
                self._carry_out,
                operation,
                answer,
                None if unanswered or late else back,
            )
        if lost or unanswered or late:
            kind = "late" if late else "request lost" if lost else "answer lost"
            loop.record(self._node.name, f"object {kind}")
            loop.post_at(
                loop.kernel,
                loop.time() + faults.object_timeout_s,
                _settle,
                answer,
                None,
                ObjectUnclear(kind),
            )
        return await answer

    def _carry_out(
        self, operation: Callable[[], Any], answer: asyncio.Future[Any], back: float | None
    ) -> None:
        found, error = None, None
        try:
            found = operation()
        except (ObjectTaken, FileNotFoundError) as raised:
            error = raised
        if back is not None:
            loop = self._server.loop
            loop.post_at(loop.kernel, loop.time() + back, _settle, answer, found, error)


def _settle(answer: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)

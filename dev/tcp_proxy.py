"""A TCP proxy that makes trouble on request.

Owns: `TcpProxy`: passes bytes on, drops connections, goes silent, answers late, shows what passes;
for tests and the soak. Imports: asyncio, threading. Invariants: bytes are never altered, reordered
or lost on a connection that stays; a connection that was cut never carries a byte again; every
method returns when the change holds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

CHUNK_BYTES = 64 << 10
CHUNKS_HELD_MAX = 256
CALL_TIMEOUT_S = 60.0
R = TypeVar("R")
Tap = Callable[[object, bool, bytes], None]
"""Gets every chunk as it is passed on, on the proxy's thread: an object per connection, whether
it goes to the target, the bytes."""
Chunk = tuple[float, bytes]


class TcpProxy:
    """Listens on `host`:`port` for `target`; works from `start` to `stop` on a thread of its
    own."""

    def __init__(self, host: str, port: int, target: tuple[str, int]) -> None:
        self.host, self.port, self._target = host, port, target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"proxy {port}", daemon=True
        )
        self._flowing = asyncio.Event()
        self._refusing = False
        self._delay_s = 0.0
        self.tap: Tap | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        self._thread.start()
        self._flowing.set()
        listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, self.host, self.port), self._loop
        )
        self._server = listening.result(CALL_TIMEOUT_S)

    def stop(self) -> None:
        """Close everything; idempotent, also if it never started."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CALL_TIMEOUT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections)
        # an aborted transport closes its socket in a later turn of the loop
        await asyncio.sleep(0.01)

    # --- trouble ----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Drop all connections, and every new one at once."""
        self._set(refusing=True, flowing=True)
        self.drop()

    def stall(self) -> None:
        """Keep connections and accept new ones, but let no byte through."""
        self._set(flowing=False)

    def slow(self, delay_s: float) -> None:
        """Everything that the target says from now on arrives `delay_s` later; its throughput
        stays."""
        self._set(delay_s=delay_s)

    def heal(self) -> None:
        """Pass bytes on as they come; what a stall deferred flows now."""
        self._set()

    def drop(self) -> int:
        """Drop the connections that are there now; how many there were."""

        def cancel() -> int:
            for task in self._connections:
                task.cancel()
            return len(self._connections)

        return self._call(cancel)

    def connections(self) -> int:
        """How many connections there are now."""
        return self._call(lambda: len(self._connections))

    def _set(self, *, refusing: bool = False, flowing: bool = True, delay_s: float = 0.0) -> None:
        def change() -> None:
            self._refusing, self._delay_s = refusing, delay_s
            if flowing:
                self._flowing.set()
            else:
                self._flowing.clear()

        self._call(change)

    def _call(self, act: Callable[[], R]) -> R:
        async def run() -> R:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_TIMEOUT_S)

    # --- connections ------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [writer]
        try:
            if not self._refusing:
                target_reader, target_writer = await asyncio.open_connection(*self._target)
                writers.append(target_writer)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(task, reader, target_writer, to_target=True))
                    group.create_task(self._pass_on(task, target_reader, writer, to_target=False))
        except* (OSError, EOFError, asyncio.CancelledError):
            pass  # an end of a connection, theirs or ours
        finally:
            self._connections.discard(task)
            for each in writers:
                each.transport.abort()

    async def _pass_on(
        self,
        connection: object,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        to_target: bool,
    ) -> None:
        """One direction, until either side ends (then EOFError: the other direction ends with
        it)."""
        held: asyncio.Queue[Chunk] = asyncio.Queue(CHUNKS_HELD_MAX)

        async def deliver() -> None:
            while True:
                due, data = await held.get()
                await asyncio.sleep(due - self._loop.time())
                await self._flowing.wait()
                if not data:
                    raise EOFError
                if self.tap is not None:
                    self.tap(connection, to_target, data)
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            data = b"-"
            while data:
                await self._flowing.wait()
                data = await reader.read(CHUNK_BYTES)
                await held.put((self._loop.time() + (0.0 if to_target else self._delay_s), data))

"""Clients that run beside a soak.

Owns: `ClientThread`: an event loop in a thread of its own, one client on it, and the tasks that
publish and consume by it. Imports: magnetar.client. Invariant: nothing is left running after
`close`, whatever a task waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from magnetar.client import Client

CLOSE_S = 30.0


class ClientThread:
    """Base of workloads of our client; call `close` last."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._publish_until, self._consume_until = asyncio.Event(), asyncio.Event()
        self._publishing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self._client: Client | None = None

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float = 120.0) -> Any:
        """Run something on the loop of the clients. Raises what it raises, TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    @property
    def client(self) -> Client:
        assert self._client is not None, "start first"
        return self._client

    def close(self) -> None:
        """Close the client and the loop."""

        async def end() -> None:
            self._consume_until.set()
            for task in (*self._publishing, *self._consuming):
                task.cancel()
            await asyncio.gather(*self._publishing, *self._consuming, return_exceptions=True)
            if self._client is not None:
                await self._client.close()

        with suppress(TimeoutError):
            self.call(end(), CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

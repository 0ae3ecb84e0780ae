"""One thread that does blocking calls for event loops.

Owns: `Worker`: a queue, a thread and the way back into the loop. Imports: asyncio, queue,
threading. Invariants: calls run one at a time in the order they were submitted; a call that was
submitted runs even if no caller waits for it any more; the loop is woken once per call and never
blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker:
    """A thread, started by the first call.

    A plain queue and one `call_soon_threadsafe` cost about half of what an executor's futures and
    locks do, once per flush of the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run `call(*arguments)` in the thread; the future gets its result or exception in the
        running loop."""
        assert not self._closed, f"{self._name} is closed"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put((call, arguments, loop, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        """Let the thread end after what was submitted; does not wait for it."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def _run(self) -> None:
        while True:
            job = self._queue.get()
            if job is None:
                return
            call, arguments, loop, future = job
            result, error = None, None
            try:
                result = call(*arguments)
            except Exception as raised:  # whatever it is, the future carries it to its caller
                error = raised
            # A loop that was closed before the answer has no callers left.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_finish, future, result, error)
            del job, call, arguments, future, result, error


def _finish(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

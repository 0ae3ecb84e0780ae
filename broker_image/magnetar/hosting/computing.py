"""Computations that would hold the event loop.

Owns: `Compute`, the port, with `inline` for simulations, and `ComputeThread`. Imports:
concurrent.futures, asyncio. Invariant: one computation runs at a time, in the order of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Compute(Protocol):
    """Runs a function that touches nothing of the event loop's."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


async def inline(work: Callable[[], T], /) -> T:
    """At once, on the event loop."""
    return work()


class ComputeThread:
    """A thread of its own, begun by the first computation."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute")

    async def __call__(self, work: Callable[[], T], /) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Drop what has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)

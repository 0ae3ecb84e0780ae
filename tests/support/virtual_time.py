"""An event loop whose time passes only when nothing is left to do, and a clock that follows it."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, moves the loop's time to the next timer."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits for something that no timer will bring"
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs sleeps without waiting."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class VirtualClock:
    """The loop's time as a `Clock`; `suspend` lets only the boot time pass."""

    def __init__(self, loop: VirtualLoop, seed: int = 1) -> None:
        self._loop = loop
        self._random = random.Random(seed)
        self._suspended_s = 0.0

    def suspend(self, seconds: float) -> None:
        self._suspended_s += seconds

    def wall_ms(self) -> int:
        return int(self.boottime() * 1000)

    def monotonic(self) -> float:
        return self._loop.now

    def boottime(self) -> float:
        return self._loop.now + self._suspended_s

    def random_bits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


def run_virtually(scenario: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run `scenario` to its end on `loop`, which is closed."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(scenario)

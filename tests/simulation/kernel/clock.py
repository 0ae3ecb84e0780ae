"""Clocks of simulated nodes.

Owns: `SimClock`. Imports: random (seeded), the loop. Wall time is skewed, drifts and can be made to
jump; monotonic and boot time start at an arbitrary point and drift a little, so that code which
compares them across nodes is caught. A paused process finds all of them moved on. Excluded:
suspension of a whole machine (monotonic time standing still), because it looks to everybody else
exactly like a pause. Invariant: everything drawn follows from (seed, node name, life).
"""

from __future__ import annotations

import random

from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.node import Node

EPOCH_MS = 1_750_000_000_000
START_MAX_S = 1_000_000.0


class SimClock:
    """The `Clock` of one incarnation of a node. `skew_max_s` bounds the wall clock's error,
    `drift_max` the relative error of all speeds."""

    def __init__(
        self, loop: SimLoop, node: Node, skew_max_s: float = 0.0, drift_max: float = 0.0
    ) -> None:
        self._loop = loop
        # Skew belongs to the machine, hence to the name; what a process draws belongs to its life.
        machine = random.Random(f"{loop.seed}/clock/{node.name}")
        self._rate = 1.0 + machine.uniform(-drift_max, drift_max)
        self._skew_s = machine.uniform(-skew_max_s, skew_max_s)
        self._boot_s = machine.uniform(0.0, START_MAX_S)
        self._random = random.Random(f"{loop.seed}/chance/{node.name}/{node.life}")

    def jump_wall(self, seconds: float) -> None:
        """Step the wall clock, as an administrator or a time server does."""
        self._skew_s += seconds

    def wall_ms(self) -> int:
        return EPOCH_MS + int((self._loop.time() * self._rate + self._skew_s) * 1000)

    def monotonic(self) -> float:
        return self._boot_s + self._loop.time() * self._rate

    def boottime(self) -> float:
        return self._boot_s + self._loop.time() * self._rate

    def random_bits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

"""The toy fence whose owner looks too early: a scenario that fails, for trying out the campaign
runner.

Owns: nothing but `run`. Imports: toy_fence.
"""

from __future__ import annotations

from tests.simulation.scenarios.toy_fence import Look, play


def run(seed: int) -> None:
    """Fails for some seeds."""
    play(seed, look=Look.BEFORE_WRITE)

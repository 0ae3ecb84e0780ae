"""The pure core of watermarks over random histories, against its reference model.

Owns: `run(seed)`, for campaigns: `python -m dev.campaign --suite watermark_histories`. Imports: the
world of the unit tests.
"""

from __future__ import annotations

from tests.unit.watermarks.world import play, random_steps


def run(seed: int) -> None:
    """One history; raises AssertionError naming the promise that it breaks."""
    play(random_steps(seed))

"""Wall clocks that jump.

Owns: `ClockJumps`: writing the offsets that `skewed_main` reads. Imports: the standard library.
Invariant: `settle` makes all clocks true again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

SIZES_S = (1, 30, 600, 86_400, 31_536_000)
BACK = 0.4
"""Share of jumps that go back to the true time."""


class ClockJumps:
    """Moves the wall clocks of servers by name."""

    def __init__(self, directory: Path, servers: Sequence[str]) -> None:
        self._directory, self._servers = directory, list(servers)
        self.offsets_s: dict[str, int] = {}

    def jump(self, chance: random.Random) -> None:
        """One server, or all of them: forth or back by seconds to a year, or to the true time."""
        chosen = self._servers if chance.random() < 0.3 else [chance.choice(self._servers)]
        offset_s = 0 if chance.random() < BACK else chance.choice((-1, 1)) * chance.choice(SIZES_S)
        for name in chosen:
            self.set(name, offset_s)

    def set(self, name: str, offset_s: int) -> None:
        """The wall clock of one server from now on (within a tenth of a second)."""
        self.offsets_s[name] = offset_s
        fresh = self._directory / f"{name}.offset.new"
        fresh.write_text(str(offset_s * 1000))
        fresh.replace(self._directory / f"{name}.offset")

    def settle(self) -> None:
        """The true time everywhere."""
        for name in self._servers:
            self.set(name, 0)

    def described(self) -> str:
        """Which clocks are wrong, and by how much."""
        return ", ".join(
            f"{name} {offset:+d} s" for name, offset in sorted(self.offsets_s.items()) if offset
        )

"""What is wrong with this broker's storage right now.

Owns: `DamageTable`: named damage (file, offset, topic, entries), since when, how often met; shown
by REST, counted by metrics, logged when it is first met. Imports: errors, clock. Invariants: damage
is named, never only counted; it leaves the table when what failed has succeeded; the table is
bounded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import structlog

from magnetar.clock import Clock
from magnetar.errors import CorruptData

log = structlog.get_logger(__name__)

DAMAGE_MAX = 1000


@dataclass(slots=True)
class Damage:
    """One failing operation: what was tried, on what, and the error."""

    what: str
    bundle: str
    topic: str
    file: str
    offset: int
    first: tuple[int, int] | None
    last: tuple[int, int] | None
    error: str
    since_ms: int
    last_ms: int
    count: int = 1


class DamageTable:
    """Damage by (what was tried, on what)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], Damage] = {}
        self.met = 0

    def note(
        self, what: str, about: str, error: Exception, *, bundle: str = "", topic: str = ""
    ) -> Damage:
        """`what` failed on `about`; the entry for it."""
        now_ms = self._clock.wall_ms()
        self.met += 1
        known = self._found.get((what, about))
        if known is not None:
            known.last_ms, known.error = now_ms, str(error)
            known.count += 1
            return known
        named = error if isinstance(error, CorruptData) else CorruptData("")
        damage = Damage(
            what,
            bundle,
            named.topic or topic,
            named.file,
            named.offset,
            named.first,
            named.last,
            str(error),
            now_ms,
            now_ms,
        )
        if len(self._found) < DAMAGE_MAX:
            self._found[what, about] = damage
        log.error(
            "storage.damage",
            what=what,
            bundle=bundle,
            topic=damage.topic,
            file=damage.file,
            offset=damage.offset,
            first=damage.first,
            last=damage.last,
            error=str(error),
        )
        return damage

    def clear(self, what: str, about: str) -> None:
        """It works (again)."""
        found = self._found.pop((what, about), None) if self._found else None
        if found is not None:
            log.info("storage.damage_over", what=what, about=about, count=found.count)

    def __len__(self) -> int:
        return len(self._found)

    def listed(self) -> list[dict[str, Any]]:
        """Everything that is wrong now, the oldest first, as REST shows it."""
        return [
            asdict(found)
            for found in sorted(self._found.values(), key=lambda found: found.since_ms)
        ]

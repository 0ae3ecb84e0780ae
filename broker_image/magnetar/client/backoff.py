"""Back-off between attempts.

Owns: how long to wait before the next attempt. Imports: clock. Invariant: delays double from
`first_s` to `last_s`, each shortened at random by up to a fifth, so that clients do not return in
step.
"""

from __future__ import annotations

from magnetar.clock import Clock

FIRST_S = 0.1
LAST_S = 60.0
JITTER = 0.2


class Backoff:
    """The delays of one retried operation."""

    def __init__(self, clock: Clock, first_s: float = FIRST_S, last_s: float = LAST_S) -> None:
        self._clock = clock
        self._first_s = first_s
        self._last_s = last_s
        self._next_s = first_s

    def next(self) -> float:
        """Seconds to wait now; the next answer is about twice as long."""
        delay = self._next_s
        self._next_s = min(2 * delay, self._last_s)
        return delay * self._clock.uniform(1 - JITTER, 1)

    def reset(self) -> None:
        self._next_s = self._first_s

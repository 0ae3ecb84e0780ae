"""How even the load of brokers has been, and what was moved for it.

Owns: `Trend`, a sample a minute of the last hour, as the leader saw it; `RecentMoves`. Imports:
nothing of ours. Pure. Invariant: an hour of samples at most; the shares of brokers are kept for ten
minutes of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SAMPLE_MS = 60_000
SAMPLES_MAX = 60
SHARES_MAX = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """The imbalance at one moment, and the load of each broker over the mean."""

    at_ms: int
    imbalance: float
    shares: Mapping[str, float] = field(default_factory=dict)


class RecentMoves:
    """Moves that this broker began as a leader within the last hour, counted by minutes. Times are
    monotonic, in seconds."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self.last: float | None = None

    def note(self, now: float) -> None:
        """One more has begun."""
        minute, count = int(now // 60), 0
        if self._minutes and self._minutes[-1][0] == minute:
            count = self._minutes.pop()[1]
        self._minutes.append((minute, count + 1))
        self.last = now

    def count(self, now: float) -> int:
        since = int(now // 60) - SAMPLES_MAX
        return sum(count for minute, count in self._minutes if minute > since)


class Trend:
    """Samples of one term, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def observe(self, sample: Sample) -> None:
        """Take a sample up, unless one was taken within the minute."""
        samples = self._samples
        if samples and 0 <= sample.at_ms - samples[-1].at_ms < SAMPLE_MS:
            return
        samples.append(sample)
        if len(samples) > SHARES_MAX:
            samples[-1 - SHARES_MAX] = replace(samples[-1 - SHARES_MAX], shares={})

    @property
    def samples(self) -> list[Sample]:
        return list(self._samples)

    @property
    def before(self) -> Mapping[str, float]:
        """The oldest shares that are kept."""
        return next((found.shares for found in self._samples if found.shares), {})

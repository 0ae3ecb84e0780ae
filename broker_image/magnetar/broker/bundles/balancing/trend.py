"""How even the load of brokers has been.

Owns: `Trend`, a sample a minute of the last hour, as the leader saw it. Imports: nothing of ours.
Pure. Invariant: an hour of samples at most; the shares of brokers are kept for ten minutes of them.
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

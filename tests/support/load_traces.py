"""A history of load whose truth is known.

Owns: `Trace`: two brokers, six bundles of one namespace, some days of samples, as brokers write them.
"""

from __future__ import annotations

import gzip
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.balance.load import Rates, TopicLoad
from magnetar.balance.load_history import BundleSample, LoadSample
from magnetar.storage.names import LoadHistoryPlace, load_history

DAY_MS = 86_400_000
BOUNDARIES = (0, 0x20000000, 0x40000000, 0x60000000, 0x80000000, 0xC0000000, 0xFFFFFFFF)
BUNDLES = tuple(
    f"public/traced/0x{low:08x}_0x{high:08x}" for low, high in itertools.pairwise(BOUNDARIES)
)
HOT, DAILY, COLD, COOL, PLAIN, OTHER = BUNDLES
HOT_TOPICS = tuple(
    TopicLoad(f"persistent://public/traced/hot-{at}", position, Rates(rate))
    for at, (position, rate) in enumerate(
        ((0x04000000, 2000.0), (0x0A000000, 300.0), (0x18000000, 300.0))
    )
)
BROKERS = {"b0": (HOT, COLD, COOL), "b1": (DAILY, PLAIN, OTHER)}


@dataclass(frozen=True)
class Trace:
    """Samples every `step_ms` for `days` up to `end_ms`."""

    end_ms: int
    days: float = 3.0
    step_ms: int = 300_000
    per_object: int = 12
    growth: float = 0.1
    left_out: frozenset[int] = field(default_factory=frozenset)
    """Numbers of steps that no broker has a sample of."""

    @property
    def begin_ms(self) -> int:
        return self.end_ms - round(self.days * DAY_MS)

    def times(self) -> list[int]:
        count = round(self.days * DAY_MS / self.step_ms)
        return [
            self.begin_ms + self.step_ms * (at + 1)
            for at in range(count)
            if at not in self.left_out
        ]

    def rates(self, bundle: str, at_ms: int) -> Rates:
        """What a bundle truly had up to that time."""
        day = (at_ms - self.begin_ms) / DAY_MS
        grown = 1 + self.growth * day
        if bundle == HOT:
            return Rates(round(3000 * grown, 3))
        if bundle == DAILY:
            wave = 1 + math.sin(2 * math.pi * at_ms / DAY_MS)
            return Rates(round(400 * wave, 3), round(400 * wave, 3))
        if bundle in (COLD, COOL):
            return Rates(1.0 if bundle == COLD else 2.0)
        return Rates(500.0, 500.0, 50_000.0, 50_000.0)

    def sample(self, broker: str, at_ms: int) -> LoadSample:
        bundles = tuple(
            BundleSample(name, self.rates(name, at_ms), 10, 1, 1, HOT_TOPICS if name == HOT else ())
            for name in BROKERS[broker]
        )
        total = sum((bundle.rates for bundle in bundles), Rates())
        cores = round(total.messages / 4000, 4)
        seconds = self.step_ms / 1000
        return LoadSample(at_ms, seconds, broker, cores, 2.0, 5e8, 1e9, total, bundles)

    def objects(self) -> Iterator[tuple[str, bytes]]:
        """Names and bytes, as brokers write them."""
        times = self.times()
        for broker in BROKERS:
            for begin in range(0, len(times), self.per_object):
                some = times[begin : begin + self.per_object]
                lines = b"".join(self.sample(broker, at).encode() + b"\n" for at in some)
                packed = gzip.compress(lines, 1, mtime=0)
                yield load_history(LoadHistoryPlace(some[0], some[-1], len(packed), broker)), packed

    def write(self, directory: Path) -> list[str]:
        """Into a directory that is a volume; the names."""
        names = []
        for name, data in self.objects():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            names.append(name)
        return names

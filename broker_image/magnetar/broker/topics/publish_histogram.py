"""How long publishes took, and how large they were.

Owns: `PublishHistogram`: entries of one topic by latency and by size, in Pulsar's buckets. Imports:
minute_histogram. Pure: time comes in. Invariant: an entry is counted once, when it is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.hosting.minute_histogram import MinuteHistogram

_LATENCIES: dict[str, float] = {
    "le_0_5": 0.5, "le_1": 1, "le_5": 5, "le_10": 10, "le_20": 20, "le_50": 50, "le_100": 100,
    "le_200": 200, "le_1000": 1000,
}  # fmt: skip
"""Upper bounds in ms."""
_SIZES: dict[str, float] = {
    "le_128": 128, "le_512": 512, "le_1_kb": 1 << 10, "le_2_kb": 2 << 10, "le_4_kb": 4 << 10,
    "le_16_kb": 16 << 10, "le_100_kb": 100 << 10, "le_1_mb": 1 << 20,
}  # fmt: skip
"""The same, in bytes."""
LATENCY_BUCKETS, SIZE_BUCKETS = (*_LATENCIES, "overflow"), (*_SIZES, "overflow")
_LATENCY_BOUNDS, _SIZE_BOUNDS = tuple(_LATENCIES.values()), tuple(_SIZES.values())


class PublishHistogram:
    """Of one topic: latencies in ms, sizes in bytes."""

    __slots__ = ("latencies", "sizes")

    def __init__(self, now: float) -> None:
        self.latencies = MinuteHistogram(_LATENCY_BOUNDS, now)
        self.sizes = MinuteHistogram(_SIZE_BOUNDS, now)

    def add(self, seconds: float, lengths: Sequence[int]) -> None:
        """Entries of these lengths became durable, that long after they came."""
        self.latencies.add(1000 * seconds, len(lengths))
        for length in lengths:
            self.sizes.add(length)

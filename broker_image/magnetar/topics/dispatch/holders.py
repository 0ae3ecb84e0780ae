"""Which consumers hold entries of a range.

Owns: `Holders`, an index over the pending entries of all consumers of a Shared subscription.
Imports: base, intervals. Pure. Invariant: the index counts exactly the entries that the consumers'
`pending` have. Why: an acknowledgement of another consumer's entries asks for their holder, and
there may be thousands of consumers.
"""

from __future__ import annotations

from magnetar.topics.dispatch.base import Consumer
from magnetar.topics.intervals import known_within

BUCKET_BITS = 7
"""Holders are known per 128 consecutive entries."""


class Holders:
    """Per bucket of consecutive entries, how many of them each consumer holds."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Consumer, int]] = {}

    def near(self, start: int, end: int) -> list[Consumer]:
        """All consumers that hold any of the entries [start, end), perhaps others as well."""
        if start >= end:
            return []
        buckets = known_within(self._buckets, start >> BUCKET_BITS, (end - 1 >> BUCKET_BITS) + 1)
        return list(
            dict.fromkeys(consumer for bucket in buckets for consumer in self._buckets[bucket])
        )

    def of(self, ordinal: int) -> Consumer | None:
        """The holder of an entry, if there is one."""
        for consumer in self.near(ordinal, ordinal + 1):
            if ordinal in consumer.pending:
                return consumer
        return None

    def count(self, consumer: Consumer, start: int, end: int, sign: int) -> None:
        """The consumer begins (`sign` 1) or ceases (-1) to hold the entries [start, end)."""
        buckets = self._buckets
        while start < end:
            bucket = start >> BUCKET_BITS
            stop = bucket + 1 << BUCKET_BITS
            if stop > end:
                stop = end
            held = buckets.get(bucket)
            if held is None:
                buckets[bucket] = {consumer: stop - start}
            elif count := held.get(consumer, 0) + sign * (stop - start):
                held[consumer] = count
            else:
                del held[consumer]
                if not held:
                    del buckets[bucket]
            start = stop

    def clear(self) -> None:
        self._buckets.clear()

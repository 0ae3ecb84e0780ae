"""Rates of a topic, from counters that it keeps anyway.

Owns: `TopicRates` and how they are read. Imports: topics, rates. Invariant: nothing is computed
without a request.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.broker.topics.topic_host import TopicHost
from magnetar.hosting.rates import RateMeter


class TopicRates(NamedTuple):
    """Per second; `entries_in` counts a batch as one."""

    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float
    entries_in: float


def topic_rates(host: TopicHost) -> TopicRates:
    """Since the last request, or over a moment; at first since it is served here."""
    counters, now = host.core.counters, host.context.clock.monotonic()
    counts = (
        counters.messages_in,
        counters.bytes_in,
        counters.messages_out,
        counters.bytes_out,
        host.core.ledgers.end,
    )
    if host.meter is None:
        # how many entries there were then is not known
        host.meter = RateMeter(host.served_since, len(counts), (0, 0, 0, 0, counts[-1]))
    return TopicRates(*host.meter.rates(now, counts))

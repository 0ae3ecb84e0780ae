"""Which bundles a report names.

Owns: the choice of the top K. Imports: balance.load, balance.settings, heapq. Pure. Invariants: a
bundle that is left out has no more load than any that is named; equal loads are ordered by name;
system bundles, excluded namespaces and idle bundles are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

from magnetar.balance.load import HOT_TOPICS_MAX, REPORTED_BUNDLES_MAX, BundleLoad, TopicLoad
from magnetar.balance.settings import Settings

SYSTEM_TENANTS = ("pulsar", "sla-monitor")
"""Heartbeats, monitors and what brokers keep for themselves: pinned to their brokers."""


def namespace_of(bundle: str) -> str:
    return bundle.rpartition("/")[0]


def tenant_of(bundle: str) -> str:
    return bundle.partition("/")[0]


def is_excluded(bundle: str, settings: Settings) -> bool:
    """Whether load balancing leaves the bundle where it is."""
    return (
        tenant_of(bundle) in SYSTEM_TENANTS or namespace_of(bundle) in settings.excluded_namespaces
    )


def top_bundles(bundles: Iterable[BundleLoad], settings: Settings) -> tuple[BundleLoad, ...]:
    """The K bundles with most load, most first, each with its hottest topics; rates rounded."""
    wanted = settings.top_max
    limit = wanted if 0 < wanted <= REPORTED_BUNDLES_MAX else REPORTED_BUNDLES_MAX
    busy = (
        bundle
        for bundle in bundles
        if bundle.history.level.mean.rates.size and not is_excluded(bundle.name, settings)
    )
    chosen = heapq.nsmallest(
        limit, busy, key=lambda bundle: (-bundle.history.level.mean.rates.size, bundle.name)
    )
    return tuple(
        replace(
            bundle,
            history=bundle.history.rounded(),
            hot=tuple(sorted(bundle.hot, key=lambda topic: (-topic.rates.size, topic.name)))[
                :HOT_TOPICS_MAX
            ],
        )
        for bundle in chosen
    )


def hot_topics(topics: Iterable[TopicLoad]) -> tuple[TopicLoad, ...]:
    """The topics with most load, hottest first."""
    return tuple(
        heapq.nsmallest(HOT_TOPICS_MAX, topics, key=lambda topic: (-topic.rates.size, topic.name))
    )

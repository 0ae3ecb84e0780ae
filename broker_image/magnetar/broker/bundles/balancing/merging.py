"""Merges by load.

Owns: `LoadMerger`: an owner merges neighbours of its own that have been cold for long. Imports:
balance (what decides is imported when it first does), siblings, ownership's merge. Invariants: only
bundles that are served here are merged, by the same steps as a merge by hand; a namespace is merged
to no fewer bundles than it was created with; a merge that is refused is tried again only after both
bundles have been cold for as long again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from magnetar.balance.cluster import Memory, Merge, Outcome
from magnetar.balance.load import BundleLoad
from magnetar.balance.settings import Settings
from magnetar.balance.top_k import namespace_of
from magnetar.broker.bundles.balancing.decisions import AUTHOR_BITS, DecisionLog
from magnetar.broker.bundles.balancing.picture import Sight
from magnetar.broker.bundles.balancing.sampling import LoadSampler
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.context import BrokerContext
from magnetar.errors import MagnetarError
from magnetar.names import BundleName

log = structlog.get_logger(__name__)

MergeBundles = Callable[[BundleName, str, BundleName], Awaitable[BundleName]]


class LoadMerger:
    """Merges bundles of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        sight: Callable[[], Sight],
        sampler: LoadSampler,
        settings: BalanceSettings,
        merge: MergeBundles,
        decisions: DecisionLog,
    ) -> None:
        self._context, self._sight, self._sampler = context, sight, sampler
        self._settings, self._merge, self._decisions = settings, merge, decisions
        self._memory = Memory()

    async def look(self) -> None:
        """Merge what is due."""
        settings = self._settings.current
        own = self._sampler.loads
        if not (settings.enabled and settings.merge and _may_merge(own)):
            self._memory = Memory()
            return
        sight, memory = self._sight(), self._memory
        outcome, record = await self._context.compute(
            lambda: _decided(sight, memory, own, settings)
        )
        self._memory = outcome.memory
        if record:
            self._decisions.add(sight.now_ms, record)
        for merge in outcome.merges:
            await self._carry_out(merge)
        await self._decisions.save(self._context.clock.random_bits(AUTHOR_BITS))

    async def _carry_out(self, merge: Merge) -> None:
        left, right = map(BundleName.parse, merge.bundles)
        try:
            merged = await self._merge(left, f"load: {merge.reason}", right)
        except MagnetarError as error:
            log.warning("balance.merge_refused", bundle=merge.bundles[0], error=str(error))
            return
        self._context.metrics.balance.merges.inc()
        log.info(
            "balance.merge", bundle=str(merged), parents=list(merge.bundles), reason=merge.reason
        )


def _may_merge(own: Iterable[str]) -> bool:
    from magnetar.balance.splitting import may_merge

    return may_merge(own)


def _decided(
    sight: Sight, memory: Memory, own: Mapping[str, BundleLoad], settings: Settings
) -> tuple[Outcome, bytes]:
    """Merges of our own bundles, and their record if there are any; others count for their
    namespaces. Reports leave idle bundles out, so the load of our own is that of our last
    sample."""
    from magnetar.balance.decision import MERGE, Request, decide, recorded

    picture = sight.picture()
    bundles = tuple(
        replace(
            bundle,
            history=load.history,
            topics=load.topics,
            sessions=load.producers + load.consumers,
        )
        if (load := own.get(bundle.name)) is not None
        else replace(bundle, pinned=True)
        for bundle in picture.cluster.bundles
    )
    least = {
        name: viewed.record.bundles_created or len(viewed.record.boundaries) - 1
        for name in map(namespace_of, own)
        if (viewed := sight.namespaces.get(name)) is not None
    }
    cluster = replace(picture.cluster, bundles=bundles)
    policies = replace(picture.policies, bundles_min=least)
    advice = picture.advice.about(own) if picture.advice is not None else None
    request = Request(MERGE, cluster, memory, policies, settings.named(), advice=advice)
    outcome = decide(request)
    return outcome, recorded(request, outcome).encode() if outcome.merges else b""

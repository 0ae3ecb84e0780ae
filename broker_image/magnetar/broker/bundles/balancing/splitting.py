"""Splits by load.

Owns: `LoadSplitter`: an owner splits its bundles that have been too hot for too long. Imports:
balance (what decides is imported when it first does), siblings, ownership's split. Source: Pulsar's
extensible load manager, in which owners decide. Invariants: only bundles that are served here are
split, by the same steps as a split by hand; a split that is refused is tried again only after the
bundle has been too hot for as long again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from magnetar.balance.cluster import Memory, Outcome, Split
from magnetar.balance.load import TopicLoad
from magnetar.balance.settings import MIB, Settings
from magnetar.broker.bundles.balancing.decisions import AUTHOR_BITS, DecisionLog
from magnetar.broker.bundles.balancing.merging import LoadMerger
from magnetar.broker.bundles.balancing.picture import Sight
from magnetar.broker.bundles.balancing.sampling import LoadSampler
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.context import BrokerContext
from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.names import BundleName
from magnetar.ownership.splits import RANGE_EQUALLY_DIVIDE

log = structlog.get_logger(__name__)

LOOK_S_MAX = 5.0
SplitBundle = Callable[[BundleName, tuple[int, ...], str], Awaitable[list[BundleName]]]


class LoadSplitter:
    """Splits bundles of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        sight: Callable[[], Sight],
        sampler: LoadSampler,
        settings: BalanceSettings,
        split: SplitBundle,
        merger: LoadMerger,
        decisions: DecisionLog,
    ) -> None:
        self._context, self._sight, self._sampler = context, sight, sampler
        self._settings, self._split, self._merger = settings, split, merger
        self._decisions = decisions
        self._memory = Memory()

    async def run(self) -> None:
        """Look until cancelled."""
        clock = self._context.clock
        merged_at = clock.monotonic()
        while True:
            due = clock.monotonic() + self._settings.current.split_interval_s
            while (left := due - clock.monotonic()) > 0:
                await asyncio.sleep(min(left, LOOK_S_MAX))
                due = min(due, clock.monotonic() + self._settings.current.split_interval_s)
            await self.look()
            if clock.monotonic() >= merged_at + 60 * self._settings.current.split_minutes:
                merged_at = clock.monotonic()
                await self._merger.look()

    async def look(self) -> None:
        """Split what is due."""
        settings = self._settings.current
        if not (settings.enabled and settings.split):
            return
        if not self._may_split(settings):
            self._memory = Memory()
            return
        sight, memory, own = self._sight(), self._memory, frozenset(self._sampler.sampled)
        outcome, record = await self._context.compute(
            lambda: _decided(sight, memory, own, settings)
        )
        self._memory = outcome.memory
        if record:
            self._decisions.add(sight.now_ms, record)
        for split in outcome.splits:
            await self._carry_out(split, settings)
        await self._decisions.save(self._context.clock.random_bits(AUTHOR_BITS))

    def _may_split(self, settings: Settings) -> bool:
        """Whether the cluster has to be looked at: this takes the time of one report."""
        from magnetar.balance.splitting import may_split

        report = self._sampler.latest
        return report is not None and may_split(report, settings)

    async def _carry_out(self, split: Split, settings: Settings) -> None:
        topics = self._sampler.topics_of(split.bundle)
        boundaries = _boundaries(split, topics, settings)
        if not boundaries:
            return
        try:
            children = await self._split(
                BundleName.parse(split.bundle), boundaries, f"load: {split.reason}"
            )
        except MagnetarError as error:
            log.warning("balance.split_refused", bundle=split.bundle, error=str(error))
            return
        self._context.metrics.balance.splits.inc()
        log.info(
            "balance.split",
            bundle=split.bundle,
            children=len(children),
            reason=split.reason,
            algorithm=split.algorithm,
        )


def _boundaries(split: Split, topics: list[TopicLoad], settings: Settings) -> tuple[int, ...]:
    """Where a bundle is split; in the middle if its algorithm needs positions."""
    from magnetar.balance.splitting import boundaries

    bundle = BundleName.parse(split.bundle)
    if split.boundaries:
        return split.boundaries
    if split.part_max:
        bytes_max = split.part_max * settings.message_bytes
        settings = replace(settings, bundle_rate_max=split.part_max, bundle_mib_max=bytes_max / MIB)
    try:
        found = boundaries(bundle, split.algorithm, topics, settings)
    except InvalidRequest:
        found = ()
    return found or boundaries(bundle, RANGE_EQUALLY_DIVIDE, topics, settings)


def _decided(
    sight: Sight, memory: Memory, own: frozenset[str], settings: Settings
) -> tuple[Outcome, bytes]:
    """Splits of our own bundles, and their record if there are any; others count for the limits of
    their namespaces."""
    from magnetar.balance.decision import SPLIT, Request, decide, recorded

    picture = sight.picture()
    cluster = replace(
        picture.cluster,
        bundles=tuple(
            bundle if bundle.name in own else replace(bundle, topics=0)
            for bundle in picture.cluster.bundles
        ),
    )
    advice = picture.advice.about(own) if picture.advice is not None else None
    request = Request(SPLIT, cluster, memory, picture.policies, settings.named(), advice=advice)
    outcome = decide(request)
    return outcome, recorded(request, outcome).encode() if outcome.splits else b""

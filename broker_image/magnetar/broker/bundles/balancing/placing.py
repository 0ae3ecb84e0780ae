"""Which broker gets a bundle, without a plan.

Owns: `Placer`: the placement strategy in force over a picture of the cluster that is at most
`PICTURE_S` old. Imports: balance.placement, siblings. Invariants: what was chosen before the
picture shows it counts in the next choice; a broker that is draining, cordoned or excluded is not
chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from magnetar.balance.cluster import Bundle, Cluster, Memory
from magnetar.balance.filters import Situation
from magnetar.broker.bundles.balancing.advice import AdviceReader
from magnetar.broker.bundles.balancing.picture import Picture, Sight
from magnetar.broker.bundles.balancing.reports import Reports
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.context import BrokerContext
from magnetar.errors import ServiceNotReady
from magnetar.hosting.views import ClusterViews

PICTURE_S = 1.0
CHOSEN_S = 10.0
"""How long a choice counts whose bundle does not arrive."""


class Placer:
    """Chooses brokers one bundle after another."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        reports: Reports,
        settings: BalanceSettings,
        candidates: Callable[[], Collection[str]],
    ) -> None:
        self._context, self._views, self._reports = context, views, reports
        self._settings, self._candidates = settings, candidates
        self.advice = AdviceReader(context, views, settings)
        self._picture: Picture | None = None
        self._clusters: dict[frozenset[str], Cluster] = {}
        self._taken_at, self._seen = 0.0, frozenset[str]()
        self._chosen: dict[str, tuple[str, float]] = {}
        self._turn = 0
        self._lock = asyncio.Lock()

    def sight(self) -> Sight:
        """What this broker knows now."""
        candidates = self._candidates()
        return Sight.take(
            self._context.clock.wall_ms(),
            self._views,
            self._reports,
            candidates,
            self.advice.current,
        )

    async def choose(self, name: str, exclude: Collection[str] = (), *, keep: bool = True) -> str:
        """The incarnation that should get a bundle; with `keep` the choice counts in the next one.
        Raises ServiceNotReady if no broker may have it."""
        async with self._lock:
            candidates = frozenset(self._candidates()) - frozenset(exclude)
            picture = await self._look() if candidates else None
            if picture is None:
                raise ServiceNotReady(
                    "Failed to acquire ownership: no broker takes bundles now (all are draining or "
                    "cordoned)"
                )
            broker, reason = await self._context.compute(
                lambda: self._choose(picture, name, candidates, keep)
            )
        if not broker:
            raise ServiceNotReady(f"Failed to acquire ownership: bundle {name}: {reason}")
        return picture.incarnations[broker]

    async def _look(self) -> Picture:
        """A picture of the brokers that take bundles now."""
        now, candidates = self._context.clock.monotonic(), frozenset(self._candidates())
        if self._picture is None or self._seen != candidates or now - self._taken_at > PICTURE_S:
            sight = self.sight()
            self._picture = await self._context.compute(sight.picture)
            self._taken_at, self._seen, self._clusters = now, sight.candidates, {}
            arrived = self._picture.cluster.bundle
            self._chosen = {
                name: (broker, since)
                for name, (broker, since) in self._chosen.items()
                if now - since < CHOSEN_S
                and (name not in arrived or arrived[name].broker != broker)
            }
        return self._picture

    def _choose(
        self, picture: Picture, name: str, candidates: frozenset[str], keep: bool
    ) -> tuple[str, str]:
        """The broker, or "" and why there is none."""
        from magnetar.balance.placement import place  # not before the first bundle is placed

        memory = Memory(
            preallocated={bundle: broker for bundle, (broker, _) in self._chosen.items()},
            turn=self._turn,
        )
        situation = Situation(
            self._among(picture, candidates),
            memory,
            picture.policies,
            self._settings.current,
            self._context.clock.random_bits(31),
            picture.advice,
        )
        bundle = picture.cluster.bundle.get(name, Bundle(name))
        placed = place(bundle, situation)
        if keep and placed.broker:
            self._turn = placed.memory.turn
            self._chosen[name] = placed.broker, self._context.clock.monotonic()
        return placed.broker, placed.reason

    def _among(self, picture: Picture, candidates: frozenset[str]) -> Cluster:
        """The cluster with these brokers only."""
        found = self._clusters.get(candidates)
        if found is None:
            brokers = tuple(
                broker
                for broker in picture.cluster.brokers
                if picture.incarnations[broker.name] in candidates
            )
            all_of_them = len(brokers) == len(picture.cluster.brokers)
            found = picture.cluster if all_of_them else replace(picture.cluster, brokers=brokers)
            self._clusters[candidates] = found
        return found

"""The leader's load balancing.

Owns: `Balancer`: when a decision is made, destinations of orphans by the plan, and moves in waves.
Imports: balance (decisions are imported when the first is made), siblings, the assigner. Invariants:
a decision is computed off the event loop; every move is guarded by the leader's term, and at most
`plannerMovesParallelMax` are under way; a bundle that is pinned or changes hands is not moved; what
was decided in a former term is not carried out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from magnetar.balance.cluster import MOVE_REASON, Memory, Move, Outcome
from magnetar.balance.settings import PLANNER, Settings
from magnetar.broker.bundles.assigning import Assigner
from magnetar.broker.bundles.balancing.decisions import DecisionLog
from magnetar.broker.bundles.balancing.picture import Picture, Sight
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.bundles.balancing.trend import RecentMoves, Sample, Trend
from magnetar.broker.context import BrokerContext
from magnetar.errors import StorageError
from magnetar.hosting.views import ClusterViews
from magnetar.metadata.records import BundleState
from magnetar.metadata.store import Compare
from magnetar.ownership.rules import is_pinned

log = structlog.get_logger(__name__)

RECALL_S = 1.0
"""Bundles without an owner wait so long for a volume that does not answer."""
ARRIVAL_S = 120.0
"""A move that takes longer no longer counts as under way."""
PENDING_S = 60.0
"""A move that waits longer for its wave was decided on old load."""
IDLE_KEPT_S = 600.0
"""Of decisions that change nothing the first is kept, and then one in so long."""
SHOWN_MAX = 1000
"""Moves under way that are shown."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A move that was decided or requested, and when."""

    move: Move
    destination: str
    since: float


class Balancer:
    """One term of a leader."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        assigner: Assigner,
        settings: BalanceSettings,
        overdue: Callable[[], Collection[str]],
        decisions: DecisionLog,
        recent: RecentMoves,
    ) -> None:
        """`overdue` are bundles that have changed hands for too long; `recent` outlives the
        term."""
        self._context, self._views, self._assigner = context, views, assigner
        self._settings, self._overdue = settings, overdue
        self._memory = Memory()
        self._decisions, self._recent = decisions, recent
        self._decided_at: float | None = None
        self._idle_kept_at: float | None = None
        self._pending: deque[_Begun] = deque()
        self._under_way: dict[str, _Begun] = {}
        self.trend = Trend()

    @property
    def memory(self) -> Memory:
        """What the next decision starts from."""
        return self._memory

    def moves(self) -> dict[str, Any]:
        """Moves that have begun, and how many wait for their wave."""
        self._settle()
        clock = self._context.clock
        now, now_ms = clock.monotonic(), clock.wall_ms()
        begun = [
            {
                "bundle": name,
                "source": found.move.source,
                "destination": found.move.destination,
                "reason": found.move.reason,
                "since_ms": now_ms - round(1000 * (now - found.since)),
            }
            for name, found in sorted(self._under_way.items())
        ]
        return {
            "under_way": begun[:SHOWN_MAX],
            "under_way_total": len(begun),
            "waiting": len(self._pending),
        }

    async def destinations(self, orphans: Sequence[str]) -> dict[str, str]:
        """Incarnations by orphan, by the plan; {} if another strategy is in force."""
        settings = self._settings.current
        if not orphans or not settings.enabled or settings.shedder != PLANNER:
            return {}
        picture = await self._decide(settings, orphans)
        chosen = self._memory.preallocated
        return {
            name: picture.incarnations[chosen[name]]
            for name in orphans
            if chosen.get(name) in picture.incarnations
        }

    async def recall(self) -> None:
        """Continue from the last decision that was kept. Moves of that term that did not arrive are
        forgotten."""
        from magnetar.balance.decision import SHED  # a leader's alone

        try:
            async with asyncio.timeout(RECALL_S):
                found = await self._decisions.newest(1, kind=SHED)
        except (StorageError, TimeoutError) as error:
            log.warning("balance.memory_lost", error=str(error))
            return
        for _, decision in found:
            memory = decision.outcome.memory
            self._memory = memory.forget(memory.preallocated)

    async def cycle(self, guard: Compare, term: int = 0) -> None:
        """Decide if it is time, begin as many moves as may be under way, and keep what was
        decided. Raises StoreError."""
        settings, now = self._settings.current, self._context.clock.monotonic()
        if not settings.enabled:
            self._drop(self._pending)
            self._pending.clear()
            self._context.metrics.balance.forget()
            return
        planning = settings.shedder == PLANNER
        interval_s = settings.plan_interval_s if planning else 60 * settings.shed_minutes
        if self._decided_at is None or now - self._decided_at >= interval_s:
            await self._decide(settings, ())
        await self._carry_out(settings, guard)
        await self._decisions.save(term)

    async def _decide(self, settings: Settings, orphans: Sequence[str]) -> Picture:
        self._decided_at = self._context.clock.monotonic()
        self._settle()
        sight, seed = self._assigner.placer.sight(), self._context.clock.random_bits(31)
        memory, kept_at = self._memory, self._idle_kept_at
        metrics = self._context.metrics
        keep_idle = kept_at is None or self._decided_at - kept_at >= IDLE_KEPT_S
        decided = await self._context.compute(
            lambda: _decided(sight, orphans, memory, settings, seed, keep_idle)
        )
        picture, outcome, now = decided.picture, decided.outcome, self._context.clock.monotonic()
        self._memory = outcome.memory
        metrics.balance.seconds.observe(now - self._decided_at)
        metrics.balance.decisions.inc()
        metrics.balance.imbalance.set(decided.imbalance)
        metrics.balance.gain.set(decided.gain)
        self.trend.observe(Sample(sight.now_ms, decided.imbalance, decided.shares))
        if decided.record:
            self._decisions.add(sight.now_ms, decided.record)
            self._idle_kept_at = None if outcome.moves else self._decided_at
        moves = [move for move in outcome.moves if move.source]
        self._pending.extend(
            _Begun(move, picture.incarnations[move.destination], now) for move in moves
        )
        if outcome.moves:
            log.info(
                "balance.decided",
                strategy=settings.shedder,
                moves=len(moves),
                orphans=len(outcome.moves) - len(moves),
                reason=outcome.reason,
            )
        return picture

    # --- moves ------------------------------------------------------------------------------------

    async def _carry_out(self, settings: Settings, guard: Compare) -> None:
        self._settle()
        overdue, clock = frozenset(self._overdue()), self._context.clock
        active = len(self._under_way.keys() - overdue)
        while self._pending and active < settings.moves_parallel:
            begun = self._pending.popleft()
            if not self._may_begin(begun, clock.monotonic()):
                self._drop([begun])
                continue
            name = begun.move.bundle
            self._under_way[name] = _Begun(begun.move, begun.destination, clock.monotonic())
            active += 1
            self._context.metrics.balance.moves.inc()
            self._recent.note(clock.monotonic())
            await self._assigner.request_move(
                name, begun.destination, MOVE_REASON + begun.move.reason, guard
            )

    def _may_begin(self, begun: _Begun, now: float) -> bool:
        """Whether a decided move is still what it was: the bundle is with its source, by no pin,
        and the destination takes bundles."""
        viewed = self._views.bundles.get(begun.move.bundle)
        if viewed is None or viewed.record.state is not BundleState.OWNED:
            return False
        owner = self._views.incarnations.get(viewed.record.incarnation)
        return (
            owner is not None
            and owner.record.broker == begun.move.source
            and not is_pinned(viewed.record, self._context.clock.wall_ms())
            and begun.destination in self._assigner.candidates()
            and now - begun.since < PENDING_S
        )

    def _settle(self) -> None:
        """Forget moves that have ended, and have the next decision know which of them failed."""
        now, failed = self._context.clock.monotonic(), list[_Begun]()
        for name, begun in list(self._under_way.items()):
            viewed = self._views.bundles.get(name)
            state = viewed.record.state if viewed is not None else BundleState.DELETED
            if state in (BundleState.RELEASING, BundleState.ASSIGNING):
                if now - begun.since < ARRIVAL_S:
                    continue
            elif viewed is None or viewed.record.incarnation != begun.destination:
                failed.append(begun)
            del self._under_way[name]
        self._drop(failed)

    def _drop(self, begun: Collection[_Begun]) -> None:
        self._memory = self._memory.forget(found.move.bundle for found in begun)


@dataclass(frozen=True, slots=True)
class _Decided:
    """A picture, what to do about it, and the record to keep (b"" = one like it was kept)."""

    picture: Picture
    outcome: Outcome
    shares: dict[str, float]
    gain: float
    record: bytes

    @property
    def imbalance(self) -> float:
        return max(self.shares.values(), default=1.0)


def _decided(
    sight: Sight,
    orphans: Sequence[str],
    memory: Memory,
    settings: Settings,
    seed: int,
    keep_idle: bool,
) -> _Decided:
    from magnetar.balance.decision import decide, recorded, shedding  # a leader's alone
    from magnetar.balance.planner import filled, gain

    picture = sight.picture(frozenset(orphans))
    request = shedding(picture.cluster, picture.policies, memory, settings, seed, picture.advice)
    outcome = decide(request)
    record = recorded(request, outcome).encode() if outcome.moves or keep_idle else b""
    situation = request.situation()
    now = filled(situation)
    left = gain(situation, now) if settings.shedder == PLANNER and settings.shedding else 0.0
    return _Decided(picture, outcome, now.shares, left, record)

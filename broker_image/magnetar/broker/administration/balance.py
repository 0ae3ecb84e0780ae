"""Load balancing as administrators see it.

Owns: `Balance`: settings and loads in force, decisions that were made, the plan of this moment, why
a bundle is where it is. Imports: balance, balancing. Invariants: nothing here changes anything; the
planner is imported by the first question; every list is bounded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from magnetar.balance.advice import LoadAdvice
from magnetar.balance.cluster import Bundle, Memory
from magnetar.balance.filters import Situation, candidates, kept
from magnetar.balance.settings import text_of
from magnetar.broker.administration.site import Site
from magnetar.broker.bundles.balancing.decisions import DecisionLog
from magnetar.errors import TopicNotFound
from magnetar.metadata.codec import json_of, members
from magnetar.names import BundleName
from magnetar.storage.names import DECISIONS

if TYPE_CHECKING:
    from magnetar.balance.decision import Decision

HISTORY_MAX = 100
MOVES_SHOWN_MAX = 100
"""Moves, splits and merges of each decision of the history; its record has all."""


class Balance:
    """Questions that any broker answers, from the shared volume and its own views. Only the leader
    has moves under way, a trend, and the memory from which the next decision starts."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def history(self, count: int = 20, before: str = "") -> list[dict[str, Any]]:
        """The last decisions, newest first, without their inputs. Raises StorageError."""
        log = DecisionLog(self._site.broker.context)
        found = await log.newest(max(1, min(count, HISTORY_MAX)), before)
        return [_shown(name, decision) for name, decision in found]

    async def overview(self) -> dict[str, Any]:
        """Settings in force, loads of the brokers that take bundles, imbalance now and over the
        last hour, moves under way."""
        broker = self._site.broker
        sight, settings = broker.ownership.assigner.placer.sight(), broker.ownership.balance.current
        balancer, defaults = broker.leader.balancer, broker.ownership.balance.defaults

        def measured() -> dict[str, Any]:
            from magnetar.balance.planner import filled

            cluster = sight.picture(()).cluster
            now = filled(Situation(cluster, settings=settings))
            shares, before = now.shares, balancer.trend.before
            return {
                "imbalance": round(now.imbalance, 4),
                "brokers": {
                    found.name: {
                        "load": round(now.totals[found.name], 1),
                        "capacity": round(now.capacities[found.name], 4),
                        "share": round(shares[found.name], 4),
                        "share_before": _rounded(before.get(found.name)),
                        "bundles": len(cluster.owned[found.name]),
                        "reported_ms": found.report.updated_ms if found.report else None,
                    }
                    for found in cluster.brokers
                },
            }

        named, at_start = settings.named(), defaults.named()
        return {
            "leader": broker.context.broker,
            "enabled": settings.enabled,
            "strategy": settings.shedder,
            "placement": settings.placement,
            "settings": {name: text_of(value) for name, value in named.items()},
            "changed": sorted(name for name in named if named[name] != at_start[name]),
            **await broker.context.compute(measured),
            "trend": [
                {"at_ms": found.at_ms, "imbalance": round(found.imbalance, 4)}
                for found in balancer.trend.samples
            ],
            "moves": balancer.moves(),
        }

    async def decision(self, name: str) -> Decision:
        """One decision with all that it depended on. Raises TopicNotFound, StorageError."""
        found = await DecisionLog(self._site.broker.context).read(name)
        if found is None:
            raise TopicNotFound(f"decision {name}: there is none; the history lists them")
        return found

    async def shown(self, identifier: str) -> dict[str, Any]:
        """A decision as the history shows it, and its record, which replays. Raises as
        `decision`."""
        name = f"{DECISIONS}/{identifier}"
        decision = await self.decision(name)
        return _shown(name, decision) | {"record": json.loads(decision.encode())}

    async def plan(self, inputs: bool = False) -> dict[str, Any]:
        """What the strategy in force would do now; with `inputs` as a record, too, which replays.
        The leader continues from what it remembers."""
        broker = self._site.broker
        sight, settings = broker.ownership.assigner.placer.sight(), broker.ownership.balance.current
        seed = broker.context.clock.random_bits(31)
        memory = self._memory()

        def answer() -> dict[str, Any]:
            from magnetar.balance.decision import decide, recorded, shedding
            from magnetar.balance.planner import filled

            picture = sight.picture(())
            request = shedding(
                picture.cluster, picture.policies, memory, settings, seed, picture.advice
            )
            outcome = decide(request)
            loads = filled(request.situation())
            record = json.loads(recorded(request, outcome).encode()) if inputs else None
            return ({"record": record} if inputs else {}) | {
                "strategy": settings.shedder,
                "reason": outcome.reason,
                "notes": list(outcome.notes),
                "moves": [members(move) for move in outcome.moves],
                "brokers": {
                    name: {"load": round(load, 1), "capacity": loads.capacities[name]}
                    for name, load in loads.totals.items()
                },
                "imbalance": round(loads.imbalance, 4),
            }

        return await broker.context.compute(answer)

    async def explain(self, bundle: BundleName) -> dict[str, Any]:
        """A bundle's load, the brokers that may have it and what keeps it. Only the leader knows
        what would move now; `next_moves` is null elsewhere."""
        broker = self._site.broker
        leading = broker.leader.leading
        sight, settings = broker.ownership.assigner.placer.sight(), broker.ownership.balance.current
        memory, reader = self._memory(), broker.ownership.assigner.placer.advice

        def answer() -> dict[str, Any]:
            from magnetar.balance.placement import place
            from magnetar.balance.planner import filled
            from magnetar.balance.shedding.cycle import shed

            picture = sight.picture()
            situation = Situation(
                picture.cluster, memory, picture.policies, settings, advice=picture.advice
            )
            name, loads = str(bundle), filled(situation)
            enabled = settings.enabled and settings.shedding
            outcome = shed(situation) if enabled and leading else None
            moves = outcome.moves if outcome is not None else ()
            moved = memory.moved.get(name)
            found = picture.cluster.bundle.get(name, Bundle(name))
            may = candidates(situation, found)
            placed = place(found, situation)
            return {
                "bundle": name,
                "broker": found.broker,
                "load": round(loads.loads.get(name, settings.bundle_cost), 1),
                "measured": found.history is not None,
                "pinned": found.pinned,
                "kept": kept(situation, found) if found.broker in picture.incarnations else None,
                "candidates": list(may.names),
                "allowed": list(may.allowed),
                "filters": list(may.notes),
                "placement": placed.broker,
                "reason": placed.reason,
                "brokers": {name: round(load, 1) for name, load in loads.totals.items()},
                "shares": {name: round(share, 4) for name, share in loads.shares.items()},
                "strategy": settings.shedder,
                "enabled": enabled,
                "trigger": settings.band_trigger,
                "moved_ms": moved.at_ms if moved is not None else None,
                "repeat_change": settings.repeat_change,
                "grace_minutes": settings.grace_minutes,
                "next": next((move.destination for move in moves if move.bundle == name), None),
                "next_moves": len(moves) if leading else None,
                "next_reason": outcome.reason if outcome is not None else "",
                "advice": _advice_on(picture.advice, name),
                "no_advice": "" if picture.advice is not None else reader.refusal,
            }

        return await broker.context.compute(answer)

    def _memory(self) -> Memory:
        """What the leader's next decision starts from; another broker remembers nothing."""
        leader = self._site.broker.leader
        return leader.balancer.memory if leader.leading else Memory()


def _shown(name: str, decision: Decision) -> dict[str, Any]:
    outcome = members(decision.outcome)
    outcome.pop("memory")
    for what in ("moves", "splits", "merges"):
        outcome |= {f"{what}_total": len(outcome[what]), what: outcome[what][:MOVES_SHOWN_MAX]}
    shown = {
        "name": name,
        "id": name.removeprefix(f"{DECISIONS}/"),
        "at_ms": decision.at_ms,
        "kind": decision.kind,
        "replayable": decision.replayable,
        **outcome,
    }
    found: dict[str, Any] = json.loads(json_of(shown))
    return found


def _advice_on(advice: LoadAdvice | None, name: str) -> dict[str, Any] | None:
    """What load analytics says of a bundle."""
    if advice is None:
        return None
    known = advice.by_bundle.get(name)
    return {
        "made_ms": advice.made_ms,
        "valid_until_ms": advice.valid_until_ms,
        "usual": round(known.usual.messages, 1) if known is not None else None,
        "peak": round(known.peak.messages, 1) if known is not None else None,
        "parts": len(advice.cuts.get(name, ())) + 1,
        "merge_with": sorted(
            other for pair in advice.cold if name in pair for other in pair if other != name
        ),
    }


def _rounded(share: float | None) -> float | None:
    return round(share, 4) if share is not None else None

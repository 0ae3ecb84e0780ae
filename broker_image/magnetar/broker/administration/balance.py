"""Load balancing as administrators see it.

Owns: `Balance`: decisions that were made, the plan of this moment, why a bundle is where it is.
Imports: balance, balancing. Invariants: nothing here changes anything; the
planner is imported by the first question.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from magnetar.balance.cluster import Bundle, Memory
from magnetar.balance.filters import Situation, candidates, kept
from magnetar.broker.administration.site import Site
from magnetar.broker.bundles.balancing.decisions import DecisionLog
from magnetar.errors import TopicNotFound
from magnetar.metadata.codec import json_of, members
from magnetar.names import BundleName

if TYPE_CHECKING:
    from magnetar.balance.decision import Decision

HISTORY_MAX = 100


class Balance:
    """Questions that any broker answers, from the shared volume and its own views."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def history(self, count: int = 20, before: str = "") -> list[dict[str, Any]]:
        """The last decisions, newest first, without their inputs. Raises StorageError."""
        log = DecisionLog(self._site.broker.context)
        found = await log.newest(max(1, min(count, HISTORY_MAX)), before)
        return [_shown(name, decision) for name, decision in found]

    async def decision(self, name: str) -> Decision:
        """One decision with all that it depended on. Raises TopicNotFound, StorageError."""
        found = await DecisionLog(self._site.broker.context).read(name)
        if found is None:
            raise TopicNotFound(f"decision {name}: there is none; the history lists them")
        return found

    async def plan(self) -> dict[str, Any]:
        """What the strategy in force would do now, with nothing remembered."""
        broker = self._site.broker
        sight, settings = broker.ownership.assigner.placer.sight(), broker.ownership.balance.current
        seed = broker.context.clock.random_bits(31)

        def answer() -> dict[str, Any]:
            from magnetar.balance.decision import SHED, Request, decide
            from magnetar.balance.planner import filled

            picture = sight.picture(())
            request = Request(
                SHED, picture.cluster, Memory(), picture.policies, settings.named(), seed
            )
            outcome = decide(request)
            loads = filled(request.situation())
            return {
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
        """A bundle's load, the brokers that may have it and what keeps it."""
        broker = self._site.broker
        sight, settings = broker.ownership.assigner.placer.sight(), broker.ownership.balance.current

        def answer() -> dict[str, Any]:
            from magnetar.balance.placement import place
            from magnetar.balance.planner import filled

            picture = sight.picture()
            situation = Situation(picture.cluster, policies=picture.policies, settings=settings)
            name, loads = str(bundle), filled(situation)
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
            }

        return await broker.context.compute(answer)


def _shown(name: str, decision: Decision) -> dict[str, Any]:
    outcome = members(decision.outcome)
    outcome.pop("memory")
    shown = {"name": name, "at_ms": decision.at_ms, "kind": decision.kind, **outcome}
    found: dict[str, Any] = json.loads(json_of(shown | {"replayable": decision.replayable}))
    return found

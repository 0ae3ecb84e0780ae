"""Brokers that come, leave and are replaced: one decision from one look.

Owns: putting the plans for scaling, replacement and their story together. Imports: scaling,
replacing, scale_story, pods.pods. Pure. Invariants: scaling comes before a replacement, a
replacement before a roll; a drain that takes too long is a problem that names what delays it, and
removes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.brokers.replacing import ReplacePlan, plan_replace
from magnetar_operator.brokers.scale_story import Chapter, Story, overdue, stuck_message, tell
from magnetar_operator.brokers.scaling import Fleet, ScalePlan, plan_scale
from magnetar_operator.brokers.status import Observed
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.pods import pods as broker_pods

LAST_CHAPTERS = ("Settled", "Replaced")
CHAPTERS = (
    "ScalingUp", "ScalingDown", "ScaleDownCalledOff", "Replacing", "Draining", "Drained", "Removing", "Restarting", "Removed", *LAST_CHAPTERS,
)  # fmt: skip
"""Event reasons of the story: after its end the same words are news again."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do with the fleet now, and what to report of it."""

    scale: ScalePlan
    replacement: ReplacePlan
    story: Story
    problems: tuple[Problem, ...] = ()

    @property
    def holds_rolls(self) -> bool:
        return self.scale.reason is not None or self.replacement.active

    @property
    def shown(self) -> ScalePlan:
        """The movement that the conditions speak of."""
        if self.scale.reason is not None:
            return self.scale
        return replace(self.scale, reason=self.replacement.reason, message=self.replacement.message)


def fleet_of(cluster: BrokerCluster, observed: Observed) -> Fleet:
    """What scaling looks at."""
    brokers = observed.child("StatefulSet", names.broker_set(cluster.name))
    state = observed.state
    return Fleet(
        cluster=cluster.name,
        replicas=brokers["spec"]["replicas"] if brokers is not None else None,
        pods=frozenset(map(broker_pods.name_of, observed.pods)),
        bundles=state.bundles if state is not None else None,
        cordons=state.cordons if state is not None else None,
        serving=frozenset(state.incarnations) - state.stopping
        if state is not None
        else frozenset(),
    )


def plan_moves(cluster: BrokerCluster, observed: Observed, wall_ms: int) -> Moves:
    """One step for the fleet."""
    fleet, wanted = fleet_of(cluster, observed), cluster.spec.replicas
    scale = plan_scale(wanted, fleet)
    view = broker_pods.rolling_view(observed.pods, None)
    replacement = plan_replace(
        cluster.metadata.annotations.get(names.REPLACE, ""), fleet, view, scale.reason is not None
    )
    leaving = scale.broker or replacement.broker
    known = {broker.name: broker.bundles for broker in cluster.status.brokers}
    candidates = tuple(
        broker
        for broker in (observed.state.candidates(leaving) if observed.state is not None else ())
        if broker not in scale.close
    )
    ready = sum(pod.ready for pod in view)
    chapter = Chapter(
        wanted,
        fleet,
        scale,
        replacement,
        ready == len(view) == wanted == fleet.replicas,
        len(candidates),
        known.get(leaving, 0),
    )
    story = tell(cluster.status.scaling, chapter, wall_ms)
    return Moves(
        scale, replacement, story, tuple(_stuck(cluster, observed, story, candidates, wall_ms))
    )


def _stuck(
    cluster: BrokerCluster,
    observed: Observed,
    story: Story,
    candidates: tuple[str, ...],
    wall_ms: int,
) -> list[Problem]:
    """The drain that lasts too long."""
    status, limit_s = story.status, cluster.spec.drain_timeout_seconds
    held = observed.state.held.get(status.broker, ()) if observed.state is not None else ()
    if not overdue(status, len(held), limit_s, wall_ms):
        return []
    message = stuck_message(status.broker, held, candidates, limit_s)
    return [Problem(Reason.DRAIN_STUCK, f"{message}. {Reason.DRAIN_STUCK.remedy}")]

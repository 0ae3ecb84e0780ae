"""When brokers are added and removed.

Owns: the decision about replicas and cordons. Imports: names. Pure.
Invariants: more brokers are made at once, never gated on anything's health; a broker is removed only after it was cordoned, no bundle's record names
it any more and no other removal is under way; only the highest ordinal is ever cordoned by the operator; raising the number lifts its cordons;
a cordon that a person set is never lifted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar_operator import names
from magnetar_operator.conditions import Reason

CORDON_REASON = "scale-down: magnetar-operator"


@dataclass(frozen=True, slots=True)
class Cordon:
    """A cordon as it stands in the store."""

    drain: bool
    reason: str

    @property
    def is_ours(self) -> bool:
        return self.reason == CORDON_REASON


@dataclass(frozen=True, slots=True)
class Fleet:
    """What scaling looks at.

    `replicas`: of the StatefulSet, None if there is none yet. `pods`: names of the broker pods that exist, terminating ones included.
    `bundles`: how many records name a broker, by its name. `cordons` and `bundles` are None while the store cannot be read.
    """

    cluster: str
    replicas: int | None
    pods: frozenset[str]
    bundles: Mapping[str, int] | None
    cordons: Mapping[str, Cordon] | None


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """What to do now. `replicas` is what the StatefulSet gets; `reason` is None when the fleet has the wanted size."""

    replicas: int
    cordon: str = ""
    uncordon: tuple[str, ...] = ()
    reason: Reason | None = None
    message: str = ""


def plan_scale(wanted: int, fleet: Fleet) -> ScalePlan:
    """One step towards `wanted` brokers."""
    current = fleet.replicas
    if current is None:
        return ScalePlan(wanted, uncordon=_lifted(fleet, wanted, keep=""))
    if wanted >= current:
        lifted = _lifted(fleet, wanted, keep="")
        if wanted > current:
            return ScalePlan(wanted, uncordon=lifted, reason=Reason.SCALING_UP, message=f"from {current} to {wanted} brokers")
        return ScalePlan(wanted, uncordon=lifted)
    leaving = [pod for pod in fleet.pods if names.ordinal_of(pod) >= current]
    if leaving:
        return ScalePlan(
            current, reason=Reason.REMOVING, message=f"{leaving[0]} is going; {current} of {wanted} wanted brokers stay so far"
        )
    if wanted == 0 and current == 1:
        # There is nobody to take the last broker's bundles: it seals its log and leaves them free for the next broker.
        return ScalePlan(0, uncordon=_lifted(fleet, 0, keep=""), reason=Reason.REMOVING, message="the last broker stops")
    return _shrink(wanted, current, fleet)


def _shrink(wanted: int, current: int, fleet: Fleet) -> ScalePlan:
    victim = names.broker_pod(fleet.cluster, current - 1)
    if fleet.cordons is None or fleet.bundles is None:
        message = f"{victim} cannot be drained: the metadata store does not answer"
        return ScalePlan(current, reason=Reason.STORE_UNAVAILABLE, message=message)
    lifted = _lifted(fleet, wanted, keep=victim)
    cordon = fleet.cordons.get(victim)
    if cordon is None or not cordon.drain:
        return ScalePlan(current, cordon=victim, uncordon=lifted, reason=Reason.DRAINING, message=f"{victim} is cordoned")
    left = fleet.bundles.get(victim, 0)
    if left:
        return ScalePlan(current, uncordon=lifted, reason=Reason.DRAINING, message=f"{victim} has {left} bundles left to hand over")
    return ScalePlan(
        current - 1, uncordon=lifted, reason=Reason.REMOVING, message=f"{victim} is drained and goes; {current - 1} brokers stay"
    )


def _lifted(fleet: Fleet, wanted: int, keep: str) -> tuple[str, ...]:
    """Our cordons that have no purpose any more: of brokers that stay, and of removed ones whose pod is gone."""
    if fleet.cordons is None:
        return ()
    stays = max(wanted, fleet.replicas or 0)
    return tuple(
        sorted(
            broker
            for broker, cordon in fleet.cordons.items()
            if cordon.is_ours and broker != keep and (names.ordinal_of(broker) < stays or broker not in fleet.pods)
        )
    )

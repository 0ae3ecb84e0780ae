"""When brokers are added and removed.

Owns: the decision about replicas and cordons. Imports: names. Pure. Invariants: more brokers are
made at once, never gated on anything's health; a broker is removed only after it was cordoned, no
bundle's record names it any more and no other removal is under way; only the highest ordinal is
ever drained by the operator; those that go after it take no bundle from the first step on, so that
none moves twice, as long as one that stays can take them; raising the number lifts its cordons; a cordon that a person set is
never lifted, and one that had to give way to a drain comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from magnetar_operator import names
from magnetar_operator.conditions import Reason, counted

CORDON_REASON = "scale-down: magnetar-operator"
REPLACE_REASON = "replacement: magnetar-operator"
_INSTEAD_OF = "; instead of: "


@dataclass(frozen=True, slots=True)
class Cordon:
    """A cordon as it stands in the store."""

    drain: bool
    reason: str

    @property
    def is_ours(self) -> bool:
        """Whether scaling set it."""
        return self._is_by(CORDON_REASON)

    @property
    def is_for_replacement(self) -> bool:
        return self._is_by(REPLACE_REASON)

    def _is_by(self, reason: str) -> bool:
        return self.reason == reason or self.reason.startswith(reason + _INSTEAD_OF)

    @property
    def before(self) -> Cordon | None:
        """A person's cordon without drain that ours replaced: it comes back when ours is
        lifted."""
        _, instead, reason = self.reason.partition(_INSTEAD_OF)
        return Cordon(drain=False, reason=reason) if instead else None


def draining_cordon(reason: str, before: Cordon | None) -> Cordon:
    """Our cordon for `reason`, which remembers a person's one that it takes the place of."""
    if before is not None and (before.is_ours or before.is_for_replacement):
        before = before.before
    return Cordon(
        drain=True, reason=reason if before is None else f"{reason}{_INSTEAD_OF}{before.reason}"
    )


@dataclass(frozen=True, slots=True)
class Fleet:
    """What scaling looks at.

    `replicas`: of the StatefulSet, None if there is none yet. `pods`: names of the broker pods that
    exist, terminating ones included. `bundles`: how many records name a broker, by its name.
    `cordons` and `bundles` are None while the store cannot be read. `serving`: brokers that are
    registered and do not stop.
    """

    cluster: str
    replicas: int | None
    pods: frozenset[str]
    bundles: Mapping[str, int] | None
    cordons: Mapping[str, Cordon] | None
    serving: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """What to do now. `replicas` is what the StatefulSet gets; `reason` is None when the fleet has
    the wanted size. `cordon` is the broker to drain, `close` those that take no more bundles.

    `broker` is the one that leaves, `left` how many bundles it still has.
    """

    replicas: int
    cordon: str = ""
    close: tuple[str, ...] = ()
    uncordon: tuple[str, ...] = ()
    reason: Reason | None = None
    message: str = ""
    broker: str = ""
    left: int = 0


def plan_scale(wanted: int, fleet: Fleet) -> ScalePlan:
    """One step towards `wanted` brokers."""
    current = fleet.replicas
    if current is None:
        return ScalePlan(wanted, uncordon=_lifted(fleet, wanted))
    if wanted >= current:
        lifted = _lifted(fleet, wanted)
        if wanted > current:
            return ScalePlan(
                wanted,
                uncordon=lifted,
                reason=Reason.SCALING_UP,
                message=f"from {current} to {wanted} brokers",
            )
        return ScalePlan(wanted, uncordon=lifted)
    leaving = sorted(
        (pod for pod in fleet.pods if names.ordinal_of(pod) >= current), key=names.ordinal_of
    )
    if leaving:
        message = f"{leaving[-1]} is going; {current} brokers stay so far, {wanted} are wanted"
        return ScalePlan(
            current,
            uncordon=_lifted(fleet, _open(fleet, wanted, current)),
            reason=Reason.REMOVING,
            message=message,
            broker=leaving[-1],
        )
    if wanted == 0 and current == 1:
        # No broker can take the last broker's bundles: it seals its log and leaves them free
        # for the next broker.
        last = names.broker_pod(fleet.cluster, 0)
        left = (fleet.bundles or {}).get(last, 0)
        message = (
            f"{last}, the last broker, seals its log and stops; its {left} bundles are served "
            "again when spec.replicas is raised"
        )
        return ScalePlan(
            0,
            uncordon=_lifted(fleet, 1),
            reason=Reason.REMOVING,
            message=message,
            broker=last,
            left=left,
        )
    return _shrink(wanted, current, fleet)


def _shrink(wanted: int, current: int, fleet: Fleet) -> ScalePlan:
    victim = names.broker_pod(fleet.cluster, current - 1)
    if fleet.cordons is None or fleet.bundles is None:
        message = f"{victim} cannot be drained: the metadata store does not answer"
        return ScalePlan(current, reason=Reason.STORE_UNAVAILABLE, message=message, broker=victim)
    stays = _open(fleet, wanted, current - 1)
    goes = (names.broker_pod(fleet.cluster, ordinal) for ordinal in range(stays, current - 1))
    plan = ScalePlan(
        current,
        close=tuple(broker for broker in goes if broker not in fleet.cordons),
        uncordon=_lifted(fleet, stays),
        reason=Reason.DRAINING,
        broker=victim,
    )
    left = fleet.bundles.get(victim, 0)
    cordon = fleet.cordons.get(victim)
    if cordon is None or not cordon.drain:
        return replace(
            plan,
            cordon=victim,
            message=f"{victim} is cordoned and transfers {left} bundles",
            left=left,
        )
    if left:
        message = (
            f"{victim} has {counted(left, 'bundle', 'bundles')} left to transfer; {current} "
            f"brokers now, {wanted} are wanted"
        )
        return replace(plan, message=message, left=left)
    message = f"{victim} is drained and goes; {current - 1} brokers stay, {wanted} are wanted"
    return replace(plan, replicas=current - 1, reason=Reason.REMOVING, message=message)


def _open(fleet: Fleet, wanted: int, most: int) -> int:
    """How many brokers, the first ones, may take bundles while the others leave: those that stay.
    All `most` of them while none that stays serves or may take any, because of a person's cordon.
    The last broker takes what the others transfer, even if it leaves as well."""
    stays, cordons = max(wanted, 1), fleet.cordons or {}
    brokers = (names.broker_pod(fleet.cluster, ordinal) for ordinal in range(stays))
    takes = any(
        broker in fleet.serving and (broker not in cordons or cordons[broker].is_ours)
        for broker in brokers
    )
    return stays if takes else most


def _lifted(fleet: Fleet, stays: int) -> tuple[str, ...]:
    """Our cordons that have no purpose any more: of brokers that stay, which are the first ones,
    and of removed ones whose pod is gone."""
    if fleet.cordons is None:
        return ()
    exist = max(stays, fleet.replicas or 0)
    ours = (broker for broker, cordon in fleet.cordons.items() if cordon.is_ours)
    lifted = (
        broker
        for broker in ours
        if names.ordinal_of(broker) < stays
        or (names.ordinal_of(broker) >= exist and broker not in fleet.pods)
    )
    return tuple(sorted(lifted, key=names.ordinal_of))

"""Replacing a broker's pod on request (`magnetar drain --replace POD`).

Owns: what the annotation means, and the next step of a replacement. Imports: names, scaling,
rolling, conditions. Pure. Invariants: a request names a pod and its uid, so that it is over when
that pod is gone and never hits the successor; one broker at a time, and only while every other one
is ready; a pod goes when no bundle's record names its broker any more, except the only broker's,
whose bundles no broker could take; the cordon is lifted when the successor is ready; a change of
the number of brokers comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from magnetar_operator import names
from magnetar_operator.brokers.scaling import Fleet
from magnetar_operator.conditions import Reason, counted
from magnetar_operator.pods.rolling import BrokerPod


@dataclass(frozen=True, slots=True)
class ReplacePlan:
    """The next step. `reason` is None when nothing is to be replaced; `active` while a broker
    drains or goes for it.

    Waiting is not active, so that a roll can repair what is waited for.
    """

    cordon: str = ""
    uncordon: tuple[str, ...] = ()
    delete: str = ""
    broker: str = ""
    left: int = 0
    active: bool = False
    reason: Reason | None = None
    message: str = ""


def requests_of(annotation: str) -> Iterator[tuple[str, str]]:
    """Pod and uid of each request, in order: `<pod>@<uid>`, several with commas between them;
    anything else is passed over."""
    for part in annotation.split(","):
        pod, separator, uid = part.strip().partition("@")
        if separator and pod and uid:
            yield pod, uid


def plan_replace(
    annotation: str, fleet: Fleet, pods: Sequence[BrokerPod], scaling: bool
) -> ReplacePlan:
    """What to do about the requests in `annotation` now."""
    ours = [name for name, cordon in (fleet.cordons or {}).items() if cordon.is_for_replacement]
    present = {pod.name: pod for pod in pods}
    pending = [
        name
        for name, uid in requests_of(annotation)
        if name in present and present[name].uid == uid
    ]
    if scaling:
        # Two brokers that drain at once would be one too many; what the removed one's cordon was
        # for does not matter.
        last = (fleet.replicas or 0) - 1
        return ReplacePlan(
            uncordon=tuple(
                name for name in ours if names.ordinal_of(name) < last or name not in present
            )
        )
    over = [name for name in ours if name not in pending]
    returning = [name for name in over if name in present and not present[name].ready]
    lifted = tuple(name for name in over if name not in returning)
    if returning:
        message = f"{returning[0]} has been deleted; waiting until its successor is ready"
        return ReplacePlan(
            uncordon=lifted, broker=returning[0], reason=Reason.REPLACING, message=message
        )
    if not pending:
        return ReplacePlan(uncordon=lifted)
    chosen = next((name for name in pending if name in ours), pending[0])
    return _step(present[chosen], fleet, pods, lifted)


def _step(
    pod: BrokerPod, fleet: Fleet, pods: Sequence[BrokerPod], lifted: tuple[str, ...]
) -> ReplacePlan:
    name = pod.name
    plan = ReplacePlan(uncordon=lifted, broker=name, active=True, reason=Reason.REPLACING)
    if pod.terminating:
        return replace(plan, message=f"{name} stops; its successor follows")
    unready = next(
        (
            other.name
            for other in pods
            if other.name != name and (not other.ready or other.terminating)
        ),
        "",
    )
    if unready or len(pods) < (fleet.replicas or 0):
        message = f"{name} waits until {unready or 'the missing broker'} is ready"
        return replace(plan, active=False, reason=Reason.REPLACE_WAITS, message=message)
    if fleet.cordons is None or fleet.bundles is None:
        message = f"{name} cannot be drained: the metadata store does not answer"
        return ReplacePlan(broker=name, reason=Reason.STORE_UNAVAILABLE, message=message)
    left = fleet.bundles.get(name, 0)
    if len(pods) == 1:
        message = (
            f"{name} is the only broker: it seals its log and stops; its {left} bundles are served "
            "again when it is ready"
        )
        return replace(plan, delete=name, left=left, message=message)
    cordon = fleet.cordons.get(name)
    if cordon is None or not cordon.drain:
        message = f"{name} is cordoned and transfers {left} bundles"
        return replace(plan, cordon=name, left=left, message=message)
    if left:
        message = (
            f"{name} has {counted(left, 'bundle', 'bundles')} left to transfer before it is "
            "replaced"
        )
        return replace(plan, left=left, message=message)
    return replace(
        plan, delete=name, message=f"{name} is drained; its pod is deleted and comes back"
    )

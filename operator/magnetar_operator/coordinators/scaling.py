"""When transaction coordinators are added and removed.

Owns: the decision about replicas and about the set's record; whether a number may go. Imports:
names, conditions, coordinators.state. Pure. Invariants: more coordinators are made at once; one is
removed only after the limit was lowered below its number, its own record says that it begins
nothing any more and that nothing is open, and no other removal is under way; only the highest goes;
numbers above the limit are not announced.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.metadata.records import CoordinatorRecord, CoordinatorSetRecord, CoordinatorState
from magnetar_operator import names
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.coordinators.state import CoordinatorsState

_BEGIN_NOTHING = (CoordinatorState.RETIRING, CoordinatorState.RELEASED)


@dataclass(frozen=True, slots=True)
class CoordinatorFleet:
    """What scaling looks at.

    `replicas`: of the StatefulSet, None if there is none yet. `pods`: names of the pods that exist,
    terminating ones included. `state` is None while the store cannot be read. `owner` is how the
    set's record names the resource.
    """

    coordinators: str
    owner: str
    replicas: int | None
    pods: frozenset[str]
    state: CoordinatorsState | None


@dataclass(frozen=True, slots=True)
class CoordinatorPlan:
    """What to do now. `record` is to be written to the store first (None: it says so already);
    `reason` is None at the wanted size."""

    replicas: int
    record: CoordinatorSetRecord | None = None
    reason: Reason | None = None
    message: str = ""


def plan_coordinators(wanted: int, fleet: CoordinatorFleet) -> CoordinatorPlan:
    """One step towards `wanted` coordinators."""
    current, record = fleet.replicas, _record(wanted, fleet)
    if current is None or wanted == current:
        return CoordinatorPlan(wanted, record)
    if wanted > current:
        message = f"from {current} to {wanted} coordinators"
        return CoordinatorPlan(wanted, record, Reason.SCALING_COORDINATORS_UP, message)
    leaving = [pod for pod in fleet.pods if names.ordinal_of(pod) >= current]
    if leaving:
        message = f"{leaving[0]} is going; {current} of {wanted} wanted coordinators stay so far"
        return CoordinatorPlan(current, record, Reason.REMOVING_COORDINATOR, message)
    victim = names.coordinator_pod(fleet.coordinators, current - 1)
    if fleet.state is None:
        message = f"{victim} cannot be removed: the metadata store does not answer"
        return CoordinatorPlan(current, record, Reason.STORE_UNAVAILABLE, message)
    blocker = _may_go(fleet.state, current - 1, victim)
    if blocker is not None:
        return CoordinatorPlan(current, record, blocker.reason, blocker.message)
    message = f"{victim} has no open transactions and goes; {current - 1} coordinators stay"
    return CoordinatorPlan(current - 1, record, Reason.REMOVING_COORDINATOR, message)


def _record(wanted: int, fleet: CoordinatorFleet) -> CoordinatorSetRecord | None:
    """The set's record if it must change: raising the limit lets a retiring coordinator serve
    again, lowering it takes numbers back."""
    if fleet.state is None:
        return None
    should = CoordinatorSetRecord(
        limit=wanted, announced=min(wanted, fleet.state.announced), owner=fleet.owner
    )
    return should if should != fleet.state.known else None


def _may_go(state: CoordinatorsState, tcid: int, pod: str) -> Problem | None:
    """What keeps the coordinator of this number, or None if it may be removed: its own durable
    record decides, not its pod."""
    record: CoordinatorRecord | None = state.records.get(tcid)
    if state.known is None or state.known.limit > tcid:
        return Problem(Reason.COORDINATOR_RETIRING, f"{pod} is asked to begin no more transactions")
    if record is None:
        return None  # no coordinator has ever held this number
    if record.state not in _BEGIN_NOTHING:
        return Problem(
            Reason.COORDINATOR_RETIRING,
            f"{pod} has not confirmed yet that it begins no more transactions",
        )
    if record.open_transactions:
        return Problem(
            Reason.TRANSACTIONS_OPEN,
            f"{pod} has {record.open_transactions} open transactions; it goes when they have ended",
        )
    return None

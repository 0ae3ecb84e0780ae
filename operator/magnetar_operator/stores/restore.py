"""Restoring a cluster's metadata store by request: what comes next.

Owns: that decision. Imports: conditions, resources. Pure. Invariants: a request is carried out
once, whatever ends in between; nothing is begun for a request while etcd is intact or may come
back, unless it is forced; what was refused, has failed or is done stays so until another request is
made. Brokers and coordinators stay as they are: over an empty store they serve under their claims,
the command that fills it fences them, and a store that it has not finished admits no client
(`magnetar.hosting.joining`). So the pause of their clients begins with that fence, and is announced
before.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.resources.etcd import MetadataRestore, RestoreStatus
from magnetar_operator.conditions import Problem, Reason

MESSAGE_LENGTH_MAX = 500
PAUSE_MIN_S, PAUSE_PER_BUNDLE_S = 5, 0.03
"""From the fence until a client has its receipts again: the end of the old incarnations and the
start of new ones; what each bundle adds on one broker (measured: docs/restore.md)."""


class Phase(enum.StrEnum):
    """status.restore.phase."""

    NONE = ""
    WAITING = "Waiting"
    BEGINNING = "Beginning"
    FILLING = "Filling"
    RESTORED = "Restored"
    FAILED = "Failed"
    REFUSED = "Refused"


UNDER_WAY = frozenset({Phase.BEGINNING, Phase.FILLING})
_ENDED = frozenset({Phase.RESTORED, Phase.FAILED, Phase.REFUSED})


class Etcd(enum.Enum):
    """What was seen of etcd: it answers; its volumes are known to be empty; anything else."""

    ANSWERS = enum.auto()
    LOST = enum.auto()
    UNREACHABLE = enum.auto()


@dataclass(frozen=True, slots=True)
class RestoreView:
    """One look.

    `status`: the status as it is. `intact`: the store holds a cluster. `identity`: the etcd's
    clusterId, as it was last known. `pause_s`: the pause that is to be expected. `filled_for`: the
    request that the store was filled for. `pod`: phase of the pod that fills it ("" = there is
    none), `words`: its last ones, or what keeps it from starting.
    """

    asked: MetadataRestore | None
    status: RestoreStatus
    etcd: Etcd = Etcd.ANSWERS
    intact: bool = False
    identity: str = ""
    pause_s: int = 0
    filled_for: str = ""
    pod: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The status to write before anything is done, and whether the pod that fills the store is
    to be made."""

    status: RestoreStatus
    makes_pod: bool = False

    @property
    def is_held(self) -> bool:
        """Whether the fleet stays as it is, and nothing is written into the store but by the pod
        that fills it."""
        return is_held(self.status)

    @property
    def is_active(self) -> bool:
        """Whether there is something to look at soon."""
        return Phase(self.status.phase) in UNDER_WAY | {Phase.WAITING}

    @property
    def progress(self) -> Problem | None:
        """What Progressing says."""
        return (
            Problem(Reason.RESTORING, self.status.message)
            if Phase(self.status.phase) in UNDER_WAY
            else None
        )

    @property
    def problem(self) -> Problem | None:
        """What Degraded says."""
        reasons = {
            Phase.WAITING: Reason.RESTORE_WAITS,
            Phase.FAILED: Reason.RESTORE_FAILED,
            Phase.REFUSED: Reason.RESTORE_REFUSED,
        }
        reason = reasons.get(Phase(self.status.phase))
        return Problem(reason, self.status.message) if reason is not None else None


def is_held(status: RestoreStatus) -> bool:
    """Whether the fleet stays as it is, and nothing else is written into the store: also after a
    failure, when it may be half filled."""
    return Phase(status.phase) in UNDER_WAY | {Phase.FAILED}


def pause_s(bundles: Iterable[int]) -> int:
    """How long clients are to expect no receipts, in seconds; `bundles`: of each broker."""
    return math.ceil(PAUSE_MIN_S + PAUSE_PER_BUNDLE_S * max(bundles, default=0))


def plan_restore(view: RestoreView) -> RestorePlan:
    """The next phase."""
    asked, status = view.asked, view.status
    if asked is None:
        # Withdrawn. What fills the store is waited for; nothing else needs to end.
        if status.phase == Phase.FILLING and view.pod not in ("", "Succeeded", "Failed"):
            return RestorePlan(status)
        phase = status.phase if status.phase == Phase.RESTORED else Phase.NONE
        return RestorePlan(status if phase else RestoreStatus(replaces=status.replaces))
    known = status
    if status.request != asked.request:
        known = RestoreStatus(
            request=asked.request, replaces=status.replaces, pause_seconds=view.pause_s
        )
    if known.phase in _ENDED:
        return RestorePlan(known)
    if view.filled_for == asked.request:
        return _to(
            known,
            Phase.RESTORED,
            "the metadata store is restored; the log of the pod that did it names what to look at",
        )
    if known.phase not in UNDER_WAY and not asked.force:
        if view.etcd is Etcd.ANSWERS and view.intact:
            return _to(
                known, Phase.REFUSED, "the metadata store is intact, and restore.force is not set"
            )
        if view.etcd is Etcd.UNREACHABLE:
            return _to(known, Phase.WAITING, "etcd does not answer, and is not known to be lost")
    return _carry_out(view, known)


def _carry_out(view: RestoreView, known: RestoreStatus) -> RestorePlan:
    """A request that nothing speaks against."""
    pause = (
        f"then no topic is served for about {known.pause_seconds} s"
        if known.pause_seconds
        else "then there is a pause"
    )
    if view.etcd is Etcd.LOST:
        begun = known.model_copy(update={"replaces": view.identity or known.replaces})
        return _to(
            begun,
            Phase.BEGINNING,
            "an empty etcd is begun in the place of the lost one; brokers serve until it is "
            f"filled, {pause}",
        )
    if view.etcd is Etcd.UNREACHABLE:
        return _to(
            known,
            Phase.BEGINNING,
            f"waiting for etcd to answer; brokers serve until it is filled, {pause}",
        )
    if view.pod == "Failed":
        return _to(
            known,
            Phase.FAILED,
            f"the pod that fills the store has failed: {view.words or 'see its log'}",
        )
    if view.pod == "Succeeded":
        return _to(
            known,
            Phase.FILLING,
            "the pod that fills the store has ended; the store has not said so yet",
        )
    held_up = f" ({view.words})" if view.words else ""
    plan = _to(
        known,
        Phase.FILLING,
        f"a pod fills the metadata store{held_up}; brokers serve until it fences them, {pause}",
    )
    # The phase is durable before the pod is made.
    return RestorePlan(plan.status, makes_pod=not view.pod and view.status == plan.status)


def _to(known: RestoreStatus, phase: Phase, message: str) -> RestorePlan:
    return RestorePlan(
        known.model_copy(update={"phase": phase.value, "message": message[:MESSAGE_LENGTH_MAX]})
    )

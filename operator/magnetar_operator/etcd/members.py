"""Which members a managed etcd has, and what is done next about it.

Owns: the plan of one step towards the wanted members. Imports: membership, conditions. Pure.
Invariants: a voter is added only after it has caught up as a learner; no removal, promotion or
restart leaves fewer healthy voters than the quorum of the voters then needs (the single voter's own
restart is the one exception: it has no quorum to keep); a member's id is removed before its pod is
deleted, and a pod whose data is gone never comes back under its old id; a healthy leader transfers
leadership before it is removed or restarted; at most one thing happens at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from magnetar_operator.conditions import Reason
from magnetar_operator.etcd.membership import (
    MEMBERS_MAX,
    AddLearner,
    Admission,
    CorrectAddress,
    EtcdPlan,
    EtcdPod,
    EtcdView,
    Member,
    MoveLeader,
    Promote,
    RemoveMember,
    Restart,
    Step,
    Voice,
    quorum,
)

LAG_MAX = 1000
"""Log entries that a member may be behind the leader and still count as caught up."""


def plan_members(view: EtcdView) -> EtcdPlan:
    """The next step towards `view.wanted` members that all run the newest template."""
    pending = tuple(
        (ordinal, pod.outdated)
        for ordinal, pod in sorted(view.pods.items())
        if pod.outdated and not pod.terminating
    )
    return replace(_plan(view), pending=pending)


def _plan(view: EtcdView) -> EtcdPlan:
    if view.members is None:
        return _without_list(view)
    table = _Table(view, view.members)
    replicas, admission = table.replicas(), table.admission()
    found = (
        _sick_outdated(view)
        or table.strange()
        or table.lost()
        or table.superfluous_learner()
        or table.growing()
        or table.shrinking()
        or table.rolling()
    )
    if found is None:
        return EtcdPlan(replicas, admission)
    return EtcdPlan(replicas, admission, found.step, found.reason, found.message)


@dataclass(frozen=True, slots=True)
class _Found:
    """Something to do (`step`) or to wait for."""

    reason: Reason
    message: str
    step: Step | None = None


def _sick_outdated(view: EtcdView) -> _Found | None:
    """A pod that is sick and has an old template: its restart costs nothing, and may be
    what heals it."""
    if any(pod.terminating for pod in view.pods.values()):
        return None
    for ordinal, pod in sorted(view.pods.items()):
        # Not ready for the kubelet and silent towards us: one of the two alone may be our own lack
        # of sight.
        if pod.outdated and not pod.ready and ordinal not in view.voices:
            return _restart(ordinal, pod.outdated)
    return None


def _restart(ordinal: int, why: str) -> _Found:
    message = f"etcd pod {ordinal} is restarted: {why}"
    return _Found(Reason.ETCD_ROLLING, message, Restart(ordinal, why))


# --- no quorum, or no etcd yet --------------------------------------------------------------------


def _without_list(view: EtcdView) -> EtcdPlan:
    """Nothing about members can be decided; pods are kept, and a cluster that never was is
    begun."""
    oldest = max(view.claims, default=-1) + 1
    replicas = view.replicas if view.replicas is not None else min(max(1, oldest), MEMBERS_MAX)
    sick = _sick_outdated(view)
    if sick is not None:
        return EtcdPlan(replicas, _begin(view), sick.step, sick.reason, sick.message)
    empty = sorted(
        ordinal for ordinal, pod in view.pods.items() if pod.empty and not pod.terminating
    )
    if not view.known:
        admission = _begin(view)
        if admission.bootstrap and view.admission == 0 and 0 in empty:
            # It was refused before it was admitted.
            return EtcdPlan(
                replicas,
                admission,
                Restart(0, "it may begin a new cluster now"),
                Reason.STORE_STARTING,
                "etcd is begun again",
            )
        if 0 in empty and not admission.bootstrap:
            message = (
                "the volume of etcd pod 0 holds no data, but claims of other members exist: delete "
                "them if they hold none that you need"
            )
            return EtcdPlan(replicas, admission, None, Reason.ETCD_DATA_LOST, message)
        return EtcdPlan(
            replicas,
            admission,
            None,
            Reason.STORE_STARTING,
            "the first member of etcd is not up yet",
        )
    if empty and len(empty) >= quorum(max(replicas, 1)):
        message = (
            f"the volumes of etcd pods {', '.join(map(str, empty))} hold no data any more: etcd "
            "has lost its quorum permanently"
        )
        return EtcdPlan(replicas, Admission(), None, Reason.ETCD_DATA_LOST, message)
    up = sum(pod.ready for pod in view.pods.values())
    return EtcdPlan(
        replicas,
        Admission(),
        None,
        Reason.ETCD_NO_QUORUM,
        f"no quorum answers; {up} of {replicas} etcd pods are ready",
    )


def _begin(view: EtcdView) -> Admission:
    """Pod 0 may begin a cluster only if nothing says that another volume holds one."""
    others = [ordinal for ordinal in view.claims if ordinal > 0]
    if view.known or any(not view.pods.get(ordinal, EtcdPod()).empty for ordinal in others):
        return Admission()
    return Admission(0, bootstrap=True, ordinals=(0,))


# --- the list is known ----------------------------------------------------------------------------


class _Table:
    """The members as a quorum knows them, beside what was seen of each."""

    def __init__(self, view: EtcdView, members: tuple[Member, ...]) -> None:
        self._view, self._members = view, members
        self._voters = [member for member in members if not member.learner]
        self._by_ordinal = {
            member.ordinal: member for member in members if member.ordinal is not None
        }
        self._healthy = {member.id for member in members if self._is_healthy(member)}
        self._leader = next((member for member in self._voters if self._leads(member)), None)

    def _voice(self, member: Member) -> Voice | None:
        voice = self._view.voices.get(member.ordinal) if member.ordinal is not None else None
        return voice if voice is not None and voice.member == member.id else None

    def _is_healthy(self, member: Member) -> bool:
        voice = self._voice(member)
        pod = self._view.pods.get(member.ordinal) if member.ordinal is not None else None
        return (
            member.started
            and voice is not None
            and voice.leader != 0
            and pod is not None
            and not pod.terminating
        )

    def _leads(self, member: Member) -> bool:
        voice = self._voice(member)
        return voice is not None and voice.leader == member.id

    def _survives(self, voters: list[Member], lost: int = 0) -> bool:
        """Whether the healthy ones among `voters` are a quorum of them when the healthy member
        `lost` is gone."""
        return sum(member.id in self._healthy and member.id != lost for member in voters) >= quorum(
            len(voters)
        )

    def _caught_up(self, member: Member) -> bool:
        voice, leader = self._voice(member), self._leader
        front = self._voice(leader) if leader is not None else None
        return voice is not None and front is not None and voice.applied + LAG_MAX >= front.applied

    def replicas(self) -> int:
        """Every member keeps its pod, and nothing wanted is dropped."""
        highest = max(self._by_ordinal, default=0)
        kept = min(self._view.replicas or 0, self._view.wanted)
        return min(max(1, highest + 1, kept), MEMBERS_MAX)

    def admission(self) -> Admission:
        """Open for the one member that is expected and has never been there."""
        for member in self._members:
            if (
                not member.started
                and member.learner
                and member.ordinal is not None
                and member.ordinal < self._view.wanted
            ):
                return Admission(
                    member.ordinal, member=member.id, ordinals=tuple(sorted(self._by_ordinal))
                )
        return Admission()

    # --- repairs ----------------------------------------------------------------------------------

    def strange(self) -> _Found | None:
        """Members that another writer added: nothing is changed around
        them."""
        foreign = next(
            (
                member
                for member in self._members
                if member.ordinal is None or member.ordinal >= MEMBERS_MAX
            ),
            None,
        )
        if foreign is None:
            return None
        return _Found(
            Reason.ETCD_STRANGER,
            f"member {foreign.id:x} of etcd is at an address that is none of this cluster's pods",
        )

    def lost(self) -> _Found | None:
        """Members whose volume holds nothing any more: they must not come back under their id,
        which others trust to remember."""
        for ordinal, member in sorted(self._by_ordinal.items()):
            pod = self._view.pods.get(ordinal)
            if not member.started or pod is None or not pod.empty or member.id in self._healthy:
                continue
            rest = [voter for voter in self._voters if voter.id != member.id]
            if not rest or not self._survives(rest):
                return _Found(
                    Reason.ETCD_NO_QUORUM,
                    f"member {ordinal} of etcd has lost its data, and the others are no quorum",
                )
            step = RemoveMember(member.id, ordinal, "its volume holds no data any more")
            return _Found(
                Reason.ETCD_REPLACING,
                f"member {ordinal} of etcd has lost its data and is replaced",
                step,
            )
        return None

    def superfluous_learner(self) -> _Found | None:
        """A learner that is not wanted any more; etcd admits one at a time, so it would be in
        the way."""
        for ordinal, member in sorted(self._by_ordinal.items(), reverse=True):
            if member.learner and ordinal >= self._view.wanted:
                step = RemoveMember(member.id, ordinal, "it is not wanted any more")
                return _Found(Reason.ETCD_SCALING, f"learner {ordinal} is removed", step)
        return None

    # --- up and down ------------------------------------------------------------------------------

    def growing(self) -> _Found | None:
        """Bring every wanted ordinal to a vote: expect it, wait until it has caught up, promote
        it."""
        learner = next((member for member in self._members if member.learner), None)
        if learner is not None and learner.ordinal is not None:
            return self._join(learner, learner.ordinal)
        missing = next(
            (ordinal for ordinal in range(self._view.wanted) if ordinal not in self._by_ordinal),
            None,
        )
        if missing is None:
            return None
        sick = next((voter for voter in self._voters if voter.id not in self._healthy), None)
        if sick is not None:
            return _Found(
                Reason.ETCD_SCALING,
                f"member {missing} of etcd is added when member {sick.ordinal} is healthy again",
            )
        moved = next((voter for voter in self._voters if voter.moved), None)
        if moved is not None and moved.ordinal is not None:
            step = CorrectAddress(moved.id, moved.ordinal)
            return _Found(
                Reason.ETCD_SCALING,
                f"the address of member {moved.ordinal} of etcd is corrected",
                step,
            )
        return _Found(
            Reason.ETCD_SCALING,
            f"member {missing} of etcd is added as a learner",
            AddLearner(missing),
        )

    def _join(self, learner: Member, ordinal: int) -> _Found:
        pod = self._view.pods.get(ordinal)
        if not learner.started:
            stuck = (
                pod is not None
                and not pod.terminating
                and (pod.empty or pod.failing)
                and ordinal not in self._view.voices
            )
            if stuck and self._view.admission == ordinal:
                step = Restart(ordinal, "it may join now")
                return _Found(
                    Reason.ETCD_SCALING, f"etcd pod {ordinal} is started again to join", step
                )
            return _Found(
                Reason.ETCD_SCALING,
                f"member {ordinal} of etcd is expected; its pod has not joined yet",
            )
        if learner.id not in self._healthy:
            return _Found(Reason.ETCD_SCALING, f"learner {ordinal} of etcd does not answer")
        if self._view.admission is not None:
            # first the admission ends
            return _Found(Reason.ETCD_SCALING, f"learner {ordinal} of etcd has joined")
        if not self._caught_up(learner):
            return _Found(Reason.ETCD_SCALING, f"learner {ordinal} of etcd is catching up")
        if not self._survives([*self._voters, learner]):
            return _Found(
                Reason.ETCD_NO_QUORUM,
                f"learner {ordinal} of etcd waits until the voters are healthy",
            )
        return _Found(
            Reason.ETCD_SCALING,
            f"learner {ordinal} of etcd becomes a voter",
            Promote(learner.id, ordinal),
        )

    def shrinking(self) -> _Found | None:
        """Remove what is beyond the wanted number: the sick first, then the highest; every
        wanted member is healthy by then, or none is removed."""
        beyond = [
            member
            for member in self._voters
            if member.ordinal is not None and member.ordinal >= self._view.wanted
        ]
        if not beyond:
            return None
        staying = [member for member in self._voters if member not in beyond]
        sick = next((member for member in staying if member.id not in self._healthy), None)
        if sick is not None:
            return _Found(
                Reason.ETCD_NO_QUORUM,
                f"no member is removed from etcd before member {sick.ordinal} is healthy",
            )
        victim = min(
            beyond, key=lambda member: (member.id in self._healthy, -(member.ordinal or 0))
        )
        ordinal = victim.ordinal or 0
        if not self._survives([voter for voter in self._voters if voter.id != victim.id]):
            return _Found(
                Reason.ETCD_NO_QUORUM,
                f"member {ordinal} of etcd stays: without it the others would be no quorum",
            )
        if self._leads(victim) and staying:
            step = MoveLeader(ordinal, staying[0].id)
            return _Found(
                Reason.ETCD_SCALING,
                f"member {ordinal} of etcd hands leadership on before it goes",
                step,
            )
        return _Found(
            Reason.ETCD_SCALING,
            f"member {ordinal} of etcd goes",
            RemoveMember(victim.id, ordinal, "it is not wanted any more"),
        )

    # --- restarts ---------------------------------------------------------------------------------

    def rolling(self) -> _Found | None:
        """Restart outdated pods one by one, followers first, while every other member is healthy
        and caught up."""
        outdated = [
            member
            for ordinal, member in sorted(self._by_ordinal.items(), reverse=True)
            if (pod := self._view.pods.get(ordinal)) is not None
            and pod.outdated
            and not pod.terminating
        ]
        if not outdated:
            return self._unfinished()
        waits = self._unfinished()
        if waits is not None:
            return _Found(Reason.ETCD_ROLL_WAITS, waits.message)
        victim = next((member for member in outdated if not self._leads(member)), outdated[0])
        ordinal = victim.ordinal or 0
        alone = len(self._voters) == 1
        if not alone and not self._survives(self._voters, lost=victim.id):
            return _Found(
                Reason.ETCD_ROLL_WAITS,
                f"etcd pod {ordinal} has an old template; restarting it would lose the quorum",
            )
        if not alone and self._leads(victim):
            target = next(voter for voter in self._voters if voter.id != victim.id)
            return _Found(
                Reason.ETCD_ROLLING,
                f"member {ordinal} of etcd hands leadership on before its restart",
                MoveLeader(ordinal, target.id),
            )
        return _restart(ordinal, self._view.pods[ordinal].outdated)

    def _unfinished(self) -> _Found | None:
        """A member that is not whole: down, coming back, or behind; or a pod that is still
        going."""
        for ordinal, pod in sorted(self._view.pods.items()):
            if pod.terminating:
                return _Found(Reason.ETCD_MEMBER_DOWN, f"etcd pod {ordinal} is stopping")
        for member in self._voters:
            if member.id not in self._healthy:
                return _Found(
                    Reason.ETCD_MEMBER_DOWN, f"member {member.ordinal} of etcd does not answer"
                )
            if not self._caught_up(member):
                return _Found(
                    Reason.ETCD_MEMBER_DOWN, f"member {member.ordinal} of etcd is catching up"
                )
        return None

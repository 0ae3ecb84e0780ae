"""The members of a managed etcd: what is seen of them and what can be done about them.

Owns: the values that the plan of members (members.py) reads and returns. Imports: conditions. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar_operator.conditions import Reason

MEMBERS_MAX = 3


# --- what is seen ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of etcd's own list. `ordinal` is None for an address that is none of ours;
    `started` is false until it has joined once; `moved`: others know an address that it had
    before (its host is right, the scheme is not)."""

    id: int
    ordinal: int | None
    started: bool = True
    learner: bool = False
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Voice:
    """What a member that answers reports. `leader` is 0 while it knows none."""

    member: int
    leader: int
    applied: int


@dataclass(frozen=True, slots=True)
class EtcdPod:
    """One pod. `outdated`: why it is to be restarted ("" = it is not); `empty`: its start was
    refused, because its volume holds no member's data; `failing`: it ended at least once and is
    not ready."""

    ready: bool = True
    terminating: bool = False
    outdated: str = ""
    empty: bool = False
    failing: bool = False


@dataclass(frozen=True, slots=True)
class EtcdView:
    """One look at everything.

    `replicas`: of the StatefulSet, None if there is none. `pods` and `claims` by ordinal; claims
    are looked at only while `members` is None and the set is not there or the etcd is not known.
    `known`: this resource's etcd has been up before. `members` is None unless a quorum has just
    confirmed the list. `voices` by ordinal. `admission`: the ordinal that may start without data
    now, as the config map says it.
    """

    wanted: int
    replicas: int | None = None
    pods: Mapping[int, EtcdPod] = field(default_factory=dict)
    claims: frozenset[int] = frozenset()
    known: bool = False
    members: tuple[Member, ...] | None = None
    voices: Mapping[int, Voice] = field(default_factory=dict)
    admission: int | None = None


# --- what to do -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Have etcd expect the pod of `ordinal` as a learner."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class CorrectAddress:
    """Give the other members the address of a member."""

    member: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Promote:
    """Make a learner a voter."""

    member: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Take a member out of etcd's list."""

    member: int
    ordinal: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveLeader:
    """Have the leader, the pod of `ordinal`, hand leadership to `target`."""

    ordinal: int
    target: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Delete a pod, with its grace period."""

    ordinal: int
    why: str


MemberStep = AddLearner | CorrectAddress | Promote | RemoveMember | MoveLeader
Step = MemberStep | Restart


@dataclass(frozen=True, slots=True)
class Admission:
    """Which pod may start without data: none, or `ordinal`, as the first member of a new cluster
    (`bootstrap`) or as the expected `member` among those of `ordinals`."""

    ordinal: int | None = None
    bootstrap: bool = False
    member: int = 0
    ordinals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EtcdPlan:
    """`replicas` is what the StatefulSet gets; `step` None = nothing to do or to wait for
    `reason`; `reason` None = as wanted."""

    replicas: int
    admission: Admission = Admission()
    step: Step | None = None
    reason: Reason | None = None
    message: str = ""
    pending: tuple[tuple[int, str], ...] = ()


def quorum(voters: int) -> int:
    """How many of `voters` must agree."""
    return voters // 2 + 1
